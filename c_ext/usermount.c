/* Mount a file system whose superblock belongs to a user namespace of its own.
 *
 * Only the job's user is mapped in that namespace and no process stays in it. Set-user-ID bits,
 * file capabilities and devices have no effect on such a superblock, whatever flags of a mount
 * somebody removes: the kernel checks whether a process is inside the superblock's namespace.
 *
 * A child makes the mount. It enters new user and mount namespaces, the parent maps the ids, and
 * the child takes them on, keeps its capabilities there, and sends the descriptors back.
 */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAST_ID 4294967294U

/* Since Linux 5.2; missing from older C libraries. The numbers are the same everywhere. */
enum {
    CALL_FSOPEN = 430,
    CALL_FSCONFIG = 431,
    CALL_FSMOUNT = 432,
    OPEN_CLOEXEC = 1,
    SET_FLAG = 0,
    SET_STRING = 1,
    CREATE = 6,
    MOUNT_CLOEXEC = 1,
    ATTRIBUTE_RDONLY = 1,
    ATTRIBUTE_NOSUID = 2,
    ATTRIBUTE_NODEV = 4,
    /* The kernel accepts less than a page for a map, and this number of lines. */
    MAP_BYTES = 4096,
    MAP_LINES = 340,
    MAKE_MS = 5000,
};

static int set_option(int fs, const char *name, const char *value)
{
    return (int)syscall(CALL_FSCONFIG, fs, value != NULL ? SET_STRING : SET_FLAG, name, value, 0);
}

/* Take on the user's ids inside the namespace. This keeps the capabilities there: uid 0 is not
 * mapped, so no id of the process is root's. Raw calls, because libc would look for threads that
 * the child does not have. */
