"""Write an image anew with what a start reads at its front, in the order in which it reads it.

What was written is compared with the image it is to replace before it gets its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt
from bootseer.image.optimize.equal import compare
from bootseer.image.optimize.layout import arrange, find_pieces, total_size
from bootseer.image.optimize.writer import BlockStorage, ImageWriter, LayoutTooLarge, OptimizedImage
from bootseer.squashfs.reader import Squashfs
from bootseer.store.local.atomic_file import new_file, writing
from bootseer.units import MIB

_BUFFER_BYTES = 4 * MIB
_PRIVATE = 0o600
"""Permissions of the new image until it is whole: not all may read the old one."""

_LZ4_GROWTH = 1.35
"""What lz4 is reckoned to take against what is there: 1.17 times zstd's size for an image with
PyTorch, 1.32 times for one with other scientific packages."""

Progress = Callable[[int, int], None]
"""Is told how many bytes are done, of how many: all data is written, then all content compared."""


def optimize(
    image: Path,
    hot: Sequence[ByteRange],
    target: Path,
    *,
    storing: BlockStorage = BlockStorage.LZ4,
    progress: Progress = lambda done_bytes, all_bytes: None,
) -> OptimizedImage:
    """Write an image with the same tree and its hot files first, in the order of first touch.

    A file is hot with any of its blocks; large ones of which less than half is hot come behind the
    others. The new image is compared with the old one before it gets its name.

    Args:
        image: a squashfs.
        hot: ranges of it in the order of first touch.
        target: path of the new image; what is there is replaced.
        storing: how to store blocks. In an image of more than about 3.5 GB, small files' data may
            not fit into the first 4 GiB with LZ4; it is then written with AS_THEY_ARE.
        progress: called every few megabytes.

    Raises:
        NotFound: there is no such image.
        Corrupt: it is no squashfs, or a damaged one; or what was written differs.
        Unavailable: it cannot be read, or has a compressor that is not known here.
        BootseerError: ``target`` cannot be written, see `bootseer.store.local.atomic_file`.

    Durability: ``target`` is what it was or the whole new image, also after a crash.
    Cancellation: an exception that ``progress`` raises ends it, with nothing left behind.
    """
    with Squashfs(image) as source:
        try:
            return _write_image(source, hot, target, storing, progress)
        except LayoutTooLarge:
            if storing is not BlockStorage.LZ4:
                raise
        return _write_image(source, hot, target, BlockStorage.AS_THEY_ARE, progress)


def _write_image(
    source: Squashfs,
    hot: Sequence[ByteRange],
    target: Path,
    storing: BlockStorage,
    progress: Progress,
) -> OptimizedImage:
    """Do what `optimize` does, or raise TooFar."""
    pieces = find_pieces(
        source.inodes.values(),
        source.fragments,
        ByteRange(source.data_start, source.superblock.inode_table),
    )
    growth = _LZ4_GROWTH if storing is BlockStorage.LZ4 else 1
    block_size = source.superblock.block_size if storing is BlockStorage.HOT_UNCOMPRESSED else None
    layout = arrange(pieces, hot, source.data_start, growth=growth, block_size=block_size)
    if not layout.fits:
        raise LayoutTooLarge(source.path)
    all_bytes = total_size(pieces)
    all_bytes += sum(inode.size for inode in source.inodes.values() if inode.is_file)
    done_bytes = 0

    def advance(size_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += size_bytes
        progress(done_bytes, all_bytes)

    with new_file(target, _PRIVATE) as (fd, path):
        with writing(target), open(fd, "wb", buffering=_BUFFER_BYTES, closefd=False) as out:
            optimized = ImageWriter(source, out, layout, storing, advance).write()
        with Squashfs(path) as written:
            difference = compare(source, written, advance)
        if difference is not None:
            raise Corrupt(
                f"{target} is not written: {difference.what} of {difference.path} in the new "
                f"image is not what it is in {source.path}; was that changed meanwhile?"
            )
        with writing(target):
            os.fchmod(fd, source.mode)
    return optimized
