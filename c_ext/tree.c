#include "tree.h"

#include "tree_rows.h"

#include <dirent.h>
#include <errno.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    /* Since Linux 3.15; before, answers have other lengths. */
    LEAST_MINOR = 23,
    BACKGROUND = 64,
    FOR_EVER_S = 365 * 86400,
};

struct bs_tree {
    row_inode *inodes;
    row_entry *entries;
    uint32_t *blocks;
    uint64_t *starts; /* offset of each block in the image */
    uint8_t *strings;
    uint32_t inode_count;
    uint32_t block_count;
    uint32_t uid;
    uint32_t gid;
    int has_xattrs;
};

static void *copy(const void *rows, size_t count, size_t row_bytes)
{
    void *memory = malloc(count * row_bytes + 1); /* never 0 bytes */

    if (memory != NULL)
        memcpy(memory, rows, count * row_bytes);
    return memory;
}

int bs_tree_open(const bs_tree_rows *rows, bs_tree **out)
{
    bs_tree *self = calloc(1, sizeof *self);
    int rc;

    *out = NULL;
    if (self == NULL)
        return -ENOMEM;
    self->inodes = copy(rows->inodes, rows->inode_count, sizeof *self->inodes);
    self->entries = copy(rows->entries, rows->entry_count, sizeof *self->entries);
    self->blocks = copy(rows->blocks, rows->block_count, sizeof *self->blocks);
    self->strings = copy(rows->strings, rows->strings_bytes, 1);
    self->starts = calloc((size_t)rows->block_count + 1, sizeof *self->starts);
    if (!self->inodes || !self->entries || !self->blocks || !self->strings || !self->starts) {
        bs_tree_close(self);
        return -ENOMEM;
    }
    self->inode_count = rows->inode_count;
    self->block_count = rows->block_count;
    self->uid = rows->uid;
    self->gid = rows->gid;
    for (uint32_t i = 0; i < rows->inode_count; i++)
        self->has_xattrs |= self->inodes[i].xattrs_bytes > 0;
    rc = bs_tree_check(&(bs_tree_parts){
        .inodes = self->inodes,
        .entries = self->entries,
        .blocks = self->blocks,
        .strings = self->strings,
        .starts = self->starts,
        .inode_count = rows->inode_count,
        .entry_count = rows->entry_count,
        .block_count = rows->block_count,
        .strings_bytes = rows->strings_bytes,
        .image_bytes = rows->image_bytes,
    });
    if (rc < 0) {
        bs_tree_close(self);
        return rc;
    }
    *out = self;
    return 0;
}

void bs_tree_close(bs_tree *self)
{
    free(self->inodes);
    free(self->entries);
    free(self->blocks);
    free(self->starts);
    free(self->strings);
    free(self);
}

/* The kernel numbers inodes from 1, which is the root. */
static const row_inode *find(const bs_tree *self, uint64_t node)
{
    return node - 1 < self->inode_count ? &self->inodes[node - 1] : NULL;
}

uint32_t bs_tree_block_count(const bs_tree *self)
{
    return self->block_count;
}

int bs_tree_extent(const bs_tree *self, uint64_t node, uint64_t offset, size_t size_bytes,
                   bs_extent *out)
{
    const row_inode *inode = find(self, node);
    uint64_t stop, first, last, content_stop;

    *out = (bs_extent){0};
    if (inode == NULL)
        return -ESTALE;
    if (!S_ISREG(inode->mode))
        return S_ISDIR(inode->mode) ? -EISDIR : -EINVAL;
    if (size_bytes > TREE_LONGEST_READ)
        return -EINVAL;
    if (offset >= inode->size_bytes || size_bytes == 0)
        return 0;
    stop = inode->size_bytes - offset < size_bytes ? inode->size_bytes : offset + size_bytes;
    first = offset / TREE_BLOCK_BYTES;
    last = (stop - 1) / TREE_BLOCK_BYTES;
    content_stop = (last + 1) * TREE_BLOCK_BYTES;
    if (content_stop > inode->size_bytes)
        content_stop = inode->size_bytes;
    out->block = inode->first + (uint32_t)first;
    out->count = (uint32_t)(last - first + 1);
    out->start = self->starts[out->block];
    for (uint32_t i = out->block; i < out->block + out->count; i++)
        out->stored_bytes += self->blocks[i] & TREE_BLOCK_LENGTH;
    out->content_bytes = (size_t)(content_stop - first * TREE_BLOCK_BYTES);
    out->skip_bytes = (size_t)(offset - first * TREE_BLOCK_BYTES);
    out->size_bytes = (size_t)(stop - offset);
    return 0;
}

