/* The stored rows of a snapshot's tree, little-endian: docs/formats/env-index.md. */
#ifndef BOOTSEER_TREE_ROWS_H
#define BOOTSEER_TREE_ROWS_H

#include "io.h"

enum {
    TREE_BLOCK_RAW = 1 << 24,
    TREE_BLOCK_LENGTH = TREE_BLOCK_RAW - 1,
    TREE_MAX_NAME_BYTES = 255,
    TREE_RIGHTS = 01777, /* all but set-user-ID and set-group-ID */
};

typedef struct {
    uint64_t size_bytes;
    int64_t mtime_ns;
    uint64_t data;
    uint32_t first;
    uint32_t count;
    uint32_t mode;
    uint32_t links;
    uint32_t xattrs;
    uint32_t xattrs_bytes;
    uint8_t digest[32];
} row_inode;

typedef struct {
    uint32_t name;
    uint32_t name_bytes;
    uint32_t inode;
} row_entry;

_Static_assert(sizeof(row_inode) == 80 && sizeof(row_entry) == 12, "as index.py packs them");

/* Decompress a block; `length` is its stored length, as squashfs has it, and `size` that of its
 * content. Returns -EBADMSG if the content has another length. */
int bs_extract_block(uint32_t length, const uint8_t *stored, uint8_t *out, uint32_t size);

/* Whether [first, first + count) lies in [0, all). */
static inline int bs_within(uint64_t first, uint64_t count, uint64_t all)
{
    return count <= all && first <= all - count;
}

/* An extended attribute of a row. */
typedef struct {
    const uint8_t *name;
    const uint8_t *value;
    size_t name_bytes;
    size_t value_bytes;
} row_xattr;

/* Parse the next attribute of a row, and move `at` after it; returns 0 if it is truncated, or is
 * not a user attribute. */
int bs_tree_next_xattr(const uint8_t **at, const uint8_t *stop, row_xattr *out);

/* Input and results of the check. */
typedef struct {
    row_inode *inodes; /* gets the number of links */
    const row_entry *entries;
    const uint32_t *blocks;
    const uint8_t *strings;
    uint64_t *starts; /* gets the offset of each block in the image */
    uint32_t inode_count;
    uint32_t entry_count;
    uint32_t block_count;
    uint64_t strings_bytes;
    uint64_t image_bytes;
} bs_tree_parts;

/* Check the same rules as `decode` in bootseer/env/snapshot/index.py, except targets of links and
 * paths to delete; returns 0, -EINVAL or -ENOMEM. */
int bs_tree_check(const bs_tree_parts *parts);

#endif
