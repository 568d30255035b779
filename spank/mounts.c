/* A task's start, as root: makes the job's checkpoint, image and environments visible to it, and
 * sets the variables with their paths.
 *
 * The agent has mounted them in its own mount namespace, and left marks in the job's folder. If
 * this task has another namespace, the agent sends a copy of the mount, as a descriptor over a
 * socket of root's. Where mounts propagate into new namespaces, all tasks of a job with an agent
 * get a mount namespace of their own. Mounts in it, made now or by `bootseer env run`, are
 * invisible elsewhere and end with the task.
 */
#define _GNU_SOURCE
#include "bootseer.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
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

enum {
    MAX_ENVIRONMENTS = 64, /* targets of all that a job has mounted */
    MAX_TOLD = 16384,      /* bytes of the variable that names them to container runtimes */
    FUSE_MAGIC = 0x65735546,
    SQUASHFS_MAGIC = 0x73717368,
    OVERLAY_MAGIC = 0x794c7630,
    OPEN_MS = 5000, /* the user's folder may be on a file system that hangs */
    ASK_MS = 1500,  /* the agent may be only starting */
    RETRY_MS = 10,
    ANSWERS_MS = 5000, /* for all answers to a task: an agent on a busy node, or one that hangs */
};

/* Requests to the agent, see bootseer/agent/broker/mount_requests.py. */
enum mount_kind { MOUNT_CHECKPOINT, MOUNT_IMAGE, MOUNT_ROOT, MOUNT_ENVIRONMENT };

struct mount_request {
    uint32_t kind;
    uint32_t number;
};

/* What a job may have mounted. */
struct kind {
    enum mount_kind mount;
    const char *mark;     /* file in the job's folder with the agent's result */
    const char *folder;   /* mount point, in the job's folder */
    const char *file;     /* file in it that the variable names, or "" */
    const char *variable; /* of the task's environment */
    const char *name;     /* for messages */
    const char *stage;    /* of the event that reports a failure */
    int wish;             /* the option that asks for it */
    int option;           /* the same if the task is told of a refusal, otherwise -1 */
};

static const struct kind KINDS[] = {
    {MOUNT_CHECKPOINT, "checkpoint", "ckpt", "", "BOOTSEER_CKPT", "checkpoint",
     "checkpoint.mountpoint", OPTION_CKPT, OPTION_CKPT},
    {MOUNT_IMAGE, "served", "image", "/image.sqsh", "BOOTSEER_IMAGE", "image", "image.mountpoint",
     OPTION_IMAGE, OPTION_IMAGE},
    {MOUNT_ROOT, "state/rooted", "root/rootfs", "", "BOOTSEER_ROOTFS", "image's tree",
     "image.kernel", OPTION_IMAGE, -1},
};

/* Content of RUN_DIR/jobs/JOBID/MARK, written by the agent, and the job's user. */
struct mounted {
    char path[PATH_MAX]; /* of the mount, as the agent sees it */
    char socket[PATH_MAX];
    struct mount_request request;
    char mountpoint[PATH_MAX];
    bool failed; /* it could not be mounted */
    bool owned;  /* the user must own the mount point */
    bool plain;  /* nothing is mounted; `mountpoint` is the variable's value */
    bool none;   /* nothing is mounted, and no variable is set */
    uid_t uid;
    gid_t gid;
    gid_t *groups;
    int group_count;
};

void asked_read(const char *run_dir, uint32_t job_id, struct asked *asked)
{
    static const enum option lines[] = {OPTION_IMAGE, OPTION_ENV, OPTION_CKPT, OPTION_KEY};
    char path[PATH_MAX + 32], *line = asked->text, *end;
    ssize_t length;
    int fd;

    snprintf(path, sizeof(path), "%s/jobs/%u/asked", run_dir, job_id);
    fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    length = read(fd, asked->text, sizeof(asked->text) - 1);
    close(fd);
    asked->text[length > 0 ? length : 0] = '\0';
    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++, line = end + 1) {
        end = strchr(line, '\n');
        if (!end)
            return;
        *end = '\0';
        asked->value[lines[i]] = line;
        asked->known |= lines[i] == OPTION_CKPT; /* earlier versions wrote no key */
    }
}

