#define _GNU_SOURCE
#include "serve.h"

#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FUSE_USE_VERSION 32
#include <fuse_lowlevel.h>

enum {
    CACHE_BYTES = 32 << 20,
    LEAST_THREADS = 4,
    MOST_THREADS = 16,
    FIRST_NODE = 2, /* 0 is none, and 1 the root */
};

static const double FOR_EVER_S = 365 * 86400;
static const fuse_ino_t FIRST_ABOVE = 1ULL << 62; /* references of inodes have 48 bits */

typedef struct {
    sq_image *image;
    sq_cache *cache;
    struct fuse_session *session;
    int is_gone; /* unmounted by others */
    sq_options options;
    size_t depth;      /* number of folders above the image's root */
    int opens_folders; /* the kernel, itself */
} server;

/* A thread's buffers. */
typedef struct {
    uint8_t *stored;
    uint8_t *content;
    size_t content_bytes;
} buffers;

static pthread_key_t key;

static void free_buffers(void *of_thread)
{
    buffers *self = of_thread;

    free(self->stored);
    free(self->content);
    free(self);
}

/* Return this thread's buffers, with space for so much content; NULL without memory. */
static buffers *get_buffers(const server *of, size_t content_bytes)
{
    buffers *self = pthread_getspecific(key);

    if (self == NULL) {
        self = calloc(1, sizeof *self);
        if (self == NULL || pthread_setspecific(key, self) != 0) {
            free(self);
            return NULL;
        }
    }
    if (self->stored == NULL && (self->stored = malloc(sq_block_bytes(of->image))) == NULL)
        return NULL;
    if (self->content_bytes < content_bytes) {
        free(self->content);
        self->content = malloc(content_bytes);
        self->content_bytes = self->content ? content_bytes : 0;
    }
    return self->content_bytes < content_bytes ? NULL : self;
}

static fuse_ino_t node_of(const server *self, uint64_t ref)
{
    return self->depth == 0 && ref == sq_root(self->image) ? FUSE_ROOT_ID : ref + FIRST_NODE;
}

/* Return how deep a folder above the image's root is; `depth` for all that is in the image. */
static size_t level_of(const server *self, fuse_ino_t node)
{
    if (self->depth == 0 || node == FUSE_ROOT_ID)
        return 0;
    return node >= FIRST_ABOVE ? (size_t)(node - FIRST_ABOVE) : self->depth;
}

/* Return the only folder in a folder above the image's root. */
static fuse_ino_t below(const server *self, size_t level)
{
    return level + 1 < self->depth ? FIRST_ABOVE + level + 1 : node_of(self, sq_root(self->image));
}

/* Folders above the image's root are like it. */
static int find(const server *self, fuse_ino_t node, sq_inode *out)
{
    size_t level = level_of(self, node);
    int is_above = level < self->depth, is_root = is_above || node == FUSE_ROOT_ID;
    int rc = sq_find_inode(self->image, is_root ? sq_root(self->image) : node - FIRST_NODE, out);

    if (rc == 0 && is_above)
        out->number = out->parent = UINT32_MAX - (uint32_t)level;
    return rc;
}

/* Return a mode with which the owner of an unpacked image could do what root could. */
static uint32_t opened_mode(uint32_t mode)
{
    uint32_t added = S_ISDIR(mode) ? S_IRWXU : mode & (S_IXUSR | S_IXGRP | S_IXOTH) ? S_IXUSR : 0;

    return S_ISLNK(mode) ? mode : mode | S_IRUSR | added;
}

static struct stat status_of(const server *self, const sq_inode *inode)
{
    int is_device = S_ISCHR(inode->mode) || S_ISBLK(inode->mode);
    uint32_t minor = (inode->device & 0xff) | (inode->device >> 12 & 0xfff00);

    return (struct stat){
        .st_ino = inode->number,
        .st_mode = self->depth > 0 ? opened_mode(inode->mode) : inode->mode,
        .st_nlink = inode->links,
        .st_uid = self->options.uid == SQ_NONE ? inode->uid : self->options.uid,
        .st_gid = self->options.gid == SQ_NONE ? inode->gid : self->options.gid,
        .st_rdev = is_device ? makedev(inode->device >> 8 & 0xfff, minor) : 0,
        .st_size = (off_t)inode->size_bytes,
        .st_blocks = (blkcnt_t)(inode->size_bytes / 512 + (inode->size_bytes % 512 > 0)),
        .st_blksize = (blksize_t)sq_block_bytes(self->image),
        .st_atime = inode->mtime_s,
        .st_mtime = inode->mtime_s,
        .st_ctime = inode->mtime_s,
    };
}

