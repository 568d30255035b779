/* Handles that identify a file in its file system, even against a later file with the same
 * inode. */
#define _GNU_SOURCE
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

int bs_file_handle(int folder, const char *name, uint8_t *out)
{
    struct {
        struct file_handle head;
        unsigned char bytes[MAX_HANDLE_SZ];
    } found;
    int mount;

    found.head.handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(folder, name, &found.head, &mount, *name ? 0 : AT_EMPTY_PATH) != 0)
        return -errno;
    memcpy(out, found.head.f_handle, found.head.handle_bytes);
    return (int)found.head.handle_bytes;
}
