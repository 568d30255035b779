/* The options' grammar, and what makes texts printable. */
#include "options.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text, *out, key[KEY_MAX + 1];
    size_t room;

    if (size < 1)
        return 0;
    room = data[0];
    text = malloc(size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    for (int option = 0; option <= OPTION_COUNT; option++)
        (void)option_problem((enum option)option, text);
    (void)option_is_off(text);
    out = malloc(room + 1);
    out[room] = '#';
    text_escape(out, room, text);
    if (out[room] != '#' || (room > 0 && strnlen(out, room) == room))
        abort();
    for (size_t i = 0; room > 0 && out[i]; i++)
        if (out[i] < 0x20 || out[i] > 0x7e)
            abort();
    free(out);
    memset(key, '#', sizeof key);
    name_to_key(key, text);
    if (option_problem(OPTION_KEY, key) != NULL)
        abort(); /* whatever a job is called */
    free(text);
    return 0;
}
