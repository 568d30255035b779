/* Mount a FUSE file system on an open directory, mount an overlay, attach a mount in another
 * namespace, and unmount.
 *
 * Python's library has no mount(2). All functions use descriptors: an attacker could redirect a
 * path between a check and its use.
 */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

/* Since Linux 5.2; missing from older C libraries. The numbers are the same everywhere. */
enum {
    CALL_OPEN_TREE = 428,
    CALL_MOVE_MOUNT = 429,
    CLONE_THE_TREE = 1,
    FROM_DESCRIPTOR = 0x04,
    TO_DESCRIPTOR = 0x40,
};

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

int64_t bs_file_system(int fd)
{
    struct statfs info;

    return fstatfs(fd, &info) != 0 ? -errno : (int64_t)info.f_type;
}

int64_t bs_folder_owner(int fd)
{
    struct statx found;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_UID, &found) != 0)
        return -errno;
    return S_ISDIR(found.stx_mode) ? (int64_t)found.stx_uid : -ENOTDIR;
}

int bs_has_our_root(int process)
{
    struct statx theirs, ours;

    if (statx(process, "root", AT_STATX_DONT_SYNC, STATX_INO, &theirs) != 0 ||
        statx(AT_FDCWD, "/", AT_STATX_DONT_SYNC, STATX_INO, &ours) != 0)
        return -errno;
    return theirs.stx_ino == ours.stx_ino && theirs.stx_dev_major == ours.stx_dev_major &&
           theirs.stx_dev_minor == ours.stx_dev_minor;
}

int bs_copy_mount(const char *path)
{
    long fd =
        syscall(CALL_OPEN_TREE, AT_FDCWD, path, CLONE_THE_TREE | O_CLOEXEC | AT_SYMLINK_NOFOLLOW);

    return fd < 0 ? -errno : (int)fd;
}

int bs_attach_mount(int mount, int target)
{
    return syscall(CALL_MOVE_MOUNT, mount, "", target, "", FROM_DESCRIPTOR | TO_DESCRIPTOR) != 0
               ? -errno
               : 0;
}

int bs_show_mount(int tree, int namespace, int target)
{
    /* Like fork(), which cannot share descriptors; and only a process of one thread may enter. */
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    int status;

    if (pid == 0) {
        if (setns(namespace, CLONE_NEWNS) != 0)
            _exit(errno);
        _exit(-bs_attach_mount(tree, target));
    }
    if (pid < 0)
        return -errno;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EINTR;
}
