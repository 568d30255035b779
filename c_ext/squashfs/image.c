#include "image.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SUPERBLOCK_BYTES = 96,
    MAGIC = 0x73717368,
    MIN_BLOCK_LOG = 12,
    MAX_BLOCK_LOG = 20,
    METADATA_RAW = 1 << 15,
    METADATA_LENGTH = METADATA_RAW - 1,
    FRAGMENT_ROW = 16,
    ID_ROW = 4,
    XATTR_ROW = 16,
    XATTR_HEAD = 16,
    LONG_TYPES = 7,   /* from 8 on the types repeat, with more fields */
    MAX_LISTED = 256, /* behind one header */
    LIST_HEADER = 12,
    LIST_ENTRY = 8,
    EMPTY_LIST = 3, /* of a folder's size, for . and .., which are not stored */
    XATTR_ELSEWHERE = 0x100,
    XATTR_KIND = 0xff,
};

static const uint64_t NO_TABLE = UINT64_MAX;
/* Of all tables, decompressed: an image of some five million files. */
static const uint64_t MAX_TABLES_BYTES = 512 << 20;

static const uint32_t TYPES[] = {
    0, S_IFDIR, S_IFREG, S_IFLNK, S_IFBLK, S_IFCHR, S_IFIFO, S_IFSOCK,
};

/* A table: its blocks' contents, one after another, and where each was stored. All blocks but the
 * last have SQ_METADATA_BYTES of content. */
typedef struct {
    uint8_t *data;
    uint64_t *places; /* ascending, relative to the table's start */
    size_t data_bytes;
    size_t blocks;
} table;

struct sq_image {
    int fd;
    uint64_t offset;
    uint64_t size_bytes;
    uint64_t root;
    uint64_t tables_bytes;
    uint8_t superblock[SUPERBLOCK_BYTES];
    uint32_t block_bytes;
    uint32_t inode_count;
    uint32_t fragment_count;
    uint32_t id_count;
    uint32_t xattr_count;
    int compressor;
    table inodes;
    table folders;
    table fragments;
    table ids;
    table xattr_ids;
    table xattrs;
};

static uint16_t u16(const uint8_t *at)
{
    uint16_t value;

    memcpy(&value, at, sizeof value);
    return le16toh(value);
}

