/* What Pyxis has when it runs its importer: the job's environment, before a task has its own. */
#include <slurm/spank.h>

#include <stdint.h>
#include <stdio.h>

SPANK_PLUGIN(job_environ, 1)

int slurm_spank_user_init(spank_t spank, int count, char **arguments)
{
    char **environment;
    char path[64];
    uint32_t node;
    FILE *file;

    (void)count;
    (void)arguments;
    if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_NODEID, &node) != ESPANK_SUCCESS)
        return 0;
    snprintf(path, sizeof(path), "/shared/environ-%u", node);
    file = fopen(path, "w");
    if (file == NULL)
        return 0;
    for (; *environment != NULL; environment++)
        fprintf(file, "%s\n", *environment);
    fclose(file);
    return 0;
}
