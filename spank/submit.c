/* srun, sbatch, salloc: check the user's request and send it with the job. */
#define _GNU_SOURCE
#include "bootseer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns the value of -J or --job-name if argv[i] is one, otherwise NULL. */
static const char *job_name_option(int argc, char *const argv[], int i)
{
    static const char option[] = "--job-name";
    const char *equals = strchr(argv[i], '=');
    size_t length = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
    const char *next = i + 1 < argc ? argv[i + 1] : NULL;

    if (!strncmp(argv[i], "-J", 2))
        return argv[i][2] ? argv[i] + 2 : next;
    /* getopt_long() takes every abbreviation that is not also one of --jobid. */
    if (length > strlen("--job") && length < sizeof(option) && !strncmp(argv[i], option, length))
        return equals ? equals + 1 : next;
    return NULL;
}

/* Finds the job name in the same order as srun and salloc: option, environment, command. In Slurm
 * 22.05 a plugin cannot read it at this time, but getopt has just left `optind` at the command. */
static const char *name_from_arguments(int argc, char *const argv[])
{
    bool salloc = !strcmp(program_invocation_short_name, "salloc");
    const char *name = NULL, *fallback = "interactive";

    for (int i = 1; i < argc && i < optind; i++) {
        const char *value = job_name_option(argc, argv, i);

        if (value)
            name = value;
        if (!strcmp(argv[i], "--no-shell"))
            fallback = "no-shell";
    }
    if (!name && !salloc)
        name = getenv("SLURM_JOB_NAME");
    if (!name && !salloc)
        name = optind > 0 && optind < argc ? basename(argv[optind]) : "";
    return name ? name : fallback;
}

/* Reads this process's own arguments into `buffer`. Returns how many there are. */
static int read_arguments(char *buffer, size_t size, char **argv, int max)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, buffer, size - 1);
    int argc = 0;

    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return 0;
    buffer[length] = '\0';
    for (char *p = buffer; p < buffer + length && argc < max; p += strlen(p) + 1)
        argv[argc++] = p;
    return argc;
}

static void find_job_name(char out[KEY_MAX + 1])
{
    const char *name = getenv("SLURM_JOB_NAME");
    char buffer[16 * 1024];
    char *argv[1024];

    /* sbatch has just set the variable to the name that it will use. */
    if (!name || strcmp(program_invocation_short_name, "sbatch"))
        name = name_from_arguments(
            read_arguments(buffer, sizeof(buffer), argv, sizeof(argv) / sizeof(*argv)), argv);
    name_to_key(out, name);
}

static void send_control(spank_t spank, const char *name, const char *value)
{
    spank_err_t rc = spank_job_control_setenv(spank, name, value, 1);

    if (rc != ESPANK_SUCCESS)
        slurm_error("bootseer: cannot send %s with the job: %s; the job starts without it", name,
                    spank_strerror(rc));
}

/* Whether this is an srun within a job, which got advice at its own submission. */
static bool is_step(void)
{
    return spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID");
}

int submit_post_opt(struct bootseer *bootseer, spank_t spank)
{
    struct request *request = &bootseer->request;

    /* Slurm 22.05 ignores an optional plugin's return value. Ending the command before there is a
     * job is better than silently ignoring the user's environment. */
    if (!request_complete(request, NULL))
        exit(1);
    if (!request_is_active(request))
        return 0;

    send_control(spank, option_names[OPTION_KEY].control, request->value[OPTION_KEY]);
    for (int i = OPTION_KEY + 1; i < OPTION_COUNT; i++)
        if (request->given[i])
            send_control(spank, option_names[i].control, request->value[i]);
    find_job_name(request->job_name);
    if (*request->job_name)
        send_control(spank, CONTROL_JOB_NAME, request->job_name);

    if (!bootseer->advised && !is_step())
        advice_begin(bootseer);
    bootseer->advised = true;
    /* sbatch and salloc call no hook before they end. */
    if (spank_context() == S_CTX_ALLOCATOR)
        advice_end(bootseer);
    return 0;
}