static int describe(const server *self, fuse_ino_t node, struct fuse_entry_param *out)
{
    sq_inode inode;
    int rc = find(self, node, &inode);

    *out = (struct fuse_entry_param){.attr_timeout = FOR_EVER_S, .entry_timeout = FOR_EVER_S};
    if (rc < 0)
        return rc;
    out->ino = node;
    out->attr = status_of(self, &inode);
    return 0;
}

static void begin(void *userdata, struct fuse_conn_info *connection)
{
    const unsigned wanted = FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS |
                            FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_NO_OPEN_SUPPORT |
                            FUSE_CAP_NO_OPENDIR_SUPPORT | FUSE_CAP_CACHE_SYMLINKS;

    ((server *)userdata)->opens_folders = (connection->capable & FUSE_CAP_NO_OPENDIR_SUPPORT) != 0;
    connection->want |= wanted & connection->capable;
}

static void look_up(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    const server *self = fuse_req_userdata(request);
    struct fuse_entry_param found = {.entry_timeout = FOR_EVER_S};
    size_t level = level_of(self, parent);
    fuse_ino_t node = 0;
    int rc;

    if (level < self->depth) {
        rc = strcmp(name, self->options.above[level]) == 0 ? 0 : -ENOENT;
        node = below(self, level);
    } else {
        sq_inode folder;
        sq_entry entry;

        rc = find(self, parent, &folder);
        if (rc == 0)
            rc = sq_look_up(self->image, &folder, name, &entry);
        if (rc == 0)
            node = node_of(self, entry.ref);
    }
    if (rc == 0)
        rc = describe(self, node, &found);
    /* An answer without inode says that there is no such name, which the kernel caches too. */
    if (rc == 0 || rc == -ENOENT)
        fuse_reply_entry(request, &found);
    else
        fuse_reply_err(request, -rc);
}

static void get_attributes(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    const server *self = fuse_req_userdata(request);
    struct stat status;
    sq_inode inode;
    int rc = find(self, node, &inode);

    (void)info;
    if (rc < 0) {
        fuse_reply_err(request, -rc);
        return;
    }
    status = status_of(self, &inode);
    fuse_reply_attr(request, &status, FOR_EVER_S);
}

static void read_link(fuse_req_t request, fuse_ino_t node)
{
    const server *self = fuse_req_userdata(request);
    char target[UINT16_MAX + 1];
    sq_inode inode;
    int rc = find(self, node, &inode);

    if (rc == 0 && !S_ISLNK(inode.mode))
        rc = -EINVAL;
    if (rc < 0) {
        fuse_reply_err(request, -rc);
        return;
    }
    memcpy(target, inode.target, inode.size_bytes);
    target[inode.size_bytes] = '\0';
    fuse_reply_readlink(request, target);
}

/* The kernel opens files itself from the first such answer on, and keeps what it has read. */
static void open_file(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    (void)node;
    (void)info;
    fuse_reply_err(request, ENOSYS);
}

/* Kernels before 5.1 always ask. */
static void open_folder(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    const server *self = fuse_req_userdata(request);

    (void)node;
    if (self->opens_folders)
        fuse_reply_err(request, ENOSYS);
    else
        fuse_reply_open(request, info);
}

/* Read a part of a block that lies in the file. */
static int read_part(const server *self, const sq_inode *file, uint64_t offset, uint32_t size_bytes,
                     const buffers *own, uint8_t *out)
{
    uint32_t block_bytes = sq_block_bytes(self->image);
    uint32_t skip = (uint32_t)(offset % block_bytes), begin;
    sq_cached *found;
    sq_block block;
    int rc = sq_find_block(self->image, file, offset / block_bytes, &block, &begin);

    if (rc < 0)
        return rc;
    if (block.size_bytes == size_bytes) { /* all of it: it is not asked for again */
        int64_t got = sq_read_block(self->image, &block, own->stored, out);

        return got < 0 ? (int)got : 0;
    }
    rc = sq_cache_get(self->cache, &block, own->stored, &found);
    if (rc < 0)
        return rc;
    if (begin + (uint64_t)skip + size_bytes > (uint64_t)found->size_bytes)
        rc = -EIO;
    else
        memcpy(out, found->data + begin + skip, size_bytes);
    sq_cache_release(self->cache, found);
    return rc;
}

