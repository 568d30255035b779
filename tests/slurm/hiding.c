/* A SPANK plugin that gives tasks a mount namespace in which the job's checkpoint is not mounted, as
 * a job's container is that was made before the mount. */
#define _GNU_SOURCE
#include <slurm/spank.h>

#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>

SPANK_PLUGIN(hiding, 1)

int slurm_spank_task_init_privileged(spank_t spank, int ac, char *argv[])
{
    char path[64];
    uint32_t job_id;

    (void)ac, (void)argv;
    if (spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS)
        return -1;
    snprintf(path, sizeof(path), "/run/bootseer/jobs/%u/ckpt", job_id);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        umount2(path, MNT_DETACH))
        slurm_error("hiding: %s: %m", path);
    return 0;
}