/* Reports that a step's request is refused. */
static void tell_too_late(const struct bootseer *bootseer, spank_t spank, const char *stage,
                          int option, const struct asked *asked)
{
    step_fallback(bootseer, spank, stage,
                  "%s has no effect in a step of a job that began with%s: give it to the job",
                  option_names[option].option,
                  asked->known && *asked->value[option] ? " another" : "out");
}

/* Returns false when the job has no such mark. */
static bool read_mounted(const char *mark, const char *folder, const char *run_dir, uint32_t job_id,
                         struct mounted *mounted)
{
    char text[PATH_MAX + 64];
    char *mountpoint, *end;
    ssize_t length;
    int fd;

    snprintf(text, sizeof(text), "%s/jobs/%u/%s", run_dir, job_id, mark);
    fd = open(text, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    length = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    mountpoint = strchr(text, '\n');
    end = mountpoint ? strchr(mountpoint + 1, '\n') : NULL;
    if (!end || end - mountpoint > (ptrdiff_t)sizeof(mounted->mountpoint))
        return false;
    *mountpoint = *end = '\0';
    mounted->failed = !strcmp(text, "failed");
    mounted->owned = !strcmp(text, "owned");
    mounted->plain = !strcmp(text, "plain");
    mounted->none = !strcmp(text, "none");
    if (!mounted->failed && !mounted->owned && !mounted->plain && !mounted->none &&
        strcmp(text, "listed"))
        return false;
    /* The supervisor is not root, so its marks must not decide where root may mount. */
    if (!strncmp(mark, "state/", strlen("state/")))
        mounted->owned = true;
    snprintf(mounted->mountpoint, sizeof(mounted->mountpoint), "%s", mountpoint + 1);
    return snprintf(mounted->socket, sizeof(mounted->socket), "%s/jobs/%u/mounts.sock", run_dir,
                    job_id) < (int)sizeof(mounted->socket) &&
           snprintf(mounted->path, sizeof(mounted->path), "%s/jobs/%u/%s", run_dir, job_id,
                    folder) < (int)sizeof(mounted->path);
}

/* Whether the agent has found already that tasks cannot read the job's image. */
static bool is_unreadable(const char *run_dir, uint32_t job_id)
{
    char mark[PATH_MAX + 32];
    struct stat info;

    snprintf(mark, sizeof(mark), "%s/jobs/%u/state/unreadable", run_dir, job_id);
    return !lstat(mark, &info);
}

/* Connects to the agent, which has to be root's; sending and receiving fail after `limit_ms`.
 * Returns a socket, or -1 with errno set. */
static int connect_agent(const char *path, int64_t limit_ms)
{
    const struct timeval limit = {.tv_sec = limit_ms / 1000, .tv_usec = limit_ms % 1000 * 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = -1;

    if (snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) >=
        (int)sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (int waited = 0; waited < ASK_MS; waited += RETRY_MS) {
        struct ucred peer;
        socklen_t length = sizeof(peer);

        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return -1;
        if (!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) &&
            !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) &&
            !connect(fd, (const struct sockaddr *)&address, sizeof(address)) &&
            !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length)) {
            if (peer.uid == 0)
                return fd;
            errno = EPERM;
        }
        close(fd);
        if (errno != ENOENT && errno != ECONNREFUSED)
            return -1;
        poll(NULL, 0, RETRY_MS);
    }
    return -1;
}