static int read_content(const server *self, const sq_inode *file, uint64_t offset,
                        size_t size_bytes, const buffers *own)
{
    uint32_t block_bytes = sq_block_bytes(self->image);
    uint8_t *out = own->content;
    int rc = 0;

    while (rc == 0 && size_bytes > 0) {
        size_t part = block_bytes - offset % block_bytes;

        if (part > size_bytes)
            part = size_bytes;
        rc = read_part(self, file, offset, (uint32_t)part, own, out);
        out += part;
        offset += part;
        size_bytes -= part;
    }
    return rc;
}

static void read_file(fuse_req_t request, fuse_ino_t node, size_t size_bytes, off_t offset,
                      struct fuse_file_info *info)
{
    const server *self = fuse_req_userdata(request);
    buffers *own = get_buffers(self, size_bytes);
    uint64_t at = (uint64_t)offset;
    sq_inode inode;
    int rc = own == NULL ? -ENOMEM : find(self, node, &inode);

    (void)info;
    if (rc == 0 && !S_ISREG(inode.mode))
        rc = -EISDIR;
    if (rc == 0) {
        if (at >= inode.size_bytes)
            size_bytes = 0;
        else if (size_bytes > inode.size_bytes - at)
            size_bytes = inode.size_bytes - at;
        rc = read_content(self, &inode, at, size_bytes, own);
    }
    if (rc < 0)
        fuse_reply_err(request, -rc);
    else
        fuse_reply_buf(request, (const char *)own->content, size_bytes);
}

/* Without a node the kernel gets no attributes, as of "." and "..". */
static size_t add_entry(const server *self, fuse_req_t request, char *to, size_t room, int plus,
                        const char *name, const sq_entry *entry, fuse_ino_t node, uint64_t next)
{
    struct fuse_entry_param known = {0};
    struct stat status = {.st_ino = entry->number, .st_mode = entry->mode};

    if (!plus)
        return fuse_add_direntry(request, to, room, name, &status, (off_t)next);
    known.attr = status;
    if (node != 0 && describe(self, node, &known) < 0)
        known.attr = status;
    return fuse_add_direntry_plus(request, to, room, name, &known, (off_t)next);
}

/* Offsets of a list: 1 after ".", 2 after "..", then two more than the place in the list. */
static void list(fuse_req_t request, fuse_ino_t node, size_t size_bytes, off_t offset, int plus)
{
    const server *self = fuse_req_userdata(request);
    buffers *own = get_buffers(self, size_bytes);
    size_t used = 0, level = level_of(self, node);
    sq_inode folder;
    sq_entry entry;
    sq_list entries;
    int rc = own == NULL ? -ENOMEM : find(self, node, &folder);

    if (rc == 0 && level == self->depth)
        rc = sq_open_list(self->image, &folder, &entries);
    for (int dots = 1; rc == 0 && dots <= 2; dots++) {
        sq_entry dot = {.number = dots == 1 ? folder.number : folder.parent, .mode = S_IFDIR};

        if (offset < dots)
            used += add_entry(self, request, (char *)own->content + used, size_bytes - used, plus,
                              dots == 1 ? "." : "..", &dot, 0, (uint64_t)dots);
    }
    if (rc == 0 && level < self->depth && offset < 3) {
        sq_entry only = {.number = folder.number - 1, .mode = S_IFDIR};

        used += add_entry(self, request, (char *)own->content + used, size_bytes - used, plus,
                          self->options.above[level], &only, below(self, level), 3);
    }
    while (rc == 0 && level == self->depth && (rc = sq_next_entry(&entries, &entry)) == 0) {
        char name[SQ_MAX_NAME_BYTES + 1];
        uint64_t next = entries.at + 2;
        size_t length;

        if (next <= (uint64_t)offset)
            continue;
        memcpy(name, entry.name, entry.name_bytes);
        name[entry.name_bytes] = '\0';
        length = add_entry(self, request, (char *)own->content + used, size_bytes - used, plus,
                           name, &entry, node_of(self, entry.ref), next);
        if (length > size_bytes - used)
            break;
        used += length;
    }
    if (rc < 0 && rc != -ENOENT)
        fuse_reply_err(request, -rc);
    else
        fuse_reply_buf(request, (const char *)own->content, used);
}

