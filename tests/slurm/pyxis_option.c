/* Pyxis as far as BootSeer sees it: a SPANK plugin of that name with its option for the image. With
 * the argument enroot=PATH it has that program start a container, as Pyxis 0.24 does: in the first
 * task's slurm_spank_task_init, as the user; all tasks enter the namespaces of the container's shell.
 * Without, it only takes the time for that, for an image named slow. */
#define _GNU_SOURCE
#include <slurm/spank.h>

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

SPANK_PLUGIN(pyxis, 1)

static struct {
    pthread_mutex_t mutex;
    pid_t pid; /* of the container's shell */
    uint32_t entered;
} * shared;
static char image[PATH_MAX];
static const char *enroot;

static int take(int val, const char *argument, int remote)
{
    (void)val;
    (void)remote;
    snprintf(image, sizeof(image), "%s", argument);
    return 0;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    struct spank_option option = {"container-image", "IMAGE", "as pyxis has it", 1, 0, take};

    for (int i = 0; i < count; i++)
        if (!strncmp(arguments[i], "enroot=", 7))
            enroot = arguments[i] + 7;
    return spank_option_register(spank, &option);
}

int slurm_spank_user_init(spank_t spank, int count, char **arguments)
{
    pthread_mutexattr_t attributes;

    (void)spank;
    (void)count;
    (void)arguments;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    return pthread_mutex_init(&shared->mutex, &attributes);
}

static void start(spank_t spank)
{
    int status = 0, log = memfd_create("enroot-log", MFD_CLOEXEC);
    char **environ, text[2000] = "";
    pid_t pid;

    if (spank_get_item(spank, S_JOB_ENV, &environ) != ESPANK_SUCCESS)
        return;
    pid = fork();
    if (!pid) {
        dup2(open("/dev/null", O_RDONLY), 0);
        dup2(log, 1);
        dup2(log, 2);
        execle(enroot, enroot, "start", image, "sh", "-c", "kill -STOP $$; exit 0", NULL, environ);
        _exit(127);
    }
    shared->pid = pid;
    if (waitpid(pid, &status, WUNTRACED) < 0 || !WIFSTOPPED(status)) {
        shared->pid = -1;
        if (pread(log, text, sizeof(text) - 1, 0) >= 0)
            slurm_error("pyxis: enroot: status %d: %s", status, text);
    }
}

static bool enter(const char *kind, int type)
{
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)shared->pid, kind);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && !setns(fd, type) && !close(fd);
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
    const struct timespec longer = {.tv_sec = 3};
    uint32_t tasks = 1;

    (void)count;
    (void)arguments;
    if (!enroot && !strcmp(image, "slow"))
        nanosleep(&longer, NULL);
    if (!enroot || !*image)
        return 0;
    pthread_mutex_lock(&shared->mutex);
    if (!shared->pid)
        start(spank);
    pthread_mutex_unlock(&shared->mutex);
    if (shared->pid < 0 || !enter("user", CLONE_NEWUSER) || !enter("mnt", CLONE_NEWNS) ||
        chdir("/")) {
        slurm_error("pyxis: container start failed: %m");
        return -1;
    }
    spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks);
    /* The shell's children serve the image until the step ends. */
    if (__atomic_add_fetch(&shared->entered, 1, __ATOMIC_SEQ_CST) == tasks)
        kill(shared->pid, SIGCONT);
    return 0;
}
