/* Mount a FUSE file system on a directory that is open already, and take a mount away.
 *
 * The Python library has no mount(2). Everything goes by descriptor: a path could be made to lead
 * elsewhere between a check and its use.
 */
#include "io.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mount.h>

int bs_mount_fuse(int target, const char *source, const char *type, int read_only,
                  const char *options)
{
    unsigned long flags = MS_NOSUID | MS_NODEV | (read_only ? MS_RDONLY : 0);
    char path[32];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", target);
    return mount(source, path, type, flags, options) != 0 ? -errno : 0;
}

int bs_unmount(const char *path)
{
    return umount2(path, MNT_FORCE | MNT_DETACH | UMOUNT_NOFOLLOW) != 0 ? -errno : 0;
}
