/* Refuse rows that are not a tree, or have forbidden content: they may be hostile.
 *
 * The rules are those of bootseer/env/snapshot/index.py, and tests compare the two. Folders come
 * before the folders in them, and the rows of entries and blocks are in the order of their inodes.
 * So one pass is enough, and finds duplicates.
 */
#include "tree.h"
#include "tree_rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const uint64_t MAX_PATH_BYTES = 4095;
static const uint64_t MAX_PATHS_BYTES = 512 << 20;
static const uint64_t MAX_XATTRS_BYTES = 64 << 10;
static const uint64_t MAX_FILE_BYTES = 1ULL << 50;

/* Progress of the check. */
typedef struct {
    const bs_tree_parts *all;
    uint32_t *above;      /* for each folder: length of its path, with the slash */
    uint32_t entry;       /* first entry of the next folder */
    uint32_t block;       /* first block of the next file */
    uint64_t stop;        /* end of the blocks of the last file */
    uint64_t paths_bytes; /* sum so far */
    uint64_t texts_bytes; /* sum so far: no two share a text */
} progress;

int bs_tree_next_xattr(const uint8_t **at, const uint8_t *stop, row_xattr *out)
{
    static const char prefix[] = "user.";
    uint16_t name_bytes;
    uint32_t value_bytes;

    if ((size_t)(stop - *at) < sizeof name_bytes + sizeof value_bytes)
        return 0;
    memcpy(&name_bytes, *at, sizeof name_bytes);
    memcpy(&value_bytes, *at + sizeof name_bytes, sizeof value_bytes);
    *at += sizeof name_bytes + sizeof value_bytes;
    if (!bs_within(name_bytes, value_bytes, (uint64_t)(stop - *at)))
        return 0;
    *out = (row_xattr){*at, *at + name_bytes, name_bytes, value_bytes};
    *at += (size_t)name_bytes + value_bytes;
    return name_bytes >= sizeof prefix && name_bytes <= TREE_MAX_NAME_BYTES &&
           memcmp(out->name, prefix, sizeof prefix - 1) == 0 &&
           memchr(out->name, 0, name_bytes) == NULL;
}

/* Return a text, NULL if it does not exist or belongs to another row too. */
static const uint8_t *text(progress *self, uint64_t at, uint64_t size_bytes)
{
    self->texts_bytes += size_bytes;
    if (!bs_within(at, size_bytes, self->all->strings_bytes) ||
        self->texts_bytes > self->all->strings_bytes)
        return NULL;
    return self->all->strings + at;
}

static int are_good_xattrs(progress *self, const row_inode *inode)
{
    const uint8_t *at = text(self, inode->xattrs, inode->xattrs_bytes), *stop;
    row_xattr found;

    if (at == NULL || inode->xattrs_bytes > MAX_XATTRS_BYTES)
        return 0;
    for (stop = at + inode->xattrs_bytes; at < stop;)
        if (!bs_tree_next_xattr(&at, stop, &found))
            return 0;
    return 1;
}

/* Whether a name may follow another one. */
static int is_good_name(const uint8_t *name, size_t name_bytes, const uint8_t *before,
                        size_t before_bytes)
{
    size_t both = name_bytes < before_bytes ? name_bytes : before_bytes;
    int order;

    if (name_bytes == 0 || name_bytes > TREE_MAX_NAME_BYTES ||
        (name[0] == '.' && (name_bytes == 1 || (name_bytes == 2 && name[1] == '.'))) ||
        memchr(name, '/', name_bytes) != NULL || memchr(name, 0, name_bytes) != NULL)
        return 0;
    if (before_bytes == 0)
        return 1;
    order = memcmp(name, before, both);
    return order > 0 || (order == 0 && name_bytes > before_bytes);
}

