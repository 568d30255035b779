/* C functions for Python: page-cache residency, read-ahead with pinning, I/O priority, privileges,
 * mounts, the fast path of FUSE reads, trees of snapshots, LZ4 frames, making and removing trees.
 *
 * Every function that can fail returns a negative errno; none keeps global state. A handle borrows
 * its file descriptor: the caller keeps it open as long as the handle exists.
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

/* Whether cachestat(2) counts this file's pages: without it, sampling costs every page. */
int bs_has_cachestat(int fd);

/* Write the ranges that became resident since the last sample, in file order, and return their
 * number. The next sample returns ranges beyond `capacity`. */
int64_t bs_residency_sample(bs_residency *self, bs_range *out, size_t capacity);

/* State of a page: only read ahead, in active use, or unknown because it was evicted meanwhile. */
enum { BS_READ_AHEAD, BS_IN_USE, BS_USE_UNKNOWN };

/* Write one of these states for each page of [start, stop). Can block in reading a page that is
 * being evicted; for root. */
int bs_residency_active(bs_residency *self, uint64_t start, uint64_t stop, uint8_t *active);

void bs_residency_close(bs_residency *self);

typedef struct bs_window bs_window;

/* Read a file's ranges ahead and hold them in memory as long as the process lives. Thread-safe. */
int bs_window_open(int fd, uint64_t size_bytes, bs_window **out);

/* Bring [start, stop) into the page cache; returns the bytes read, short only at end of file.
 * waited, unless NULL, says whether the thread has slept for them: else they were there. */
int64_t bs_window_read(bs_window *self, uint64_t start, uint64_t stop, uint8_t *scratch,
                       size_t scratch_bytes, int *waited);

/* Lock [start, stop) in memory; returns the bytes locked. */
int64_t bs_window_pin(bs_window *self, uint64_t start, uint64_t stop);

/* The first read of a range, with its time: CLOCK_MONOTONIC, in nanoseconds. */
typedef struct {
    uint64_t start;
    uint64_t stop;
    uint64_t at_ns;
} bs_touch;

/* The tree of a snapshot, as bootseer/env/snapshot/index.py encodes it. */
typedef struct {
    const uint8_t *inodes;
    const uint8_t *entries;
    const uint8_t *blocks;
    const uint8_t *strings;
    uint32_t inode_count;
    uint32_t entry_count;
    uint32_t block_count;
    uint64_t strings_bytes;
    uint64_t image_bytes; /* length of the squashfs with the blocks */
    uint32_t uid;         /* owner of all files */
    uint32_t gid;
} bs_tree_rows;

typedef struct bs_tree bs_tree;

/* Copy a tree; -EINVAL if it is invalid, has a dangling reference, or grants rights. */
int bs_tree_open(const bs_tree_rows *rows, bs_tree **out);

void bs_tree_close(bs_tree *self);

/* The descriptors of a fast path. */
typedef struct {
    int device;  /* the mount's, of /dev/fuse */
    int session; /* SOCK_SEQPACKET: takes requests other than reads, and gives their answers;
                  * not used with a tree */
    int misses;  /* the same for reads that are not answered here: their receiver answers them.
                  * Shut down when the mount is gone. */
    int data;    /* the blocks, at their offsets in the mount's one file, or in the image */
} bs_fastpath_files;

typedef struct bs_fastpath bs_fastpath;

/* Start threads that answer the reads of a mount with one file of this length. They return blocks
 * with state 1 (`states`, a byte each) whose XXH3 checksum (`sums`, eight bytes each, never 0) is
 * right. Both may change meanwhile.
 *
 * With a tree, which it borrows, the mount shows the tree. The files' content then comes from an
 * image of this length, and all other requests are answered here too. The kernel's first request
 * has been answered when this returns. */
int bs_fastpath_start(const bs_fastpath_files *files, uint64_t size_bytes, uint32_t block_bytes,
                      const uint64_t *sums, const uint8_t *states, const bs_tree *tree, int threads,
                      bs_fastpath **out);

/* Return the new touches since the last call, in order of time. `go_on` says whether to continue
 * recording. The next call returns touches beyond `capacity`. */
size_t bs_fastpath_touches(bs_fastpath *self, int go_on, bs_touch *out, size_t capacity);

/* End the threads. The sockets are then shut down, and no thread reads the device. */
void bs_fastpath_stop(bs_fastpath *self);

/* Give the calling thread idle I/O priority. */
int bs_io_idle(void);

/* Permanently become a user, with their groups; keep_lock keeps CAP_IPC_LOCK if it is held. No
 * other capability is left or can be regained, and only root can trace the process. The result is
 * read back: -EPERM if it is wrong. Call it while there is one thread. After a failure the process
 * must exit. */
int bs_become(uint32_t uid, uint32_t gid, const uint32_t *groups, size_t count, int keep_lock);

/* Kill this process when the thread that started it, the first of `parent`, ends; -ESRCH if that
 * has ended already. Becoming a user resets this. */
int bs_die_with(int parent);

/* Give up, as root, all capabilities that a job's broker does not use, for this process and those
 * that it starts. */
int bs_limit_to_brokers(void);

/* Adopt descendants whose parents end, or stop adopting them. */
int bs_adopt_orphans(int yes);

/* Rights of a process beyond working on memory, files and its open descriptors. */
enum {
    BS_NETWORK = 1, /* IP sockets, and the kernel's keyring */
    BS_PIN = 2,     /* lock memory */
    BS_EXEC = 4,    /* run another program, under the same filter; then no sockets at all */
    BS_FORK = 8,    /* start processes, and end any process of the same user */
    BS_SERVE = 16   /* accept connections */
};

