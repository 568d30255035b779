/* Answer the kernel's requests for a snapshot's tree; bootseer/env/snapshot/index.py has the layout
 * of the rows.
 *
 * No I/O: requests of fuse(4) in, answers out. Rows come from a store and may be hostile; every
 * value is checked before it is used.
 */
#ifndef BOOTSEER_TREE_H
#define BOOTSEER_TREE_H

#include "io.h"

enum {
    TREE_BLOCK_BYTES = 128 << 10,
    TREE_LONGEST_READ = 1 << 20,
    /* Longest content that such a read needs: it may begin and end within blocks. */
    TREE_LONGEST_EXTENT = TREE_LONGEST_READ + 2 * TREE_BLOCK_BYTES,
};

/* The part of the image that a read needs. */
typedef struct {
    uint32_t block; /* the first, of all files' */
    uint32_t count;
    uint64_t start; /* of the blocks in the image */
    size_t stored_bytes;
    size_t content_bytes; /* of the blocks, decompressed */
    size_t skip_bytes;    /* content before the read */
    size_t size_bytes;    /* of the read: 0 after the end */
} bs_extent;

/* Return the number of blocks of all files. */
uint32_t bs_tree_block_count(const bs_tree *self);

/* Returns 0, or -EISDIR and the like. */
int bs_tree_extent(const bs_tree *self, uint64_t node, uint64_t offset, size_t size_bytes,
                   bs_extent *out);

/* Decompress an extent; `out` has space for TREE_LONGEST_EXTENT. The read's content follows after
 * `skip_bytes`. Returns -EIO if the content has another length than it should. */
int bs_tree_extract(const bs_tree *self, const bs_extent *extent, const uint8_t *stored,
                    uint8_t *out);

/* Answer a request other than a read; returns the answer's length, 0 for none. `capacity` is at
 * least 8 KiB. */
size_t bs_tree_answer(const bs_tree *self, const uint8_t *request, size_t request_bytes,
                      uint8_t *reply, size_t capacity);

#endif
