"""The extended attributes of a squashfs, from the bytes of its tables."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from bootseer.errors import Corrupt
from bootseer.squashfs.inodes import MetadataTable

MAX_XATTRS = 4096
"""Limit of one file's attributes: their names alone fill the 64 KiB that Linux can list."""

SET = struct.Struct("<QII")
"""A file's attributes: reference of the first, count, total length."""

_NAME = struct.Struct("<2H")  # type, length
_VALUE = struct.Struct("<I")  # length
_REFERENCE = struct.Struct("<Q")
_ELSEWHERE = 0x0100
"""Flag in the type: the value is replaced by a reference, as several attributes share it."""

_PREFIXES = (b"user.", b"trusted.", b"security.")


class Xattr(NamedTuple):
    """An attribute, and the offset of its value's reference in the table's data, if any."""

    name: bytes
    value: bytes
    reference_at: int | None


def read_xattrs(values: MetadataTable, reference: int, count: int) -> Iterator[Xattr]:
    """Yield ``count`` attributes, starting at a reference.

    Raises:
        Corrupt: the table is damaged, or there are too many.
    """
    if count > MAX_XATTRS:
        raise Corrupt("a file of the image has unreasonably many extended attributes")
    at = values.locate(reference >> 16, reference & 0xFFFF)
    try:
        for _ in range(count):
            kind, length = _NAME.unpack_from(values.data, at)
            at += _NAME.size
            name = _PREFIXES[kind & ~_ELSEWHERE] + values.data[at : at + length]
            at += length
            value = _value(values.data, at)
            reference_at = None
            at += _VALUE.size + len(value)
            if kind & _ELSEWHERE:
                reference_at = at - len(value)
                (reference,) = _REFERENCE.unpack(value)
                value = _value(values.data, values.locate(reference >> 16, reference & 0xFFFF))
            yield Xattr(name, value, reference_at)
    except (struct.error, IndexError) as error:
        raise Corrupt("the image's table of extended attributes is damaged") from error


def _value(data: bytes, at: int) -> bytes:
    (length,) = _VALUE.unpack_from(data, at)
    value = data[at + _VALUE.size : at + _VALUE.size + length]
    if len(value) < length:
        raise Corrupt("an extended attribute of the image goes past the table's end")
    return value
