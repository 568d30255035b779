/* The user's request, from options and environment; each value is checked when it is stored. */
#include "bootseer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option_names option_names[OPTION_COUNT] = {
    [OPTION_KEY] = {"--bootseer", "BOOTSEER", "BOOTSEER_KEY"},
    [OPTION_IMAGE] = {"--bootseer-image", "BOOTSEER_IMAGE", "BOOTSEER_IMAGE",
                      "BOOTSEER_WISHED_IMAGE"},
    [OPTION_ENV] = {"--bootseer-env", "BOOTSEER_ENV", "BOOTSEER_ENV"},
    [OPTION_CKPT] = {"--bootseer-ckpt", "BOOTSEER_CKPT", "BOOTSEER_CKPT", "BOOTSEER_WISHED_CKPT"},
    [OPTION_WAIT] = {"--bootseer-wait", "BOOTSEER_WAIT", "BOOTSEER_WAIT"},
};

/* Slurm passes an option without a value as "(null)" through an environment. An srun inside a batch
 * script inherits it that way. */
static const char *key_from_option(const char *value)
{
    return !value || !strcmp(value, "(null)") ? "" : value;
}

/* BOOTSEER=1 means yes; a key of that name needs the option. */
static const char *key_from_environment(const char *value)
{
    static const char *const yes[] = {"1", "yes", "true"};
    static const char *const no[] = {"0", "no", "false"};

    for (size_t i = 0; i < sizeof(yes) / sizeof(*yes); i++) {
        if (!strcmp(value, yes[i]))
            return "";
        if (!strcmp(value, no[i]))
            return "off";
    }
    return value;
}

bool request_set(struct request *request, enum option option, enum origin origin, const char *value,
                 bool remote)
{
    const struct option_names *names = &option_names[option];
    const char *problem;
    char shown[81];

    if (option == OPTION_KEY)
        value = origin == FROM_OPTION ? key_from_option(value) : key_from_environment(value);
    value = value ? value : "";
    problem = option_problem(option, value);
    if (problem) {
        const char *name = origin == FROM_OPTION ? names->option : names->fallback;

        text_escape(shown, sizeof(shown), value);
        if (remote)
            slurm_error("bootseer: %s=%s: %s; it is ignored", name, shown, problem);
        else
            slurm_spank_log("bootseer: %s=%s: %s", name, shown, problem);
        return false;
    }
    snprintf(request->value[option], sizeof(request->value[option]), "%s", value);
    request->given[option] = true;
    return true;
}

/* Copies a variable, truncated if necessary. The buffer has one byte more than a value may have, so
 * a truncated value is malformed. */
static bool lookup(spank_t spank, const char *name, char out[VALUE_MAX + 2])
{
    const char *value;
    spank_err_t rc;

    if (spank) {
        rc = spank_getenv(spank, name, out, VALUE_MAX + 2);
        return rc == ESPANK_SUCCESS || rc == ESPANK_NOSPACE;
    }
    value = getenv(name);
    if (value)
        snprintf(out, VALUE_MAX + 2, "%s", value);
    return value != NULL;
}

bool request_is_told(enum option option, const char *value)
{
    static const char file[] = "/image/image.sqsh";
    size_t length = strlen(value);

    if (option == OPTION_CKPT)
        return *value == '/' && !option_problem(OPTION_IMAGE, value);
    return option == OPTION_IMAGE && strstr(value, "/jobs/") && length >= sizeof(file) &&
           !strcmp(value + length - (sizeof(file) - 1), file);
}

/* Looks up the user's request. For a job that another job's task submits, this is the request of
 * the other job. */
static bool lookup_wish(spank_t spank, enum option option, char out[VALUE_MAX + 2])
{
    const struct option_names *names = &option_names[option];

    if (lookup(spank, names->fallback, out) && !request_is_told(option, out))
        return true;
    return !spank && names->wished && lookup(spank, names->wished, out);
}

bool request_complete(struct request *request, spank_t spank)
{
    char value[VALUE_MAX + 2];
    bool asked = lookup(spank, option_names[OPTION_KEY].fallback, value);
    bool good = true;

    for (int i = 0; i < OPTION_COUNT; i++)
        asked |= request->given[i];
    if (!asked)
        return true;
    for (int i = 0; i < OPTION_COUNT; i++)
        if (!request->given[i] && lookup_wish(spank, (enum option)i, value))
            good &= request_set(request, (enum option)i, FROM_ENVIRONMENT, value, spank != NULL);
    return good;
}

bool request_is_active(const struct request *request)
{
    bool given = false;

    for (int i = 0; i < OPTION_COUNT; i++)
        given |= request->given[i];
    return given && !option_is_off(request->value[OPTION_KEY]);
}
