/*
 * The grammar, byte by byte. bootseer/slurm/options.py implements the same grammar on the node, and
 * a differential test compares them; change both or neither.
 *
 *   value    a byte string without NUL, at most 4095 bytes
 *   key      "" (the default: user and job name), or 1..128 bytes of [A-Za-z0-9._@+-] of which the
 *            first is neither '.' nor '-'; "off" and "record" are such keys with a meaning
 *   text     1..4095 bytes of valid UTF-8 (no overlong form, no surrogate, at most U+10FFFF), no byte
 *            below 0x20 and no 0x7f
 *   path     a text that starts with '/' and has no component ".." ('/' separates components)
 *   uri      a text of the form scheme "://" rest, scheme = [a-z][a-z0-9+.-]{0,15}, rest not empty
 *   image    path | uri
 *   env      path if it starts with '/', otherwise a key that is not empty
 *   ckpt     a text T. Let i be the position of its last ":/". Without one, or when '/' stands at i+2,
 *            T must be a uri; otherwise T[:i] must be a uri and T[i+1:] a path
 *   wait     1..4 bytes of [0-9] whose value is at most 3600
 */
#include "options.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Not isalnum(): srun runs in the user's locale. */
static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_key_byte(char c)
{
    return is_lower(c) || (c >= 'A' && c <= 'Z') || is_digit(c) || (c && strchr("._@+-", c));
}

static bool is_key(const char *s)
{
    size_t length = strlen(s);

    if (length < 1 || length > KEY_MAX || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < length; i++)
        if (!is_key_byte(s[i]))
            return false;
    return true;
}

/* Returns the length of the UTF-8 sequence at `s`, 0 when there is none. The terminating NUL is no
 * continuation byte, so this never reads past it. */
static size_t utf8_sequence(const unsigned char *s)
{
    uint32_t code = s[0];
    size_t length = code < 0x80 ? 1 : code < 0xc2 ? 0 : code < 0xe0 ? 2 : code < 0xf0 ? 3 : 4;

    if (length < 2)
        return length;
    if (code > 0xf4)
        return 0;
    code &= 0x7fu >> length;
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000) || code > 0x10ffff)
        return 0;
    return code >= 0xd800 && code <= 0xdfff ? 0 : length;
}

static const char *text_problem(const char *s)
{
    size_t step;

    if (!*s)
        return "a value is missing";
    if (strnlen(s, VALUE_MAX + 1) > VALUE_MAX)
        return "longer than 4095 bytes";
    for (const unsigned char *p = (const unsigned char *)s; *p; p += step) {
        if (*p < 0x20 || *p == 0x7f)
            return "has a control character";
        step = utf8_sequence(p);
        if (!step)
            return "not valid UTF-8";
    }
    return NULL;
}

/* Takes a text that starts with '/'. */
static const char *path_problem(const char *s)
{
    for (const char *slash = s; slash; slash = strchr(slash + 1, '/'))
        if (!strncmp(slash, "/..", 3) && (slash[3] == '/' || !slash[3]))
            return "a path must not have a '..' component";
    return NULL;
}

/* Takes the text [s, end). */
static bool is_uri(const char *s, const char *end)
{
    const char *p = s;

    if (!is_lower(*p))
        return false;
    while (is_lower(*p) || is_digit(*p) || (*p && strchr("+.-", *p)))
        p++;
    return p - s <= 16 && !strncmp(p, "://", 3) && p + 3 < end;
}

static const char *image_problem(const char *s)
{
    const char *problem = text_problem(s);

    if (problem)
        return problem;
    if (*s == '/')
        return path_problem(s);
    return is_uri(s, s + strlen(s)) ? NULL
                                    : "neither an absolute path nor a URI (scheme://...); a "
                                      "relative path cannot be found from a node";
}

static const char *env_problem(const char *s)
{
    const char *problem = text_problem(s);

    if (problem)
        return problem;
    if (*s == '/')
        return path_problem(s);
    return is_key(s) ? NULL
                     : "neither an absolute path nor a name (1 to 128 of A-Z a-z 0-9 . _ @ + -, "
                       "not starting with '.' or '-')";
}

static const char *ckpt_problem(const char *s)
{
    const char *problem = text_problem(s);
    const char *colon = NULL;

    if (problem)
        return problem;
    for (const char *next = s; (next = strstr(next, ":/")); next++)
        colon = next;
    if (colon && colon[2] == '/')
        colon = NULL; /* the one of "://" */
    if (!is_uri(s, colon ? colon : s + strlen(s)))
        return "not a URI (scheme://...), with :/MOUNTPOINT after it if wanted; write file:///... "
               "for a directory";
    return colon ? path_problem(colon + 1) : NULL;
}

static const char *key_problem(const char *s)
{
    return !*s || is_key(s)
               ? NULL
               : "not a key (1 to 128 of A-Z a-z 0-9 . _ @ + -, not starting with '.' or '-')";
}

static const char *wait_problem(const char *s)
{
    unsigned value = 0;
    size_t length = 0;

    for (; is_digit(s[length]) && length < 4; length++)
        value = value * 10 + (unsigned)(s[length] - '0');
    return length && !s[length] && value <= WAIT_MAX_S
               ? NULL
               : "not a whole number of seconds from 0 to 3600";
}

const char *option_problem(enum option option, const char *value)
{
    switch (option) {
    case OPTION_KEY:
        return key_problem(value);
    case OPTION_IMAGE:
        return image_problem(value);
    case OPTION_ENV:
        return env_problem(value);
    case OPTION_CKPT:
        return ckpt_problem(value);
    case OPTION_WAIT:
        return wait_problem(value);
    case OPTION_COUNT:
        break;
    }
    return "not an option";
}

bool option_is_off(const char *key)
{
    return !strcmp(key, "off");
}

char *text_escape(char *out, size_t size, const char *in)
{
    static const char cut[] = "...";
    size_t used = 0;

    if (size < sizeof(cut)) {
        if (size)
            out[0] = '\0';
        return out;
    }
    for (; *in; in++) {
        unsigned char c = (unsigned char)*in;
        bool plain = c >= 0x20 && c < 0x7f && c != '\\';
        size_t need = plain ? 1 : 4;

        /* Keep space for "..." unless this byte is the last. */
        if (used + need + (in[1] ? sizeof(cut) : 1) > size) {
            memcpy(out + used, cut, sizeof(cut));
            return out;
        }
        if (plain)
            out[used] = (char)c;
        else
            snprintf(out + used, 5, "\\x%02x", c);
        used += need;
    }
    out[used] = '\0';
    return out;
}

void name_to_key(char out[KEY_MAX + 1], const char *name)
{
    size_t i;

    for (i = 0; i < KEY_MAX && name[i]; i++)
        out[i] = is_key_byte(name[i]) ? name[i] : '_';
    out[i] = '\0';
    if (out[0] == '.' || out[0] == '-')
        out[0] = '_';
}
