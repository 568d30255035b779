/*
 * A stand-in for srun, slurmd's spank-prolog and slurmstepd: implements the part of the SPANK API
 * that the plugin uses, calls its hooks in Slurm 22.05's order, and reports what it sees on stdout.
 *
 * $FAKE_SCENARIO names a file of records, each ended by NUL:
 *   c CONTEXT   local, allocator, step, prolog, epilog
 *   o NAME=VALUE, O NAME   an option with and without a value
 *   p NAME=VALUE   this process's environment
 *   e NAME=VALUE   the job's environment (spank_getenv)
 *   a ARGUMENT     of the plugin's line in plugstack.conf
 *   s STEPID, i OPTIND
 *   n NAME   the job's name in the command's options
 *   f FOLDER, F FOLDER   where slurmstepd, or a container's plugin before this one, puts the task
 * The job is 4711 of user 1000 and group 1001, its steps are on three nodes, and this is the last.
 * The command line is free for the plugin to look at.
 */
#define _GNU_SOURCE
#include <slurm/slurm.h>
#include <slurm/spank.h>

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct spank_handle {
    int unused;
};

enum { MAX = 64 };

static struct {
    spank_context_t context;
    bool registered;
    struct spank_option options[MAX];
    int option_count;
    char *given[MAX]; /* NAME or NAME=VALUE */
    int given_count;
    char *job_env[MAX];
    int job_env_count;
    char *arguments[MAX];
    int argument_count;
    uint32_t step_id;
    const char *folder;
    bool in_container;
} host;

/* As Slurm's commands and libslurmfull have them. */
struct {
    char *job_name;
} opt;

char *slurm_option_get(void *options, const char *name)
{
    return options == &opt && !strcmp(name, "job-name") ? opt.job_name : NULL;
}

static void report(const char *level, const char *format, va_list arguments)
{
    printf("%s ", level);
    vprintf(format, arguments);
    putchar('\n');
}

#define LOGGER(name, level)                                                                        \
    void name(const char *format, ...)                                                             \
    {                                                                                              \
        va_list arguments;                                                                         \
        va_start(arguments, format);                                                               \
        report(level, format, arguments);                                                          \
        va_end(arguments);                                                                         \
    }
LOGGER(slurm_info, "info")
LOGGER(slurm_error, "error")
LOGGER(slurm_verbose, "verbose")
LOGGER(slurm_debug, "debug")
LOGGER(slurm_spank_log, "user")

const char *spank_strerror(spank_err_t error)
{
    return error == ESPANK_SUCCESS ? "success" : "failure";
}

spank_context_t spank_context(void)
{
    return host.context;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
    (void)spank;
    host.options[host.option_count++] = *option;
    return ESPANK_SUCCESS;
}

/* As in Slurm: an option that is registered is not looked up in the environment. */
spank_err_t spank_option_getopt(spank_t spank, struct spank_option *option, char **value)
{
    char name[256] = "SPANK__SLURM_SPANK_OPTION_bootseer_";

    (void)spank;
    *value = NULL;
    if (host.context != S_CTX_JOB_SCRIPT || host.option_count)
        return ESPANK_NOT_AVAIL;
    strcat(name, option->name);
    for (char *p = name; *p; p++)
        if (*p == '-')
            *p = '_';
    *value = getenv(name);
    return *value ? ESPANK_SUCCESS : ESPANK_ERROR;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
    static gid_t groups[] = {1000};
    spank_err_t rc = ESPANK_SUCCESS;
    va_list arguments;

    (void)spank;
    va_start(arguments, item);
    if (item == S_JOB_ID)
        *va_arg(arguments, uint32_t *) = 4711;
    else if (item == S_JOB_UID)
        *va_arg(arguments, uid_t *) = 1000;
    else if (item == S_JOB_GID)
        *va_arg(arguments, gid_t *) = 1001;
    else if (item == S_JOB_SUPPLEMENTARY_GIDS) {
        *va_arg(arguments, gid_t **) = groups;
        *va_arg(arguments, int *) = 1;
    } else if (item == S_TASK_ID)
        *va_arg(arguments, int *) = 0;
    else if (item == S_JOB_NNODES)
        *va_arg(arguments, uint32_t *) = 3;
    else if (item == S_JOB_NODEID)
        *va_arg(arguments, uint32_t *) = 2;
    else if (item == S_JOB_STEPID && host.context == S_CTX_REMOTE)
        *va_arg(arguments, uint32_t *) = host.step_id;
    else
        rc = ESPANK_BAD_ARG;
    va_end(arguments);
    return rc;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *buffer, int length)
{
    size_t name_length = strlen(name);

    (void)spank;
    if (host.context != S_CTX_REMOTE)
        return ESPANK_NOT_REMOTE;
    for (int i = 0; i < host.job_env_count; i++) {
        const char *value = host.job_env[i] + name_length + 1;

        if (strncmp(host.job_env[i], name, name_length) || value[-1] != '=')
            continue;
        snprintf(buffer, (size_t)length, "%s", value);
        return strlen(value) < (size_t)length ? ESPANK_SUCCESS : ESPANK_NOSPACE;
    }
    return ESPANK_ENV_NOEXIST;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
    (void)spank, (void)overwrite;
    printf("setenv %s=%s\n", name, value);
    return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
    (void)spank;
    printf("unsetenv %s\n", name);
    return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value,
                                     int overwrite)
{
    (void)spank, (void)overwrite;
    printf("control %s=%s\n", name, value);
    return ESPANK_SUCCESS;
}

