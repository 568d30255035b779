#include "ahead.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MOST_THREADS = 8,
    /* Images with more are read without reading ahead. */
    MOST_FILES = 1 << 20,
    MOST_BLOCKS = 1 << 22,
    MOST_PATHS_BYTES = 128 << 20,
};

/* A file or folder: its inode, and where its path begins. */
typedef struct {
    uint64_t ref;
    size_t path;
} named;

/* A part of a file, and where its block is stored. */
typedef struct {
    uint64_t at;
    uint32_t stored_bytes;
    uint32_t file;
    uint32_t index; /* of the block in the file */
    uint32_t is_taken;
} part;

/* An array that grows. */
typedef struct {
    void *items;
    size_t count;
    size_t room;
} array;

typedef struct {
    const sq_image *image;
    int root;
    array paths; /* ended by zeros */
    array folders;
    array files;
    array parts; /* sorted by place */
    array order; /* indexes of parts, in the order to read them */
    size_t next;
    uint64_t read_bytes;
    uint64_t most_bytes;
    int is_over;
} ahead;

/* Add items to an array; returns the first, NULL without memory or beyond `most`. */
static void *add(array *to, size_t item_bytes, size_t count, size_t most)
{
    void *found;

    if (count > most - to->count)
        return NULL;
    if (to->count + count > to->room) {
        size_t room = (to->count + count) * 2;
        void *items = realloc(to->items, room * item_bytes);

        if (items == NULL)
            return NULL;
        to->items = items;
        to->room = room;
    }
    found = (uint8_t *)to->items + to->count * item_bytes;
    to->count += count;
    return found;
}

static const char *path_of(const ahead *self, const named *of)
{
    return (const char *)self->paths.items + of->path;
}

/* Add a name in a folder to the files or folders. */
static int add_name(ahead *self, size_t folder_path, const sq_entry *entry)
{
    int is_folder = S_ISDIR(entry->mode);
    size_t length = strlen((const char *)self->paths.items + folder_path);
    named *item;
    char *path;

    if (!is_folder && !S_ISREG(entry->mode))
        return 0;
    if (length + entry->name_bytes + 2 > PATH_MAX)
        return 0;
    item = add(is_folder ? &self->folders : &self->files, sizeof *item, 1, MOST_FILES);
    path = add(&self->paths, 1, length + entry->name_bytes + 2, MOST_PATHS_BYTES);
    if (item == NULL || path == NULL)
        return -ENOMEM;
    *item = (named){entry->ref, (size_t)(path - (char *)self->paths.items)};
    memcpy(path, (const char *)self->paths.items + folder_path, length);
    path[length] = '/';
    memcpy(path + length + 1, entry->name, entry->name_bytes);
    path[length + 1 + entry->name_bytes] = '\0';
    return 0;
}

/* Find all files. */
static int find_files(ahead *self)
{
    char *path = add(&self->paths, 1, 2, MOST_PATHS_BYTES);
    named *root = add(&self->folders, sizeof *root, 1, MOST_FILES);
    uint32_t inodes = sq_inode_count(self->image);
    uint8_t *seen = calloc((size_t)inodes / 8 + 1, 1); /* a bit for each */
    int rc = path && root && seen ? 0 : -ENOMEM;

    if (rc == 0) {
        memcpy(path, ".", 2);
        *root = (named){sq_root(self->image), 0};
    }
    /* Folders are added meanwhile, and may be moved. */
    for (size_t i = 0; rc == 0 && i < self->folders.count; i++) {
        named of = ((const named *)self->folders.items)[i];
        sq_inode folder;
        sq_list entries;
        sq_entry entry;

        rc = sq_find_inode(self->image, of.ref, &folder);
        if (rc == 0) { /* damaged folders may contain one another */
            if (folder.number > inodes || seen[folder.number / 8] >> folder.number % 8 & 1)
                continue;
            seen[folder.number / 8] |= (uint8_t)(1U << folder.number % 8);
        }
        if (rc == 0)
            rc = sq_open_list(self->image, &folder, &entries);
        while (rc == 0 && (rc = sq_next_entry(&entries, &entry)) == 0)
            rc = add_name(self, of.path, &entry);
        if (rc == -ENOENT)
            rc = 0;
    }
    free(seen);
    return rc;
}

static int by_place(const void *one, const void *other)
{
    uint64_t a = ((const part *)one)->at, b = ((const part *)other)->at;

    return a < b ? -1 : a > b;
}

/* Find where the files' blocks are stored. */
static int find_parts(ahead *self)
{
    for (uint32_t file = 0; file < self->files.count; file++) {
        sq_inode inode;
        uint64_t at;
        part *to;
        int rc = sq_find_inode(self->image, ((const named *)self->files.items)[file].ref, &inode);

        if (rc < 0)
            return rc;
        to = add(&self->parts, sizeof *to, inode.block_count + (inode.fragment != SQ_NONE),
                 MOST_BLOCKS);
        if (to == NULL)
            return -ENOMEM;
        at = inode.start;
        for (uint32_t i = 0; i < inode.block_count; i++) {
            uint32_t stored;

            memcpy(&stored, inode.blocks + (size_t)i * 4, sizeof stored);
            stored = le32toh(stored) & SQ_BLOCK_LENGTH;
            *to++ = (part){.at = at, .stored_bytes = stored, .file = file, .index = i};
            at += stored;
        }
        if (inode.fragment != SQ_NONE) {
            uint32_t begin;
            sq_block block;

            rc = sq_find_block(self->image, &inode, inode.block_count, &block, &begin);
            if (rc < 0)
                return rc;
            *to = (part){.at = block.at,
                         .stored_bytes = block.stored & SQ_BLOCK_LENGTH,
                         .file = file,
                         .index = inode.block_count};
        }
    }
    if (self->parts.count > 0)
        qsort(self->parts.items, self->parts.count, sizeof(part), by_place);
    return 0;
}

