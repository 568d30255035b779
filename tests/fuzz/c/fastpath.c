/* The threads of a fast path under TSan: a hostile kernel asks while the map of blocks changes.
 *
 * Without libFuzzer, which is of no use with threads: fastpath SECONDS [SEED]. Prints how many
 * requests were made. Whatever is read without an error has to be the file's.
 */
#include "tree.h"
#include "tree_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    BLOCK = 4096,
    BLOCKS = 700,
    LENGTH = BLOCK * BLOCKS - 77,
    THREADS = 4,
    TREE_BLOCKS = LENGTH / TREE_BLOCK_BYTES,
    ROUND = 400,
    ROOM = 2 << 20,
    SO_SNDBUF_FORCE = 32,
};

typedef struct {
    int kernel; /* our end of the device */
    int misses; /* our ends of what is passed on */
    int session;
    int data;
    uint64_t sums[BLOCKS];
    uint8_t states[BLOCKS];
    const uint8_t *content;
    bs_fastpath *path;
    int ends;
    uint64_t asked;
    uint64_t seed;
} play;

static uint64_t next(uint64_t *seed) /* xorshift64 */
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static int ends(play *self)
{
    return __atomic_load_n(&self->ends, __ATOMIC_ACQUIRE);
}

/* What root's keeper and the agent do to a map that is shared with them. */
static void *change_map(void *argument)
{
    play *self = argument;
    uint64_t seed = self->seed ^ 0x9e3779b97f4a7c15;
    bs_touch touches[64];

    while (!ends(self)) {
        uint64_t at = next(&seed) % BLOCKS;
        uint64_t sum =
            XXH3_64bits(self->content + at * BLOCK, at == BLOCKS - 1 ? LENGTH % BLOCK : BLOCK);

        switch (next(&seed) % 6) {
        case 0:
            __atomic_store_n(&self->states[at], (uint8_t)next(&seed), __ATOMIC_RELAXED);
            break;
        case 1:
            __atomic_store_n(&self->sums[at], next(&seed), __ATOMIC_RELAXED);
            break;
        case 2:
            (void)!pwrite(self->data, "damage", 6, (off_t)(at * BLOCK));
            break;
        case 3:
            (void)bs_fastpath_touches(self->path, (int)(next(&seed) & 1), touches, 64);
            break;
        default:
            (void)!pwrite(self->data, self->content + at * BLOCK,
                          at == BLOCKS - 1 ? LENGTH % BLOCK : BLOCK, (off_t)(at * BLOCK));
            __atomic_store_n(&self->sums[at], sum ? sum : 1, __ATOMIC_RELAXED);
            __atomic_store_n(&self->states[at], 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

/* Take what comes on a socket: answers to reads have to be right. */
static void *take_all(void *argument)
{
    play *self = argument;
    uint8_t *buffer = malloc(ROOM);
    struct pollfd polled[] = {
        {self->kernel, POLLIN, 0}, {self->misses, POLLIN, 0}, {self->session, POLLIN, 0}};

    while (!ends(self)) {
        if (poll(polled, 3, 10) <= 0)
            continue;
        for (int i = 0; i < 3; i++) {
            const struct fuse_out_header *header = (const void *)buffer;
            ssize_t got = polled[i].revents ? recv(polled[i].fd, buffer, ROOM, MSG_DONTWAIT) : -1;

            if (got <= 0 && polled[i].revents)
                polled[i].fd = got == 0 || errno != EAGAIN ? -1 : polled[i].fd;
            if (i > 0 || got < (ssize_t)sizeof *header)
                continue;
            if (header->len != (size_t)got)
                abort();
            /* Our own numbers say what was asked for: odd ones are of reads. */
            if (header->error == 0 && header->unique & 1) {
                uint64_t offset = header->unique >> 1 & 0xffffffff;
                size_t length = (size_t)got - sizeof *header;

                if (offset + length > LENGTH ||
                    memcmp(buffer + sizeof *header, self->content + offset, length) != 0)
                    abort();
            }
        }
    }
    free(buffer);
    return NULL;
}

static void ask(play *self, uint64_t *seed)
{
    struct {
        struct fuse_in_header header;
        struct fuse_read_in in;
        uint8_t more[64];
    } request;
    uint64_t offset = next(seed) % (LENGTH + 9000);
    uint64_t size = next(seed) % 3 ? next(seed) % 20000 : next(seed) % (3 << 20);
    size_t length = sizeof request.header + sizeof request.in;

    memset(&request, (int)(next(seed) & 0xff), sizeof request);
    request.header = (struct fuse_in_header){
        .len = (uint32_t)length,
        .opcode = FUSE_READ,
        .unique = 1 | offset << 1,
        .nodeid = next(seed) % 4,
    };
    request.in = (struct fuse_read_in){.offset = offset, .size = (uint32_t)size};
    request.in.flags = next(seed) & 1 ? O_NOATIME : 0;
    switch (next(seed) % 8) {
    case 0:
        request.header.opcode = (uint32_t)(next(seed) % 60);
        request.header.unique &= ~1ULL;
        break;
    case 1:
        request.in.offset = UINT64_MAX - next(seed) % 9000;
        break;
    case 2:
        length = sizeof request.header + next(seed) % sizeof request.in; /* cut short */
        break;
    case 3:
        length = sizeof request; /* more than there should be */
        break;
    default:
        break;
    }
    if (send(self->kernel, &request, length, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        self->asked++;
}

static void pair(int *one, int *other)
{
    int ends[2], room = ROOM;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        abort();
    for (int i = 0; i < 2; i++)
        if (setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF_FORCE, &room, sizeof room) != 0)
            (void)setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    *one = ends[0];
    *other = ends[1];
}

/* A tree with one file, which has what the image has: node 3. */
static bs_tree *make_tree(void)
{
    static row_inode inodes[] = {
        {.mode = S_IFDIR | 0755, .first = 0, .count = 1},
        {.mode = S_IFDIR | 0755, .first = 1, .count = 1},
        {.mode = S_IFREG | 0644,
         .count = TREE_BLOCKS,
         .size_bytes = TREE_BLOCKS * TREE_BLOCK_BYTES},
    };
    static row_entry entries[] = {{0, 1, 1}, {1, 1, 2}};
    static uint32_t blocks[TREE_BLOCKS];
    bs_tree_rows rows = {
        .inodes = (const uint8_t *)inodes,
        .entries = (const uint8_t *)entries,
        .blocks = (const uint8_t *)blocks,
        .strings = (const uint8_t *)"0a",
        .inode_count = 3,
        .entry_count = 2,
        .block_count = TREE_BLOCKS,
        .strings_bytes = 2,
        .image_bytes = LENGTH,
    };
    bs_tree *tree;

    for (int i = 0; i < TREE_BLOCKS; i++)
        blocks[i] = TREE_BLOCK_RAW | TREE_BLOCK_BYTES;
    if (bs_tree_open(&rows, &tree) < 0)
        abort();
    return tree;
}

/* What the kernel asks first. */
static void say_hello(play *self)
{
    struct {
        struct fuse_in_header header;
        struct fuse_init_in in;
    } request = {{.len = sizeof request, .opcode = FUSE_INIT},
                 {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION}};

    if (send(self->kernel, &request, sizeof request, 0) < 0)
        abort();
}

/* From start to end, once. */
static uint64_t run(const uint8_t *content, uint64_t seed)
{
    play *self = calloc(1, sizeof *self);
    bs_fastpath_files files;
    pthread_t threads[2];
    uint64_t asked;
    int ways = (int)(seed % 3);
    bs_tree *tree = seed >> 9 & 1 ? make_tree() : NULL;

    self->seed = seed;
    self->content = content;
    pair(&self->kernel, &files.device);
    pair(&self->session, &files.session);
    pair(&self->misses, &files.misses);
    self->data = files.data = memfd_create("blocks", MFD_CLOEXEC);
    if (self->data < 0 || ftruncate(self->data, LENGTH) != 0)
        abort();
    if (tree)
        say_hello(self);
    if (bs_fastpath_start(&files, LENGTH, BLOCK, self->sums, self->states, tree, THREADS,
                          &self->path) < 0)
        abort();
    (void)pthread_create(&threads[0], NULL, change_map, self);
    (void)pthread_create(&threads[1], NULL, take_all, self);
    for (int i = 0; i < ROUND; i++)
        ask(self, &seed);
    if (ways == 1)
        shutdown(self->kernel, SHUT_RDWR); /* the mount goes while it is in use */
    if (ways == 2)
        shutdown(self->misses, SHUT_RDWR);
    __atomic_store_n(&self->ends, 1, __ATOMIC_RELEASE);
    (void)pthread_join(threads[0], NULL);
    (void)pthread_join(threads[1], NULL);
    shutdown(self->kernel, SHUT_RDWR); /* nobody takes answers any more */
    bs_fastpath_stop(self->path);
    for (int *fd = (int[]){self->kernel, self->misses, self->session, files.device, files.session,
                           files.misses, files.data, -1};
         *fd >= 0; fd++)
        close(*fd);
    if (tree)
        bs_tree_close(tree);
    asked = self->asked;
    free(self);
    return asked;
}

int main(int argc, char **argv)
{
    time_t stop = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL);
    uint64_t filling = 5, asked = 0;
    uint64_t *content = malloc(BLOCK * BLOCKS);

    for (size_t i = 0; i < BLOCK * BLOCKS / sizeof *content; i++)
        content[i] = next(&filling);
    do {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        fprintf(stderr, "seed: %llu\n", (unsigned long long)seed);
        asked += run((const uint8_t *)content, seed | 1 << 20);
    } while (time(NULL) < stop);
    printf("stat::number_of_executed_units: %llu\n", (unsigned long long)asked);
    free(content);
    return 0;
}
