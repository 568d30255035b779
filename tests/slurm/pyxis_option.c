/* Pyxis as far as BootSeer sees it: a SPANK plugin of that name with its option for the image. */
#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

static int take(int val, const char *argument, int remote)
{
    (void)val;
    (void)argument;
    (void)remote;
    return 0;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    struct spank_option option = {"container-image", "IMAGE", "as pyxis has it", 1, 0, take};

    (void)count;
    (void)arguments;
    return spank_option_register(spank, &option);
}