/* Asks the agent for a detached copy of the mount. Returns -1 with errno set. */
static int ask_for_mount(const struct mounted *mounted)
{
    static int64_t left_ms = ANSWERS_MS;
    char space[CMSG_SPACE(sizeof(int))] = {0};
    int32_t refused = EPROTO;
    struct iovec body = {&refused, sizeof(refused)};
    struct msghdr message = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    struct cmsghdr *head;
    int64_t begun_ms = now_ms();
    int tree = -1, fd;

    if (left_ms <= 0) {
        errno = ETIMEDOUT;
        return -1;
    }
    fd = connect_agent(mounted->socket, left_ms);
    if (fd < 0 || send(fd, &mounted->request, sizeof(mounted->request), MSG_NOSIGNAL) < 0 ||
        recvmsg(fd, &message, MSG_CMSG_CLOEXEC) < 0)
        refused = errno;
    head = CMSG_FIRSTHDR(&message);
    if (!refused && head && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&tree, CMSG_DATA(head), sizeof(tree));
    if (fd >= 0)
        close(fd);
    left_ms -= now_ms() - begun_ms;
    errno = refused ? refused : EPROTO;
    return tree;
}

/* Whether the mount is in this process's namespace: asks the kernel, not the mount's server. */
static bool is_visible(const char *path)
{
    struct statfs info;

    return !statfs(path, &info) && (info.f_type == FUSE_MAGIC || info.f_type == SQUASHFS_MAGIC ||
                                    info.f_type == OVERLAY_MAGIC);
}

/* Returns the descriptor of a detached copy of the mount, or -1 with errno set. */
static int copy_mount(const struct mounted *mounted)
{
    if (is_visible(mounted->path))
        return (int)syscall(CALL_OPEN_TREE, AT_FDCWD, mounted->path,
                            CLONE_THE_TREE | O_CLOEXEC | AT_SYMLINK_NOFOLLOW);
    return ask_for_mount(mounted);
}

/* In a child: returns the mount point, which the user can reach and owns. */
static int open_owned(const struct mounted *mounted)
{
    struct stat info;
    int fd;

    if (setgroups((size_t)mounted->group_count, mounted->groups) || setgid(mounted->gid) ||
        setuid(mounted->uid) || prctl(PR_SET_DUMPABLE, 0)) /* whatever fs.suid_dumpable says */
        return -1;
    fd = open(mounted->mountpoint, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info))
        return -1;
    if (info.st_uid != mounted->uid) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

/* Opens the mount point in a child that shares this process's descriptors, but not its rights.
 * Returns the descriptor, or -1 with errno set. */
static int open_as_user(const struct mounted *mounted)
{
    int answer[2] = {-1, ETIMEDOUT}; /* a descriptor, an errno */
    struct pollfd ready;
    int ends[2];
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC))
        return -1;
    /* Like fork(), which cannot share descriptors. */
    pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        int opened[2] = {open_owned(mounted), 0};

        opened[1] = opened[0] < 0 ? errno : 0;
        _exit(write(ends[1], opened, sizeof(opened)) != sizeof(opened));
    }
    ready = (struct pollfd){.fd = ends[0], .events = POLLIN};
    if (pid < 0)
        answer[1] = errno;
    else if (poll(&ready, 1, OPEN_MS) == 1 &&
             read(ends[0], answer, sizeof(answer)) != sizeof(answer))
        answer[0] = -1;
    if (pid > 0) {
        kill(pid, SIGKILL);
        /* A child that hangs in a file system cannot be waited for; init reaps it. */
        waitpid(pid, NULL, answer[1] == ETIMEDOUT ? WNOHANG : 0);
    }
    close(ends[0]);
    close(ends[1]);
    errno = answer[1];
    return answer[0];
}

/* Mounts a copy on the descriptor's folder, in this process's namespace. */
static bool mount_copy(const struct mounted *mounted, int target)
{
    int tree = target < 0 ? -1 : copy_mount(mounted);
    bool done;
    int error;

    if (tree < 0)
        return false;
    done = !syscall(CALL_MOVE_MOUNT, tree, "", target, "", FROM_DESCRIPTOR | TO_DESCRIPTOR);
    error = errno;
    close(tree);
    errno = error;
    return done;
}

