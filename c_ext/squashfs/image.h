/* Read a squashfs image of version 4.0.
 *
 * Source: the on-disk format as documented in the kernel's Documentation/filesystems/squashfs and in
 * "Squashfs Binary Format" (dr-emann.github.io/squashfs).
 *
 * The image may be damaged or malicious: every value is checked before it is used. All tables are
 * held in memory, decompressed. Functions that return int return 0 or an errno as a negative number.
 * After `sq_load` all functions may be called by any number of threads.
 */
#ifndef BOOTSEER_SQUASHFS_IMAGE_H
#define BOOTSEER_SQUASHFS_IMAGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    SQ_MAX_BLOCK_BYTES = 1 << 20,
    SQ_MAX_NAME_BYTES = 256,
    SQ_BLOCK_RAW = 1 << 24, /* set in the stored length of a block that is not compressed */
    SQ_BLOCK_LENGTH = SQ_BLOCK_RAW - 1,
    SQ_METADATA_BYTES = 8192,
};

/* What an image's blocks are compressed with, by the numbers of the format. */
enum {
    SQ_GZIP = 1,
    SQ_LZO = 3,
    SQ_LZ4 = 5,
    SQ_ZSTD = 6,
};

typedef struct sq_image sq_image;

/* An inode. `ref` is the format's reference of it. Fields that do not apply are 0. */
typedef struct {
    uint64_t ref;
    uint32_t number;
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
    uint32_t mtime_s;
    uint32_t links;
    uint32_t device;
    uint32_t xattr; /* number of its attributes, or SQ_NONE */
    uint64_t size_bytes;
    uint64_t start;    /* of a file's first block in the image; of a folder's list in its table */
    uint32_t parent;   /* number of a folder's folder */
    uint32_t fragment; /* number of the block with a file's end, or SQ_NONE */
    uint32_t fragment_offset;
    uint32_t block_count;
    const uint8_t *blocks; /* stored lengths, 4 bytes each, little-endian */
    const uint8_t *target; /* of a symbolic link, of size_bytes */
} sq_inode;

#define SQ_NONE UINT32_MAX

/* A block of a file's content, as it is stored; a length of 0 stands for zeros. */
typedef struct {
    uint64_t at;
    uint32_t stored; /* length, and SQ_BLOCK_RAW */
    uint32_t size_bytes;
} sq_block;

/* A name in a folder; `mode` has the type only. */
typedef struct {
    const char *name;
    size_t name_bytes;
    uint64_t ref;
    uint32_t number;
    uint32_t mode;
} sq_entry;

/* A place in a folder's list. */
typedef struct {
    const uint8_t *data;
    const uint8_t *header; /* of the entries that follow */
    uint64_t length;
    uint64_t at;
    uint32_t left; /* entries of this header */
} sq_list;

/* An extended attribute. */
typedef struct {
    const char *prefix;
    const uint8_t *name;
    const uint8_t *value;
    size_t name_bytes;
    size_t value_bytes;
} sq_xattr;

/* A place in an inode's list of attributes. */
typedef struct {
    const uint8_t *at;
    size_t left;
    uint32_t count;
} sq_xattrs;

/* Read the superblock of an image that begins at an offset of a file; `fd` stays the caller's, and
 * open.
 *
 * -EINVAL: it is no squashfs 4.0. -EOPNOTSUPP: its compressor is not supported here. -EIO: it is
 * damaged. */
int sq_open(int fd, uint64_t offset, sq_image **out);

/* Read the tables. -EOPNOTSUPP: they are too long to be held in memory. */
int sq_load(sq_image *self);
void sq_close(sq_image *self);

uint64_t sq_root(const sq_image *self);
uint32_t sq_inode_count(const sq_image *self);
uint32_t sq_block_bytes(const sq_image *self);
uint64_t sq_size_bytes(const sq_image *self);
int sq_has_xattrs(const sq_image *self);

int sq_find_inode(const sq_image *self, uint64_t ref, sq_inode *out);

/* Begin a folder's list, and return its next entry: -ENOENT after the last. */
int sq_open_list(const sq_image *self, const sq_inode *folder, sq_list *out);
int sq_next_entry(sq_list *list, sq_entry *out);

/* Look up a name; -ENOENT if there is none. */
int sq_look_up(const sq_image *self, const sq_inode *folder, const char *name, sq_entry *out);

/* Return where a file's block is stored, and where its content begins in that: after the ends of
 * other files in a fragment. `index` is less than the number of the file's blocks. */
int sq_find_block(const sq_image *self, const sq_inode *file, uint64_t index, sq_block *out,
                  uint32_t *begin);

/* Decompress a block; returns the content's length, or a negative errno.
 *
 * `stored` has space for sq_block_bytes, and `out` for the block's size_bytes; or, as a fragment's
 * length is known only afterwards, for sq_block_bytes if that is 0. */
int64_t sq_read_block(const sq_image *self, const sq_block *block, uint8_t *stored, uint8_t *out);

/* Begin an inode's list of attributes, and return the next one: -ENODATA after the last. */
int sq_open_xattrs(const sq_image *self, const sq_inode *inode, sq_xattrs *out);
int sq_next_xattr(const sq_image *self, sq_xattrs *list, sq_xattr *out);

/* Whether an image's compressor, by its number, is one of the above. */
int sq_can_decompress(int compressor);

/* Decompress up to `capacity` bytes; returns their number, or a negative errno. */
int64_t sq_decompress(int compressor, const uint8_t *stored, size_t stored_bytes, uint8_t *out,
                      size_t capacity);

int64_t sq_unlzo(const uint8_t *stored, size_t stored_bytes, uint8_t *out, size_t capacity);

#endif
