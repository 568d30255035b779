/* Mount a squashfs image by FUSE, and serve it. */
#ifndef BOOTSEER_SQUASHFS_SERVE_H
#define BOOTSEER_SQUASHFS_SERVE_H

#include "image.h"

typedef struct {
    uint32_t uid; /* of all files, unless it is SQ_NONE */
    uint32_t gid;
    int foreground;           /* otherwise a process in the background serves, and this one exits */
    const char *const *above; /* for a container's root, else NULL: names that end with NULL */
} sq_options;

/* Mount an open image at a path, load its tables, and serve until it is unmounted or a signal
 * arrives. Then the process exits: this returns a negative errno if the image cannot be served, and
 * is not mounted; otherwise it does not return.
 *
 * With `above` the mount has folders of these names, each in the one before, and the image's root in
 * the last; the owner of a file can do with it what one who had unpacked it could; and the server
 * leaves the mount namespace and ends with the last mount there.
 *
 * `mountpoint` is absolute: at a signal the server is in the folder above it. `arguments` are for
 * libfuse, beginning with the program's name and ending with NULL. */
int sq_serve(sq_image *image, const char *mountpoint, const sq_options *options,
             const char *const *arguments);

/* Leave the mount namespace for a copy of it in which nothing is mounted at a path, so that this
 * process is none of those that make up a container, and the end of the last of those is the
 * mount's. Returns a negative errno where this is not allowed. */
int sq_leave_namespace(const char *mountpoint);

#endif