/* Gives this process a mount namespace of its own, once. New mounts of the node appear in it. */
static bool leave_namespace(bool *left)
{
    if (!*left)
        *left = !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL);
    return *left;
}

static bool show(const struct mounted *mounted, const char *path, bool owned, bool *left)
{
    int target, error;
    bool done;

    if (!leave_namespace(left))
        return false;
    target =
        owned ? open_as_user(mounted) : open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    done = mount_copy(mounted, target);
    error = errno;
    if (target >= 0)
        close(target);
    errno = error;
    return done;
}

/* Reports a task's request that the job does not fulfil. */
static void tell_wish(const struct kind *kind, const struct bootseer *bootseer, spank_t spank,
                      const char *wish, const struct asked *asked)
{
    if (*wish == '/') /* needs no mount */
        spank_setenv(spank, kind->variable, wish, 1);
    else if (asked->known && !strcmp(wish, asked->value[kind->option]))
        step_fallback(bootseer, spank, kind->stage,
                      "the %s is not mounted: `bootseer report` says why", kind->name);
    else
        tell_too_late(bootseer, spank, kind->stage, kind->option, asked);
}

/* Unsets a task's variable: it is another job's, or the user's request. The request is kept for a
 * job that the task submits. */
static void forget(const struct kind *kind, spank_t spank)
{
    char value[VALUE_MAX + 1];

    if (kind->option >= 0 &&
        spank_getenv(spank, kind->variable, value, sizeof(value)) == ESPANK_SUCCESS &&
        !request_is_told((enum option)kind->option, value))
        spank_setenv(spank, option_names[kind->option].wished, value, 1);
    spank_unsetenv(spank, kind->variable);
}

/* Makes the job's mount of one kind visible to a task, and sets its variable. */
static void tell_task(const struct kind *kind, const struct bootseer *bootseer, spank_t spank,
                      uint32_t job_id, const struct asked *asked, struct mounted *mounted,
                      bool *left)
{
    const char *wish = step_wish(bootseer, spank, kind->wish), *path = mounted->path;
    bool is_other = wish && asked->known && strcmp(wish, asked->value[kind->wish]);
    char told[PATH_MAX + 16];

    forget(kind, spank);
    if (is_other ||
        !read_mounted(kind->mark, kind->folder, bootseer->settings.run_dir, job_id, mounted)) {
        if (wish && kind->option >= 0)
            tell_wish(kind, bootseer, spank, wish, asked);
        return;
    }
    if (mounted->none)
        return;
    if (kind->mount == MOUNT_IMAGE && is_unreadable(bootseer->settings.run_dir, job_id)) {
        if (wish && step_speaks(spank))
            slurm_error("bootseer: %s is not set, because the image cannot be read: "
                        "`bootseer report` says why",
                        kind->variable);
        return;
    }
    if (mounted->plain) {
        spank_setenv(spank, kind->variable, mounted->mountpoint, 1);
        return;
    }
    mounted->request = (struct mount_request){kind->mount, 0};
    if (mounted->failed) {
        step_fallback(bootseer, spank, kind->stage,
                      "the %s is not mounted: `bootseer report` says why", kind->name);
        return;
    }
    if (!is_visible(path) && !show(mounted, path, false, left)) {
        step_fallback(bootseer, spank, kind->stage, "the %s cannot be made visible: %s", kind->name,
                      strerror(errno));
        return;
    }
    if (*mounted->mountpoint) {
        if (show(mounted, mounted->mountpoint, mounted->owned, left))
            path = mounted->mountpoint;
        else
            step_fallback(bootseer, spank, kind->stage, "the %s is at %s, not at %s: %s",
                          kind->name, path, mounted->mountpoint,
                          errno == EPERM && mounted->owned ? "that folder is not yours"
                                                           : strerror(errno));
    }
    snprintf(told, sizeof(told), "%s%s", path, kind->file);
    spank_setenv(spank, kind->variable, told, 1);
}

