/* Any steps below a folder: nothing outside of it is reached, and nothing left open.
 *
 * Input: bytes of steps (2), of texts (2); texts; steps of 8 bytes each, and content.
 */
#include "io.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_STEPS = 64, STEP = 8 };

static int outer = -1, above = -1; /* a folder that is filled, and the one that it is in */
static char path[64];

static int open_folders(void)
{
    int fd;

    snprintf(path, sizeof path, "/dev/shm/bootseer-fuzz-XXXXXX");
    if (mkdtemp(path) == NULL)
        abort();
    above = open(path, O_RDONLY | O_DIRECTORY);
    if (mkdirat(above, "precious", 0711) != 0 ||
        (fd = openat(above, "precious/file", O_CREAT | O_WRONLY, 0600)) < 0)
        abort();
    close(fd);
    outer = openat(above, "precious", O_RDONLY | O_DIRECTORY);
    return 0;
}

static void close_folders(void)
{
    (void)unlinkat(outer, "file", 0);
    (void)unlinkat(above, "precious", AT_REMOVEDIR);
    if (rmdir(path) != 0)
        perror(path);
}

/* What must not change: of the folder above, and of one beside. */
static uint64_t look(void)
{
    struct stat one, two, three;

    if (fstat(above, &one) != 0 || fstat(outer, &two) != 0 ||
        fstatat(outer, "file", &three, 0) != 0)
        abort();
    return one.st_mode ^ (uint64_t)two.st_mode << 12 ^ (uint64_t)three.st_mode << 24 ^
           (uint64_t)three.st_size << 36 ^ (uint64_t)three.st_nlink << 48;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bs_step steps[MOST_STEPS] = {0};
    uint16_t counts[2];
    bs_ground ground = {0};
    struct stat root;
    size_t count, done, content;
    uint64_t before;
    char *texts;
    int inside, next, rc;

    if (outer < 0) {
        open_folders();
        atexit(close_folders);
    }
    if (size < sizeof counts + 2)
        return 0;
    memcpy(counts, data, sizeof counts);
    data += sizeof counts;
    size -= sizeof counts;
    ground.texts_bytes = counts[1] < size ? counts[1] : size;
    texts = malloc(ground.texts_bytes + 1);
    memcpy(texts, data, ground.texts_bytes);
    texts[ground.texts_bytes] = '\0';
    ground.texts = texts;
    ground.by_names = counts[0] & 1;
    data += ground.texts_bytes;
    size -= ground.texts_bytes;
    ground.texts_bytes += !(counts[0] >> 15); /* with the last zero, or as it was given */
    count = (counts[0] >> 1) % MOST_STEPS;
    if (count > size / STEP)
        count = size / STEP;
    content = size - count * STEP;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *at = data + i * STEP;

        steps[i] = (bs_step){
            .action = at[0] % 10,
            .folder = at[1] & 3,
            .origin = at[1] >> 6,
            .path = at[2],
            .other = at[3],
            .start = at[4],
            .size_bytes = at[5],
            .offset = at[6] == 0xff ? UINT64_MAX - at[7] : at[6],
            .mode = 0700 | (uint32_t)at[7] << 2,
            .mtime_s = at[7] == 0xff ? INT64_MAX : at[7],
        };
    }
    if (mkdirat(above, "inside", 0700) != 0)
        abort();
    inside = openat(above, "inside", O_RDONLY | O_DIRECTORY);
    if (symlinkat("../precious", inside, "l") != 0 ||
        symlinkat("../precious/file", inside, "f") != 0)
        abort();
    before = look();
    ground.folders = (int[]){inside, inside};
    ground.count = 2;
    rc = bs_make(&ground, steps, count, data + count * STEP, content, &done);
    if (done > count || (rc == 0 && done != count) || look() != before)
        abort();
    if (fstat(inside, &root) != 0)
        abort();
    next = dup(inside);
    if (next > inside + 1 && fcntl(inside + 1, F_GETFD) >= 0)
        abort(); /* a descriptor was left */
    close(next);
    close(inside);
    if (bs_remove(above, "inside") != 0)
        abort();
    if (faccessat(above, "inside", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        abort();
    free(texts);
    return 0;
}