int bs_tree_extract(const bs_tree *self, const bs_extent *extent, const uint8_t *stored,
                    uint8_t *out)
{
    size_t left = extent->content_bytes;

    for (uint32_t i = extent->block; i < extent->block + extent->count; i++) {
        uint32_t content = left < TREE_BLOCK_BYTES ? (uint32_t)left : TREE_BLOCK_BYTES;

        if (bs_extract_block(self->blocks[i], stored, out, content) != 0)
            return -EIO;
        stored += self->blocks[i] & TREE_BLOCK_LENGTH;
        out += content;
        left -= content;
    }
    return 0;
}

/* An answer under construction. */
typedef struct {
    uint8_t *reply;
    size_t capacity;
    size_t length; /* of what follows the header */
} answer;

static void *add(answer *to, const void *data, size_t size_bytes)
{
    uint8_t *at = to->reply + sizeof(struct fuse_out_header) + to->length;

    memcpy(at, data, size_bytes);
    to->length += size_bytes;
    return at;
}

static void fill_attributes(const bs_tree *self, uint64_t node, struct fuse_attr *attr)
{
    const row_inode *inode = find(self, node);
    int64_t seconds = inode->mtime_ns / 1000000000;
    int64_t rest = inode->mtime_ns % 1000000000;

    if (rest < 0) {
        rest += 1000000000;
        seconds--;
    }
    *attr = (struct fuse_attr){
        .ino = node,
        .size = S_ISDIR(inode->mode) ? 4096 : inode->size_bytes,
        .blocks = inode->size_bytes / 512 + (inode->size_bytes % 512 > 0),
        .atime = (uint64_t)seconds,
        .mtime = (uint64_t)seconds,
        .ctime = (uint64_t)seconds,
        .atimensec = (uint32_t)rest,
        .mtimensec = (uint32_t)rest,
        .ctimensec = (uint32_t)rest,
        /* The root gives access to the tree beside its targets: only its user may enter. */
        .mode = node == 1 ? S_IFDIR | 0700 : inode->mode & (S_IFMT | TREE_RIGHTS),
        .nlink = inode->links,
        .uid = self->uid,
        .gid = self->gid,
        .blksize = 4096,
    };
}

static struct fuse_entry_out entry_of(const bs_tree *self, uint64_t node)
{
    struct fuse_entry_out entry = {.nodeid = node, .entry_valid = FOR_EVER_S};

    if (node != 0) { /* 0 means no such name, which the kernel caches too */
        entry.attr_valid = FOR_EVER_S;
        fill_attributes(self, node, &entry.attr);
    }
    return entry;
}

static int open_connection(const void *body, size_t body_bytes, answer *to)
{
    const struct fuse_init_in *in = body;
    struct fuse_init_out out = {
        .major = FUSE_KERNEL_VERSION,
        .max_background = BACKGROUND,
        .congestion_threshold = BACKGROUND * 3 / 4,
        .max_write = 4096,
        .time_gran = 1,
        .max_pages = TREE_LONGEST_READ / 4096,
    };
    const uint32_t wanted = FUSE_ASYNC_READ | FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO |
                            FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS |
                            FUSE_NO_OPEN_SUPPORT | FUSE_NO_OPENDIR_SUPPORT;

    if (body_bytes < 16 || in->major != FUSE_KERNEL_VERSION || in->minor < LEAST_MINOR)
        return -EPROTO;
    out.minor = in->minor < FUSE_KERNEL_MINOR_VERSION ? in->minor : FUSE_KERNEL_MINOR_VERSION;
    out.max_readahead = in->max_readahead;
    out.flags = in->flags & wanted;
    add(to, &out, sizeof out);
    return 0;
}