static void read_folder(fuse_req_t request, fuse_ino_t node, size_t size_bytes, off_t offset,
                        struct fuse_file_info *info)
{
    (void)info;
    list(request, node, size_bytes, offset, 0);
}

static void read_folder_plus(fuse_req_t request, fuse_ino_t node, size_t size_bytes, off_t offset,
                             struct fuse_file_info *info)
{
    (void)info;
    list(request, node, size_bytes, offset, 1);
}

static void describe_all(fuse_req_t request, fuse_ino_t node)
{
    const server *self = fuse_req_userdata(request);
    uint32_t block_bytes = sq_block_bytes(self->image);
    struct statvfs status = {
        .f_bsize = block_bytes,
        .f_frsize = block_bytes,
        .f_blocks = (sq_size_bytes(self->image) + block_bytes - 1) / block_bytes,
        .f_files = sq_inode_count(self->image),
        .f_namemax = SQ_MAX_NAME_BYTES,
    };

    (void)node;
    fuse_reply_statfs(request, &status);
}

static void reply_value(fuse_req_t request, const uint8_t *value, size_t value_bytes, size_t room)
{
    if (room == 0)
        fuse_reply_xattr(request, value_bytes);
    else if (value_bytes > room)
        fuse_reply_err(request, ERANGE);
    else
        fuse_reply_buf(request, (const char *)value, value_bytes);
}

static int open_xattrs(const server *self, fuse_ino_t node, sq_xattrs *out)
{
    sq_inode inode;
    int rc;

    if (!sq_has_xattrs(self->image))
        return -ENOSYS; /* the kernel asks for none any more */
    rc = find(self, node, &inode);
    return rc < 0 ? rc : sq_open_xattrs(self->image, &inode, out);
}

static void get_xattr(fuse_req_t request, fuse_ino_t node, const char *name, size_t room)
{
    const server *self = fuse_req_userdata(request);
    sq_xattrs all;
    sq_xattr one;
    int rc = open_xattrs(self, node, &all);

    while (rc == 0 && (rc = sq_next_xattr(self->image, &all, &one)) == 0) {
        size_t prefix = strlen(one.prefix);

        if (strncmp(name, one.prefix, prefix) == 0 && strlen(name + prefix) == one.name_bytes &&
            memcmp(name + prefix, one.name, one.name_bytes) == 0) {
            reply_value(request, one.value, one.value_bytes, room);
            return;
        }
    }
    fuse_reply_err(request, -rc);
}

static void list_xattrs(fuse_req_t request, fuse_ino_t node, size_t room)
{
    const server *self = fuse_req_userdata(request);
    buffers *own = get_buffers(self, UINT16_MAX);
    size_t used = 0;
    sq_xattrs all;
    sq_xattr one;
    int rc = own == NULL ? -ENOMEM : open_xattrs(self, node, &all);

    while (rc == 0 && (rc = sq_next_xattr(self->image, &all, &one)) == 0) {
        size_t prefix = strlen(one.prefix);

        if (prefix + one.name_bytes + 1 > UINT16_MAX - used)
            rc = -E2BIG;
        else {
            memcpy(own->content + used, one.prefix, prefix);
            memcpy(own->content + used + prefix, one.name, one.name_bytes);
            used += prefix + one.name_bytes + 1;
            own->content[used - 1] = '\0';
        }
    }
    if (rc < 0 && rc != -ENODATA)
        fuse_reply_err(request, -rc);
    else
        reply_value(request, own->content, used, room);
}

static const struct fuse_lowlevel_ops OPERATIONS = {
    .init = begin,
    .lookup = look_up,
    .getattr = get_attributes,
    .readlink = read_link,
    .open = open_file,
    .read = read_file,
    .opendir = open_folder,
    .readdir = read_folder,
    .readdirplus = read_folder_plus,
    .statfs = describe_all,
    .getxattr = get_xattr,
    .listxattr = list_xattrs,
};

/* Answer requests until the image is unmounted. */
static void *work(void *argument)
{
    server *self = argument;
    struct fuse_buf request = {0};

    while (!fuse_session_exited(self->session)) {
        int got = fuse_session_receive_buf(self->session, &request);

        if (got > 0)
            fuse_session_process_buf(self->session, &request);
        else if (got != -EINTR && got != -EAGAIN)
            break;
    }
    __atomic_store_n(&self->is_gone, 1, __ATOMIC_RELAXED);
    kill(getpid(), SIGTERM); /* the first thread waits for it */
    return NULL;
}

