/* Decompress LZO1X, which Enroot's images are compressed with unless it is told otherwise.
 *
 * Source: "LZO stream format as understood by Linux' LZO decompressor", in the kernel's
 * Documentation/staging/lzo.rst.
 */
#include "image.h"

#include <errno.h>
#include <string.h>

/* What the instruction before has copied: 0 to 3 literals after its match, or a run of literals. */
enum { AFTER_RUN = 4 };

typedef struct {
    const uint8_t *at;
    const uint8_t *stop;
    uint8_t *out;
    size_t length; /* of what is decompressed */
    size_t capacity;
} stream;

/* Return the next byte, or -1 at the end. */
static int next(stream *self)
{
    return self->at < self->stop ? *self->at++ : -1;
}

/* Return a length whose low bits are in the instruction: if they are 0, it goes on behind it.
 * Returns 0 if it is cut short. */
static size_t length_of(stream *self, size_t bits, size_t most)
{
    size_t length = most;
    int byte;

    if (bits > 0)
        return bits;
    while ((byte = next(self)) == 0)
        length += 255;
    return byte < 0 ? 0 : length + (size_t)byte;
}

static int copy_literals(stream *self, size_t count)
{
    if (count > (size_t)(self->stop - self->at) || count > self->capacity - self->length)
        return -EIO;
    memcpy(self->out + self->length, self->at, count);
    self->at += count;
    self->length += count;
    return 0;
}

static int copy_match(stream *self, size_t distance, size_t count)
{
    uint8_t *to = self->out + self->length;
    const uint8_t *from;

    if (distance > self->length || count > self->capacity - self->length)
        return -EIO;
    from = to - distance;
    if (distance >= count)
        memcpy(to, from, count);
    else
        for (size_t i = 0; i < count; i++) /* it repeats what it writes */
            to[i] = from[i];
    self->length += count;
    return 0;
}

/* Carry out a match. `state` has what the instruction before has copied, and gets the number of
 * literals behind the match. Returns 1 at the end. */
static int copy_short_match(stream *self, unsigned code, int *state)
{
    int high = next(self);
    size_t distance, count;

    if (high < 0)
        return -EIO;
    if (code >= 64) {
        count = code >= 128 ? 5 + (code >> 5 & 3) : 3 + (code >> 5 & 1);
        distance = ((size_t)high << 3) + (code >> 2 & 7) + 1;
    } else {
        count = *state == AFTER_RUN ? 3 : 2;
        distance = ((size_t)high << 2) + (code >> 2) + (*state == AFTER_RUN ? 2049 : 1);
    }
    *state = code & 3;
    return copy_match(self, distance, count);
}

static int copy_long_match(stream *self, unsigned code, int *state)
{
    size_t count = code >= 32 ? length_of(self, code & 31, 31) : length_of(self, code & 7, 7);
    int low = next(self), high = next(self);
    size_t distance;

    if (count == 0 || low < 0 || high < 0)
        return -EIO;
    *state = low & 3;
    distance = ((size_t)high << 6) + ((size_t)low >> 2);
    if (code >= 32)
        return copy_match(self, distance + 1, count + 2);
    distance += (size_t)(code & 8) << 11;
    return distance == 0 ? 1 : copy_match(self, distance + 16384, count + 2);
}

int64_t sq_unlzo(const uint8_t *stored, size_t stored_bytes, uint8_t *out, size_t capacity)
{
    stream self = {.at = stored, .stop = stored + stored_bytes, .out = out, .capacity = capacity};
    int state = 0, rc = 0;

    if (stored_bytes > 0 && *stored > 17) { /* literals alone, whose number is in the first byte */
        size_t count = *self.at++ - 17U;

        rc = copy_literals(&self, count);
        state = count < AFTER_RUN ? (int)count : AFTER_RUN;
    }
    while (rc == 0) {
        int code = next(&self);

        if (code < 0) {
            rc = -EIO;
        } else if (code < 16 && state == 0) {
            size_t count = length_of(&self, (size_t)code, 15);

            rc = count > 0 ? copy_literals(&self, count + 3) : -EIO;
            state = AFTER_RUN;
        } else {
            rc = code >= 16 && code < 64 ? copy_long_match(&self, (unsigned)code, &state)
                                         : copy_short_match(&self, (unsigned)code, &state);
            if (rc == 0)
                rc = copy_literals(&self, (size_t)state);
        }
    }
    return rc > 0 ? (int64_t)self.length : rc;
}
