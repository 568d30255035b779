/* A job's prolog and epilog on the node: start the entry scripts, and only where there is work. */
#include "bootseer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    GRACE_MS = 5000, /* from the entry script's own deadline until it is killed */
    /* Longest time to hold a step. Slurm cannot end it meanwhile, and drains the node if that takes
     * longer than UnkillableStepTimeout. */
    STEP_WAIT_S = 10,
};

static const char PYXIS[] = "SPANK_" CONTROL_PYXIS;

static bool get_job_id(spank_t spank, uint32_t *job_id)
{
    if (spank_get_item(spank, S_JOB_ID, job_id) == ESPANK_SUCCESS)
        return true;
    slurm_error("bootseer: Slurm gives no job id; nothing is started");
    return false;
}

/* Sets the variables that the entry scripts may trust: all come from Slurm or the administrator,
 * none from the user. */
static void put_job(struct environment *environment, spank_t spank, uint32_t job_id)
{
    static const char *const from_slurm[] = {
        "SLURM_CLUSTER_NAME", "SLURM_CONF",     "SLURM_JOB_NODELIST", "SLURM_JOB_USER",
        "SLURM_JOB_WORK_DIR", "SLURM_NODELIST", "SLURMD_NODENAME",
    };
    char number[16];
    uid_t uid;
    gid_t gid;

    environment_put(environment, "PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    environment_put(environment, "LANG", "C.UTF-8");
    snprintf(number, sizeof(number), "%u", job_id);
    environment_put(environment, "SLURM_JOB_ID", number);
    if (spank_get_item(spank, S_JOB_UID, &uid) == ESPANK_SUCCESS) {
        snprintf(number, sizeof(number), "%u", uid);
        environment_put(environment, "SLURM_JOB_UID", number);
    }
    if (spank_get_item(spank, S_JOB_GID, &gid) == ESPANK_SUCCESS) {
        snprintf(number, sizeof(number), "%u", gid);
        environment_put(environment, "SLURM_JOB_GID", number);
    }
    for (size_t i = 0; i < sizeof(from_slurm) / sizeof(*from_slurm); i++)
        environment_put(environment, from_slurm[i], getenv(from_slurm[i]));
}

/* Sets one of the user's values under the name that the entry scripts read. */
static void put_control(struct environment *environment, const char *control, const char *value)
{
    char name[64];

    snprintf(name, sizeof(name), "SPANK_%s", control);
    environment_put(environment, name, value);
}

/* The value of an option in a job's prolog: the one that the submit side sent, otherwise the option
 * as Slurm itself passes it. */
static const char *job_value(spank_t spank, enum option option)
{
    struct spank_option known = {.name = (char *)option_names[option].option + strlen("--"),
                                 .has_arg = 1};
    char name[64];
    char *value;

    snprintf(name, sizeof(name), "SPANK_%s", option_names[option].control);
    if (getenv(name))
        return getenv(name);
    if (spank_option_getopt(spank, &known, &value) != ESPANK_SUCCESS || !value)
        return NULL;
    return strcmp(value, "(null)") ? value : "";
}

/* Returns how long the prolog may take: the user's value up to the limit, or the limit if the value
 * is missing or malformed. */
static int wait_ms(int limit_ms, const char *value)
{
    int asked_ms;

    if (!value || option_problem(OPTION_WAIT, value))
        return limit_ms;
    asked_ms = atoi(value) * 1000;
    return asked_ms < limit_ms ? asked_ms : limit_ms;
}

/* Sets the request's values, each of which may be NULL, and runs the prolog's entry script. */
static void run_prolog(const struct bootseer *bootseer, struct environment *environment,
                       const char *const values[OPTION_COUNT], const char *job_name,
                       const char *container, int limit_ms)
{
    const char *wait = values[OPTION_WAIT];
    int timeout_ms = wait_ms(limit_ms, wait);
    char path[PATH_MAX + 32];
    char seconds[16];

    put_control(environment, option_names[OPTION_KEY].control,
                values[OPTION_KEY] ? values[OPTION_KEY] : "");
    for (int i = OPTION_KEY + 1; i < OPTION_WAIT; i++)
        put_control(environment, option_names[i].control, values[i]);
    /* The script gets its real time limit, so that it ends by itself. It gets malformed values
     * unchanged, to ignore and report them. */
    if (wait && !option_problem(OPTION_WAIT, wait)) {
        snprintf(seconds, sizeof(seconds), "%d", timeout_ms / 1000);
        wait = seconds;
    }
    put_control(environment, option_names[OPTION_WAIT].control, wait);
    put_control(environment, CONTROL_JOB_NAME, job_name);
    environment_put(environment, PYXIS, container);
    snprintf(path, sizeof(path), "%s/bootseer-prolog", bootseer->settings.libexec);
    program_run(path, environment, timeout_ms + GRACE_MS);
}

void script_prolog(const struct bootseer *bootseer, spank_t spank)
{
    struct environment environment = {.count = 0};
    const char *values[OPTION_COUNT];
    bool asked = false;
    uint32_t job_id;

    for (int i = 0; i < OPTION_COUNT; i++) {
        values[i] = job_value(spank, (enum option)i);
        asked |= values[i] != NULL;
    }
    if (!asked || (values[OPTION_KEY] && option_is_off(values[OPTION_KEY])))
        return;
    if (!get_job_id(spank, &job_id))
        return;
    put_job(&environment, spank, job_id);
    put_control(&environment, CONTROL_SECRET, getenv("SPANK_" CONTROL_SECRET));
    run_prolog(bootseer, &environment, values, getenv("SPANK_" CONTROL_JOB_NAME), getenv(PYXIS),
               bootseer->settings.max_wait_ms);
    environment_free(&environment);
}

/* Sets this node's index in the job, if the step runs on all nodes. Variables that the user could
 * have set are only compared with Slurm's. */
static void put_place(struct environment *environment, spank_t spank)
{
    uint32_t count, index;
    char text[16], number[16];

    if (spank_get_item(spank, S_JOB_NNODES, &count) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_NODEID, &index) != ESPANK_SUCCESS ||
        spank_getenv(spank, "SLURM_JOB_NUM_NODES", text, sizeof(text)) != ESPANK_SUCCESS)
        return;
    snprintf(number, sizeof(number), "%u", count);
    if (strcmp(text, number))
        return;
    environment_put(environment, "SLURM_NNODES", number);
    snprintf(number, sizeof(number), "%u", index);
    environment_put(environment, "SLURM_NODEID", number);
}

