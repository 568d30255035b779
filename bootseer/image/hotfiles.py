"""Which files of an image a hot set is made of, for those who read it file by file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bootseer.core.inodes import Inode
from bootseer.core.ranges import ByteRange
from bootseer.core.squashfs import BLOCK_RAW, NO_FRAGMENT
from bootseer.image.squashfs import Squashfs


@dataclass(frozen=True, slots=True)
class HotFile:
    """A file with something hot in it.

    Attributes:
        path: below the image's root, as bytes.
        ranges: of its content, in order.
    """

    path: bytes
    ranges: tuple[ByteRange, ...]


class _Hot:
    """Hot ranges of an image, for looking up what touches them first."""

    def __init__(self, hot: Sequence[ByteRange]) -> None:
        """Take ranges that do not overlap, in the order of first touch."""
        ordered = sorted((r.start, r.stop, number) for number, r in enumerate(hot))
        self._ranges = ordered
        self._starts = [start for start, _, _ in ordered]

    def first(self, part: ByteRange) -> int | None:
        """Return which of the ranges that have something of a part comes first."""
        numbers = []
        for start, stop, number in self._ranges[
            max(0, bisect_right(self._starts, part.start) - 1) :
        ]:
            if start >= part.stop:
                break
            if stop > part.start:
                numbers.append(number)
        return min(numbers, default=None)


def hot_files(image: Path, hot: Sequence[ByteRange]) -> list[HotFile]:
    """List the files that have blocks in a hot set, in the order of first touch.

    Args:
        image: a squashfs.
        hot: ranges of it that do not overlap, in the order of first touch.

    Raises:
        NotFound: there is no such image.
        Unavailable: it cannot be read.
        Corrupt: it is damaged.
    """
    index = _Hot(hot)
    found: list[tuple[int, HotFile]] = []
    seen: set[int] = set()
    with Squashfs(image) as squashfs:
        for path, inode in squashfs.walk():
            if not inode.is_file or inode.at in seen:
                continue
            seen.add(inode.at)
            touched = [
                (number, content)
                for part, content in _parts(squashfs, inode)
                if part.size_bytes and (number := index.first(part)) is not None
            ]
            if touched:
                ranges = tuple(content for _, content in touched)
                found.append((min(n for n, _ in touched), HotFile(path.lstrip(b"/"), ranges)))
    return [file for _, file in sorted(found, key=lambda pair: pair[0])]


def _parts(squashfs: Squashfs, inode: Inode) -> Iterator[tuple[ByteRange, ByteRange]]:
    """Yield where a file's blocks are in the image, and which of its content they hold."""
    at = 0
    for part, _, size_bytes in squashfs.stored(inode):
        yield part, ByteRange(at, at + size_bytes)
        at += size_bytes
    if inode.fragment != NO_FRAGMENT and at < inode.size:
        start, length = squashfs.fragments[inode.fragment]
        yield ByteRange(start, start + (length & ~BLOCK_RAW)), ByteRange(at, inode.size)
