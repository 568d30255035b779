/* The C that Python needs: page-cache residency, read-ahead with pinning, I/O priority,
 * rights, mounts, reads of a mount, mounts of snapshots, LZ4 frames, trees that are made and removed.
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

/* Of a page: it was only read ahead, is in active use, or has gone meanwhile, and nobody knows. */
enum { BS_READ_AHEAD, BS_IN_USE, BS_USE_UNKNOWN };

/* Write one of these for each page that [start, stop) touches. Can block in reading a page that goes
 * at this moment; for root. */
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
    uint64_t image_bytes; /* of the squashfs that the blocks are in */
    uint32_t uid;         /* whose all of it is */
    uint32_t gid;
} bs_tree_rows;

typedef struct bs_tree bs_tree;

/* Copy a tree; -EINVAL if it is none, refers to what is not there, or gives rights. */
int bs_tree_open(const bs_tree_rows *rows, bs_tree **out);

void bs_tree_close(bs_tree *self);

/* What a fast path reads and writes. */
typedef struct {
    int device;  /* the mount's, of /dev/fuse */
    int session; /* SOCK_SEQPACKET: requests that are no reads go there, and their answers come;
                  * not used with a tree */
    int misses;  /* the same for reads that are not answered here: who gets them answers them.
                  * Shut down when the mount is gone. */
    int data;    /* the blocks, each where it is in the mount's one file, or in the image */
} bs_fastpath_files;

typedef struct bs_fastpath bs_fastpath;

/* Answer, in threads of its own, the reads of a mount with one file of this length. Of the blocks
 * with state 1 (`states`, a byte each) those are given out whose XXH3 checksum (`sums`, eight
 * bytes each, never 0) is right. Both may change meanwhile.
 *
 * With a tree, which it borrows, the mount shows that: its files' content comes out of an image of
 * this length, and all other requests are answered here too. The kernel's first has been when this
 * returns. */
int bs_fastpath_start(const bs_fastpath_files *files, uint64_t size_bytes, uint32_t block_bytes,
                      const uint64_t *sums, const uint8_t *states, const bs_tree *tree, int threads,
                      bs_fastpath **out);

/* Take out what was answered here and not taken out before, in order of time, and say whether to
 * go on recording. More than `capacity` is left for the next call. */
size_t bs_fastpath_touches(bs_fastpath *self, int go_on, bs_touch *out, size_t capacity);

/* End the threads. The sockets are shut down then, and the device is left to nobody. */
void bs_fastpath_stop(bs_fastpath *self);

/* Give the calling thread idle I/O priority. */
int bs_io_idle(void);

/* Become a user for good, with their groups; keep_lock keeps CAP_IPC_LOCK where it is held. No other
 * capability is left, none can come back, and nobody but root can trace the process: that is read
 * back, and -EPERM if it is not so. Call it while there is one thread. After a failure the process
 * must end. */
int bs_become(uint32_t uid, uint32_t gid, const uint32_t *groups, size_t count, int keep_lock);

/* Have this process killed when the thread that started it ends; -ESRCH when `parent`, of which
 * that is the first, has ended already. Becoming a user undoes it. */
int bs_die_with(int parent);

/* Give up, as root, all capabilities that a job's broker does not use, for this process and those
 * that it starts. */
int bs_limit_to_brokers(void);

/* Become the parent of descendants whose parents end, or cease to. */
int bs_adopt_orphans(int yes);

/* What a process may do beyond working on memory, files and what it has open. */
enum {
    BS_NETWORK = 1, /* IP sockets, and the kernel's keyring */
    BS_PIN = 2,     /* lock memory */
    BS_EXEC = 4,    /* run another program, which is bound by the same; no sockets at all then */
    BS_FORK = 8,    /* start processes, and end any of the same user's */
    BS_SERVE = 16   /* accept connections */
};

/* Limit the system calls of all threads, and of programs that are run, for good. With BS_NETWORK or
 * BS_FORK it can be called again, to take more away. */
int bs_confine_system_calls(unsigned flags);

/* Refuse changes outside these folders, for good, where the kernel can (Linux 5.13). Call it while
 * there is one thread. No link at a path's end is followed. */
int bs_limit_changes(const char *const *folders, size_t count);

/* Longest handle of a file. */
enum { BS_HANDLE_BYTES = 128 };

/* Write the handle of what is called `name` in a folder, or of `folder` itself where that is "", to
 * `out`, and return its length: inode and generation, or what the server of a network file system
 * has for them. No link is followed. -EOPNOTSUPP where the file system has none. */
int bs_file_handle(int folder, const char *name, uint8_t *out);