/* Makes the folder on which a task's container runtime finds an environment. */
static void make_reachable(const char *run_dir, uint32_t job_id, int number, char *path,
                           size_t size)
{
    snprintf(path, size, "%s/jobs/%u/targets", run_dir, job_id);
    if (!mkdir(path, 0711))
        chmod(path, 0711); /* whatever the umask */
    snprintf(path, size, "%s/jobs/%u/targets/%d", run_dir, job_id, number);
    mkdir(path, 0711);
}

/* Shows one environment to a task: at its target, and at a path that the user's container runtimes
 * can bind from. Returns whether that path shows it. */
static bool show_environment(const struct bootseer *bootseer, spank_t spank,
                             struct mounted *mounted, const char *reachable, bool *left)
{
    bool is_reachable = show(mounted, reachable, false, left);

    if (is_reachable && strlen(reachable) < sizeof(mounted->path))
        strcpy(mounted->path, reachable); /* to copy from: the agent need not be asked again */
    /* The target may be a folder of containers alone. */
    if (!show(mounted, mounted->mountpoint, mounted->owned, left) &&
        !(is_reachable &&
          (bootseer->has_container || (bootseer->is_batch_script && errno == ENOENT))))
        step_fallback(bootseer, spank, "env.mount", "cannot mount the environment at %s: %s",
                      mounted->mountpoint, strerror(errno));
    return is_reachable;
}

/* Makes the environments visible that the job's `bootseer env run` have mounted so far, and names
 * them to container runtimes: lines of PATH:TARGET. */
static void show_environments(const struct bootseer *bootseer, spank_t spank, uint32_t job_id,
                              struct mounted *mounted, bool *left)
{
    char mark[32], folder[32], path[PATH_MAX + 64], told[MAX_TOLD] = "";
    size_t length = 0;

    for (int number = 1; number <= MAX_ENVIRONMENTS; number++) {
        snprintf(mark, sizeof(mark), "state/%d.shown", number);
        snprintf(folder, sizeof(folder), "envs/%d", number);
        mounted->request = (struct mount_request){MOUNT_ENVIRONMENT, (uint32_t)number};
        if (!read_mounted(mark, folder, bootseer->settings.run_dir, job_id, mounted))
            continue;
        make_reachable(bootseer->settings.run_dir, job_id, number, path, sizeof(path));
        if (!show_environment(bootseer, spank, mounted, path, left))
            continue;
        if (strlen(path) + strlen(mounted->mountpoint) + 3 > sizeof(told) - length)
            step_fallback(bootseer, spank, "env.mount",
                          "containers do not see the environment at %s: the paths of all are too "
                          "long",
                          mounted->mountpoint);
        else
            length += (size_t)sprintf(told + length, "%s%s:%s", length ? "\n" : "", path,
                                      mounted->mountpoint);
    }
    if (*told)
        spank_setenv(spank, VARIABLE_ENVIRONMENTS, told, 1);
    else
        spank_unsetenv(spank, VARIABLE_ENVIRONMENTS); /* another job's */
}

static bool has_agent(const char *run_dir, uint32_t job_id)
{
    char path[PATH_MAX + 32];
    struct stat info;

    snprintf(path, sizeof(path), "%s/jobs/%u", run_dir, job_id);
    return !lstat(path, &info);
}

/* Whether later mounts of the agent appear in existing namespaces, as systemd configures it. */
static bool is_shared(const char *run_dir)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    size_t capacity = 0, longest = 0;
    bool shared = false;
    char *line = NULL;

    while (file && getline(&line, &capacity, file) > 0) {
        char point[PATH_MAX];
        char *options = strstr(line, " - ");
        size_t length;

        if (!options || sscanf(line, "%*s %*s %*s %*s %4095s", point) != 1)
            continue;
        *options = '\0';
        length = strcmp(point, "/") ? strlen(point) : 0;
        /* Of several mounts at one place, the last one is visible. */
        if (length >= longest && !strncmp(run_dir, point, length) &&
            (run_dir[length] == '/' || !run_dir[length])) {
            longest = length;
            shared = strstr(line, " shared:") != NULL;
        }
    }
    free(line);
    if (file)
        fclose(file);
    return shared;
}

