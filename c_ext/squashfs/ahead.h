/* Read the hot files of a mounted image before a program does. */
#ifndef BOOTSEER_SQUASHFS_AHEAD_H
#define BOOTSEER_SQUASHFS_AHEAD_H

#include "image.h"

/* Bytes of an image. */
typedef struct {
    uint64_t start;
    uint64_t stop;
} sq_range;

/* Read through a mount of an image the blocks that are stored in some ranges of it, in their order:
 * then their content is in the page cache. A block that only begins or ends there was not read, but
 * lies behind one that was. Loads the image's tables. Threads have the caller's priority.
 *
 * `root` is the mount's root folder. Follows no links and no other mounts. Returns the number of
 * bytes read, at most about `most_bytes`, or a negative errno. */
int64_t sq_read_ahead(sq_image *image, int root, const sq_range *ranges, size_t count,
                      uint64_t most_bytes);

#endif