static int start_threads(server *self)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    int rc = 0;

    if (count < LEAST_THREADS)
        count = LEAST_THREADS;
    if (count > MOST_THREADS)
        count = MOST_THREADS;
    for (long i = 0; i < count; i++) {
        pthread_t thread;

        rc = -pthread_create(&thread, NULL, work, self);
        if (rc < 0)
            return i > 0 ? 0 : rc;
        pthread_detach(thread);
    }
    return 0;
}

/* Return the signals that end this program. */
static sigset_t ending_signals(void)
{
    static const int all[] = {SIGHUP, SIGINT, SIGTERM};
    sigset_t found;

    sigemptyset(&found);
    sigaddset(&found, SIGTERM); /* of our own threads */
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct sigaction action;

        if (sigaction(all[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&found, all[i]);
    }
    return found;
}

/* Serve until the end, and exit.
 *
 * From the mount on this process must not touch a path. A container makes the image its root, and
 * this process's: each path then leads into the mount. If this process is killed while a thread of
 * it waits for an answer of another, it can never end, nor can whatever waits for it. So no thread
 * is cancelled (glibc would load a library), and nothing of Python's runs any more. */
static void serve_and_exit(server *self, int parent, const char *name, const sigset_t *signals)
{
    int number;

    while (sigwait(signals, &number) != 0)
        ;
    if (!__atomic_load_n(&self->is_gone, __ATOMIC_RELAXED) && fchdir(parent) == 0 &&
        umount2(name, MNT_DETACH | UMOUNT_NOFOLLOW) != 0 && errno == EPERM)
        fuse_session_unmount(self->session); /* fusermount may, and nobody has made it a root */
    _exit(0);
}

int sq_leave_namespace(const char *mountpoint)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0 ||
        umount2(mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW) != 0)
        return -errno;
    return 0;
}

/* Mount the session, load the image and serve it; returns a negative errno, or does not return. */
static int mount_and_serve(server *self, const char *mountpoint)
{
    const char *slash = strrchr(mountpoint, '/');
    char *folder = slash ? strndup(mountpoint, (size_t)(slash - mountpoint) + 1) : NULL;
    int parent = folder ? open(folder, O_PATH | O_CLOEXEC) : -1;
    sigset_t signals = ending_signals(), before;
    int rc = -EIO;

    free(folder);
    if (parent >= 0 && fuse_session_mount(self->session, mountpoint) == 0) {
        /* Whoever waits for the mount waits for the tables: Enroot allows the mount little time. */
        rc = sq_load(self->image);
        if (rc == 0 && self->depth > 0)
            rc = sq_leave_namespace(mountpoint);
        if (rc == 0) /* threads are started behind its fork */
            rc = fuse_daemonize(self->options.foreground) == 0 ? 0 : -EIO;
        pthread_sigmask(SIG_BLOCK, &signals, &before);
        if (rc == 0)
            rc = start_threads(self);
        if (rc == 0)
            serve_and_exit(self, parent, slash + 1, &signals);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        fuse_session_unmount(self->session);
    }
    if (parent >= 0)
        close(parent);
    return rc;
}

int sq_serve(sq_image *image, const char *mountpoint, const sq_options *options,
             const char *const *arguments)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    server self = {.image = image, .options = *options};
    int rc = sq_cache_open(image, CACHE_BYTES, &self.cache);

    while (options->above != NULL && options->above[self.depth] != NULL)
        self.depth++;
    if (rc == 0 && pthread_key_create(&key, free_buffers) != 0)
        rc = -ENOMEM;
    for (; rc == 0 && *arguments != NULL; arguments++)
        rc = fuse_opt_add_arg(&args, *arguments) == 0 ? 0 : -ENOMEM;
    if (rc == 0) {
        self.session = fuse_session_new(&args, &OPERATIONS, sizeof OPERATIONS, &self);
        rc = self.session != NULL ? mount_and_serve(&self, mountpoint) : -EINVAL;
    }
    if (self.session != NULL)
        fuse_session_destroy(self.session);
    fuse_opt_free_args(&args);
    if (self.cache != NULL)
        sq_cache_close(self.cache);
    return rc;
}
