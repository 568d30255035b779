/* bs_extract_blocks with two blocks of any bytes, see `block_seeds` in fuzz_images.py. */
#include "io.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER = 12, BLOCK_BYTES = 128 << 10, RAW = 1 << 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t header[3] = {0};
    uint32_t lengths[2], sizes[2];
    size_t stored_bytes, content;
    uint8_t *stored, *out;

    if (size < HEADER)
        return 0;
    memcpy(header, data, HEADER);
    stored_bytes = size - HEADER;
    stored = malloc(stored_bytes + 1);
    memcpy(stored, data + HEADER, stored_bytes);
    lengths[0] = header[0];
    lengths[1] = (header[0] & (RAW - 1)) < stored_bytes
                     ? (uint32_t)(stored_bytes - (header[0] & (RAW - 1)))
                     : 0;
    sizes[0] = header[1] % (BLOCK_BYTES + 1);
    sizes[1] = header[2] % (BLOCK_BYTES + 1);
    content = (size_t)sizes[0] + sizes[1];
    out = malloc(content + 1);
    (void)bs_extract_blocks(lengths, sizes, 2, stored, stored_bytes, out, content);
    free(out);
    free(stored);
    return 0;
}
