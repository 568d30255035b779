"""The binary container of traces, hot sets and other lists: a JSON header, rows, a digest.

Little-endian, rows of one width. See docs/formats/table.md for the fields. A file with an unknown,
out-of-bounds or damaged part is rejected as a whole.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence

from bootseer.errors import Corrupt, UnknownVersion

_FRAME = struct.Struct("<8sHHI")  # magic, version, row width, header length
_DIGEST_BYTES = 32
MAX_HEADER_BYTES = 64 * 1024


def encode(
    magic: bytes,
    version: int,
    header: Mapping[str, object],
    row: struct.Struct,
    rows: Iterable[Sequence[object]],
) -> bytes:
    """Encode a table.

    Args:
        magic: 8 bytes that name the kind of file.
        version: version of this kind's header and rows.
        header: JSON values.
        row: layout of one row.
        rows: values of each row, one for each field of ``row``.
    """
    return close_table(magic, version, header, row.size, b"".join(row.pack(*r) for r in rows))


def close_table(
    magic: bytes, version: int, header: Mapping[str, object], row_size: int, rows: bytes
) -> bytes:
    """Encode a table with packed rows; see `open_table`."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    body = b"".join([_FRAME.pack(magic, version, row_size, len(text)), text, rows])
    return body + hashlib.sha256(body).digest()


def digest_of(data: bytes) -> bytes:
    """Return the digest that an encoded table ends with."""
    return data[-_DIGEST_BYTES:]


def decode(
    magic: bytes, version: int, row: struct.Struct, data: bytes, name: str
) -> tuple[dict[str, object], list[tuple[int, ...]]]:
    """Decode a table into its header and rows; see `open_table`."""
    header, rows = open_table(magic, version, row.size, data, name)
    return header, list(row.iter_unpack(rows))


def open_table(
    magic: bytes, version: int, row_size: int, data: bytes, name: str
) -> tuple[dict[str, object], memoryview]:
    """Check a table; returns its header, and a view of its rows in ``data``.

    Args:
        magic: the expected kind of file.
        version: the supported version.
        row_size: width of a row in bytes.
        data: the whole file.
        name: name of the file, for messages.

    Raises:
        UnknownVersion: the file has another version.
        Corrupt: the file is not of this kind, or it is damaged.
    """
    if len(data) < _FRAME.size + _DIGEST_BYTES:
        raise Corrupt(f"{name}: {len(data)} bytes are too few for a file of this kind")
    found_magic, found_version, row_bytes, header_bytes = _FRAME.unpack_from(data)
    if found_magic != magic:
        raise Corrupt(f"{name}: not a {magic.decode().strip()} file")
    if found_version != version:
        raise UnknownVersion(
            f"{name}: version {found_version} is not understood, only {version} is"
        )
    body = memoryview(data)[:-_DIGEST_BYTES]
    if hashlib.sha256(body).digest() != data[-_DIGEST_BYTES:]:
        raise Corrupt(f"{name}: its checksum does not match its content")
    rows_start = _FRAME.size + header_bytes
    rows_bytes = len(data) - _DIGEST_BYTES - rows_start
    if header_bytes > MAX_HEADER_BYTES or row_bytes != row_size or rows_bytes < 0:
        raise Corrupt(f"{name}: the lengths in its header do not fit its size")
    if rows_bytes % row_size:
        raise Corrupt(f"{name}: its rows do not fill a whole number of {row_size} bytes")
    try:
        header = json.loads(data[_FRAME.size : rows_start])
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{name}: its header is not JSON") from error
    if not isinstance(header, dict):
        raise Corrupt(f"{name}: its header is not a JSON object")
    return header, body[rows_start:]
