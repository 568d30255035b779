/* Any image: what opens is walked and read, as it would be for a mount.
 *
 * Input: an image; or else, LZO's instructions.
 */
#include "ahead.h"
#include "cache.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of an image: folders may contain one another. */
enum { MAX_INODES = 400, MAX_ENTRIES = 2000, MAX_BLOCKS = 2000, MAX_XATTRS = 2000 };

/* Behind a block: what writes there may be a library that the sanitizers do not see into. */
static const char GUARD[] = "guard guard guard guard guard";

typedef struct {
    sq_image *image;
    sq_cache *cache;
    uint8_t *stored;
    uint64_t refs[MAX_INODES];
    size_t found;
    size_t entries;
    size_t blocks;
    size_t xattrs;
} walk;

/* Have the sanitizers see every byte. */
static void use(const void *data, size_t size_bytes)
{
    static volatile uint8_t sum;
    const uint8_t *bytes = data;

    for (size_t i = 0; i < size_bytes; i++)
        sum ^= bytes[i];
}

static void list(walk *self, const sq_inode *folder)
{
    sq_entry entry, same;
    sq_list entries;
    int rc = sq_open_list(self->image, folder, &entries);

    while (rc == 0 && (rc = sq_next_entry(&entries, &entry)) == 0) {
        char name[SQ_MAX_NAME_BYTES + 1] = {0};

        if (++self->entries > MAX_ENTRIES || entry.name_bytes > SQ_MAX_NAME_BYTES)
            return;
        memcpy(name, entry.name, entry.name_bytes);
        if (strlen(name) == entry.name_bytes &&
            sq_look_up(self->image, folder, name, &same) != 0) /* the first of the name, at least */
            abort();
        if (self->found < MAX_INODES)
            self->refs[self->found++] = entry.ref;
    }
}

/* Read a block for itself, into no more space than its content needs, and by the cache. */
static void read_block(walk *self, const sq_inode *file, uint64_t index)
{
    uint32_t block_bytes = sq_block_bytes(self->image), begin;
    sq_cached *cached;
    uint32_t room;
    sq_block block;
    uint8_t *out;
    int64_t got;

    if (self->blocks++ > MAX_BLOCKS || sq_find_block(self->image, file, index, &block, &begin) < 0)
        return;
    room = block.size_bytes > 0 ? block.size_bytes : block_bytes;
    out = malloc(room + sizeof GUARD);
    memcpy(out + room, GUARD, sizeof GUARD);
    got = sq_read_block(self->image, &block, self->stored, out);
    if (got > room || (got >= 0 && block.size_bytes > 0 && got != block.size_bytes) ||
        memcmp(out + room, GUARD, sizeof GUARD) != 0)
        abort();
    if (got > 0)
        use(out, (size_t)got);
    if ((sq_cache_get(self->cache, &block, self->stored, &cached) == 0) != (got >= 0))
        abort();
    if (got >= 0) {
        if (cached->size_bytes != got || memcmp(cached->data, out, (size_t)got) != 0)
            abort();
        sq_cache_release(self->cache, cached);
    }
    free(out);
}

static void read_file(walk *self, const sq_inode *file)
{
    uint64_t blocks = file->block_count;

    if (file->size_bytes > blocks * sq_block_bytes(self->image))
        blocks++;
    for (uint64_t i = 0; i < blocks && i < MAX_BLOCKS; i++)
        read_block(self, file, i);
    if (blocks > MAX_BLOCKS)
        read_block(self, file, blocks - 1);
}

static void list_xattrs(walk *self, const sq_inode *inode)
{
    sq_xattrs all;
    sq_xattr one;
    int rc = sq_open_xattrs(self->image, inode, &all);

    while (rc == 0 && (rc = sq_next_xattr(self->image, &all, &one)) == 0) {
        if (++self->xattrs > MAX_XATTRS)
            return;
        use(one.prefix, strlen(one.prefix));
        use(one.name, one.name_bytes);
        use(one.value, one.value_bytes);
    }
}

static void walk_image(walk *self)
{
    self->refs[self->found++] = sq_root(self->image);
    for (size_t i = 0; i < self->found; i++) {
        sq_inode inode;

        if (sq_find_inode(self->image, self->refs[i], &inode) < 0)
            continue;
        list_xattrs(self, &inode);
        if (S_ISDIR(inode.mode))
            list(self, &inode);
        else if (S_ISREG(inode.mode))
            read_file(self, &inode);
        else if (S_ISLNK(inode.mode))
            use(inode.target, inode.size_bytes);
    }
}

/* Find what is read ahead, in a folder that has none of it. */
static void read_ahead(int fd, size_t size)
{
    static const char links[] = "/proc/self/ns"; /* which are not followed */
    const sq_range ranges[] = {{size / 2, size}, {0, size}, {size, UINT64_MAX}};
    int root = open(links, O_PATH | O_DIRECTORY | O_CLOEXEC);
    sq_image *image;

    if (root < 0)
        abort();
    if (sq_open(fd, 0, &image) == 0) {
        if (sq_read_ahead(image, root, ranges, sizeof ranges / sizeof *ranges, 1 << 20) > 0)
            abort();
        sq_close(image);
    }
    close(root);
}

static void unlzo(const uint8_t *data, size_t size)
{
    /* Of their own length, so that no byte behind them is used. */
    uint8_t *stored = malloc(size + 1), *out = malloc(SQ_METADATA_BYTES);
    int64_t got;

    memcpy(stored + 1, data, size);
    got = sq_unlzo(stored + 1, size, out, SQ_METADATA_BYTES);
    if (got > SQ_METADATA_BYTES)
        abort();
    if (got > 0)
        use(out, (size_t)got);
    free(stored);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    walk self = {0};
    int fd;

    if (size < 4 || memcmp(data, "hsqs", 4) != 0) {
        unlzo(data, size);
        return 0;
    }
    fd = memfd_create("image", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    if (sq_open(fd, 0, &self.image) == 0) {
        self.stored = malloc(sq_block_bytes(self.image));
        if (sq_load(self.image) == 0 && sq_cache_open(self.image, 0, &self.cache) == 0) {
            walk_image(&self);
            sq_cache_close(self.cache);
        }
        free(self.stored);
        sq_close(self.image);
    }
    read_ahead(fd, size);
    close(fd);
    return 0;
}
