/* Decompressed blocks of an image, for reads of parts of them. Any number of threads. */
#ifndef BOOTSEER_SQUASHFS_CACHE_H
#define BOOTSEER_SQUASHFS_CACHE_H

#include "image.h"

typedef struct sq_cache sq_cache;

/* A block of the cache; the first fields are for its users. */
typedef struct sq_cached {
    uint8_t *data;
    int64_t size_bytes; /* of the content, or a negative errno */
    /* The cache's own. */
    struct sq_cached *next; /* in its bucket */
    sq_block block;
    uint32_t users;
    int is_used; /* lately */
    int is_taken;
    int is_ready;
} sq_cached;

/* Make a cache of an image's blocks, which holds at most `size_bytes` of them. */
int sq_cache_open(const sq_image *image, size_t size_bytes, sq_cache **out);
void sq_cache_close(sq_cache *self);

/* Return a block, which stays until it is released; a block that several threads ask for is
 * decompressed once. `stored` has space for sq_block_bytes. */
int sq_cache_get(sq_cache *self, const sq_block *block, uint8_t *stored, sq_cached **out);
void sq_cache_release(sq_cache *self, sq_cached *block);

#endif