static int look_up(const bs_tree *self, const row_inode *folder, const void *body,
                   size_t body_bytes, answer *to)
{
    size_t name_bytes = strnlen(body, body_bytes);
    struct fuse_entry_out out;
    uint32_t low, high;
    uint64_t node = 0;

    if (!S_ISDIR(folder->mode))
        return -ENOTDIR;
    if (name_bytes > TREE_MAX_NAME_BYTES)
        return -ENAMETOOLONG;
    low = folder->first;
    high = folder->first + folder->count;
    while (low < high && node == 0) {
        uint32_t middle = low + (high - low) / 2;
        const row_entry *entry = &self->entries[middle];
        size_t both = entry->name_bytes < name_bytes ? entry->name_bytes : name_bytes;
        int order = memcmp(self->strings + entry->name, body, both);

        if (order == 0 && entry->name_bytes == name_bytes)
            node = (uint64_t)entry->inode + 1;
        else if (order < 0 || (order == 0 && entry->name_bytes < name_bytes))
            low = middle + 1;
        else
            high = middle;
    }
    out = entry_of(self, node);
    add(to, &out, sizeof out);
    return 0;
}

static size_t aligned(size_t size_bytes)
{
    return (size_bytes + 7) & ~(size_t)7;
}

/* Add an entry of a folder; returns 0 if there is no space for it. */
static int list_one(const bs_tree *self, answer *to, size_t room, int plus, uint64_t node,
                    uint64_t next, const void *name, uint32_t name_bytes)
{
    static const uint8_t zeros[8];
    struct fuse_dirent entry = {.ino = node, .off = next, .namelen = name_bytes};
    size_t head = plus ? sizeof(struct fuse_entry_out) : 0;
    size_t length = FUSE_NAME_OFFSET + name_bytes;

    if (to->length + head + aligned(length) > room)
        return 0;
    entry.type = find(self, node)->mode >> 12;
    if (plus) {
        /* The kernel needs no attributes of "." and "..". */
        struct fuse_entry_out known = next > 2 ? entry_of(self, node) : (struct fuse_entry_out){0};

        add(to, &known, sizeof known);
    }
    add(to, &entry, FUSE_NAME_OFFSET);
    add(to, name, name_bytes);
    add(to, zeros, aligned(length) - length);
    return 1;
}

static int list(const bs_tree *self, uint64_t node, const void *body, size_t body_bytes, int plus,
                answer *to)
{
    const struct fuse_read_in *in = body;
    const row_inode *folder = find(self, node);
    size_t room = to->capacity - sizeof(struct fuse_out_header);
    uint64_t at;

    if (body_bytes < sizeof *in)
        return -EINVAL;
    if (!S_ISDIR(folder->mode))
        return -ENOTDIR;
    if (in->size < room)
        room = in->size;
    at = in->offset;
    if (at < 1 && list_one(self, to, room, plus, node, 1, ".", 1))
        at = 1;
    if (at == 1 && list_one(self, to, room, plus, node, 2, "..", 2))
        at = 2;
    for (; at >= 2 && at - 2 < folder->count; at++) {
        const row_entry *entry = &self->entries[folder->first + (at - 2)];

        if (!list_one(self, to, room, plus, (uint64_t)entry->inode + 1, at + 1,
                      self->strings + entry->name, entry->name_bytes))
            break;
    }
    return 0;
}

