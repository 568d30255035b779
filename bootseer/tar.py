"""Read the members of a tar stream from front to back, and write headers for another.

Python's own tarfile takes damage behind the first member for the end of the archive, holds headers
of any size in memory and searches them in quadratic time: not for archives from anyone. What it
writes is another matter, and used.

Formats: ustar, POSIX (pax) and GNU, with sparse files of all four kinds
(https://www.gnu.org/software/tar/manual/html_node/Standard.html and Sparse-Formats.html).
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from bootseer.errors import Corrupt
from bootseer.units import KIB, MIB

BLOCK_BYTES = 512
MAX_HEADER_BYTES = MIB
"""Of a member's extended headers: attributes have up to 64 KiB each, names 4 KiB."""
MAX_HOLES = 100_000
"""Pieces of data that one sparse file may have."""
MAX_BYTES = 1 << 62
XATTR = b"SCHILY.xattr."
"""Before the name of an extended attribute, in the key of a pax record."""

FILE, HARD_LINK, SYMLINK, CHARACTER, BLOCK, FOLDER, FIFO = "0123456"

_KINDS = {"\0": FILE, "7": FILE, "S": FILE, **{kind: kind for kind in "0123456"}}
_NUMBERS = {"uid": (108, 116), "gid": (116, 124), "size": (124, 136), "mtime": (136, 148)}
_ZEROS = bytes(64 * KIB)
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*\Z")
_DECIMAL = re.compile(rb"(-?\d{1,20})(?:\.\d*)?\Z")


class Stream(Protocol):
    """Bytes that are read once, in order."""

    @property
    def position(self) -> int:
        """How many bytes were read or skipped."""

    def read(self, size: int) -> bytes:
        """Read `size` bytes; fewer only at the end."""

    def chunks(self, size: int) -> Iterator[bytes | memoryview]:
        """Read `size` bytes in pieces, each valid until the next; fewer only at the end."""

    def skip(self, size: int) -> None:
        """Pass over `size` bytes.

        Raises:
            Corrupt: there are fewer.
        """


@dataclass(slots=True)
class Member:
    """One entry of an archive.

    Attributes:
        name: as it stands there; bytes that are no UTF-8 are surrogates (PEP 383).
        kind: FILE, HARD_LINK, SYMLINK, CHARACTER, BLOCK, FOLDER or FIFO.
        mode: permission bits with set-user-id, set-group-id and sticky.
        uid: the owner's number.
        gid: the group's number.
        mtime_s: seconds since 1970, within what squashfs can say (0 to 2^32 - 1).
        size_bytes: of a file's content, holes included.
        link: where a link points.
        xattrs: extended attributes.
        stored_bytes: how much of it follows the header.
        extents: where in the file that goes (offset and length); None: all of it at the start.
        offset: where in the stream it begins.
    """

    name: str
    kind: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime_s: int = 0
    size_bytes: int = 0
    link: str = ""
    xattrs: dict[str, bytes] = field(default_factory=dict)
    stored_bytes: int = 0
    extents: list[tuple[int, int]] | None = None
    offset: int = 0


