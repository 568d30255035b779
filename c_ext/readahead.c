/* Read exact ranges of a file ahead, and pin them.
 *
 * Pages are brought in by pread, which reports I/O errors, and pinned by mlock on a mapping that
 * is never touched: a file that shrinks meanwhile gives an error, not SIGBUS.
 */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

struct bs_window {
    int fd; /* borrowed */
    uint64_t size_bytes;
    uint64_t page_bytes;
    uint8_t *map;
};

int bs_window_open(int fd, uint64_t size_bytes, bs_window **out)
{
    bs_window *self;
    int rc;

    *out = NULL;
    if (size_bytes == 0)
        return -EINVAL;
    self = calloc(1, sizeof *self);
    if (self == NULL)
        return -ENOMEM;
    self->fd = fd;
    self->size_bytes = size_bytes;
    self->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    self->map = mmap(NULL, (size_t)size_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (self->map == MAP_FAILED) {
        rc = -errno;
        free(self);
        return rc;
    }
    /* Exactly what is asked for, in requests as large as the file system takes: the kernel's own
     * read-ahead would stop at its window and run past the range's end. */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    *out = self;
    return 0;
}

static long sleeps(void)
{
    struct rusage used;

    return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nvcsw : -1;
}

int64_t bs_window_read(bs_window *self, uint64_t start, uint64_t stop, uint8_t *scratch,
                       size_t scratch_bytes, int *waited)
{
    uint64_t at = start;
    long before = sleeps();

    while (at < stop) {
        size_t want = stop - at < scratch_bytes ? (size_t)(stop - at) : scratch_bytes;
        ssize_t got = pread(self->fd, scratch, want, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        at += (uint64_t)got;
    }
    if (waited != NULL)
        *waited = sleeps() != before;
    return (int64_t)(at - start);
}

int64_t bs_window_pin(bs_window *self, uint64_t start, uint64_t stop)
{
    uint64_t from = start - start % self->page_bytes;

    if (stop > self->size_bytes || start >= stop)
        return -EINVAL;
    if (mlock(self->map + from, (size_t)(stop - from)) != 0)
        return -errno;
    return (int64_t)(stop - from);
}
