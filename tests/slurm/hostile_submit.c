/* What a user loads instead of our plugin, by a slurm.conf of their own: it bears our name, takes
 * our options without a check, and sends along with the job whatever is in HOSTILE_NAME=VALUE. */
#include <slurm/spank.h>
#include <stdlib.h>
#include <string.h>

SPANK_PLUGIN(bootseer, 1)

extern char **environ;

static int take(int val, const char *argument, int remote)
{
    (void)val;
    (void)argument;
    (void)remote;
    return 0;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    struct spank_option options[] = {
        {"bootseer", "X", "", 2, 0, take},      {"bootseer-image", "X", "", 1, 1, take},
        {"bootseer-env", "X", "", 1, 2, take},  {"bootseer-ckpt", "X", "", 1, 3, take},
        {"bootseer-wait", "X", "", 1, 4, take},
    };

    (void)count;
    (void)arguments;
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
        spank_option_register(spank, &options[i]);
    return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
    static const char prefix[] = "HOSTILE_";

    (void)count;
    (void)arguments;
    for (char **entry = environ; *entry; entry++) {
        char *equals = strchr(*entry, '=');
        char *name;

        if (strncmp(*entry, prefix, strlen(prefix)) || !equals)
            continue;
        name = strndup(*entry + strlen(prefix), (size_t)(equals - *entry) - strlen(prefix));
        if (name)
            spank_job_control_setenv(spank, name, equals + 1, 1);
        free(name);
    }
    return 0;
}
