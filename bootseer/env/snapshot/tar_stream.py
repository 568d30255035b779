"""The tar stream of a tree, which mksquashfs reads.

The headers suit all readers (GNU tar, bsdtar, Python, mksquashfs): ustar; a pax record for times,
sizes and attributes that the header has no room for; and GNU's own members for names of over 100
bytes. Those take any bytes, unlike pax, and mksquashfs (4.5.1) strips ``../`` from link targets in
a pax record. Times have all nine digits: GNU tar restores them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from bootseer.env.client.scan import TreeNode
from bootseer.errors import Conflict
from bootseer.tar import XATTR, pax_data
from bootseer.units import NS_PER_S

Read: TypeAlias = Callable[[bytes], Iterable[bytes | memoryview]]
"""Takes the path of a file and reads its content, in pieces."""

_BLOCK_BYTES = 512
_END = bytes(2 * _BLOCK_BYTES)
_NAME_BYTES = 100
_LIMIT = 8**11
"""Of what 11 octal digits can say: sizes and seconds."""
_HEADER = b"%s%07o\x000000000\x000000000\x00%011o\x00%011o\x00%s%s%s%sustar\x0000"
_CHECKSUM = slice(148, 156)
_SPACES = b" " * 8
_KINDS = {"file": b"0", "link": b"2", "folder": b"5"}


def stream(tree: Mapping[bytes, TreeNode], read: Read) -> Iterator[bytes | memoryview]:
    """Make the stream.

    Args:
        tree: files, folders and links; owners are left out.
        read: reads a file; the next piece may overwrite the last.

    Yields:
        Pieces of it; pieces of a file are those of `read`.

    Raises:
        Conflict: a file has another length than the tree says.
    """
    for path in sorted(tree):
        if not path:
            continue
        node = tree[path]
        yield headers(path, node)
        size_bytes = _content_bytes(node)
        if size_bytes:
            yield from _content(path, node, read)
            yield bytes(-size_bytes % _BLOCK_BYTES)
    yield _END


def headers(path: bytes, node: TreeNode) -> bytes:
    """Return the headers before a member's content."""
    kind = b"1" if node.same_as else _KINDS[node.kind]
    name = path + b"/" if node.kind == "folder" else path
    link = node.same_as or node.target
    size_bytes = _content_bytes(node)
    seconds, nanoseconds = divmod(node.mtime_ns, NS_PER_S)
    before = b""
    if not node.same_as:  # nothing but its first name says what a file is
        records = []
        if nanoseconds or not 0 <= seconds < _LIMIT:
            records.append((b"mtime", _decimal(node.mtime_ns)))
        if size_bytes >= _LIMIT:
            records.append((b"size", b"%d" % size_bytes))
        records += [(XATTR + key, value) for key, value in node.xattrs]
        if records:
            before = _extended(b"pax", b"x", pax_data(records))
    if len(name) > _NAME_BYTES:
        before += _extended(b"././@LongLink", b"L", name + b"\0")
    if len(link) > _NAME_BYTES:
        before += _extended(b"././@LongLink", b"K", link + b"\0")
    return before + _header(
        name, kind, node.mode, size_bytes % _LIMIT, min(max(seconds, 0), _LIMIT - 1), link
    )


def _content(path: bytes, node: TreeNode, read: Read) -> Iterator[bytes | memoryview]:
    left = node.size_bytes
    for piece in read(path):
        left -= len(piece)
        if left < 0:
            break
        yield piece
    if left:
        raise Conflict(f"{path!a} has another length than the tree says; capture it again")


def _content_bytes(node: TreeNode) -> int:
    return 0 if node.same_as else node.size_bytes


def _header(name: bytes, kind: bytes, mode: int, size: int, mtime_s: int, link: bytes) -> bytes:
    """Make a ustar header; texts that are too long are cut."""
    head = _HEADER % (
        name[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0"),
        *(mode, size, mtime_s, _SPACES, kind),
        *(link[:_NAME_BYTES], bytes(_NAME_BYTES - len(link[:_NAME_BYTES]))),
    )
    head = b"%s%06o\x00 %s" % (head[: _CHECKSUM.start], sum(head), head[_CHECKSUM.stop :])
    return head.ljust(_BLOCK_BYTES, b"\0")


@lru_cache(maxsize=1024)
def _extended_header(name: bytes, kind: bytes, size_bytes: int) -> bytes:
    return _header(name, kind, 0o644, size_bytes, 0, b"")


def _extended(name: bytes, kind: bytes, data: bytes) -> bytes:
    """Make a member with more metadata of the next one."""
    return _extended_header(name, kind, len(data)) + data.ljust(_padded(len(data)), b"\0")


def _decimal(mtime_ns: int) -> bytes:
    seconds, nanoseconds = divmod(abs(mtime_ns), NS_PER_S)
    return b"%s%d.%09d" % (b"-" if mtime_ns < 0 else b"", seconds, nanoseconds)


def _padded(size_bytes: int) -> int:
    return size_bytes + -size_bytes % _BLOCK_BYTES