/* Permanently limit the system calls of all threads, and of programs that they run. With BS_NETWORK
 * or BS_FORK it can be called again, to remove more. */
int bs_confine_system_calls(unsigned flags);

/* Permanently refuse changes outside these folders, if the kernel can (Linux 5.13). Call it while
 * there is one thread. Links at the end of a path are not followed. */
int bs_limit_changes(const char *const *folders, size_t count);

/* Longest handle of a file. */
enum { BS_HANDLE_BYTES = 128 };

/* Write the handle of `name` in a folder, or of `folder` itself if `name` is "", to `out`, and
 * return its length. The handle is inode and generation, or the equivalent of a network file
 * system's server. Links are not followed. -EOPNOTSUPP if the file system has no handles. */
int bs_file_handle(int folder, const char *name, uint8_t *out);

/* Mount a FUSE file system, without set-user-ID programs and devices, on the directory of the
 * descriptor `target`. `options` are those of fuse(4), the device's descriptor first. */
int bs_mount_fuse(int target, const char *source, const char *type, int read_only,
                  const char *options);

/* The user of a mount: never root. */
typedef struct {
    uint32_t uid;
    uint32_t gid;
    const uint32_t *groups;
    size_t group_count;
} bs_user;

/* Options of a FUSE mount, see MountOptions in bootseer/fuse/root_mounts.py. */
typedef struct {
    const char *source;
    const char *subtype;
    int read_only;
    int checks_modes;
} bs_fuse_options;

/* The folders of an overlay. Only root can change the paths, the lower one up to the user's own
 * mount. The folders themselves are the user's. Upper and work must never have been part of an
 * overlay, because the kernel does not promise that all data of an old one is on the disk. */
typedef struct {
    const char *lower;
    const char *upper;
    const char *work;
    int read_only;
} bs_overlay_folders;

/* Mount FUSE for a user, with a superblock in a user namespace where only the user's ids are
 * mapped. Returns a descriptor of the detached mount, and one of the connection. */
int bs_mount_fuse_for(const bs_user *user, const bs_fuse_options *options, int *device);

/* Mount an overlay in the same way; returns a descriptor of the mount. The upper folder gets the
 * mode and time of the lower. */
int bs_mount_overlay_for(const bs_user *user, const bs_overlay_folders *folders);

/* Attach a detached mount to the folder of the descriptor `target`. */
int bs_attach_mount(int mount, int target);

/* The file system type of a descriptor, as statfs(2) returns it. */
int64_t bs_file_system(int fd);

/* The owner of a folder, -ENOTDIR for anything else; and whether a process, given by its folder in
 * /proc, has the same root folder as this one. Both ask only the kernel: the server of a file
 * system may never answer. */
int64_t bs_folder_owner(int fd);
int bs_has_our_root(int process);

/* Copy the mount at a path, or a folder of one; returns a descriptor of the detached copy. */
int bs_copy_mount(const char *path);

/* Attach such a copy to the directory of the descriptor `target`, in the mount namespace of the
 * descriptor `namespace`, to which the target must belong. */
int bs_show_mount(int tree, int namespace, int target);

/* Detach the topmost mount at a path immediately. In a FUSE file system, requests in progress and on
 * open files end with ECONNABORTED. */
int bs_unmount(const char *path);

/* Kinds of steps. */
enum {
    BS_FOLDER,    /* with mode 0700 while it is being filled */
    BS_FILE,      /* complete, with mode and time */
    BS_BEGIN,     /* a file that gets content, mode and time later */
    BS_PART,      /* content of such a file */
    BS_NAME,      /* another name for a file */
    BS_LINK,      /* symbolic, with its time */
    BS_ATTRIBUTE, /* for a file or folder */
    BS_FINISH     /* mode and time for a file or folder */
};

/* One object to make. Texts end with a zero. */
typedef struct {
    uint64_t path;  /* in the texts, from the folder */
    uint64_t other; /* in the texts: a link's target, a file's first name, an attribute's name */
    uint64_t start; /* in `content`, of the bytes to write */
    uint64_t size_bytes;
    uint64_t offset; /* in the file */
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint32_t mode;
    uint32_t folder; /* index in `folders` */
    uint32_t origin; /* BS_NAME: index of the folder of the first name */
    uint32_t action;
    uint32_t unused;
} bs_step;

/* The folders in which objects are made. */
typedef struct {
    const int *folders;
    size_t count;
    const char *texts; /* concatenated */
    size_t texts_bytes;
    int by_names; /* the kernel has no openat2(2) */
} bs_ground;

/* Whether the kernel has openat2(2) and allows it. */
int bs_has_openat2(void);

/* Open a folder below another for reading; returns its descriptor. Links are not followed. */
int bs_open_folder(int folder, const char *path, int by_names);

/* Execute steps in order; refuse those whose path leads through a link or upwards. `done` gets the
 * number of completed steps: after a failure, the index of the failed one. Thread-safe. */
int bs_make(const bs_ground *ground, const bs_step *steps, size_t count, const uint8_t *content,
            size_t content_bytes, size_t *done);

/* Remove a file, a link, or a folder with its content. */
int bs_remove(int folder, const char *name);

/* Decompress consecutive blocks of a squashfs. `lengths` are their stored lengths, as squashfs has
 * them, and `sizes` those of their content. They must fill `stored` and `out`; -EBADMSG if not. */
int bs_extract_blocks(const uint32_t *lengths, const uint32_t *sizes, size_t count,
                      const uint8_t *stored, size_t stored_bytes, uint8_t *out, size_t out_bytes);

#endif
