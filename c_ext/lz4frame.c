/* Decompress one LZ4 frame into memory of exactly the required length.
 *
 * The package lz4 allocates memory for every frame, as much as the frame's header declares, and
 * copies it: that takes longer than decompression.
 */
#include "io.h"

#include <errno.h>
#include <lz4frame.h>

int bs_lz4_frame(const uint8_t *stored, size_t stored_bytes, uint8_t *out, size_t size_bytes)
{
    static const LZ4F_decompressOptions_t options = {.stableDst = 1};
    LZ4F_dctx *context = NULL;
    LZ4F_frameInfo_t info;
    size_t taken = stored_bytes;
    size_t made = 0;
    size_t at, left;
    int rc = -EBADMSG;

    if (LZ4F_isError(LZ4F_createDecompressionContext(&context, LZ4F_VERSION)))
        return -ENOMEM;
    if (LZ4F_isError(LZ4F_getFrameInfo(context, &info, stored, &taken)))
        goto out;
    if (info.frameType != LZ4F_frame || info.contentSize != size_bytes || info.dictID != 0)
        goto out;
    at = taken;
    do {
        size_t given = size_bytes - made;

        taken = stored_bytes - at;
        left = LZ4F_decompress(context, out + made, &given, stored + at, &taken, &options);
        if (LZ4F_isError(left) || (left > 0 && taken == 0 && given == 0))
            goto out;
        at += taken;
        made += given;
    } while (left > 0);
    if (at == stored_bytes && made == size_bytes)
        rc = 0;
out:
    (void)LZ4F_freeDecompressionContext(context);
    return rc;
}