/* Return the first part that is stored at a place or behind it. */
static size_t first_part(const ahead *self, uint64_t at)
{
    const part *parts = self->parts.items;
    size_t low = 0, high = self->parts.count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (parts[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int by_start(const void *one, const void *other)
{
    uint64_t a = ((const sq_range *)one)->start, b = ((const sq_range *)other)->start;

    return a < b ? -1 : a > b;
}

/* Return the same ranges sorted, those that meet joined, and set their number; NULL without
 * memory. */
static sq_range *join_ranges(const sq_range *ranges, size_t count, size_t *joined)
{
    sq_range *all = malloc((count + 1) * sizeof *all);

    *joined = 0;
    if (all == NULL)
        return NULL;
    memcpy(all, ranges, count * sizeof *all);
    qsort(all, count, sizeof *all, by_start);
    for (size_t i = 0; i < count; i++) {
        sq_range *last = *joined > 0 ? &all[*joined - 1] : NULL;

        if (last == NULL || all[i].start > last->stop)
            all[(*joined)++] = all[i];
        else if (all[i].stop > last->stop)
            last->stop = all[i].stop;
    }
    return all;
}

static int is_within(const part *one, const sq_range *joined, size_t count)
{
    size_t low = 0, high = count; /* the first range that ends behind the part's beginning */

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (joined[middle].stop <= one->at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && joined[low].start <= one->at &&
           joined[low].stop - one->at >= one->stored_bytes;
}

/* Put the parts that are stored in ranges, wholly, in the order of the ranges. */
static int order_parts(ahead *self, const sq_range *ranges, size_t count)
{
    part *parts = self->parts.items;
    size_t joined_count;
    sq_range *joined = join_ranges(ranges, count, &joined_count);
    int rc = joined ? 0 : -ENOMEM;

    for (size_t i = 0; rc == 0 && i < count; i++) {
        const sq_range *range = &ranges[i];
        uint64_t before = range->start > SQ_MAX_BLOCK_BYTES ? range->start - SQ_MAX_BLOCK_BYTES : 0;

        for (size_t at = first_part(self, before); at < self->parts.count; at++) {
            uint32_t *to;

            if (parts[at].at >= range->stop)
                break;
            if (parts[at].at + parts[at].stored_bytes <= range->start || parts[at].is_taken ||
                parts[at].stored_bytes == 0 || !is_within(&parts[at], joined, joined_count))
                continue;
            to = add(&self->order, sizeof *to, 1, MOST_BLOCKS);
            if (to == NULL) {
                rc = -ENOMEM;
                break;
            }
            *to = (uint32_t)at;
            parts[at].is_taken = 1;
        }
    }
    free(joined);
    return rc;
}

static int open_below(const ahead *self, const char *path)
{
    struct open_how how = {
        .flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
    };

    return (int)syscall(SYS_openat2, self->root, path, &how, sizeof how);
}

static void *read_parts(void *argument)
{
    ahead *self = argument;
    uint32_t block_bytes = sq_block_bytes(self->image), open_file = UINT32_MAX;
    uint8_t *content = malloc(block_bytes);
    int fd = -1;

    while (content != NULL && !__atomic_load_n(&self->is_over, __ATOMIC_RELAXED)) {
        size_t number = __atomic_fetch_add(&self->next, 1, __ATOMIC_RELAXED);
        const part *one;
        ssize_t got;

        if (number >= self->order.count)
            break;
        one = (const part *)self->parts.items + ((const uint32_t *)self->order.items)[number];
        if (one->file != open_file) {
            if (fd >= 0)
                close(fd);
            fd = open_below(self, path_of(self, (const named *)self->files.items + one->file));
            open_file = one->file;
            if (fd >= 0) /* the next block may not be a hot one */
                (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
        }
        got = fd < 0 ? -1 : pread(fd, content, block_bytes, (off_t)one->index * block_bytes);
        if (got < 0 && (errno == ENOTCONN || errno == ECONNABORTED || errno == ENOSYS))
            break; /* the mount is gone, or the kernel is too old */
        if (got > 0 && __atomic_add_fetch(&self->read_bytes, (uint64_t)got, __ATOMIC_RELAXED) >=
                           self->most_bytes)
            break;
    }
    __atomic_store_n(&self->is_over, 1, __ATOMIC_RELAXED);
    if (fd >= 0)
        close(fd);
    free(content);
    return NULL;
}

static void read_all(ahead *self)
{
    pthread_t threads[MOST_THREADS];
    cpu_set_t allowed;
    int wanted = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
    int running = 0;

    /* This one is one of them. */
    while (running < MOST_THREADS - 1 && running < wanted - 1 &&
           pthread_create(&threads[running], NULL, read_parts, self) == 0)
        running++;
    (void)read_parts(self);
    while (running > 0)
        (void)pthread_join(threads[--running], NULL);
}

int64_t sq_read_ahead(sq_image *image, int root, const sq_range *ranges, size_t count,
                      uint64_t most_bytes)
{
    ahead self = {.image = image, .root = root, .most_bytes = most_bytes};
    int rc = sq_load(image);

    if (rc == 0)
        rc = find_files(&self);
    if (rc == 0)
        rc = find_parts(&self);
    if (rc == 0)
        rc = order_parts(&self, ranges, count);
    if (rc == 0)
        read_all(&self);
    free(self.paths.items);
    free(self.folders.items);
    free(self.files.items);
    free(self.parts.items);
    free(self.order.items);
    return rc < 0 ? rc : (int64_t)self.read_bytes;
}
