/* srun, sbatch, salloc: check the user's request and send it with the job. */
#include "bootseer.h"
#include "release.h"

#include <stdlib.h>

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
    find_job_name(request);
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
