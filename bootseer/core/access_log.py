"""A node's checkpoint reads during a job's start, recorded for the next start's prefetch.

A document belongs to one user, key, number of nodes and node index, because ranks read their own
shards. File paths mark the components that were the newest of their kind: a job that read
``step_1000`` as the newest reads ``step_2000`` next.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bootseer.core.fields import Fields, open_document
from bootseer.core.ranges import ByteRange, check_ranges, coalesce, subtract
from bootseer.errors import Corrupt
from bootseer.units import MIB

VERSION = 1
MAX_BYTES = 16 * 1024 * 1024
MAX_FILES = 20_000
MAX_RANGES = 1000
"""Limit of ranges per file."""
_MAX_PATH_CHARS = 4096
_FORMAT = "bootseer checkpoint reads"
MARK_BYTES = 64 * MIB
"""Of data pushed into the page cache, one page per so many bytes is left out: its request shows the
readers' progress."""
_GAP_BYTES = MIB
"""Ranges at most this far apart are joined."""
_NUMBER = re.compile(r"[0-9]+", re.ASCII)

Listing = Callable[[str], Iterable[str]]
"""Returns the names in a folder, given its path below the tree's root, "" for the root."""


@dataclass(frozen=True, slots=True)
class FileReads:
    """The recorded reads of one file.

    Attributes:
        path: path below the root of the tree, components separated by slashes.
        newest: indexes of the components that stand for the newest of their kind.
        ranges: sorted ranges in the file.
    """

    path: str
    newest: tuple[int, ...]
    ranges: tuple[ByteRange, ...]

    def check(self, name: str) -> None:
        """Check reads that another process has written or sent.

        Raises:
            Corrupt: a value is invalid.
        """
        components = self.path.split("/")
        if any(c in self.path for c in "\0\n\r") or any(c in ("", ".", "..") for c in components):
            raise Corrupt(f"{name}: {self.path!r} is not a path below a folder")
        if len(self.path) > _MAX_PATH_CHARS or len(self.newest) > len(components):
            raise Corrupt(f"{name}: {self.path[:100]!r} is too long, or has too many newest parts")
        if not all(0 <= index < len(components) for index in self.newest):
            raise Corrupt(f"{name}: field 'newest' of {self.path!r} names no part of it")
        check_ranges(self.ranges, MAX_RANGES, name)


class AccessedFile(NamedTuple):
    """A mount's record of one file in the start-up window.

    Attributes:
        path, newest, ranges: as in `FileReads`.
        opens: number of opens.
    """

    path: str
    newest: tuple[int, ...]
    ranges: list[ByteRange]
    opens: int

    def check(self, name: str) -> None:
        """Check a record from another process.

        Raises:
            Corrupt: a value is invalid.
        """
        if self.opens < 0:
            raise Corrupt(f"{name}: {self.path!r} was opened {self.opens} times")
        FileReads(self.path, self.newest, tuple(self.ranges)).check(name)


@dataclass(frozen=True, slots=True)
class NodeReads:
    """One node's reads, in the order in which it opened the files."""

    user: str
    key: str
    nodes: int
    node: int
    files: tuple[FileReads, ...]

    def encode(self) -> bytes:
        files = [
            {"path": file.path, "newest": file.newest, "ranges": file.ranges} for file in self.files
        ]
        document = {"format": _FORMAT, "version": VERSION, "user": self.user, "key": self.key}
        document |= {"nodes": self.nodes, "node": self.node, "files": files}
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"


@dataclass(slots=True)
class Recording:
    """The reads of one file so far.

    Attributes:
        path: as in `FileReads`.
        opened_ns: when it was first opened, nanoseconds since the epoch.
        opens: number of opens.
        ranges: ranges requested so far, in the order of reading.
        pushed: ranges pushed into the page cache without a request.
    """

    path: str
    opened_ns: int
    opens: int = 0
    ranges: list[ByteRange] = field(default_factory=list)
    pushed: list[ByteRange] = field(default_factory=list)

    def add(self, offset: int, size_bytes: int) -> None:
        """Record a requested range; an empty one is ignored."""
        _add(self.ranges, offset, size_bytes)

    def push(self, offset: int, size_bytes: int) -> None:
        """Record a range pushed into the page cache without a request."""
        _add(self.pushed, offset, size_bytes)

    def read(self) -> list[ByteRange]:
        """Return the ranges read: requested ones, and pushed ones between requested pages."""
        near = [
            ByteRange(
                asked.start // MARK_BYTES * MARK_BYTES, -(-asked.stop // MARK_BYTES) * MARK_BYTES
            )
            for asked in self.ranges
        ]
        unread = subtract(self.pushed, near)
        return _join([*self.ranges, *subtract(self.pushed, unread)])