/* Answer with extended attributes: the value of `wanted`, or all names if that is NULL. */
static int tell_xattrs(const bs_tree *self, const row_inode *inode, const void *body,
                       size_t body_bytes, int names, answer *to)
{
    const struct fuse_getxattr_in *in = body;
    const uint8_t *at = self->strings + inode->xattrs, *stop = at + inode->xattrs_bytes;
    const char *wanted = (const char *)body + sizeof *in;
    row_xattr xattr;
    size_t found = 0, room;
    int is_there = names;

    if (!self->has_xattrs)
        return -ENOSYS; /* the kernel does not ask again */
    if (body_bytes < sizeof *in || (!names && body_bytes == sizeof *in))
        return -EINVAL;
    room = to->capacity - sizeof(struct fuse_out_header);
    while (bs_tree_next_xattr(&at, stop, &xattr)) {
        if (!names && (strnlen(wanted, body_bytes - sizeof *in) != xattr.name_bytes ||
                       memcmp(wanted, xattr.name, xattr.name_bytes) != 0))
            continue;
        is_there = 1;
        found += names ? xattr.name_bytes + 1 : xattr.value_bytes;
        if (in->size == 0)
            continue;
        if (found > in->size || found > room)
            return -ERANGE;
        add(to, names ? xattr.name : xattr.value, names ? xattr.name_bytes : xattr.value_bytes);
        if (names)
            add(to, "", 1);
    }
    if (!is_there)
        return -ENODATA;
    if (in->size == 0) {
        struct fuse_getxattr_out out = {.size = (uint32_t)found};

        add(to, &out, sizeof out);
    }
    return 0;
}

static int reply_to(const bs_tree *self, const struct fuse_in_header *header, const void *body,
                    size_t body_bytes, answer *to)
{
    const row_inode *inode = find(self, header->nodeid);
    struct fuse_attr_out attributes = {.attr_valid = FOR_EVER_S};
    struct fuse_statfs_out space = {
        .st = {.bsize = 4096, .frsize = 4096, .namelen = TREE_MAX_NAME_BYTES}};

    if (header->opcode == FUSE_INIT)
        return open_connection(body, body_bytes, to);
    if (inode == NULL)
        return -ESTALE;
    switch (header->opcode) {
    case FUSE_LOOKUP:
        return look_up(self, inode, body, body_bytes, to);
    case FUSE_GETATTR:
        fill_attributes(self, header->nodeid, &attributes.attr);
        add(to, &attributes, sizeof attributes);
        return 0;
    case FUSE_READLINK:
        if (!S_ISLNK(inode->mode))
            return -EINVAL;
        add(to, self->strings + inode->data, inode->size_bytes);
        return 0;
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
        return list(self, header->nodeid, body, body_bytes, header->opcode == FUSE_READDIRPLUS, to);
    case FUSE_GETXATTR:
    case FUSE_LISTXATTR:
        return tell_xattrs(self, inode, body, body_bytes, header->opcode == FUSE_LISTXATTR, to);
    case FUSE_STATFS:
        add(to, &space, sizeof space);
        return 0;
    default:
        /* ENOSYS to open, opendir and flush makes the kernel skip them from then on. */
        return -ENOSYS;
    }
}

size_t bs_tree_answer(const bs_tree *self, const uint8_t *request, size_t request_bytes,
                      uint8_t *reply, size_t capacity)
{
    struct fuse_in_header header;
    struct fuse_out_header out = {0};
    answer to = {reply, capacity, 0};

    memcpy(&header, request, sizeof header);
    switch (header.opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: /* every request is answered in the end */
    case FUSE_DESTROY:
        return 0;
    default:
        break;
    }
    out.error =
        reply_to(self, &header, request + sizeof header, request_bytes - sizeof header, &to);
    if (out.error != 0)
        to.length = 0;
    out.unique = header.unique;
    out.len = (uint32_t)(sizeof out + to.length);
    memcpy(reply, &out, sizeof out);
    return out.len;
}