static ino_t mount_namespace(void)
{
    struct stat info;

    return stat("/proc/self/ns/mnt", &info) ? 0 : info.st_ino;
}

void mounts_init(struct bootseer *bootseer)
{
    if (bootseer->sends_events &&
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, bootseer->held))
        bootseer->held[0] = bootseer->held[1] = -1;
}

void mounts_end(struct bootseer *bootseer)
{
    for (size_t i = 0; i < 2; i++) {
        if (bootseer->held[i] >= 0)
            close(bootseer->held[i]);
        bootseer->held[i] = -1;
    }
}

/* Has slurmstepd hold this task's namespace, in a message that nobody reads, until the step ends.
 * A program that leaves the namespace (Apptainer does) would end it otherwise, and with it the
 * mounts by which /proc/self/exe names the program. */
static void hold_namespace(const struct bootseer *bootseer)
{
    char space[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec body = {&byte, sizeof(byte)};
    struct msghdr message = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    *head = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(fd)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof(fd));
    sendmsg(bootseer->held[0], &message,
            MSG_DONTWAIT | MSG_NOSIGNAL); /* fails after some hundred */
    close(fd);
}

void mounts_task(struct bootseer *bootseer, spank_t spank)
{
    struct mounted mounted = {.failed = false};
    struct asked asked = {.known = false};
    bool left = false, found;
    const char *wish;
    uint32_t job_id;

    if (spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_UID, &mounted.uid) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_GID, &mounted.gid) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &mounted.groups, &mounted.group_count) !=
            ESPANK_SUCCESS)
        return;
    found = has_agent(bootseer->settings.run_dir, job_id);
    if (!found && !bootseer->is_anothers && !request_is_active(&bootseer->request))
        return; /* BootSeer does not manage this job's variables */
    if (found && is_shared(bootseer->settings.run_dir) && !leave_namespace(&left))
        step_fallback(bootseer, spank, "env.mount", "a task has no mount namespace of its own: %s",
                      strerror(errno));
    if (found && !getcwd(bootseer->cwd, sizeof(bootseer->cwd)))
        *bootseer->cwd = '\0';
    asked_read(bootseer->settings.run_dir, job_id, &asked);
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(*KINDS); i++)
        tell_task(&KINDS[i], bootseer, spank, job_id, &asked, &mounted, &left);
    wish = step_wish(bootseer, spank, OPTION_KEY);
    if (wish && *wish && asked.value[OPTION_KEY] && strcmp(wish, asked.value[OPTION_KEY]))
        step_fallback(bootseer, spank, "options",
                      "--bootseer=%s has no effect in a step of a job that began with another key: "
                      "give it to the job",
                      wish);
    wish = step_wish(bootseer, spank, OPTION_ENV);
    if (wish && asked.known && strcmp(wish, asked.value[OPTION_ENV]))
        tell_too_late(bootseer, spank, "env.mount", OPTION_ENV, &asked);
    show_environments(bootseer, spank, job_id, &mounted, &left);
    bootseer->namespace = mount_namespace();
    if (left)
        hold_namespace(bootseer);
}

/* slurmstepd changes to the working folder as root. Root cannot access the mounts, so it falls
 * back to /tmp. A plugin like Pyxis that runs before this one has chosen a folder in its container.
 */
void mounts_enter(const struct bootseer *bootseer)
{
    char now[PATH_MAX];

    if (!*bootseer->cwd || mount_namespace() != bootseer->namespace || !getcwd(now, sizeof(now)) ||
        !strcmp(now, bootseer->cwd))
        return;
    if (chdir(bootseer->cwd))
        slurm_error("bootseer: cannot change to %s: %m", bootseer->cwd);
    else
        slurm_error("bootseer: changing to %s after all", bootseer->cwd);
}