static uint32_t u32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static uint64_t u64(const uint8_t *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

/* Read from the image; -EIO if it ends before. */
static int read_at(const sq_image *self, uint64_t at, void *out, size_t size_bytes)
{
    uint8_t *to = out;

    if (size_bytes > self->size_bytes || at > self->size_bytes - size_bytes)
        return -EIO;
    while (size_bytes > 0) {
        ssize_t got = pread(self->fd, to, size_bytes, (off_t)(self->offset + at));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -EIO;
        to += got;
        at += (uint64_t)got;
        size_bytes -= (size_t)got;
    }
    return 0;
}

/* Add a block's content to a table that has space for it; returns the stored length with the
 * header, or a negative errno. */
static int64_t add_block(const sq_image *self, table *to, uint64_t place, const uint8_t *stored,
                         uint64_t left)
{
    uint16_t header;
    uint32_t length;
    int64_t got;

    if (left < 2 || to->data_bytes % SQ_METADATA_BYTES != 0)
        return -EIO;
    header = u16(stored);
    length = header & METADATA_LENGTH;
    if (length == 0 || length > left - 2 || length > SQ_METADATA_BYTES)
        return -EIO;
    if (header & METADATA_RAW) {
        memcpy(to->data + to->data_bytes, stored + 2, length);
        got = length;
    } else {
        got = sq_decompress(self->compressor, stored + 2, length, to->data + to->data_bytes,
                            SQ_METADATA_BYTES);
    }
    if (got <= 0)
        return got < 0 ? got : -EIO;
    to->places[to->blocks++] = place;
    to->data_bytes += (size_t)got;
    return (int64_t)length + 2;
}

/* Make space for another block of a table. */
static int grow(sq_image *self, table *to, size_t *capacity)
{
    size_t wanted = *capacity ? *capacity * 2 : 16;
    void *data, *places;

    if (to->blocks < *capacity)
        return 0;
    if (self->tables_bytes + wanted * SQ_METADATA_BYTES > MAX_TABLES_BYTES)
        return -EOPNOTSUPP;
    data = realloc(to->data, wanted * SQ_METADATA_BYTES);
    if (data == NULL)
        return -ENOMEM;
    to->data = data;
    places = realloc(to->places, wanted * sizeof *to->places);
    if (places == NULL)
        return -ENOMEM;
    to->places = places;
    *capacity = wanted;
    return 0;
}

/* Read a table whose blocks lie one after another in [start, stop). */
static int read_table(sq_image *self, table *to, uint64_t start, uint64_t stop)
{
    size_t capacity = 0;
    uint8_t *stored;
    uint64_t at = 0, length;
    int rc;

    if (start > stop || stop > self->size_bytes)
        return -EIO;
    length = stop - start;
    if (length > MAX_TABLES_BYTES)
        return -EOPNOTSUPP;
    stored = malloc(length + 1);
    if (stored == NULL)
        return -ENOMEM;
    rc = read_at(self, start, stored, length);
    while (rc == 0 && at < length) {
        rc = grow(self, to, &capacity);
        if (rc == 0) {
            int64_t used = add_block(self, to, at, stored + at, length - at);

            if (used < 0)
                rc = (int)used;
            else
                at += (uint64_t)used;
        }
    }
    free(stored);
    self->tables_bytes += to->data_bytes;
    return rc;
}

/* Read a table of rows, whose blocks' places are listed at `index`; `first` gets the first place. */
static int read_rows(sq_image *self, table *to, uint64_t index, uint64_t rows, size_t row_bytes,
                     uint64_t *first)
{
    uint64_t blocks = (rows * row_bytes + SQ_METADATA_BYTES - 1) / SQ_METADATA_BYTES;
    uint8_t stored[SQ_METADATA_BYTES + 2];
    uint8_t *places;
    int rc;

    *first = index;
    if (blocks == 0)
        return 0;
    if (blocks * 8 > self->size_bytes ||
        self->tables_bytes + blocks * SQ_METADATA_BYTES > MAX_TABLES_BYTES)
        return -EIO;
    places = malloc(blocks * 8);
    to->data = malloc(blocks * SQ_METADATA_BYTES);
    to->places = malloc(blocks * sizeof *to->places);
    rc = places && to->data && to->places ? read_at(self, index, places, blocks * 8) : -ENOMEM;
    for (uint64_t i = 0; rc == 0 && i < blocks; i++) {
        uint64_t at = u64(places + i * 8);
        uint64_t left = at < self->size_bytes ? self->size_bytes - at : 0;

        if (left > sizeof stored)
            left = sizeof stored;
        rc = read_at(self, at, stored, left);
        if (rc == 0) {
            int64_t used = add_block(self, to, at, stored, left);

            rc = used < 0 ? (int)used : 0;
        }
        if (i == 0)
            *first = at;
    }
    free(places);
    self->tables_bytes += to->data_bytes;
    return rc == 0 && to->data_bytes < rows * row_bytes ? -EIO : rc;
}

/* Return the offset in a table's data of a reference, or -1. */
static int64_t locate(const table *in, uint64_t block, uint32_t offset)
{
    size_t low = 0, high = in->blocks;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (in->places[middle] == block) {
            uint64_t at = middle * SQ_METADATA_BYTES + offset;

            return offset < SQ_METADATA_BYTES && at < in->data_bytes ? (int64_t)at : -1;
        }
        if (in->places[middle] < block)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

static int read_xattrs(sq_image *self, uint64_t index, uint64_t *first)
{
    uint8_t head[XATTR_HEAD];
    uint64_t start, ids;
    int rc = read_at(self, index, head, sizeof head);

    if (rc < 0)
        return rc;
    start = u64(head);
    self->xattr_count = u32(head + 8);
    rc = read_rows(self, &self->xattr_ids, index + XATTR_HEAD, self->xattr_count, XATTR_ROW, &ids);
    *first = self->xattr_count > 0 ? start : index;
    return rc < 0 || self->xattr_count == 0 ? rc : read_table(self, &self->xattrs, start, ids);
}

static int read_tables(sq_image *self)
{
    const uint8_t *starts = self->superblock + 48;
    uint64_t ids = u64(starts), xattrs = u64(starts + 8), inodes = u64(starts + 16);
    uint64_t folders = u64(starts + 24), fragments = u64(starts + 32), exported = u64(starts + 40);
    uint64_t stop, first;
    uint8_t place[8];
    int rc = read_rows(self, &self->ids, ids, self->id_count, ID_ROW, &first);

    /* The table of folders has no length of its own: it ends where the next table begins. */
    stop = first;
    if (rc == 0 && fragments != NO_TABLE) {
        rc = read_rows(self, &self->fragments, fragments, self->fragment_count, FRAGMENT_ROW,
                       &first);
        stop = first < stop ? first : stop;
    }
    if (rc == 0 && xattrs != NO_TABLE) {
        rc = read_xattrs(self, xattrs, &first);
        stop = first < stop ? first : stop;
    }
    if (rc == 0 && exported != NO_TABLE && (rc = read_at(self, exported, place, sizeof place)) == 0)
        stop = u64(place) < stop ? u64(place) : stop;
    if (rc == 0)
        rc = read_table(self, &self->inodes, inodes, folders);
    return rc < 0 ? rc : read_table(self, &self->folders, folders, stop);
}

static int read_superblock(sq_image *self)
{
    const uint8_t *block = self->superblock;
    struct stat status;
    uint16_t block_log;
    int rc;

    if (fstat(self->fd, &status) != 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || status.st_size < SUPERBLOCK_BYTES ||
        self->offset > (uint64_t)status.st_size - SUPERBLOCK_BYTES)
        return -EINVAL;
    self->size_bytes = SUPERBLOCK_BYTES;
    rc = read_at(self, 0, self->superblock, SUPERBLOCK_BYTES);
    if (rc < 0)
        return rc;
    if (u32(block) != MAGIC || u16(block + 28) != 4 || u16(block + 30) != 0)
        return -EINVAL;
    self->inode_count = u32(block + 4);
    self->block_bytes = u32(block + 12);
    self->fragment_count = u64(block + 80) == NO_TABLE ? 0 : u32(block + 16);
    self->compressor = u16(block + 20);
    block_log = u16(block + 22);
    self->id_count = u16(block + 26);
    self->root = u64(block + 32);
    self->size_bytes = u64(block + 40);
    if (self->size_bytes > (uint64_t)status.st_size - self->offset || block_log < MIN_BLOCK_LOG ||
        block_log > MAX_BLOCK_LOG || self->block_bytes != 1U << block_log)
        return -EIO;
    return sq_can_decompress(self->compressor) ? 0 : -EOPNOTSUPP;
}

int sq_open(int fd, uint64_t offset, sq_image **out)
{
    sq_image *self = calloc(1, sizeof *self);
    int rc;

    *out = NULL;
    if (self == NULL)
        return -ENOMEM;
    self->fd = fd;
    self->offset = offset;
    rc = read_superblock(self);
    if (rc < 0)
        sq_close(self);
    else
        *out = self;
    return rc;
}

int sq_load(sq_image *self)
{
    sq_inode root;
    int rc = read_tables(self);

    if (rc == 0)
        rc = sq_find_inode(self, self->root, &root);
    return rc == 0 && !S_ISDIR(root.mode) ? -EIO : rc;
}

void sq_close(sq_image *self)
{
    table *tables[] = {&self->inodes, &self->folders,   &self->fragments,
                       &self->ids,    &self->xattr_ids, &self->xattrs};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        free(tables[i]->data);
        free(tables[i]->places);
    }
    free(self);
}

uint64_t sq_root(const sq_image *self)
{
    return self->root;
}

uint32_t sq_inode_count(const sq_image *self)
{
    return self->inode_count;
}

uint32_t sq_block_bytes(const sq_image *self)
{
    return self->block_bytes;
}

uint64_t sq_size_bytes(const sq_image *self)
{
    return self->size_bytes;
}

int sq_has_xattrs(const sq_image *self)
{
    return self->xattr_count > 0;
}

static uint32_t owner(const sq_image *self, uint16_t index)
{
    return index < self->id_count ? u32(self->ids.data + (size_t)index * ID_ROW) : 0;
}

static int find_folder(const uint8_t *at, size_t left, int is_long, sq_inode *out)
{
    if (left < (is_long ? 24U : 16U))
        return -EIO;
    if (is_long) {
        out->links = u32(at);
        out->size_bytes = u32(at + 4);
        out->start = u32(at + 8);
        out->parent = u32(at + 12);
        out->fragment_offset = u16(at + 18);
        out->xattr = u32(at + 20);
    } else {
        out->start = u32(at);
        out->links = u32(at + 4);
        out->size_bytes = u16(at + 8);
        out->fragment_offset = u16(at + 10);
        out->parent = u32(at + 12);
    }
    return 0;
}

static int find_file(const sq_image *self, const uint8_t *at, size_t left, int is_long,
                     sq_inode *out)
{
    size_t head = is_long ? 40 : 16;
    uint64_t count;

    if (left < head)
        return -EIO;
    if (is_long) {
        out->start = u64(at);
        out->size_bytes = u64(at + 8);
        out->links = u32(at + 24);
        out->fragment = u32(at + 28);
        out->fragment_offset = u32(at + 32);
        out->xattr = u32(at + 36);
    } else {
        out->start = u32(at);
        out->fragment = u32(at + 4);
        out->fragment_offset = u32(at + 8);
        out->size_bytes = u32(at + 12);
    }
    count = out->size_bytes / self->block_bytes;
    if (out->fragment == SQ_NONE && out->size_bytes % self->block_bytes > 0)
        count++;
    if (count > (left - head) / 4 ||
        (out->fragment != SQ_NONE && out->fragment >= self->fragment_count))
        return -EIO;
    out->block_count = (uint32_t)count;
    out->blocks = at + head;
    return 0;
}

static int find_other(const uint8_t *at, size_t left, int is_long, sq_inode *out)
{
    int is_link = S_ISLNK(out->mode);
    size_t head = S_ISFIFO(out->mode) || S_ISSOCK(out->mode) ? 4 : 8;

    if (left < head)
        return -EIO;
    out->links = u32(at);
    at += head;
    left -= head;
    if (is_link) {
        out->size_bytes = u32(at - 4);
        out->target = at;
        if (out->size_bytes > left || out->size_bytes > UINT16_MAX)
            return -EIO;
        at += out->size_bytes;
        left -= out->size_bytes;
    } else if (head == 8) {
        out->device = u32(at - 4);
    }
    if (is_long) {
        if (left < 4)
            return -EIO;
        out->xattr = u32(at);
    }
    return 0;
}

int sq_find_inode(const sq_image *self, uint64_t ref, sq_inode *out)
{
    int64_t found = locate(&self->inodes, ref >> 16, ref & UINT16_MAX);
    const uint8_t *at;
    size_t left;
    uint16_t type;
    int is_long;

    if (found < 0)
        return -EIO;
    at = self->inodes.data + found;
    left = self->inodes.data_bytes - (size_t)found;
    if (left < 16)
        return -EIO;
    type = u16(at);
    is_long = type > LONG_TYPES;
    if (is_long)
        type = (uint16_t)(type - LONG_TYPES);
    if (type < 1 || type > LONG_TYPES)
        return -EIO;
    *out = (sq_inode){
        .ref = ref,
        .mode = TYPES[type] | (u16(at + 2) & 07777),
        .uid = owner(self, u16(at + 4)),
        .gid = owner(self, u16(at + 6)),
        .mtime_s = u32(at + 8),
        .number = u32(at + 12),
        .links = 1,
        .xattr = SQ_NONE,
        .fragment = SQ_NONE,
    };
    at += 16;
    left -= 16;
    if (type == 1)
        return find_folder(at, left, is_long, out);
    if (type == 2)
        return find_file(self, at, left, is_long, out);
    return find_other(at, left, is_long, out);
}

int sq_open_list(const sq_image *self, const sq_inode *folder, sq_list *out)
{
    int64_t start;

    *out = (sq_list){0};
    if (!S_ISDIR(folder->mode))
        return -ENOTDIR;
    if (folder->size_bytes <= EMPTY_LIST)
        return 0;
    out->length = folder->size_bytes - EMPTY_LIST;
    start = locate(&self->folders, folder->start, folder->fragment_offset);
    if (start < 0 || out->length > self->folders.data_bytes - (uint64_t)start)
        return -EIO;
    out->data = self->folders.data + start;
    return 0;
}

int sq_next_entry(sq_list *list, sq_entry *out)
{
    const uint8_t *at;
    uint16_t type;

    if (list->left == 0 && list->at >= list->length) /* without data, if it is empty */
        return -ENOENT;
    at = list->data + list->at;
    if (list->left == 0) {
        if (list->length - list->at < LIST_HEADER || u32(at) >= MAX_LISTED)
            return -EIO;
        list->left = u32(at) + 1;
        list->header = at;
        list->at += LIST_HEADER;
        at += LIST_HEADER;
    }
    if (list->length - list->at < LIST_ENTRY)
        return -EIO;
    type = u16(at + 4);
    *out = (sq_entry){
        .name = (const char *)at + LIST_ENTRY,
        .name_bytes = (size_t)u16(at + 6) + 1,
        .ref = (uint64_t)u32(list->header + 4) << 16 | u16(at),
        .number = (uint32_t)((int64_t)u32(list->header + 8) + (int16_t)u16(at + 2)),
    };
    if (out->name_bytes > SQ_MAX_NAME_BYTES || type > LONG_TYPES ||
        out->name_bytes > list->length - list->at - LIST_ENTRY)
        return -EIO;
    out->mode = TYPES[type];
    list->at += LIST_ENTRY + out->name_bytes;
    list->left--;
    return 0;
}

int sq_look_up(const sq_image *self, const sq_inode *folder, const char *name, sq_entry *out)
{
    size_t name_bytes = strlen(name);
    sq_list list;
    int rc = sq_open_list(self, folder, &list);

    while (rc == 0 && (rc = sq_next_entry(&list, out)) == 0)
        if (out->name_bytes == name_bytes && memcmp(out->name, name, name_bytes) == 0)
            return 0;
    return rc;
}

int sq_find_block(const sq_image *self, const sq_inode *file, uint64_t index, sq_block *out,
                  uint32_t *begin)
{
    uint64_t left = file->size_bytes - index * self->block_bytes;
    const uint8_t *row;

    *begin = 0;
    out->size_bytes = left < self->block_bytes ? (uint32_t)left : self->block_bytes;
    if (index < file->block_count) {
        out->at = file->start;
        for (uint64_t i = 0; i < index; i++)
            out->at += u32(file->blocks + i * 4) & SQ_BLOCK_LENGTH;
        out->stored = u32(file->blocks + index * 4);
        return 0;
    }
    if (file->fragment == SQ_NONE)
        return -EIO;
    row = self->fragments.data + (size_t)file->fragment * FRAGMENT_ROW;
    out->at = u64(row);
    out->stored = u32(row + 8);
    out->size_bytes = 0; /* known only once it is decompressed */
    *begin = file->fragment_offset;
    return 0;
}

int64_t sq_read_block(const sq_image *self, const sq_block *block, uint8_t *stored, uint8_t *out)
{
    uint32_t length = block->stored & SQ_BLOCK_LENGTH;
    uint32_t room = block->size_bytes > 0 ? block->size_bytes : self->block_bytes;
    int is_raw = (block->stored & SQ_BLOCK_RAW) != 0;
    int64_t got;
    int rc;

    if (length == 0) {
        memset(out, 0, block->size_bytes);
        return block->size_bytes;
    }
    if (length > (is_raw ? room : self->block_bytes) || block->stored >> 25 != 0)
        return -EIO;
    rc = read_at(self, block->at, is_raw ? out : stored, length);
    if (rc < 0)
        return rc;
    got = is_raw ? length : sq_decompress(self->compressor, stored, length, out, room);
    return block->size_bytes > 0 && got >= 0 && got != block->size_bytes ? -EIO : got;
}

/* Return the rest of a table at a place of it; NULL if there is none. */
static const uint8_t *rest(const table *in, uint64_t ref, size_t *left)
{
    int64_t at = locate(in, ref >> 16, ref & UINT16_MAX);

    *left = at < 0 ? 0 : in->data_bytes - (size_t)at;
    return at < 0 ? NULL : in->data + at;
}

int sq_open_xattrs(const sq_image *self, const sq_inode *inode, sq_xattrs *out)
{
    const uint8_t *row;

    *out = (sq_xattrs){0};
    if (inode->xattr == SQ_NONE || self->xattr_count == 0)
        return 0;
    if (inode->xattr >= self->xattr_count)
        return -EIO;
    row = self->xattr_ids.data + (size_t)inode->xattr * XATTR_ROW;
    out->count = u32(row + 8);
    out->at = rest(&self->xattrs, u64(row), &out->left);
    return out->at == NULL ? -EIO : 0;
}

int sq_next_xattr(const sq_image *self, sq_xattrs *list, sq_xattr *out)
{
    static const char *const prefixes[] = {"user.", "trusted.", "security."};
    size_t name_bytes, value_left;
    const uint8_t *value;
    uint16_t type;

    if (list->count == 0)
        return -ENODATA;
    if (list->left < 4)
        return -EIO;
    type = u16(list->at);
    name_bytes = u16(list->at + 2);
    if ((type & XATTR_KIND) > 2 || name_bytes > SQ_MAX_NAME_BYTES || list->left < 8 + name_bytes)
        return -EIO;
    out->prefix = prefixes[type & XATTR_KIND];
    out->name = list->at + 4;
    out->name_bytes = name_bytes;
    value = list->at + 4 + name_bytes;
    value_left = list->left - 4 - name_bytes;
    out->value_bytes = u32(value);
    if (out->value_bytes > value_left - 4)
        return -EIO;
    list->at = value + 4 + out->value_bytes;
    list->left = value_left - 4 - out->value_bytes;
    list->count--;
    if (type & XATTR_ELSEWHERE) { /* the value is a reference of another's */
        if (out->value_bytes != 8)
            return -EIO;
        value = rest(&self->xattrs, u64(value + 4), &value_left);
        if (value == NULL || value_left < 4 || u32(value) > value_left - 4)
            return -EIO;
        out->value_bytes = u32(value);
    }
    out->value = value + 4;
    return out->value_bytes > UINT16_MAX ? -EIO : 0;
}
