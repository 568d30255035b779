/* Children with a deadline: whatever they do, the caller continues in time. */
#define _GNU_SOURCE
#include "bootseer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    VARIABLE_MAX = 8 * 1024, /* bytes of one variable's value */
    LINE_MAX_BYTES = 1000,   /* of an output line; the rest of it is dropped */
    LINES_MAX = 500,         /* a child's output must not flood slurmd's log */
    TURN_MS = 10,            /* interval of polls for an exit without a pidfd */
    TERM_MS = 500,           /* from SIGTERM to SIGKILL */
    REAP_MS = 1000,          /* wait for a killed child; one in D state is abandoned */
};

void environment_put(struct environment *environment, const char *name, const char *value)
{
    char *entry;

    if (!value)
        return;
    if (strlen(value) > VARIABLE_MAX || environment->count == ENVIRONMENT_MAX) {
        slurm_info("bootseer: %s is dropped: %zu bytes", name, strlen(value));
        return;
    }
    if (asprintf(&entry, "%s=%s", name, value) < 0)
        return;
    environment->entries[environment->count++] = entry;
}

void environment_free(struct environment *environment)
{
    while (environment->count)
        free(environment->entries[--environment->count]);
}

int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Runs between fork and exec: async-signal-safe calls only. */
static void close_from(int first)
{
    struct rlimit limit;
    int last = 65536;

#ifdef SYS_close_range
    if (!syscall(SYS_close_range, (unsigned)first, ~0u, 0u))
        return;
#endif
    if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < (rlim_t)last)
        last = (int)limit.rlim_cur;
    for (int fd = first; fd < last; fd++)
        close(fd);
}

void child_signals(void)
{
    sigset_t none;

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* without the parent nobody enforces the deadline */
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* The child's half of child_fork(). */
static void child_enter(int output)
{
    int null;

    child_signals();
    umask(022);
    if (chdir("/"))
        _exit(127);
    null = open("/dev/null", O_RDWR);
    if (null < 0)
        _exit(127);
    /* By way of high numbers: any of 0, 1, 2 may be closed here, and so be one of these two. */
    null = fcntl(null, F_DUPFD, 10);
    output = fcntl(output, F_DUPFD, 10);
    if (dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0)
        _exit(127);
    close_from(3);
}

pid_t child_fork(int *output)
{
    int ends[2];
    pid_t pid = -1;

    if (pipe2(ends, O_CLOEXEC))
        return -1;
    /* Only our end, and before the fork: a blocking read would ignore the deadline. */
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK))
        goto out;
    pid = fork();
    if (pid == 0) {
        child_enter(ends[1]);
        return 0;
    }
out:
    close(ends[1]);
    if (pid < 0)
        close(ends[0]);
    else
        *output = ends[0];
    return pid;
}

/* Cuts a stream of bytes into lines. */
struct lines {
    line_f *line;
    size_t length;
    int count;
    char text[LINE_MAX_BYTES + 1];
};

static void lines_end(struct lines *lines)
{
    char shown[4 * LINE_MAX_BYTES + 1];

    lines->text[lines->length] = '\0';
    if (lines->length && lines->count < LINES_MAX)
        lines->line(text_escape(shown, sizeof(shown), lines->text));
    else if (lines->length && lines->count == LINES_MAX)
        lines->line("(more output is dropped)");
    lines->count += lines->length && lines->count <= LINES_MAX;
    lines->length = 0;
}

static void lines_feed(struct lines *lines, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] == '\n')
            lines_end(lines);
        else if (lines->length < LINE_MAX_BYTES)
            lines->text[lines->length++] = bytes[i] ? bytes[i] : '?';
    }
}

/* Reads available data, for a bounded time. Returns false at the end of the stream. */
static bool drain(int fd, struct lines *lines)
{
    char bytes[4096];
    ssize_t count;

    for (int turn = 0; turn < 256; turn++) {
        count = read(fd, bytes, sizeof(bytes));
        if (count > 0)
            lines_feed(lines, bytes, (size_t)count);
        else
            return count < 0 && (errno == EAGAIN || errno == EINTR);
    }
    return true;
}

