/* Answer a FUSE mount's reads from a file of checked blocks, without Python. With a tree, these are
 * the blocks of an image, and all other requests are answered here as well.
 *
 * Threads take turns: one at a time waits for the kernel's requests. It answers reads from the page
 * cache itself, and forwards other requests and reads of missing blocks. Before it reads the disk,
 * it lets the next thread wait for requests.
 */
#include "io.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    PRESENT = 1,
    MAX_THREADS = 64,
    LONGEST_READ = 1 << 20,
    /* The kernel requires space for the longest write, and more. */
    REQUEST_BYTES = LONGEST_READ + 4096,
    PAGE_BYTES = 4096,
    HUGE_BYTES = 2 << 20,
    LOG_TOUCHES = 1 << 17,
    /* Longer reads of a tree are decompressed while another thread waits for requests. */
    SHORT_BYTES = TREE_BLOCK_BYTES,
    FIRST_MS = 5000,
};

struct bs_fastpath {
    int device;  /* borrowed */
    int session; /* borrowed: to the process that answers other requests than reads, and back */
    int misses;  /* borrowed: to the process that answers other reads */
    int data;    /* borrowed */
    int stop;    /* readable at the end, */
    int ends;    /* and this is set, for a thread that always finds a request and never waits */
    uint64_t size_bytes;
    uint64_t block_bytes;
    const uint64_t *sums;  /* borrowed; other threads change it meanwhile */
    const uint8_t *states; /* the same */
    const bs_tree *tree;   /* borrowed; may be NULL */
    pthread_mutex_t turn;
    uint8_t *request; /* used by the thread whose turn it is: stays in the processor's cache */
    uint8_t *near;
    pthread_t threads[MAX_THREADS + 1];
    int running;
    /* The record, written by the thread whose turn it is. */
    pthread_mutex_t log_lock;
    int records;
    uint8_t *logged; /* a bit for each page, or block of a tree: small files share pages */
    bs_touch *log;
    size_t log_length;
};

/* A read of blocks that are all present. */
typedef struct {
    struct {
        struct fuse_in_header header;
        struct fuse_read_in in;
    } request;
    uint64_t offset; /* of the read */
    size_t size_bytes;
    uint64_t start; /* of its blocks */
    size_t span_bytes;
    bs_extent extent; /* with a tree: contains the read's content */
} bs_hit;

/* Return the length of all blocks of the longest read, and of their content. */
static size_t buffer_bytes(const bs_fastpath *self)
{
    size_t span = LONGEST_READ + 2 * (size_t)self->block_bytes;

    return self->tree ? span + 2 * (size_t)TREE_LONGEST_EXTENT : span;
}