def object_name(key: str, nodes: int, node: int) -> str:
    """Return the store object's name for a node's reads; safe for any key."""
    return f"reads/{hashlib.sha256(key.encode()).hexdigest()[:32]}/{nodes}/{node}.json"


def decode(data: bytes, name: str, user: str, key: str) -> NodeReads:
    """Decode a node's reads, which must belong to ``user`` and ``key``.

    Raises:
        UnknownVersion: the document has another version.
        Corrupt: it is damaged, or belongs to another user or key.
    """
    fields = open_document(data, name, _FORMAT, VERSION)
    reads = NodeReads(
        user=fields.text("user", 256),
        key=fields.text("key", 256),
        nodes=fields.count("nodes"),
        node=fields.count("node"),
        files=tuple(_file(file, name) for file in fields.objects("files", MAX_FILES)),
    )
    if (reads.user, reads.key) != (user, key):
        raise Corrupt(f"{name}: these are the reads of {reads.user}'s key {reads.key}, not {key}'s")
    return reads


def numbered(path: str) -> list[str]:
    """List the parent folders of a path's components that have numbers."""
    components = path.split("/")
    return [
        "/".join(components[:index])
        for index, component in enumerate(components)
        if _NUMBER.search(component)
    ]


def newest_components(path: str, listing: Listing) -> tuple[int, ...]:
    """Return the indexes of a path's components that have the greatest number of their kind.

    Args:
        path: path of a file.
        listing: lists folders as they were when the file was opened.
    """
    components = path.split("/")
    found = []
    for index, component in enumerate(components):
        kind, numbers = _kind(component)
        if numbers and numbers >= max(
            (n for k, n in map(_kind, listing("/".join(components[:index]))) if k == kind),
            default=(),
        ):
            found.append(index)
    return tuple(found)


def expand(file: FileReads, listing: Listing) -> str:
    """Return the path that a recorded file has now.

    Args:
        file: the recorded file.
        listing: lists folders as they are now.
    """
    components = file.path.split("/")
    for index in file.newest:
        kind, numbers = _kind(components[index])
        names = listing("/".join(components[:index]))
        alike = [(n, name) for name in names for k, n in (_kind(name),) if k == kind]
        components[index] = max(alike, default=(numbers, components[index]))[1]
    return "/".join(components)


def combine(
    recorded: Iterable[AccessedFile], ahead: Mapping[str, tuple[int, list[ByteRange]]]
) -> tuple[FileReads, ...]:
    """Return a start's own reads, from recorded reads and prefetched ranges.

    Reads from the page cache are not recorded, so prefetched ranges of a file count as read if the
    job opened the file.

    Args:
        recorded: the mount's records.
        ahead: by path, the number of opens by the prefetch, and the ranges.
    """
    files = []
    for file in recorded:
        opens, ranges = ahead.get(file.path, (0, []))
        if file.opens > opens:
            joined = _join([*file.ranges, *ranges])
            files.append(FileReads(file.path, file.newest, tuple(joined)))
    return tuple(files[:MAX_FILES])


def _add(ranges: list[ByteRange], offset: int, size_bytes: int) -> None:
    if size_bytes <= 0:
        return
    if ranges and ranges[-1].stop == offset:
        ranges[-1] = ByteRange(ranges[-1].start, offset + size_bytes)
        return
    ranges.append(ByteRange(offset, offset + size_bytes))
    if len(ranges) > 2 * MAX_RANGES:
        ranges[:] = _join(ranges)


def _join(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Join ranges until they are few enough."""
    gap_bytes = _GAP_BYTES
    joined = coalesce(ranges, gap_bytes)
    while len(joined) > MAX_RANGES:
        gap_bytes *= 4
        joined = coalesce(joined, gap_bytes)
    return joined


def _kind(name: str) -> tuple[str, tuple[int, ...]]:
    """Return a name without its numbers, and its numbers."""
    return _NUMBER.sub("0", name), tuple(map(int, _NUMBER.findall(name)))


def _file(fields: Fields, name: str) -> FileReads:
    path, newest = fields.text("path"), []
    for index in fields.items("newest"):
        if type(index) is not int:
            raise Corrupt(f"{name}: field 'newest' of {path!r} names no part of it")
        newest.append(index)
    file = FileReads(path, tuple(newest), tuple(fields.ranges("ranges", MAX_RANGES)))
    file.check(name)
    return file
