/* The C that Python needs: page-cache residency, read-ahead with pinning, I/O priority,
 * rights, mounts, reads of a mount.
 *
 * Every function that can fail returns a negative errno; none keeps global state. A handle
 * borrows its file descriptor: the caller keeps it open for as long as the handle lives.
 */
#ifndef BOOTSEER_IO_H
#define BOOTSEER_IO_H

#include <stddef.h>
#include <stdint.h>

/* Half-open range of bytes. */
typedef struct {
    uint64_t start;
    uint64_t stop;
} bs_range;

typedef struct bs_residency bs_residency;

/* Watch which pages of a regular file enter the page cache. */
int bs_residency_open(int fd, uint64_t size_bytes, bs_residency **out);

/* Whether the kernel has cachestat(2) for this file: without it, sampling costs every page. */
int bs_has_cachestat(int fd);

/* Write the ranges that became resident since the last sample, in file order, and return how
 * many. When there are more than `capacity`, the rest is left for the next sample. */
int64_t bs_residency_sample(bs_residency *self, bs_range *out, size_t capacity);

/* For each page that [start, stop) touches, write 1 if it is in active use or that is not known, 0
 * if it was only read ahead. Reads pages in that have gone meanwhile, so it can block; for root. */
int bs_residency_active(bs_residency *self, uint64_t start, uint64_t stop, uint8_t *active);

void bs_residency_close(bs_residency *self);

typedef struct bs_window bs_window;

/* Read a file's ranges ahead and hold them in memory for as long as the process lives. Safe from
 * several threads at once. */
int bs_window_open(int fd, uint64_t size_bytes, bs_window **out);

/* Bring [start, stop) into the page cache; returns the bytes read, short only at end of file. */
int64_t bs_window_read(bs_window *self, uint64_t start, uint64_t stop, uint8_t *scratch,
                       size_t scratch_bytes);

/* Lock [start, stop) in memory; returns the bytes locked. */
int64_t bs_window_pin(bs_window *self, uint64_t start, uint64_t stop);

/* A read of what was not read before, and when: CLOCK_MONOTONIC, in nanoseconds. */
typedef struct {
    uint64_t start;
    uint64_t stop;
    uint64_t at_ns;
} bs_touch;

/* What a fast path reads and writes. */
typedef struct {
    int device;  /* the mount's, of /dev/fuse */
    int session; /* SOCK_SEQPACKET: requests that are no reads go there, and their answers come */
    int misses;  /* the same for reads that are not answered here: who gets them answers them.
                  * Shut down when the mount is gone. */
    int data;    /* the blocks, each where it is in the mount's one file */
} bs_fastpath_files;

typedef struct bs_fastpath bs_fastpath;

/* Answer, in threads of its own, the reads of a mount with one file of this length. Of the blocks
 * with state 1 (`states`, a byte each) those are given out whose XXH3 checksum (`sums`, eight
 * bytes each, never 0) is right. Both may change meanwhile. */
int bs_fastpath_start(const bs_fastpath_files *files, uint64_t size_bytes, uint32_t block_bytes,
                      const uint64_t *sums, const uint8_t *states, int threads, bs_fastpath **out);

/* Take out what was answered here and not taken out before, in order of time, and say whether to
 * go on recording. More than `capacity` is left for the next call. */
size_t bs_fastpath_touches(bs_fastpath *self, int go_on, bs_touch *out, size_t capacity);

/* End the threads. The sockets are shut down then, and the device is left to nobody. */
void bs_fastpath_stop(bs_fastpath *self);

/* Give the calling thread idle I/O priority. */
int bs_io_idle(void);

/* Become a user for good, with their groups; keep_lock keeps CAP_IPC_LOCK where it is held.
 * Call it while there is one thread. After a failure the process must end. */
int bs_become(uint32_t uid, uint32_t gid, const uint32_t *groups, size_t count, int keep_lock);

/* Have this process killed when the thread that started it ends; -ESRCH when `parent`, of which
 * that is the first, has ended already. Becoming a user undoes it. */
int bs_die_with(int parent);

/* Mount a FUSE file system, without set-user-ID programs and devices, on the directory that the
 * descriptor `target` is open on. `options` are those of fuse(4), the device's descriptor first. */
int bs_mount_fuse(int target, const char *source, const char *type, int read_only,
                  const char *options);

/* Take the topmost mount at a path away at once. Of a FUSE file system, every request in progress
 * ends with ECONNABORTED, and so does what is still open there. */
int bs_unmount(const char *path);

#endif
