/* bs_lz4_frame with any bytes; the checksum of a frame's header is repaired. */
#include "io.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MOST = 4 << 20, HEADER = 14 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t content = 100;
    uint8_t *stored = malloc(size + 1), *out;

    memcpy(stored, data, size);
    if (size > HEADER) {
        stored[HEADER] = (uint8_t)(XXH32(stored + 4, HEADER - 4, 0) >> 8);
        memcpy(&content, stored + 6, sizeof content);
        if (content > MOST)
            content %= MOST;
    }
    out = malloc(content + 1);
    (void)bs_lz4_frame(stored, size, out, content);
    free(out);
    free(stored);
    return 0;
}