/* Mount a FUSE file system, without set-user-ID programs and devices, on the directory that the
 * descriptor `target` is open on. `options` are those of fuse(4), the device's descriptor first. */
int bs_mount_fuse(int target, const char *source, const char *type, int read_only,
                  const char *options);

/* For whom a mount is made: never root. */
typedef struct {
    uint32_t uid;
    uint32_t gid;
    const uint32_t *groups;
    size_t group_count;
} bs_user;

/* How a FUSE file system is mounted, see MountOptions in bootseer/fuse/attach.py. */
typedef struct {
    const char *source;
    const char *subtype;
    int read_only;
    int checks_modes;
} bs_fuse_options;

/* What an overlay is made of. Only root can change the paths, the lower one up to the user's own
 * mount; the folders at their ends are the user's, and upper and work have had no overlay yet: the
 * kernel does not promise that all of what one had is on the disk. */
typedef struct {
    const char *lower;
    const char *upper;
    const char *work;
    int read_only;
} bs_overlay_folders;

/* Mount FUSE for a user, with a superblock in a user namespace where only the user's ids are mapped.
 * Returns a descriptor of the mount, which is attached nowhere yet, and of the connection. */
int bs_mount_fuse_for(const bs_user *user, const bs_fuse_options *options, int *device);

/* Mount an overlay in the same way; returns a descriptor of the mount. The upper folder takes on the
 * mode and time of the lower. */
int bs_mount_overlay_for(const bs_user *user, const bs_overlay_folders *folders);

/* Attach a mount that is nowhere yet to the folder that `target` is open on. */
int bs_attach_mount(int mount, int target);

/* The kind of file system that a descriptor is open on, as statfs(2) has it. */
int64_t bs_file_system(int fd);

/* The owner of a folder, -ENOTDIR for anything else; and whether a process sees the root folder that
 * this one sees, by its folder in /proc. Nobody is asked for what the kernel knows: whoever serves the
 * file system may never answer. */
int64_t bs_folder_owner(int fd);
int bs_has_our_root(int process);

/* Copy the mount at a path, or a folder of one; returns a descriptor of it: it is nowhere yet. */
int bs_copy_mount(const char *path);

/* Attach such a copy to the directory that `target` is open on, in the mount namespace that
 * `namespace` is open on, whose the target has to be. */
int bs_show_mount(int tree, int namespace, int target);

/* Take the topmost mount at a path away at once. Of a FUSE file system, every request in progress
 * ends with ECONNABORTED, and so does what is still open there. */
int bs_unmount(const char *path);

/* What a step is. */
enum {
    BS_FOLDER,    /* with mode 0700, as long as it is being filled */
    BS_FILE,      /* whole, with mode and time */
    BS_BEGIN,     /* a file that gets content, mode and time later */
    BS_PART,      /* content for that */
    BS_NAME,      /* another name for a file */
    BS_LINK,      /* symbolic, with its time */
    BS_ATTRIBUTE, /* for a file or folder */
    BS_FINISH     /* mode and time for a file or folder */
};

/* One thing to make. Texts end with a zero. */
typedef struct {
    uint64_t path;  /* in the texts, from the folder */
    uint64_t other; /* in the texts: a link's target, a file's first name, an attribute's name */
    uint64_t start; /* in what is given, of what is written */
    uint64_t size_bytes;
    uint64_t offset; /* in the file */
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint32_t mode;
    uint32_t folder; /* which one */
    uint32_t origin; /* BS_NAME: which one the first name is from */
    uint32_t action;
    uint32_t unused;
} bs_step;

/* Where things are made. */
typedef struct {
    const int *folders;
    size_t count;
    const char *texts; /* all of them, one behind the other */
    size_t texts_bytes;
    int by_names; /* the kernel has no openat2(2) */
} bs_ground;

/* Whether the kernel has openat2(2), and lets us use it. */
int bs_has_openat2(void);

/* Open a folder below another for reading; returns its descriptor. No link is followed. */
int bs_open_folder(int folder, const char *path, int by_names);

/* Carry out steps in their order, none that leads through a link or upwards. Puts how many were done: after a
 * failure, which one it was. Safe in several threads at once. */
int bs_make(const bs_ground *ground, const bs_step *steps, size_t count, const uint8_t *content,
            size_t content_bytes, size_t *done);

/* Remove a file, a link, or a folder with all that is in it. */
int bs_remove(int folder, const char *name);

/* Decompress one LZ4 frame, which must say and have exactly `size_bytes`, and be all that is
 * stored; -EBADMSG if not. */
int bs_lz4_frame(const uint8_t *stored, size_t stored_bytes, uint8_t *out, size_t size_bytes);

#endif
