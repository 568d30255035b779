/* A snapshot's tree, as the kernel asks for it; bootseer/env/snapshot/index.py has the rows' layout.
 *
 * No I/O: requests of fuse(4) in, answers out. Rows come from a store and may be made to harm; what
 * they say is compared with what there is before it is used.
 */
#ifndef BOOTSEER_TREE_H
#define BOOTSEER_TREE_H

#include "io.h"

enum {
    TREE_BLOCK_BYTES = 128 << 10,
    TREE_LONGEST_READ = 1 << 20,
    /* What such a read can need of the image: it may begin and end amid blocks. */
    TREE_LONGEST_EXTENT = TREE_LONGEST_READ + 2 * TREE_BLOCK_BYTES,
};

/* What a read needs of the image. */
typedef struct {
    uint32_t block; /* the first, of all files' */
    uint32_t count;
    uint64_t start; /* where they are in the image */
    size_t stored_bytes;
    size_t content_bytes; /* that come out of them */
    size_t skip_bytes;    /* of these, before what is wanted */
    size_t size_bytes;    /* that are wanted: 0 behind the end */
} bs_extent;

/* Return how many blocks all files have together. */
uint32_t bs_tree_block_count(const bs_tree *self);

/* Returns 0, or -EISDIR and the like. */
int bs_tree_extent(const bs_tree *self, uint64_t node, uint64_t offset, size_t size_bytes,
                   bs_extent *out);

/* Decompress an extent; `out` has room for TREE_LONGEST_EXTENT. What is wanted is in it behind
 * `skip_bytes`. Returns -EIO if other than what should comes out. */
int bs_tree_extract(const bs_tree *self, const bs_extent *extent, const uint8_t *stored,
                    uint8_t *out);

/* Answer a request that is no read; returns the answer's length, 0 for none. `capacity` is at
 * least 8 KiB. */
size_t bs_tree_answer(const bs_tree *self, const uint8_t *request, size_t request_bytes,
                      uint8_t *reply, size_t capacity);

#endif