static int is_good_entry(progress *self, uint32_t folder, const row_entry *entry)
{
    row_inode *inodes = self->all->inodes;
    uint64_t path_bytes = self->above[folder] + (uint64_t)entry->name_bytes;

    self->paths_bytes += path_bytes;
    if (path_bytes > MAX_PATH_BYTES || self->paths_bytes > MAX_PATHS_BYTES || entry->inode == 0 ||
        entry->inode >= self->all->inode_count)
        return 0;
    inodes[entry->inode].links++;
    if (!S_ISDIR(inodes[entry->inode].mode))
        return folder != 0; /* the root has nothing but targets, which are folders */
    if (entry->inode <= folder || self->above[entry->inode] != 0)
        return 0;
    inodes[entry->inode].links++;
    inodes[folder].links++;
    self->above[entry->inode] = (uint32_t)path_bytes + 1;
    return 1;
}

static int is_good_folder(progress *self, uint32_t number)
{
    const row_inode *inode = &self->all->inodes[number];
    const uint8_t *before = NULL;
    uint32_t before_bytes = 0;

    if ((number > 0 && self->above[number] == 0) || inode->first != self->entry ||
        !bs_within(inode->first, inode->count, self->all->entry_count))
        return 0;
    for (uint32_t i = inode->first; i < inode->first + inode->count; i++) {
        const row_entry *entry = &self->all->entries[i];
        const uint8_t *name = text(self, entry->name, entry->name_bytes);

        if (name == NULL || !is_good_name(name, entry->name_bytes, before, before_bytes) ||
            !is_good_entry(self, number, entry))
            return 0;
        before = name;
        before_bytes = entry->name_bytes;
    }
    self->entry += inode->count;
    return 1;
}

static int is_good_file(progress *self, const row_inode *inode)
{
    uint64_t start = inode->data;
    uint64_t whole =
        inode->size_bytes / TREE_BLOCK_BYTES + (inode->size_bytes % TREE_BLOCK_BYTES > 0);

    if (inode->size_bytes > MAX_FILE_BYTES || start > MAX_FILE_BYTES || inode->count != whole ||
        inode->first != self->block ||
        !bs_within(inode->first, inode->count, self->all->block_count) ||
        (whole > 0 && start < self->stop))
        return 0;
    for (uint32_t i = inode->first; i < inode->first + inode->count; i++) {
        uint32_t length = self->all->blocks[i] & ~(uint32_t)TREE_BLOCK_RAW;

        if (length == 0 || length > TREE_BLOCK_BYTES ||
            !bs_within(start, length, self->all->image_bytes))
            return 0;
        self->all->starts[i] = start;
        start += length;
    }
    self->block += inode->count;
    if (whole > 0)
        self->stop = start;
    return 1;
}

static int is_good_link(progress *self, const row_inode *inode)
{
    const uint8_t *target = text(self, inode->data, inode->size_bytes);

    return target != NULL && inode->size_bytes > 0 && inode->size_bytes <= MAX_PATH_BYTES &&
           memchr(target, 0, inode->size_bytes) == NULL;
}

static int is_good(progress *self)
{
    row_inode *inodes = self->all->inodes;

    if (self->all->inode_count == 0 || !S_ISDIR(inodes[0].mode))
        return 0;
    for (uint32_t i = 0; i < self->all->inode_count; i++)
        inodes[i].links = i == 0 ? 2 : 0;
    for (uint32_t i = 0; i < self->all->inode_count; i++) {
        const row_inode *inode = &inodes[i];

        if (inode->mode & ~(uint32_t)(S_IFMT | TREE_RIGHTS) || !are_good_xattrs(self, inode))
            return 0;
        if (S_ISDIR(inode->mode)   ? !is_good_folder(self, i)
            : S_ISREG(inode->mode) ? !is_good_file(self, inode)
                                   : !S_ISLNK(inode->mode) || !is_good_link(self, inode))
            return 0;
    }
    for (uint32_t i = 0; i < self->all->inode_count; i++)
        if (inodes[i].links == 0)
            return 0;
    return self->entry == self->all->entry_count && self->block == self->all->block_count;
}

int bs_tree_check(const bs_tree_parts *parts)
{
    progress self = {.all = parts};
    int rc;

    self.above = calloc((size_t)parts->inode_count + 1, sizeof *self.above);
    if (self.above == NULL)
        return -ENOMEM;
    rc = is_good(&self) ? 0 : -EINVAL;
    free(self.above);
    return rc;
}