class TarReader:
    """Iterates over the members of a stream; between two, the first one's content can be read."""

    def __init__(self, stream: Stream, name: str) -> None:
        """Read from `stream`; `name` is the archive's, for messages."""
        self._stream = stream
        self._name = name
        self._end = 0  # of the present member, without what fills up its last block

    def __iter__(self) -> Iterator[Member]:
        """Read header after header.

        Raises:
            Corrupt: it is no tar archive, or damaged, or has more in its headers than it may.
        """
        records: list[tuple[bytes, bytes]] = []
        names: dict[str, str] = {}
        room = MAX_HEADER_BYTES
        while True:
            self._stream.skip(self._end - self._stream.position)
            # Not all tools fill up the last block, `umoci insert` for one.
            self._stream.read(-self._end % BLOCK_BYTES)
            header = self._stream.read(BLOCK_BYTES)
            if not header.strip(b"\0"):
                if records or names or 0 < len(header) < BLOCK_BYTES:
                    raise self._corrupt("it ends within a member")
                return
            kind = self._check(header)
            if kind in "xXgLK":
                data = self._extended(header, room)
                if kind != "g":
                    room -= len(data)
                if kind in "xX":
                    records += self._parse(data)
                elif kind != "g":  # what holds for all members is comments, in practice
                    names[kind] = _text(data.split(b"\0", 1)[0])
                continue
            member = self._member(header, kind, dict(records), names)
            self._find_holes(member, header, kind, records)
            self._end = self._stream.position + member.stored_bytes
            if member.extents is not None:
                self._check_extents(member)
            yield member
            records, names, room = [], {}, MAX_HEADER_BYTES

    def content(self, member: Member) -> Iterator[bytes | memoryview]:
        """Read the content of the member that was iterated to last, holes filled with zeros.

        Raises:
            Corrupt: the archive ends before.
        """
        at = 0
        for offset, length in member.extents or [(0, member.stored_bytes)]:
            yield from _zeros(offset - at)
            for chunk in self._stream.chunks(length):
                yield chunk
                length -= len(chunk)
                offset += len(chunk)
            if length:
                raise self._corrupt(f"it ends within {member.name!a}")
            at = offset
        yield from _zeros(member.size_bytes - at)

    def _check(self, header: bytes) -> str:
        if len(header) < BLOCK_BYTES:
            raise self._corrupt("it ends within a header")
        claimed = self._number(header[148:156])
        if claimed != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise self._corrupt("not a tar archive, or damaged: the checksum of a header is wrong")
        return chr(header[156])

    def _extended(self, header: bytes, room: int) -> bytes:
        size = self._number(header[124:136])
        if not 0 <= size <= room:
            raise self._corrupt(f"an extended header of {size} bytes is not acceptable")
        data = self._stream.read(_padded(size))
        if len(data) < size:
            raise self._corrupt("it ends within an extended header")
        self._end = self._stream.position
        return data[:size]

    def _parse(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Split a pax header into its records, each ``LENGTH KEY=VALUE\\n``."""
        at = 0
        while at < len(data):
            digits, space, _ = data[at : at + 8].partition(b" ")
            stop = at + int(digits) if space and digits.isdigit() else 0
            key, equals, value = data[at + len(digits) + 1 : stop - 1].partition(b"=")
            if not equals or stop > len(data) or data[stop - 1 : stop] != b"\n":
                raise self._corrupt("an extended header is damaged")
            if value or key.startswith(XATTR):  # an empty value takes back a default
                yield key, value
            at = stop

    def _member(
        self, header: bytes, kind: str, records: dict[bytes, bytes], names: dict[str, str]
    ) -> Member:
        if kind not in _KINDS:
            raise self._corrupt(f"it has a member of the unknown type {kind!a}")
        name = _text(header[:100].split(b"\0", 1)[0])
        prefix = header[345:500].split(b"\0", 1)[0]
        if prefix and header[257:263] == b"ustar\0":  # GNU has other things there
            name = f"{_text(prefix)}/{name}"
        name = names.get("L", name)
        link = names.get("K", _text(header[157:257].split(b"\0", 1)[0]))
        if b"path" in records:
            name = _text(records[b"path"])
        if b"linkpath" in records:
            link = _text(records[b"linkpath"])
        is_old_folder = kind == "\0" and name.endswith("/")
        if is_old_folder:
            kind = FOLDER
        numbers = {
            key: self._decimal(records[key.encode()])
            if key.encode() in records
            else self._number(header[slice(*place)])
            for key, place in _NUMBERS.items()
        }
        for key, limit in (("uid", 1 << 32), ("gid", 1 << 32), ("size", MAX_BYTES)):
            if not 0 <= numbers[key] < limit:
                raise self._corrupt(f"{name!a} has the {key} {numbers[key]}")
        if is_old_folder and numbers["size"]:
            raise self._corrupt(f"{name!a} has content and the name of a folder")
        size = numbers["size"] if _KINDS[kind] == FILE else 0
        if "\0" in name or "\0" in link:
            raise self._corrupt(f"{name!a} or where it points has a NUL in its name")
        return Member(
            name=name,
            kind=_KINDS[kind],
            mode=self._number(header[100:108]) & 0o7777,
            uid=numbers["uid"],
            gid=numbers["gid"],
            mtime_s=min(max(numbers["mtime"], 0), (1 << 32) - 1),
            size_bytes=size,
            link=link,
            xattrs={
                _text(key[len(XATTR) :]): value
                for key, value in records.items()
                if key.startswith(XATTR)
            },
            stored_bytes=size,
            offset=self._stream.position,
        )

    def _find_holes(
        self, member: Member, header: bytes, kind: str, records: list[tuple[bytes, bytes]]
    ) -> None:
        """Look where the data of a sparse file goes."""
        sparse = {key[11:]: value for key, value in records if key.startswith(b"GNU.sparse.")}
        if kind == "S":
            member.extents = list(self._old_extents(header))
            member.size_bytes = self._number(header[483:495])
        elif sparse.get(b"major") == b"1" and member.kind == FILE:
            member.size_bytes = self._decimal(sparse.get(b"realsize", b""))
            before = self._stream.position
            member.extents = list(self._leading_extents())
            member.stored_bytes -= self._stream.position - before
        elif b"size" in sparse and member.kind == FILE:
            member.size_bytes = self._decimal(sparse[b"size"])
            found = sparse[b"map"].split(b",") if b"map" in sparse else []
            for key, value in records:
                if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
                    found.append(value)
            member.extents = list(_pairs([self._decimal(number) for number in found]))
        if sparse.get(b"name") and member.extents is not None:
            member.name = _text(sparse[b"name"])

    def _old_extents(self, header: bytes) -> Iterator[tuple[int, int]]:
        block, at, more = header, 386, header[482]
        count = 0
        while True:
            for start in range(at, at + (96 if block is header else 504), 24):
                if block[start : start + 24].strip(b"\0"):
                    length = self._number(block[start + 12 : start + 24])
                    yield self._number(block[start : start + 12]), length
            if not more:
                return
            count += 21
            block, at = self._stream.read(BLOCK_BYTES), 0
            if len(block) < BLOCK_BYTES or count > MAX_HOLES:
                raise self._corrupt("the map of a sparse file is damaged or too long")
            more = block[504]

    def _leading_extents(self) -> Iterator[tuple[int, int]]:
        """Read the map at the start of a file's data: how many pairs, and they, a number a line."""
        numbers: list[int] = []
        wanted, rest = 1, b""
        while len(numbers) < wanted:
            block = self._stream.read(BLOCK_BYTES)
            *lines, rest = (rest + block).split(b"\n")
            if len(block) < BLOCK_BYTES or not lines:
                raise self._corrupt("the map of a sparse file is damaged")
            for line in lines:
                if len(numbers) < wanted:
                    numbers.append(self._decimal(line))
                if len(numbers) == 1:
                    wanted = 1 + 2 * numbers[0]
            if not 1 <= wanted <= 2 * MAX_HOLES:
                raise self._corrupt("the map of a sparse file is too long")
        return _pairs(numbers[1:])

    def _check_extents(self, member: Member) -> None:
        at = 0
        for offset, length in member.extents or ():
            if offset < at or length < 0:
                raise self._corrupt(f"the map of the sparse file {member.name!a} is damaged")
            at = offset + length
        stored = sum(length for _, length in member.extents or ())
        if not at <= member.size_bytes < MAX_BYTES or stored != member.stored_bytes:
            raise self._corrupt(f"the map of the sparse file {member.name!a} is damaged")

    def _number(self, raw: bytes) -> int:
        """Decode a number of a header: octal digits, or binary where its first bit is set."""
        if raw[0] & 0x80:
            bits = 8 * len(raw) - 1
            value = int.from_bytes(raw, "big") & ((1 << bits) - 1)
            return value - (1 << bits) if raw[0] & 0x40 else value
        match = _OCTAL.match(raw.split(b"\0", 1)[0])
        if match is None:
            raise self._corrupt("not a tar archive, or damaged: a number in a header is none")
        return int(match[1] or b"0", 8)

    def _decimal(self, raw: bytes) -> int:
        match = _DECIMAL.match(raw)
        if match is None:
            raise self._corrupt("an extended header is damaged: a field is not a number")
        return int(match[1])

    def _corrupt(self, what: str) -> Corrupt:
        return Corrupt(f"{self._name}: {what}")


def encode(member: Member, name: str) -> bytes:
    """Return the headers that put a member under another name; its content is to follow, padded.

    For mksquashfs: names in GNU's way (it strips ``../`` from what links point to in the other),
    no names of users (it would look up this machine's), attributes as everybody writes them.
    """
    info = tarfile.TarInfo(name)
    info.type = member.kind.encode()
    info.mode, info.uid, info.gid = member.mode, member.uid, member.gid
    info.mtime, info.size, info.linkname = member.mtime_s, member.size_bytes, member.link
    header = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    return _encode_xattrs(member.xattrs) + header if member.xattrs else header


def padding(size_bytes: int) -> bytes:
    """Return what follows the content of a file."""
    return bytes(-size_bytes % BLOCK_BYTES)


def pax_data(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return what a pax header holds, to be padded: keys and values of any bytes."""
    data = b"".join(_pax_record(key, value) for key, value in records)
    if len(data) % BLOCK_BYTES == 0:
        data += _pax_record(b"comment", b"ends with a NUL")  # mksquashfs scans it as a C string
    return data


def _encode_xattrs(xattrs: dict[str, bytes]) -> bytes:
    data = pax_data(
        (XATTR + name.encode("utf-8", "surrogateescape"), value)
        for name, value in sorted(xattrs.items())
    )
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(data)
    return info.tobuf(tarfile.GNU_FORMAT) + data + padding(len(data))


def _pax_record(key: bytes, value: bytes) -> bytes:
    """Return a record, which begins with its own length in digits."""
    length = len(key) + len(value) + 3
    digits = len(str(length))
    if len(str(length + digits)) > digits:
        digits += 1
    return b"%d %s=%s\n" % (length + digits, key, value)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return size + -size % BLOCK_BYTES


def _pairs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    return zip(numbers[::2], numbers[1::2], strict=False)


def _zeros(size: int) -> Iterator[bytes]:
    while size > 0:
        yield _ZEROS[: min(size, len(_ZEROS))]
        size -= len(_ZEROS)
