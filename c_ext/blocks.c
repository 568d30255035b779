/* Decompress blocks of a snapshot's squashfs. */
#include "tree_rows.h"

#include <errno.h>
#include <lz4.h>
#include <string.h>

int bs_extract_block(uint32_t length, const uint8_t *stored, uint8_t *out, uint32_t size)
{
    uint32_t stored_bytes = length & TREE_BLOCK_LENGTH;

    if ((length & TREE_BLOCK_RAW) == 0)
        return LZ4_decompress_safe((const char *)stored, (char *)out, (int)stored_bytes,
                                   (int)size) == (int)size
                   ? 0
                   : -EBADMSG;
    if (stored_bytes != size)
        return -EBADMSG;
    memcpy(out, stored, size);
    return 0;
}

int bs_extract_blocks(const uint32_t *lengths, const uint32_t *sizes, size_t count,
                      const uint8_t *stored, size_t stored_bytes, uint8_t *out, size_t out_bytes)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t length = lengths[i] & TREE_BLOCK_LENGTH;

        if (length > stored_bytes || sizes[i] > out_bytes ||
            bs_extract_block(lengths[i], stored, out, sizes[i]) != 0)
            return -EBADMSG;
        stored += length;
        stored_bytes -= length;
        out += sizes[i];
        out_bytes -= sizes[i];
    }
    return stored_bytes == 0 && out_bytes == 0 ? 0 : -EBADMSG;
}
