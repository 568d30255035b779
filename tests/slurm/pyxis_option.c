/* Pyxis as far as BootSeer sees it: a SPANK plugin of that name with its option for the image. Like
 * Pyxis it makes the container in the task's hook, which takes its time for an image named slow. */
#include <slurm/spank.h>

#include <string.h>
#include <time.h>

SPANK_PLUGIN(pyxis, 1)

static int is_slow;

static int take(int val, const char *argument, int remote)
{
    (void)val;
    (void)remote;
    is_slow = !strcmp(argument, "slow");
    return 0;
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
    const struct timespec second = {.tv_sec = 1};

    (void)spank;
    (void)count;
    (void)arguments;
    if (is_slow)
        nanosleep(&second, NULL);
    return 0;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    struct spank_option option = {"container-image", "IMAGE", "as pyxis has it", 1, 0, take};

    (void)count;
    (void)arguments;
    return spank_option_register(spank, &option);
}