static int take_ids(const bs_user *user)
{
    if (syscall(SYS_setgroups, user->group_count, user->groups) != 0 ||
        syscall(SYS_setresgid, user->gid, user->gid, user->gid) != 0 ||
        syscall(SYS_setresuid, user->uid, user->uid, user->uid) != 0)
        return -errno;
    return prctl(PR_SET_DUMPABLE, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 ? -errno : 0;
}

static int create(int fs, int read_only)
{
    int mount;

    if (syscall(CALL_FSCONFIG, fs, CREATE, NULL, NULL, 0) != 0)
        return -errno;
    mount = (int)syscall(CALL_FSMOUNT, fs, MOUNT_CLOEXEC,
                         ATTRIBUTE_NOSUID | ATTRIBUTE_NODEV | (read_only ? ATTRIBUTE_RDONLY : 0));
    return mount < 0 ? -errno : mount;
}

/* In the child: mount FUSE. The device must be opened in the namespace of the superblock, and
 * before the ids change, because only root may open it on some nodes. */
static int make_fuse(const bs_user *user, const bs_fuse_options *options, int *device)
{
    char fd[16], uid[16], gid[16];
    int fs, rc;

    *device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (*device < 0)
        return -errno;
    rc = take_ids(user);
    if (rc != 0)
        return rc;
    fs = (int)syscall(CALL_FSOPEN, "fuse", OPEN_CLOEXEC);
    if (fs < 0)
        return -errno;
    (void)snprintf(fd, sizeof fd, "%d", *device);
    (void)snprintf(uid, sizeof uid, "%u", user->uid);
    (void)snprintf(gid, sizeof gid, "%u", user->gid);
    if (set_option(fs, "source", options->source) != 0 ||
        set_option(fs, "subtype", options->subtype) != 0 || set_option(fs, "fd", fd) != 0 ||
        set_option(fs, "rootmode", "40000") != 0 || set_option(fs, "user_id", uid) != 0 ||
        set_option(fs, "group_id", gid) != 0 ||
        (options->checks_modes && set_option(fs, "default_permissions", NULL) != 0))
        return -errno;
    return create(fs, options->read_only);
}

/* Give the upper folder, which the user owns, the mode and time of the lower, which only the user
 * can see. */
static int copy_status(int from, int to)
{
    char path[32];
    struct stat status;
    struct timespec times[2];

    if (fstat(from, &status) != 0)
        return -errno;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", to);
    times[0] = times[1] = status.st_mtim;
    if (chmod(path, status.st_mode & 01777) != 0 || utimensat(AT_FDCWD, path, times, 0) != 0)
        return -errno;
    return 0;
}

/* Create an overlay of folders, given by paths.
 *
 * Volatile: the kernel writes nothing back when the overlay is unmounted. Otherwise it would write
 * all dirty data on the disk of the upper folder, of any process, which can take long. */
static int lay(const char *lower, const char *upper, const char *work, int is_volatile,
               int read_only)
{
    int fs = (int)syscall(CALL_FSOPEN, "overlay", OPEN_CLOEXEC);

    if (fs < 0)
        return -errno;
    if (set_option(fs, "source", "bootseer") != 0 || set_option(fs, "lowerdir", lower) != 0 ||
        set_option(fs, "upperdir", upper) != 0 || set_option(fs, "workdir", work) != 0 ||
        set_option(fs, "userxattr", NULL) != 0 ||
        (is_volatile && set_option(fs, "volatile", NULL) != 0))
        return -errno;
    return create(fs, read_only);
}

/* In the child: mount an overlay as the user, because only the user can see the lower folder. */
static int make_overlay(const bs_user *user, const bs_overlay_folders *folders)
{
    const int how = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    char lower[32], upper[32], work[32];
    /* By path: the overlay takes mounts of this namespace only. And as root, whose folders they lie
     * in; the lower one as the user. */
    int upper_fd = open(folders->upper, how), work_fd = open(folders->work, how), lower_fd, rc;

    if (upper_fd < 0 || work_fd < 0)
        return -errno;
    rc = take_ids(user);
    if (rc != 0)
        return rc;
    lower_fd = open(folders->lower, how);
    if (lower_fd < 0)
        return -errno;
    rc = copy_status(lower_fd, upper_fd);
    if (rc != 0)
        return rc;
    (void)snprintf(lower, sizeof lower, "/proc/self/fd/%d", lower_fd);
    (void)snprintf(upper, sizeof upper, "/proc/self/fd/%d", upper_fd);
    (void)snprintf(work, sizeof work, "/proc/self/fd/%d", work_fd);
    rc = lay(lower, upper, work, 1, folders->read_only);
    if (rc == -EINVAL) /* before Linux 5.10 */
        rc = lay(lower, upper, work, 0, folders->read_only);
    return rc;
}

static int write_map(pid_t pid, const char *name, const char *text)
{
    char path[48];
    size_t length = strlen(text);
    ssize_t written;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    written = write(fd, text, length);
    if (written != (ssize_t)length)
        written = written < 0 ? -errno : -EIO;
    close(fd);
    return written < 0 ? (int)written : 0;
}

static int compare_ids(const void *one, const void *other)
{
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;

    return (a > b) - (a < b);
}

/* Write the lines of a map of ids to themselves, one for each run of consecutive ids, starting with
 * that of `first`, as many as the kernel accepts. Sorts the ids, stores the mapped ones in
 * `mapped`, and returns their number. */
static size_t map_runs(char text[MAP_BYTES], uint32_t first, uint32_t *ids, size_t count,
                       uint32_t *mapped)
{
    size_t length = 0, lines = 0, found = 0, stop;

    text[0] = 0;
    qsort(ids, count, sizeof *ids, compare_ids);
    for (int others = 0; others <= 1; others++)
        for (size_t at = 0; at < count; at = stop) {
            char line[40];
            size_t line_length;

            for (stop = at + 1; stop < count && ids[stop] - ids[stop - 1] <= 1; stop++)
                ;
            if ((first < ids[at] || first > ids[stop - 1]) != others)
                continue;
            line_length = (size_t)snprintf(line, sizeof line, "%u %u %u\n", ids[at], ids[at],
                                           ids[stop - 1] - ids[at] + 1);
            if (lines == MAP_LINES || length + line_length >= MAP_BYTES)
                return found;
            memcpy(text + length, line, line_length + 1);
            memcpy(mapped + found, ids + at, (stop - at) * sizeof *ids);
            length += line_length;
            found += stop - at;
            lines++;
        }
    return found;
}

/* Map only the user's ids to themselves; or, for a tree with other owners, all but root's. The
 * kernel uses 0 as the owner of FUSE's root until the server gives another one, and refuses writes
 * to files whose owner is not mapped. So 0 in the namespace stands for the last of all ids. */
static int map_ids(pid_t pid, const bs_user *user, const char *groups, int shows_owners)
{
    char text[64];
    int rc;

    if (shows_owners)
        (void)snprintf(text, sizeof text, "0 %u 1\n1 1 %u\n", LAST_ID, LAST_ID - 1);
    else
        (void)snprintf(text, sizeof text, "%u %u 1\n", user->uid, user->uid);
    rc = write_map(pid, "uid_map", text);
    return rc != 0 ? rc : write_map(pid, "gid_map", shows_owners ? text : groups);
}

/* In the child: answer the parent's go-ahead with the descriptors, or with an error. */
static void run_child(int end, const bs_user *user, const bs_fuse_options *options,
                      const bs_overlay_folders *folders)
{
    char space[CMSG_SPACE(2 * sizeof(int))] = {0};
    int made[2] = {-EIO, -1}, error = 0;
    struct iovec body = {&error, sizeof error};
    struct msghdr message = {.msg_iov = &body, .msg_iovlen = 1};
    char go;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && read(end, &go, 1) == 1)
        made[0] =
            options != NULL ? make_fuse(user, options, &made[1]) : make_overlay(user, folders);
    if (made[0] < 0) {
        error = -made[0];
    } else {
        size_t size_bytes = (made[1] < 0 ? 1 : 2) * sizeof(int);
        struct cmsghdr *head;

        message.msg_control = space;
        message.msg_controllen = CMSG_SPACE(size_bytes);
        head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(size_bytes);
        memcpy(CMSG_DATA(head), made, size_bytes);
    }
    (void)sendmsg(end, &message, MSG_NOSIGNAL);
    _exit(0);
}

