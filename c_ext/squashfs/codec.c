/* Decompress blocks with the image's compressor. */
#include "image.h"

#include <errno.h>
#include <lz4.h>
#include <pthread.h>
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

/* A thread's state of the compressors that need one. */
typedef struct {
    ZSTD_DCtx *zstd;
    z_stream zlib;
    int has_zlib;
} decoders;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int has_key;

static void free_decoders(void *of_thread)
{
    decoders *self = of_thread;

    ZSTD_freeDCtx(self->zstd);
    if (self->has_zlib)
        inflateEnd(&self->zlib);
    free(self);
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, free_decoders) == 0;
}

static decoders *of_this_thread(void)
{
    decoders *self;

    pthread_once(&once, make_key);
    if (!has_key)
        return NULL;
    self = pthread_getspecific(key);
    if (self == NULL && (self = calloc(1, sizeof *self)) != NULL &&
        pthread_setspecific(key, self) != 0) {
        free(self);
        return NULL;
    }
    return self;
}

static int64_t unzstd(const uint8_t *stored, size_t stored_bytes, uint8_t *out, size_t capacity)
{
    decoders *own = of_this_thread();
    size_t got;

    if (own == NULL || (own->zstd == NULL && (own->zstd = ZSTD_createDCtx()) == NULL))
        return -ENOMEM;
    got = ZSTD_decompressDCtx(own->zstd, out, capacity, stored, stored_bytes);
    return ZSTD_isError(got) ? -EIO : (int64_t)got;
}

static int64_t unzip(const uint8_t *stored, size_t stored_bytes, uint8_t *out, size_t capacity)
{
    decoders *own = of_this_thread();
    z_stream *stream;

    if (own == NULL)
        return -ENOMEM;
    stream = &own->zlib;
    if (own->has_zlib ? inflateReset(stream) != Z_OK : inflateInit(stream) != Z_OK)
        return -ENOMEM;
    own->has_zlib = 1;
    stream->next_in = (Bytef *)(uintptr_t)stored;
    stream->avail_in = (uInt)stored_bytes;
    stream->next_out = out;
    stream->avail_out = (uInt)capacity;
    return inflate(stream, Z_FINISH) == Z_STREAM_END ? (int64_t)stream->total_out : -EIO;
}

static int64_t unlz4(const uint8_t *stored, size_t stored_bytes, uint8_t *out, size_t capacity)
{
    int got =
        LZ4_decompress_safe((const char *)stored, (char *)out, (int)stored_bytes, (int)capacity);

    return got < 0 ? -EIO : got;
}

int sq_can_decompress(int compressor)
{
    return compressor == SQ_ZSTD || compressor == SQ_GZIP || compressor == SQ_LZ4 ||
           compressor == SQ_LZO;
}

int64_t sq_decompress(int compressor, const uint8_t *stored, size_t stored_bytes, uint8_t *out,
                      size_t capacity)
{
    if (stored_bytes > SQ_MAX_BLOCK_BYTES || capacity > SQ_MAX_BLOCK_BYTES)
        return -EINVAL;
    switch (compressor) {
    case SQ_ZSTD:
        return unzstd(stored, stored_bytes, out, capacity);
    case SQ_GZIP:
        return unzip(stored, stored_bytes, out, capacity);
    case SQ_LZ4:
        return unlz4(stored, stored_bytes, out, capacity);
    case SQ_LZO:
        return sq_unlzo(stored, stored_bytes, out, capacity);
    default:
        return -EOPNOTSUPP;
    }
}
