"""Write the only snapshot of one's own store again, with other rows and right checksums.

`forge_snapshot.py rights NAME`: a file is set-uid root's with all capabilities;
`forge_snapshot.py device NAME`: it is a device; `folders N`: a snapshot of N folders, one in the
other; `bits N`: N bits of the rows are other ones; `bomb BYTES`: each block of the squashfs goes on
with so many zeros.
"""

import json
import random
import stat
import struct
import sys
from pathlib import Path

import lz4.block
from blake3 import blake3

from bootseer.core import image_manifest, table
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.ranges import ByteRange
from bootseer.core.tree_rows import BLOCK_BYTES, ENTRY, INODE, XATTR
from bootseer.env.snapshot import index as tree_index
from bootseer.image.library import catalog

STORE = Path.home() / ".bootseer"
# VFS_CAP_REVISION_2 with the effective bit, and every capability permitted.
CAPABILITIES = struct.pack("<5I", 0x02000001, 0xFFFFFFFF, 0, 0x1FF, 0)
SIZE, MTIME, DATA, FIRST, COUNT, MODE, LINKS, XATTRS, XATTRS_BYTES, DIGEST = range(10)


def padded(data):
    return data + bytes(-len(data) % 4)


def forge(rows, how, argument):
    """Return other inodes, entries, blocks, strings."""
    inodes = [list(row) for row in INODE.iter_unpack(rows.inodes)]
    entries = list(ENTRY.iter_unpack(rows.entries))
    strings = bytearray(rows.strings)
    if how in ("rights", "device"):
        name = argument.encode()
        number = next(n for at, size, n in entries if strings[at : at + size] == name)
        inode = inodes[number]
        if how == "device":
            inode[MODE] = stat.S_IFCHR | 0o666
        else:
            text = b"security.capability"
            xattrs = XATTR.pack(len(text), len(CAPABILITIES)) + text + CAPABILITIES
            inode[MODE] |= 0o6755
            inode[XATTRS], inode[XATTRS_BYTES] = len(strings), len(xattrs)
            strings += xattrs
    encoded = [
        b"".join(INODE.pack(*inode) for inode in inodes),
        rows.entries,
        rows.blocks,
        bytes(strings),
    ]
    if how == "bits":
        generator = random.Random(int(argument))
        for _ in range(int(argument)):
            part = bytearray(encoded[n := generator.choice([0, 0, 1, 2, 3])])
            if part:
                part[generator.randrange(len(part))] ^= 1 << generator.randrange(8)
            encoded[n] = bytes(part)
    return encoded


def bomb(rows, zeros):
    """Return the same rows for blocks that grow far beyond their content, and the image of them."""
    block = lz4.block.compress(bytes(zeros), store_size=False)[: BLOCK_BYTES - 1]
    inodes = [list(row) for row in INODE.iter_unpack(rows.inodes)]
    for inode in inodes:
        if stat.S_ISREG(inode[MODE]):
            inode[DATA] = 96 + inode[FIRST] * len(block)
    count = len(rows.blocks) // 4
    packed = b"".join(INODE.pack(*inode) for inode in inodes)
    blocks = struct.pack("<I", len(block)) * count
    return [packed, rows.entries, blocks, rows.strings], bytes(96) + block * count


def put_image(data):
    """Put an image into the store that is no squashfs; returns its digest."""
    unit = image_manifest.BLOCK_BYTES
    digests = b"".join(blake3(data[at : at + unit]).digest() for at in range(0, len(data), unit))
    whole = (len(data), unit, image_manifest.PART_BYTES, "0" * 64, "bomb", (ByteRange(0, 96),))
    encoded = ImageManifest(*whole, digests).encode()
    digest = image_manifest.image_digest(encoded)
    (STORE / "images" / digest).mkdir()
    (STORE / catalog.part_object(digest, 0)).write_bytes(data)
    (STORE / catalog.manifest_object(digest)).write_bytes(encoded)
    return digest


def main():
    how, argument = sys.argv[1:]
    [path] = STORE.glob("env/snapshots/*/manifest.json")
    document = json.loads(path.read_text())
    file = path.parent / document["capture"] / "index"
    rows = tree_index.open_rows(file.read_bytes(), "index")
    if how == "bomb":
        (inodes, entries, blocks, strings), image = bomb(rows, int(argument))
        document["image"], document["image_bytes"] = put_image(image), len(image)
    else:
        inodes, entries, blocks, strings = forge(rows, how, argument)
    header = {
        "inodes": len(inodes) // INODE.size,
        "entries": len(entries) // ENTRY.size,
        "blocks": len(blocks) // 4,
        "strings": len(strings),
        "deleted": 0,
    }
    body = b"".join([inodes, entries, blocks, padded(strings)])
    data = table.close_table(tree_index.MAGIC, tree_index.VERSION, header, 4, body)
    file.write_bytes(data)
    document["index"] = table.digest_of(data).hex()
    path.write_text(json.dumps(document) + "\n")


main()
