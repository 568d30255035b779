"""Whether two squashfs images hold the same tree, told without mounting or unpacking them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from bootseer.squashfs.inodes import SquashfsInode
from bootseer.squashfs.reader import Squashfs

Read = Callable[[int], None]
"""Is told how many more bytes of content have been compared."""


@dataclass(frozen=True, slots=True)
class TreeDifference:
    """The first thing in which two trees differ.

    Attributes:
        path: of the file, from the image's root.
        what: what differs of it, such as ``mode``.
    """

    path: str
    what: str


def same_tree(a: Path, b: Path, compared: Read = lambda size_bytes: None) -> TreeDifference | None:
    """Compare two images: names, all that stat and listxattr tell, links, devices, contents.

    Inode numbers and the place of anything in the image may differ, which names are one file may
    not. Nothing is held but the tables and a block of each.

    Raises:
        NotFound: one of them is not there.
        Unavailable: one cannot be read.
        Corrupt: one is damaged.
    """
    with ExitStack() as stack:
        first, second = (stack.enter_context(Squashfs(path)) for path in (a, b))
        return compare(first, second, compared)


def compare(
    a: Squashfs, b: Squashfs, compared: Read = lambda size_bytes: None
) -> TreeDifference | None:
    """Compare two open images, as `same_tree` does."""
    partners: dict[int, int] = {}
    taken: set[int] = set()
    for one, two in zip_longest(a.walk(), b.walk()):
        if one is None or two is None or one[0] != two[0]:
            return _missing(one, two)
        path, first, second = one[0], one[1], two[1]
        if first.at in partners:
            what = "" if partners[first.at] == second.at else "hard link"
        elif second.at in taken:
            what = "hard link"
        else:
            partners[first.at] = second.at
            taken.add(second.at)
            what = _of_inodes(a, first, b, second) or _of_contents(a, first, b, second, compared)
        if what:
            return TreeDifference(os.fsdecode(path), what)
    return None


def _missing(
    one: tuple[bytes, SquashfsInode] | None, two: tuple[bytes, SquashfsInode] | None
) -> TreeDifference:
    """Tell which of two paths is not in the other tree, given in the order of both."""
    if two is None or (one is not None and one[0].split(b"/") < two[0].split(b"/")):
        assert one is not None
        return TreeDifference(os.fsdecode(one[0]), "missing in the second")
    return TreeDifference(os.fsdecode(two[0]), "missing in the first")


def _of_inodes(a: Squashfs, first: SquashfsInode, b: Squashfs, second: SquashfsInode) -> str:
    """Return in what two inodes differ; "" for nothing."""
    if stat.S_IFMT(first.mode) != stat.S_IFMT(second.mode):
        return "type"
    pairs: dict[str, tuple[object, object]] = {
        "mode": (first.mode, second.mode),
        "owner": (a.owner(first.owner), b.owner(second.owner)),
        "group": (a.owner(first.group), b.owner(second.group)),
        "mtime": (first.mtime, second.mtime),
        "link target": (first.target, second.target),
        "device number": (first.device, second.device),
        "extended attributes": (a.xattrs(first), b.xattrs(second)),
    }
    if not first.is_directory:
        pairs["number of links"] = (first.links, second.links)
    if first.is_file:
        pairs["size"] = (first.size, second.size)
    return next((what for what, (one, two) in pairs.items() if one != two), "")


def _of_contents(
    a: Squashfs, first: SquashfsInode, b: Squashfs, second: SquashfsInode, compared: Read
) -> str:
    """Return where two files' contents differ; "" for nowhere."""
    if not first.is_file:
        return ""
    at = 0
    for one, two, size_bytes in _chunks(a, first, b, second):
        if one != two:
            at += next(n for n, (x, y) in enumerate(zip(one, two, strict=True)) if x != y)
            return f"content at byte {at}"
        at += size_bytes
        compared(size_bytes)
    return ""


def _chunks(
    a: Squashfs, first: SquashfsInode, b: Squashfs, second: SquashfsInode
) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield two files' contents side by side, and how much each pair is.

    What is stored alike is yielded as it is stored.
    """
    how = [(image.superblock.compressor, image.superblock.block_size) for image in (a, b)]
    if how[0] != how[1] or len(first.blocks) != len(second.blocks):
        yield from _aligned(a.content(first), b.content(second))
        return
    for (one, length, size_bytes), (two, other_length, _) in zip(
        a.stored(first), b.stored(second), strict=True
    ):
        if length == other_length:
            stored = a.pread(one.start, one.size_bytes), b.pread(two.start, two.size_bytes)
            if stored[0] == stored[1]:
                yield *stored, size_bytes
                continue
        contents = (
            a.block(one.start, length, size_bytes),
            b.block(two.start, other_length, size_bytes),
        )
        yield *contents, size_bytes
    yield from _aligned(a.tail(first), b.tail(second))


def _aligned(a: Iterator[bytes], b: Iterator[bytes]) -> Iterator[tuple[bytes, bytes, int]]:
    """Cut two streams of equal length into pairs of equal length."""
    one = two = b""
    while (one := one or next(a, b"")) and (two := two or next(b, b"")):
        size_bytes = min(len(one), len(two))
        yield one[:size_bytes], two[:size_bytes], size_bytes
        one, two = one[size_bytes:], two[size_bytes:]
