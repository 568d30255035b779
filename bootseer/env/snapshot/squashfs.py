"""Find the content of every file in the squashfs of a snapshot."""

from __future__ import annotations

from pathlib import Path

from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.snapshot.index import ContentPlace
from bootseer.errors import Corrupt
from bootseer.squashfs.codec import LZ4
from bootseer.squashfs.reader import Squashfs
from bootseer.squashfs.superblock import NO_FRAGMENT


def find_content(image: Path) -> dict[bytes, ContentPlace]:
    """Find the blocks of all files.

    Args:
        image: an lz4 squashfs without fragments, with blocks of `BLOCK_BYTES`.

    Returns:
        By path, where the content is.

    Raises:
        Corrupt: it is another kind of squashfs, or damaged.
    """
    found = {}
    with Squashfs(image) as squashfs:
        if (squashfs.superblock.compressor, squashfs.superblock.block_size) != (LZ4, BLOCK_BYTES):
            raise Corrupt(f"{image} is not compressed as the squashfs of a snapshot is")
        for path, inode in squashfs.walk():
            if inode.is_file:
                if inode.fragment != NO_FRAGMENT:
                    raise Corrupt(f"{image} has fragments")
                found[path.lstrip(b"/")] = ContentPlace(inode.start, tuple(inode.blocks))
    return found
