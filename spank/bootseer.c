/* Registration and dispatch: connects Slurm's hooks to the other files. */
#define _GNU_SOURCE
#include "bootseer.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SPANK_PLUGIN(bootseer, 1)

static struct bootseer bootseer = {
    .settings =
        {
            .run_dir = "/run/bootseer",
            .advice_timeout_ms = 1500,
            .max_wait_ms = 60 * 1000,
            .epilog_timeout_ms = 20 * 1000,
        },
    .held = {-1, -1},
};

static int on_option(int option, const char *value, int remote)
{
    bool good =
        request_set(&bootseer.request, (enum option)option, FROM_OPTION, value, remote != 0);

    /* On a node a bad value is logged and ignored: it must not fail the job's step. */
    return good || remote ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
}

static void register_options(spank_t spank)
{
    struct spank_option options[] = {
        {"bootseer", "[KEY|off|record]",
         "warm start: prefetch on every node the data that earlier starts of this job read. KEY "
         "names the job's warm plan (default: user and job name), record ignores the plan and "
         "records this start, off overrides $BOOTSEER",
         2, OPTION_KEY, on_option},
        {"bootseer-image", "PATH|URI",
         "container image to prefetch (default: that of the last run)", 1, OPTION_IMAGE, on_option},
        {"bootseer-env", "NAME|FILE", "Python environment to restore before the first step", 1,
         OPTION_ENV, on_option},
        {"bootseer-ckpt", "URI[:MOUNTPOINT]",
         "checkpoint folder to mount and prefetch; tasks find its path in $BOOTSEER_CKPT", 1,
         OPTION_CKPT, on_option},
        {"bootseer-wait", "SECONDS",
         "longest time to hold the job until its data is in memory; the prefetch then continues in "
         "the background",
         1, OPTION_WAIT, on_option},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
        if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS)
            slurm_error("bootseer: cannot register --%s", options[i].name);
}

/* Parses seconds with up to three decimals, in every locale. */
static bool parse_seconds(const char *text, int *ms)
{
    int value = 0, scale = 1000;

    if (*text < '0' || *text > '9')
        return false;
    for (; *text >= '0' && *text <= '9' && value <= 86400; text++)
        value = value * 10 + (*text - '0');
    value *= 1000;
    if (*text == '.')
        for (text++; *text >= '0' && *text <= '9' && scale > 1; text++)
            value += (*text - '0') * (scale /= 10);
    if (*text || value > 86400 * 1000)
        return false;
    *ms = value;
    return true;
}

static bool parse_folder(const char *text, char out[PATH_MAX])
{
    if (*text != '/' || strlen(text) >= PATH_MAX)
        return false;
    snprintf(out, PATH_MAX, "%s", text);
    return true;
}

/* A bad argument is logged as an error for the administrator, and its default is used, so that no
 * user's job fails. */
static void parse_arguments(struct settings *settings, int ac, char *argv[])
{
    const struct {
        const char *name;
        char *folder;
        int *ms;
    } known[] = {
        {"libexec=", settings->libexec, NULL},
        {"run_dir=", settings->run_dir, NULL},
        {"advice_timeout=", NULL, &settings->advice_timeout_ms},
        {"max_wait=", NULL, &settings->max_wait_ms},
        {"epilog_timeout=", NULL, &settings->epilog_timeout_ms},
    };

    for (int i = 0; i < ac; i++) {
        bool good = false;

        for (size_t k = 0; k < sizeof(known) / sizeof(*known); k++) {
            size_t length = strlen(known[k].name);
            const char *text = argv[i] + length;

            if (!strncmp(argv[i], known[k].name, length))
                good = known[k].ms ? parse_seconds(text, known[k].ms)
                                   : parse_folder(text, known[k].folder);
        }
        if (!good)
            slurm_error("bootseer: plugstack.conf: %s is invalid and is ignored; valid are "
                        "libexec=, run_dir= (absolute folders), advice_timeout=, max_wait=, "
                        "epilog_timeout= (seconds)",
                        argv[i]);
    }
}

/* The entry scripts are installed beside this library. */
static void find_libexec(char libexec[PATH_MAX])
{
    Dl_info info;
    char *slash;

    if (!dladdr(&bootseer, &info) || !info.dli_fname || strlen(info.dli_fname) >= PATH_MAX)
        return;
    snprintf(libexec, PATH_MAX, "%s", info.dli_fname);
    slash = strrchr(libexec, '/');
    if (slash)
        *slash = '\0';
}

static void configure(int ac, char *argv[])
{
    find_libexec(bootseer.settings.libexec);
    parse_arguments(&bootseer.settings, ac, argv);
}

int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
    switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
    case S_CTX_REMOTE:
        configure(ac, argv);
        register_options(spank);
        step_init(&bootseer);
        break;
    default: /* slurmd itself has nothing to do */
        break;
    }
    return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int ac, char *argv[])
{
    (void)ac, (void)argv;
    switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
        return submit_post_opt(&bootseer, spank);
    case S_CTX_REMOTE:
        step_post_opt(&bootseer, spank);
        break;
    default:
        break;
    }
    return 0;
}

int slurm_spank_user_init(spank_t spank, int ac, char *argv[])
{
    (void)ac, (void)argv;
    step_user_init(&bootseer, spank);
    mounts_init(&bootseer);
    return 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int ac, char *argv[])
{
    (void)ac, (void)argv;
    mounts_task(&bootseer, spank);
    step_task_init(&bootseer, spank);
    return 0;
}

int slurm_spank_task_init(spank_t spank, int ac, char *argv[])
{
    (void)spank, (void)ac, (void)argv;
    mounts_enter(&bootseer);
    return 0;
}

int slurm_spank_exit(spank_t spank, int ac, char *argv[])
{
    (void)ac, (void)argv;
    if (spank_context() == S_CTX_REMOTE) {
        step_exit(&bootseer, spank);
        mounts_end(&bootseer);
    } else {
        advice_end(&bootseer);
    }
    return 0;
}

int slurm_spank_job_prolog(spank_t spank, int ac, char *argv[])
{
    /* Slurm calls no slurm_spank_init() in this context. The options must not be registered here:
     * spank_option_getopt() reads the environment only for options that are not registered. */
    configure(ac, argv);
    script_prolog(&bootseer, spank);
    return 0;
}

int slurm_spank_job_epilog(spank_t spank, int ac, char *argv[])
{
    configure(ac, argv);
    script_epilog(&bootseer, spank);
    return 0;
}
