/*
 * Advice at submission, from Python, in a child: an abort, a hang or a crash there must never reach
 * srun. A second child prints the output of the first while srun continues; srun waits for it only
 * before it ends. The embedded interpreter is a separate library that only the child loads. So
 * submissions without advice and daemons on nodes never map libpython. The child loads it
 * RTLD_GLOBAL, so that Python's extension modules find their symbols; Slurm loads plugins
 * RTLD_LOCAL.
 */
#include "bootseer.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <termios.h>
#include <unistd.h>

#define ADVICE_NICE 5

typedef int advise_f(int count, const char *const names[], const char *const values[]);

static void print_line(const char *line)
{
    struct termios terminal;
    /* With --pty, once the step runs. */
    bool is_raw = !tcgetattr(STDERR_FILENO, &terminal) && !(terminal.c_oflag & OPOST);

    slurm_spank_log("bootseer: %s%s", line, is_raw ? "\r" : "");
}

/* Runs in the child. Returns its exit status. */
static int advise(const char *library, const struct request *request)
{
    const char *names[OPTION_COUNT + 2], *values[OPTION_COUNT + 2];
    int count = 0;
    void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    advise_f *function = handle ? (advise_f *)dlsym(handle, "bootseer_advise") : NULL;

    if (!function)
        return 1;
    for (int i = 0; i < OPTION_COUNT; i++)
        if (i == OPTION_KEY || request->given[i]) {
            names[count] = option_names[i].control;
            values[count++] = request->value[i];
        }
    names[count] = CONTROL_JOB_NAME;
    values[count++] = request->job_name;
    if (*request->container) {
        names[count] = CONTROL_PYXIS;
        values[count++] = request->container;
    }
    /* 1 means done: an up-call that never reached Python returns 0. */
    return function(count, names, values) == 1 ? 0 : 1;
}

/* Runs in the child that srun waits for. */
static void follow(const struct bootseer *bootseer)
{
    char library[PATH_MAX + 32];
    int output, status;
    pid_t pid;

    snprintf(library, sizeof(library), "%s/bootseer-advice.so", bootseer->settings.libexec);
    pid = child_fork(&output);
    if (pid == 0) {
        /* If srun runs on the job's own node, the job's data has priority. */
        setpriority(PRIO_PROCESS, 0, ADVICE_NICE);
        _exit(advise(library, &bootseer->request));
    }
    if (pid < 0)
        return;
    status = child_follow(pid, output, bootseer->settings.advice_timeout_ms, print_line);
    if (status)
        slurm_verbose("bootseer: no advice: %s %s", library, status < 0 ? "timed out" : "failed");
}

void advice_begin(struct bootseer *bootseer)
{
    if (!bootseer->settings.advice_timeout_ms)
        return;
    bootseer->adviser = fork();
    if (bootseer->adviser == 0) {
        child_signals();
        follow(bootseer);
        _exit(0);
    }
}

void advice_end(struct bootseer *bootseer)
{
    if (bootseer->adviser > 0)
        child_wait(bootseer->adviser, bootseer->settings.advice_timeout_ms);
    bootseer->adviser = 0;
}
