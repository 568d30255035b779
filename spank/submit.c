/* srun, sbatch, salloc: check the user's request and send it with the job. */
#include "bootseer.h"
#include "release.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static void find_job_name(struct request *request)
{
    const char *name = release_job_name();

    if (name)
        name_to_key(request->job_name, name);
    else if (!*request->value[OPTION_KEY])
        slurm_error(
            "bootseer: this Slurm does not tell the job's name; give a key, --bootseer=KEY, "
            "since all jobs without one share the key 'unnamed'");
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

/* Finds the image that is named for Pyxis, whose options SPANK hides: by the command's own arguments,
 * by a line of its script, or by Pyxis' variable. */
static void find_container(char out[VALUE_MAX + 1])
{
    static const char option[] = "--container-image";
    const size_t length = sizeof(option) - 1;
    const char *found = getenv(CONTROL_PYXIS);
    char buffer[16 * 1024];
    char *argv[1024];
    int argc = read_arguments(buffer, sizeof(buffer), argv, sizeof(argv) / sizeof(*argv));

    for (int i = 1; i < argc && i < optind; i++) {
        if (strncmp(argv[i], option, length))
            continue;
        if (argv[i][length] == '=')
            found = argv[i] + length + 1;
        else if (!argv[i][length] && i + 1 < argc)
            found = argv[i + 1];
    }
    if (!found)
        found = getenv("PYXIS_CONTAINER_IMAGE");
    out[0] = '\0';
    if (found && *found == '.' && getcwd(out, VALUE_MAX)) { /* a path, as Pyxis has it */
        strcat(out, "/");
        found += strncmp(found, "./", 2) ? 0 : 2;
    }
    snprintf(out + strlen(out), VALUE_MAX + 1 - strlen(out), "%s", found ? found : "");
}

static void send_control(spank_t spank, const char *name, const char *value)
{
    spank_err_t rc = spank_job_control_setenv(spank, name, value, 1);

    if (rc != ESPANK_SUCCESS)
        slurm_error("bootseer: cannot send %s with the job: %s; the job starts without it", name,
                    spank_strerror(rc));
}

/* Makes a secret for the job's nodes. Without one they do not talk to each other. */
static void send_secret(spank_t spank)
{
    unsigned char bytes[32];
    char text[2 * sizeof(bytes) + 1];

    if (getrandom(bytes, sizeof(bytes), GRND_NONBLOCK) != sizeof(bytes))
        return;
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    send_control(spank, CONTROL_SECRET, text);
}

/* Whether this is an srun within a job. */
static bool is_step(void)
{
    return spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID");
}

/* Whether this srun begins a step of a job that may have an agent, and does not decline it. */
static bool is_of_job(const struct request *request)
{
    return is_step() && (getenv(VARIABLE_TOLD) || getenv("BOOTSEER_SOCKET")) &&
           !option_is_off(request->value[OPTION_KEY]);
}

/* Whether a step's job got advice: at its submission, or when an earlier step brought the request
 * that started the job's agent, whose folder is here if this is one of the job's nodes. */
static bool is_told(const struct settings *settings)
{
    char folder[PATH_MAX + 32];
    struct stat info;

    if (getenv(VARIABLE_TOLD))
        return true;
    snprintf(folder, sizeof(folder), "%s/jobs/%lu", settings->run_dir,
             strtoul(getenv("SLURM_JOB_ID"), NULL, 10));
    return !lstat(folder, &info);
}

/* Tells a step's nodes which image srun's own arguments name for Pyxis: the job's prolog saw only
 * the arguments of the job, and SPANK shows the step none of Pyxis'. */
static void send_container(const struct request *request)
{
    if (*request->container)
        setenv(VARIABLE_CONTAINER, request->container, 1);
    else
        unsetenv(VARIABLE_CONTAINER);
}

int submit_post_opt(struct bootseer *bootseer, spank_t spank)
{
    struct request *request = &bootseer->request;
    bool is_active;

    /* Slurm 22.05 ignores an optional plugin's return value. Ending the command before there is a
     * job is better than silently ignoring the user's environment. */
    if (!request_complete(request, NULL))
        exit(1);
    if (!is_step())
        unsetenv(VARIABLE_TOLD); /* of the job that this command is a part of */
    is_active = request_is_active(request);
    if (is_active || is_of_job(request))
        find_container(request->container);
    if (spank_context() == S_CTX_LOCAL)
        send_container(request);
    if (!is_active)
        return 0;

    /* Slurm itself tells the prolog Pyxis' option, but not its variable or the working folder. */
    if (!is_step() && *request->container)
        send_control(spank, CONTROL_PYXIS, request->container);
    if (!is_step())
        send_secret(spank);
    send_control(spank, option_names[OPTION_KEY].control, request->value[OPTION_KEY]);
    for (int i = OPTION_KEY + 1; i < OPTION_COUNT; i++)
        if (request->given[i])
            send_control(spank, option_names[i].control, request->value[i]);
    find_job_name(request);
    if (*request->job_name)
        send_control(spank, CONTROL_JOB_NAME, request->job_name);

    if (!bootseer->advised && (!is_step() || !is_told(&bootseer->settings)))
        advice_begin(bootseer);
    bootseer->advised = true;
    if (!is_step())
        setenv(VARIABLE_TOLD, "1", 1); /* for the job's own sruns */
    /* sbatch and salloc call no hook before they end. */
    if (spank_context() == S_CTX_ALLOCATOR)
        advice_end(bootseer);
    return 0;
}
