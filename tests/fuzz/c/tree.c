/* A tree of any rows: what opens is asked anything, and gives out no rights.
 *
 * Input: numbers of inodes, entries and blocks, and of bytes that follow the strings (4 x 2 bytes);
 * the rows; those bytes, of which each 64 make a request.
 */
#include "tree.h"

#include "tree_rows.h"

#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CAPACITY = 8192, ASKED = 64, NAMES = 64 };

static size_t taken(const uint8_t **at, size_t *left, size_t count, size_t unit,
                    const uint8_t **out)
{
    if (count > *left / unit)
        count = *left / unit;
    *out = *at;
    *at += count * unit;
    *left -= count * unit;
    return count;
}

static void check_attributes(const struct fuse_attr *attr)
{
    if (attr->mode & ~(uint32_t)(S_IFMT | TREE_RIGHTS) || attr->nlink == 0 || attr->uid != 7)
        abort();
}

static void check(uint32_t opcode, const uint8_t *reply, size_t length)
{
    const struct fuse_out_header *header = (const void *)reply;
    const uint8_t *body = reply + sizeof *header;
    size_t body_bytes = length - sizeof *header;

    if (length == 0)
        return;
    if (length > CAPACITY || header->len != length || header->error > 0 ||
        (header->error != 0 && body_bytes != 0))
        abort();
    if (header->error != 0)
        return;
    if (opcode == FUSE_GETATTR)
        check_attributes(&((const struct fuse_attr_out *)body)->attr);
    if (opcode == FUSE_LOOKUP && ((const struct fuse_entry_out *)body)->nodeid != 0)
        check_attributes(&((const struct fuse_entry_out *)body)->attr);
    if (opcode == FUSE_READDIRPLUS) {
        size_t at = 0;

        while (at < body_bytes) {
            const struct fuse_direntplus *entry = (const void *)(body + at);

            if (entry->entry_out.nodeid != 0)
                check_attributes(&entry->entry_out.attr);
            at += FUSE_DIRENTPLUS_SIZE(entry);
        }
    }
}

static void check_names(const bs_tree *tree, uint64_t node, uint8_t *reply)
{
    struct {
        struct fuse_in_header header;
        struct fuse_getxattr_in in;
    } request = {{.len = sizeof request, .opcode = FUSE_LISTXATTR, .nodeid = node}, {CAPACITY, 0}};
    const struct fuse_out_header *header = (const void *)reply;
    size_t length =
        bs_tree_answer(tree, (const uint8_t *)&request, sizeof request, reply, CAPACITY);
    size_t at = sizeof *header;

    while (header->error == 0 && at < length) {
        if (memcmp(reply + at, "user.", 5) != 0)
            abort();
        at += strlen((const char *)reply + at) + 1;
    }
}

static void ask(const bs_tree *tree, const uint8_t *data, uint32_t inodes, uint8_t *reply)
{
    static const uint8_t opcodes[] = {
        FUSE_LOOKUP,    FUSE_GETATTR, FUSE_READLINK, FUSE_READDIR, FUSE_READDIRPLUS, FUSE_GETXATTR,
        FUSE_LISTXATTR, FUSE_STATFS,  FUSE_INIT,     FUSE_FORGET,  FUSE_OPEN,        FUSE_READ,
    };
    size_t body_bytes = data[2] % (ASKED - 4);
    uint8_t *request = malloc(sizeof(struct fuse_in_header) + body_bytes);
    struct fuse_in_header header = {
        .len = (uint32_t)(sizeof header + body_bytes),
        .opcode = data[0] < 0xf0 ? opcodes[data[0] % sizeof opcodes] : data[3],
        .unique = 5,
        .nodeid = data[1] < 0xf0 ? data[1] % (inodes + 2) : UINT64_MAX - data[3],
    };
    size_t length;

    memcpy(request, &header, sizeof header);
    memcpy(request + sizeof header, data + 4, body_bytes);
    length = bs_tree_answer(tree, request, sizeof header + body_bytes, reply, CAPACITY);
    check(header.opcode, reply, length);
    free(request);
}

static void read_some(const bs_tree *tree, uint64_t node, uint64_t offset, size_t size_bytes)
{
    static uint8_t out[TREE_LONGEST_EXTENT];
    bs_extent extent;
    uint8_t *stored;

    if (bs_tree_extent(tree, node, offset, size_bytes, &extent) < 0)
        return;
    if (extent.size_bytes > size_bytes || extent.stored_bytes > TREE_LONGEST_EXTENT ||
        extent.content_bytes > TREE_LONGEST_EXTENT ||
        extent.skip_bytes + extent.size_bytes > extent.content_bytes)
        abort();
    stored = malloc(extent.stored_bytes + 1);
    memset(stored, 0x1f, extent.stored_bytes);
    (void)bs_tree_extract(tree, &extent, stored, out);
    free(stored);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bs_tree_rows rows = {.image_bytes = 1ULL << 51, .uid = 7, .gid = 8};
    bs_tree *tree;
    uint16_t counts[4];
    const uint8_t *asked;
    uint8_t *reply;
    size_t asked_bytes;

    if (size < sizeof counts)
        return 0;
    memcpy(counts, data, sizeof counts);
    data += sizeof counts;
    size -= sizeof counts;
    rows.inode_count = (uint32_t)taken(&data, &size, counts[0], sizeof(row_inode), &rows.inodes);
    rows.entry_count = (uint32_t)taken(&data, &size, counts[1], sizeof(row_entry), &rows.entries);
    rows.block_count = (uint32_t)taken(&data, &size, counts[2], 4, &rows.blocks);
    asked_bytes = counts[3] < size ? counts[3] : size;
    rows.strings = data;
    rows.strings_bytes = size - asked_bytes;
    asked = data + rows.strings_bytes;
    if (bs_tree_open(&rows, &tree) < 0)
        return 0;
    reply = malloc(CAPACITY);
    for (uint32_t node = 1; node <= rows.inode_count && node < NAMES; node++) {
        check_names(tree, node, reply);
        read_some(tree, node, 0, TREE_LONGEST_READ);
        read_some(tree, node, TREE_BLOCK_BYTES - 1, 2);
    }
    for (; asked_bytes >= ASKED; asked += ASKED, asked_bytes -= ASKED) {
        uint64_t offset;

        ask(tree, asked, rows.inode_count, reply);
        memcpy(&offset, asked + 4, sizeof offset);
        read_some(tree, asked[1] % (rows.inode_count + 2), offset, (size_t)asked[2] << 12);
    }
    free(reply);
    bs_tree_close(tree);
    return 0;
}
