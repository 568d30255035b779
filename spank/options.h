/* The grammar of BootSeer's options: pure functions, no Slurm. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The options, in the order of the tables that describe them. */
enum option {
    OPTION_KEY,
    OPTION_IMAGE,
    OPTION_ENV,
    OPTION_CKPT,
    OPTION_WAIT,
    OPTION_COUNT,
};

enum {
    KEY_MAX = 128,    /* bytes of a key and of a job's name */
    VALUE_MAX = 4095, /* bytes of any value */
    WAIT_MAX_S = 3600,
};

/* Returns NULL when the value obeys the option's grammar, otherwise what is wrong with it. */
const char *option_problem(enum option option, const char *value);

/* Returns whether a value of --bootseer turns BootSeer off. */
bool option_is_off(const char *key);

/* Copies `in` with everything that is not printable ASCII escaped as \xNN, cut with "..." when it
 * does not fit, always terminated. Returns `out`. */
char *text_escape(char *out, size_t size, const char *in);

/* Copies a job's name with every byte that a key may not have replaced by '_', at most KEY_MAX
 * bytes of it. */
void name_to_key(char out[KEY_MAX + 1], const char *name);