/* Returns whether the child has exited; does not reap it. */
static bool has_exited(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};

    /* An error other than an interruption means that it has been reaped elsewhere. */
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT))
        return errno != EINTR;
    return info.si_pid == pid;
}

static bool wait_exit(pid_t pid, int timeout_ms)
{
    int64_t deadline = now_ms() + timeout_ms;

    while (!has_exited(pid)) {
        if (now_ms() >= deadline)
            return false;
        poll(NULL, 0, TURN_MS);
    }
    return true;
}

/* Ends a late child and its process group; processes that it started in other sessions survive. */
static void child_kill(pid_t pid)
{
    kill(-pid, SIGTERM);
    wait_exit(pid, TERM_MS);
    /* It is not reaped yet, so the number still means this group. */
    kill(-pid, SIGKILL);
    wait_exit(pid, REAP_MS);
}

void child_wait(pid_t pid, int timeout_ms)
{
    if (!wait_exit(pid, timeout_ms + TERM_MS + REAP_MS))
        kill(pid, SIGKILL);
    waitpid(pid, NULL, WNOHANG);
}

/* Returns a descriptor that can be read once the child has exited, or -1: Linux has it from 5.3. */
static int exit_descriptor(pid_t pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

int child_follow(pid_t pid, int output, int timeout_ms, line_f *line)
{
    int64_t deadline = now_ms() + timeout_ms, left_ms;
    struct pollfd streams[] = {{.fd = output, .events = POLLIN},
                               {.fd = exit_descriptor(pid), .events = POLLIN}};
    int turn_ms = streams[1].fd < 0 ? TURN_MS : timeout_ms;
    struct lines lines = {.line = line};
    bool exited, late = false;
    int status = 0;

    /* The loop ends at the exit, not at the end of the pipe: a daemon that keeps the pipe open
     * must not block the node. Checking for the exit before reading loses no output written
     * before it. */
    for (;;) {
        exited = has_exited(pid);
        if (streams[0].fd >= 0 && !drain(streams[0].fd, &lines))
            streams[0].fd = -1; /* poll() skips it */
        left_ms = deadline - now_ms();
        late = !exited && left_ms <= 0;
        if (exited || late)
            break;
        poll(streams, 2, left_ms < turn_ms ? (int)left_ms : turn_ms);
    }
    if (late)
        child_kill(pid);
    waitpid(pid, &status, WNOHANG);
    lines_end(&lines);
    close(output);
    if (streams[1].fd >= 0)
        close(streams[1].fd);
    return late ? -1 : status;
}

static void log_line(const char *line)
{
    slurm_info("bootseer: %s", line);
}

void program_run(const char *path, const struct environment *environment, int timeout_ms)
{
    char *argv[] = {(char *)path, NULL};
    int output, status;
    pid_t pid;

    if (access(path, X_OK)) {
        slurm_error("bootseer: cannot run %s: %m; run `bootseer plugin install` on this node",
                    path);
        return;
    }
    pid = child_fork(&output);
    if (pid == 0) {
        execve(path, argv, environment->entries);
        _exit(127);
    }
    if (pid < 0) {
        slurm_error("bootseer: cannot run %s: %m", path);
        return;
    }
    status = child_follow(pid, output, timeout_ms, log_line);
    if (status < 0)
        slurm_error("bootseer: %s was killed after %.1f s; the job continues without it", path,
                    timeout_ms / 1000.0);
    else if (WIFSIGNALED(status))
        slurm_error("bootseer: %s was ended by signal %d; the job continues without it", path,
                    WTERMSIG(status));
    else if (WEXITSTATUS(status))
        slurm_error("bootseer: %s ended with exit code %d; the job continues without it", path,
                    WEXITSTATUS(status));
}