static int count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void set_context(const char *name)
{
    host.context = !strcmp(name, "local")       ? S_CTX_LOCAL
                   : !strcmp(name, "allocator") ? S_CTX_ALLOCATOR
                   : !strcmp(name, "step")      ? S_CTX_REMOTE
                                                : S_CTX_JOB_SCRIPT;
}

static char *read_scenario(size_t *length)
{
    FILE *file = fopen(getenv("FAKE_SCENARIO"), "rb");
    char *bytes = malloc(4 << 20);

    *length = fread(bytes, 1, 4 << 20, file);
    fclose(file);
    return bytes;
}

/* Calls the options' callbacks as getopt's loop does. Returns what the first that fails returns. */
static int give_options(int remote)
{
    for (int i = 0; i < host.given_count; i++) {
        char *value = strchr(host.given[i], '=');
        size_t length = value ? (size_t)(value - host.given[i]) : strlen(host.given[i]);

        for (int k = 0; k < host.option_count; k++) {
            struct spank_option *option = &host.options[k];

            if (strlen(option->name) == length && !strncmp(option->name, host.given[i], length)) {
                int rc = option->cb(option->val, value ? value + 1 : NULL, remote);
                if (rc)
                    return rc;
            }
        }
    }
    return 0;
}

static int call(const char *name, spank_f *hook)
{
    struct spank_handle handle;
    int rc = hook(&handle, host.argument_count, host.arguments);

    printf("rc %s %d\n", name, rc);
    return rc;
}

int main(void)
{
    static const char *const told[] = {"BOOTSEER_TOLD", "SLURM_BOOTSEER_CONTAINER"};
    const char *context = "";
    char folder[4096];
    size_t length;
    char *records = read_scenario(&length);
    int descriptors, rc;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (char *record = records; record < records + length; record += strlen(record) + 1) {
        char *text = record + 2;

        switch (record[0]) {
        case 'c':
            set_context(context = text);
            break;
        case 'o':
        case 'O':
            host.given[host.given_count++] = text;
            break;
        case 'p':
            putenv(text);
            break;
        case 'e':
            host.job_env[host.job_env_count++] = text;
            break;
        case 'a':
            host.arguments[host.argument_count++] = text;
            break;
        case 's':
            host.step_id = (uint32_t)strtoul(text, NULL, 10);
            break;
        case 'i':
            optind = atoi(text);
            break;
        case 'n':
            opt.job_name = text;
            break;
        case 'F':
            host.in_container = true; /* fall through */
        case 'f':
            host.folder = text;
            break;
        }
    }
    descriptors = count_descriptors();
    switch (host.context) {
    case S_CTX_JOB_SCRIPT: /* no slurm_spank_init() here */
        if (!strcmp(context, "prolog"))
            call("job_prolog", slurm_spank_job_prolog);
        else
            call("job_epilog", slurm_spank_job_epilog);
        break;
    case S_CTX_REMOTE:
        call("init", slurm_spank_init);
        printf("rc option %d\n", give_options(1));
        call("init_post_opt", slurm_spank_init_post_opt);
        call("user_init", slurm_spank_user_init);
        call("task_init_privileged", slurm_spank_task_init_privileged);
        if (host.in_container && unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS))
            exit(77);
        if (host.folder && chdir(host.folder))
            exit(78);
        call("task_init", slurm_spank_task_init);
        printf("folder %s\n", getcwd(folder, sizeof(folder)));
        call("exit", slurm_spank_exit);
        break;
    default:
        call("init", slurm_spank_init);
        rc = give_options(0);
        printf("rc option %d\n", rc);
        if (rc)
            exit(255);
        call("init_post_opt", slurm_spank_init_post_opt);
        call("exit", slurm_spank_exit);
    }
    for (size_t i = 0; i < sizeof(told) / sizeof(*told); i++)
        if (getenv(told[i]))
            printf("env %s=%s\n", told[i], getenv(told[i]));
    printf("leaked descriptors %d\n", count_descriptors() - descriptors);
    printf("leaked children %d\n", waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD ? 0 : 1);
    free(records);
    return 0;
}