void script_late_prolog(const struct bootseer *bootseer, spank_t spank, uint32_t job_id)
{
    const struct request *request = &bootseer->request;
    struct environment environment = {.count = 0};
    const char *values[OPTION_COUNT];
    int limit_ms = bootseer->settings.max_wait_ms;
    char seconds[16], container[VALUE_MAX + 1];

    if (limit_ms > STEP_WAIT_S * 1000)
        limit_ms = STEP_WAIT_S * 1000;
    for (int i = 0; i < OPTION_COUNT; i++)
        values[i] = request->given[i] ? request->value[i] : NULL;
    put_job(&environment, spank, job_id);
    put_place(&environment, spank);
    snprintf(seconds, sizeof(seconds), "%d", limit_ms / 1000);
    environment_put(&environment, "BOOTSEER_WAIT_LIMIT", seconds);
    run_prolog(bootseer, &environment, values, *request->job_name ? request->job_name : NULL,
               step_container(spank, container) ? container : NULL, limit_ms);
    environment_free(&environment);
}

void script_epilog(const struct bootseer *bootseer, spank_t spank)
{
    struct environment environment = {.count = 0};
    char path[PATH_MAX + 32];
    struct stat info;
    uint32_t job_id;

    if (!get_job_id(spank, &job_id))
        return;
    snprintf(path, sizeof(path), "%s/jobs/%u", bootseer->settings.run_dir, job_id);
    if (lstat(path, &info) || !S_ISDIR(info.st_mode))
        return;
    put_job(&environment, spank, job_id);
    snprintf(path, sizeof(path), "%s/bootseer-epilog", bootseer->settings.libexec);
    program_run(path, &environment, bootseer->settings.epilog_timeout_ms);
    environment_free(&environment);
}