/* Wait for the child's answer; the user can stop the child once it has the user's ids. */
static int receive(int end, int made[2])
{
    char space[CMSG_SPACE(2 * sizeof(int))] = {0};
    int error = EIO;
    struct iovec body = {&error, sizeof error};
    struct msghdr message = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct pollfd ready = {.fd = end, .events = POLLIN};
    const struct cmsghdr *head;

    if (poll(&ready, 1, MAKE_MS) != 1)
        return -ETIMEDOUT;
    if (recvmsg(end, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof error)
        return -EIO;
    head = CMSG_FIRSTHDR(&message);
    if (error == 0 && (head == NULL || head->cmsg_type != SCM_RIGHTS))
        return -EIO;
    if (error == 0)
        memcpy(made, CMSG_DATA(head), head->cmsg_len - CMSG_LEN(0));
    return -error;
}

static int make_with(const bs_user *user, const char *groups, int shows_owners,
                     const bs_fuse_options *options, const bs_overlay_folders *folders, int made[2])
{
    int ends[2];
    pid_t pid;
    int rc;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return -errno;
    /* Like fork(), which cannot enter new namespaces at the same time. */
    pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0);
    rc = pid < 0 ? -errno : 0;
    if (pid == 0) {
        close(ends[0]);
        run_child(ends[1], user, options, folders);
    }
    close(ends[1]);
    if (rc == 0)
        rc = map_ids(pid, user, groups, shows_owners);
    if (rc == 0 && send(ends[0], "", 1, MSG_NOSIGNAL) != 1)
        rc = -errno;
    if (rc == 0)
        rc = receive(ends[0], made);
    close(ends[0]);
    if (pid > 0) {
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    return rc;
}

/* Make a mount for a user and as many of the user's groups as can be mapped. */
static int make(const bs_user *user, int shows_owners, const bs_fuse_options *options,
                const bs_overlay_folders *folders, int made[2])
{
    char map[MAP_BYTES] = "";
    bs_user mapped = *user;
    size_t count = user->group_count;
    uint32_t *groups;
    int rc;

    if (user->uid == 0)
        return -EINVAL;
    groups = malloc(2 * (count + 1) * sizeof *groups);
    if (groups == NULL)
        return -ENOMEM;
    memcpy(groups, user->groups, count * sizeof *groups);
    groups[count++] = user->gid;
    if (!shows_owners) {
        mapped.groups = groups + count;
        mapped.group_count = map_runs(map, user->gid, groups, count, groups + count);
    }
    rc = make_with(&mapped, map, shows_owners, options, folders, made);
    free(groups);
    return rc;
}

int bs_mount_fuse_for(const bs_user *user, const bs_fuse_options *options, int *device)
{
    int made[2] = {-1, -1};
    int rc = make(user, !options->checks_modes, options, NULL, made);

    *device = made[1];
    return rc != 0 ? rc : made[0];
}

int bs_mount_overlay_for(const bs_user *user, const bs_overlay_folders *folders)
{
    int made[2] = {-1, -1};
    int rc = make(user, 0, NULL, folders, made);

    return rc != 0 ? rc : made[0];
}