/* Allocate memory with huge pages, if available: it is copied to and from all the time. */
static void *allocate_huge(size_t size_bytes)
{
    size_t whole = (size_bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    void *memory = aligned_alloc(HUGE_BYTES, whole);

    if (memory != NULL)
        (void)madvise(memory, whole, MADV_HUGEPAGE);
    return memory;
}

static void forward(int to, const void *request, size_t size_bytes)
{
    while (send(to, request, size_bytes, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

/* Return the length of the next request, 0 if there will be none. */
static size_t next_request(bs_fastpath *self, void *request)
{
    struct pollfd polled[] = {{self->device, POLLIN, 0}, {self->stop, POLLIN, 0}};

    while (!__atomic_load_n(&self->ends, __ATOMIC_RELAXED)) {
        ssize_t got = read(self->device, request, REQUEST_BYTES);

        if (got >= (ssize_t)sizeof(struct fuse_in_header))
            return (size_t)got;
        if (got >= 0)
            return 0;
        if (errno == EINTR || errno == ENOENT) /* the requesting process was killed */
            continue;
        if (errno != EAGAIN)
            return 0;
        if (poll(polled, 2, -1) < 0 && errno != EINTR)
            return 0;
        if (polled[0].revents & (POLLERR | POLLNVAL))
            return 0;
    }
    return 0;
}

/* Record a read; returns 0 if the record is full. */
static int note(bs_fastpath *self, const bs_hit *hit)
{
    uint64_t first = self->tree ? hit->extent.block : hit->offset / PAGE_BYTES;
    uint64_t last = self->tree ? first + hit->extent.count - 1
                               : (hit->offset + hit->size_bytes - 1) / PAGE_BYTES;
    int is_new = 0;
    int fits = 1;

    pthread_mutex_lock(&self->log_lock);
    if (self->records) {
        for (uint64_t at = first; at <= last && !is_new; at++)
            is_new = !(self->logged[at / 8] >> (at % 8) & 1);
        fits = !is_new || self->log_length < LOG_TOUCHES;
        if (is_new && fits) {
            struct timespec now;

            for (uint64_t at = first; at <= last; at++)
                self->logged[at / 8] |= (uint8_t)(1U << (at % 8));
            clock_gettime(CLOCK_MONOTONIC, &now);
            self->log[self->log_length++] = (bs_touch){
                hit->offset,
                hit->offset + hit->size_bytes,
                (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec,
            };
        }
    }
    pthread_mutex_unlock(&self->log_lock);
    return fits;
}

/* Parse a read; returns 0 if it is not answered here. */
static int take(bs_fastpath *self, size_t size_bytes, bs_hit *hit)
{
    const struct fuse_read_in *in = &hit->request.in;
    uint64_t stop;

    if (size_bytes < sizeof hit->request)
        return 0;
    memcpy(&hit->request, self->request, sizeof hit->request);
    if (self->tree) {
        if (bs_tree_extent(self->tree, hit->request.header.nodeid, in->offset, in->size,
                           &hit->extent) < 0 ||
            hit->extent.stored_bytes == 0)
            return 0;
        hit->offset = hit->extent.start;
        stop = hit->offset + hit->extent.stored_bytes;
    } else {
        if (in->offset >= self->size_bytes || in->size == 0 || in->size > LONGEST_READ)
            return 0;
        hit->offset = in->offset;
        stop = self->size_bytes - in->offset < in->size ? self->size_bytes : in->offset + in->size;
    }
    hit->size_bytes = (size_t)(stop - hit->offset);
    hit->start = hit->offset - hit->offset % self->block_bytes;
    stop += (self->block_bytes - stop % self->block_bytes) % self->block_bytes;
    if (stop > self->size_bytes)
        stop = self->size_bytes;
    hit->span_bytes = (size_t)(stop - hit->start);
    for (uint64_t at = hit->start; at < stop; at += self->block_bytes)
        if (__atomic_load_n(&self->states[at / self->block_bytes], __ATOMIC_RELAXED) != PRESENT)
            return 0;
    /* Prefetches open the file with this flag and are not recorded. overlayfs opens all files of a
     * tree with O_NOATIME, so prefetches of a tree use O_DSYNC. */
    return in->flags & (self->tree ? O_DSYNC : O_NOATIME) || note(self, hit);
}

static int is_good(const bs_fastpath *self, const bs_hit *hit, const uint8_t *data)
{
    uint64_t index = hit->start / self->block_bytes;

    for (size_t at = 0; at < hit->span_bytes; at += self->block_bytes, index++) {
        size_t left = hit->span_bytes - at;
        uint64_t sum = XXH3_64bits(data + at, left < self->block_bytes ? left : self->block_bytes);

        if ((sum ? sum : 1) != __atomic_load_n(&self->sums[index], __ATOMIC_RELAXED))
            return 0;
    }
    return 1;
}

/* Answer a read. Returns 0, -EAGAIN if it needs the disk, -EIO if a block is damaged. */
static int answer(bs_fastpath *self, const bs_hit *hit, uint8_t *data, int flags)
{
    struct iovec into = {data, hit->span_bytes};
    struct fuse_out_header header = {0};
    struct iovec reply[] = {
        {&header, sizeof header},
        {data + (hit->offset - hit->start), hit->size_bytes},
    };
    ssize_t got;

    if (self->tree && flags & RWF_NOWAIT && hit->extent.content_bytes > SHORT_BYTES)
        return -EAGAIN;
    got = preadv2(self->data, &into, 1, (off_t)hit->start, flags);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return -EAGAIN;
    /* Without waiting, the kernel returns the first part that it has. */
    if (got != (ssize_t)hit->span_bytes)
        return flags & RWF_NOWAIT ? -EAGAIN : -EIO;
    if (!is_good(self, hit, data))
        return -EIO;
    if (self->tree) {
        uint8_t *content = data + hit->span_bytes;

        if (bs_tree_extract(self->tree, &hit->extent, reply[1].iov_base, content) < 0)
            return -EIO;
        reply[1].iov_base = content + hit->extent.skip_bytes;
        reply[1].iov_len = hit->extent.size_bytes;
    }
    header.len = (uint32_t)(sizeof header + reply[1].iov_len);
    header.unique = hit->request.header.unique;
    while (writev(self->device, reply, 2) < 0 && errno == EINTR)
        ;
    return 0;
}

/* Answer a request other than a read. */
static void answer_with_tree(bs_fastpath *self, size_t size_bytes)
{
    size_t length = bs_tree_answer(self->tree, self->request, size_bytes, self->near, LONGEST_READ);

    while (length > 0 && write(self->device, self->near, length) < 0 && errno == EINTR)
        ;
}

/* Answer requests until one needs the disk or takes long, which the caller then answers; returns 0
 * if there are no more. */
static int take_turn(bs_fastpath *self, bs_hit *hit)
{
    size_t size_bytes;
    int rc = 0;

    pthread_mutex_lock(&self->turn);
    while (rc != -EAGAIN && (size_bytes = next_request(self, self->request)) != 0) {
        const struct fuse_in_header *header = (const void *)self->request;

        if (header->opcode == FUSE_INTERRUPT)
            continue; /* every request is answered in the end */
        if (header->opcode != FUSE_READ) {
            if (self->tree)
                answer_with_tree(self, size_bytes);
            else
                forward(self->session, self->request, size_bytes);
            continue;
        }
        rc = take(self, size_bytes, hit) ? answer(self, hit, self->near, RWF_NOWAIT) : -EIO;
        if (rc == -EIO)
            forward(self->misses, self->request, size_bytes);
    }
    pthread_mutex_unlock(&self->turn);
    return rc == -EAGAIN;
}

static void *serve(void *argument)
{
    bs_fastpath *self = argument;
    uint8_t *data = malloc(buffer_bytes(self));
    bs_hit hit;

    if (data == NULL)
        return NULL; /* the others do it */
    while (take_turn(self, &hit)) {
        int rc;

        while ((rc = answer(self, &hit, data, 0)) == -EAGAIN)
            ;
        if (rc == -EIO)
            forward(self->misses, &hit.request, sizeof hit.request);
    }
    free(data);
    shutdown(self->misses, SHUT_RDWR);
    return NULL;
}

/* Pass the answers to other requests than reads to the kernel. */
static void *carry(void *argument)
{
    bs_fastpath *self = argument;
    uint8_t *reply = malloc(REQUEST_BYTES);
    ssize_t got;

    while (reply != NULL && ((got = recv(self->session, reply, REQUEST_BYTES, 0)) > 0 ||
                             (got < 0 && errno == EINTR)))
        if (got > 0)
            while (write(self->device, reply, (size_t)got) < 0 && errno == EINTR)
                ;
    free(reply);
    return NULL;
}

/* Answer the kernel's first request, which it made at the mount. */
static int answer_first(bs_fastpath *self)
{
    struct pollfd polled = {self->device, POLLIN, 0};
    ssize_t got;

    if (poll(&polled, 1, FIRST_MS) != 1)
        return -ETIMEDOUT;
    got = read(self->device, self->request, REQUEST_BYTES);
    if (got < (ssize_t)sizeof(struct fuse_in_header))
        return got < 0 ? -errno : -EPROTO;
    answer_with_tree(self, (size_t)got);
    return 0;
}

int bs_fastpath_start(const bs_fastpath_files *files, uint64_t size_bytes, uint32_t block_bytes,
                      const uint64_t *sums, const uint8_t *states, const bs_tree *tree, int threads,
                      bs_fastpath **out)
{
    bs_fastpath *self;
    sigset_t all, before;
    int flags = fcntl(files->device, F_GETFL);
    int rc = 0;

    *out = NULL;
    if (threads < 1 || threads > MAX_THREADS || size_bytes == 0 || block_bytes == 0)
        return -EINVAL;
    self = calloc(1, sizeof *self);
    if (self == NULL)
        return -ENOMEM;
    if (flags < 0 || fcntl(files->device, F_SETFL, flags | O_NONBLOCK) < 0) {
        rc = -errno;
        free(self);
        return rc;
    }
    self->device = files->device;
    self->session = files->session;
    self->misses = files->misses;
    self->data = files->data;
    self->size_bytes = size_bytes;
    self->block_bytes = block_bytes;
    self->sums = sums;
    self->states = states;
    self->tree = tree;
    self->records = 1;
    self->request = malloc(REQUEST_BYTES);
    self->near = allocate_huge(buffer_bytes(self));
    self->logged = calloc((tree ? bs_tree_block_count(tree) : size_bytes / PAGE_BYTES) / 8 + 1, 1);
    self->log = malloc(LOG_TOUCHES * sizeof *self->log);
    self->stop = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&self->turn, NULL);
    pthread_mutex_init(&self->log_lock, NULL);
    if (self->stop < 0)
        rc = -errno;
    if (!self->request || !self->near || !self->logged || !self->log)
        rc = -ENOMEM;
    if (rc == 0 && tree)
        rc = answer_first(self);
    /* Python handles signals. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    /* No thread takes a request before all are started: it would be lost to the fallback server. */
    pthread_mutex_lock(&self->turn);
    for (int i = tree ? 1 : 0; rc == 0 && i <= threads; i++) {
        rc = -pthread_create(&self->threads[self->running], NULL, i == 0 ? carry : serve, self);
        if (rc == 0)
            self->running++;
    }
    __atomic_store_n(&self->ends, rc < 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&self->turn);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc < 0) {
        bs_fastpath_stop(self);
        /* The fallback server of the mount waits in its reads. */
        (void)fcntl(files->device, F_SETFL, flags);
        return rc;
    }
    *out = self;
    return 0;
}

size_t bs_fastpath_touches(bs_fastpath *self, int go_on, bs_touch *out, size_t capacity)
{
    size_t count;

    pthread_mutex_lock(&self->log_lock);
    count = self->log_length < capacity ? self->log_length : capacity;
    memcpy(out, self->log, count * sizeof *out);
    memmove(self->log, self->log + count, (self->log_length - count) * sizeof *out);
    self->log_length -= count;
    self->records = go_on;
    pthread_mutex_unlock(&self->log_lock);
    return count;
}

void bs_fastpath_stop(bs_fastpath *self)
{
    const uint64_t one = 1;

    __atomic_store_n(&self->ends, 1, __ATOMIC_RELAXED);
    if (self->stop >= 0 && write(self->stop, &one, sizeof one) < 0)
        abort(); /* an eventfd takes a one */
    if (!self->tree)
        shutdown(self->session, SHUT_RDWR);
    shutdown(self->misses, SHUT_RDWR);
    for (int i = 0; i < self->running; i++)
        pthread_join(self->threads[i], NULL);
    if (self->stop >= 0)
        close(self->stop);
    pthread_mutex_destroy(&self->turn);
    pthread_mutex_destroy(&self->log_lock);
    free(self->request);
    free(self->near);
    free(self->logged);
    free(self->log);
    free(self);
}
