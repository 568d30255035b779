"""Find the files in the hot set of a snapshot's squashfs."""

from __future__ import annotations

from collections.abc import Sequence

from bootseer.core.ranges import ByteRange
from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.snapshot.index import Index
from bootseer.image.hot.files import HotFile, HotRanges
from bootseer.squashfs.superblock import BLOCK_RAW


def hot_content(index: Index, hot: Sequence[ByteRange]) -> list[HotFile]:
    """List the files that have blocks in a hot set, in the order of first touch.

    Args:
        index: of the snapshot.
        hot: ranges of its squashfs without overlaps, in the order of first touch.
    """
    ranges = HotRanges(hot)
    found: list[tuple[int, HotFile]] = []
    for path, place in index.places.items():
        numbers, touched = [], []
        start, at = place.start, 0
        for stored in place.blocks:
            stop = start + (stored & ~BLOCK_RAW)
            end = min(at + BLOCK_BYTES, index.tree[path].size_bytes)
            if stop > start and (number := ranges.first(ByteRange(start, stop))) is not None:
                numbers.append(number)
                touched.append(ByteRange(at, end))
            start, at = stop, end
        if touched:
            found.append((min(numbers), HotFile(path, tuple(touched))))
    return [file for _, file in sorted(found, key=lambda pair: pair[0])]
