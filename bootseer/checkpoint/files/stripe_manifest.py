"""The manifest of a striped file: which part has which unit, and the checksum of each.

A striped file is a manifest under the file's name and, beside it, a folder of parts. The manifest
is written last and names everything; see docs/formats/stripe.md for its fields.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from bootseer.core import table
from bootseer.core.fields import Fields
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt
from bootseer.units import GIB, KIB, MIB

MAGIC = b"BSSTRIPE"
VERSION = 2
MAX_BYTES = 64 * MIB
"""Length of a manifest."""
MAX_UNITS = 2_500_000
"""Units in a manifest: 10 TB at 4 MiB each."""
PARTS_FOLDER = ".bootseer-parts"
"""Beside the manifests of a folder; holds one folder for each striped file."""
MAX_PARTS = 4096
MIN_UNIT_BYTES = 4 * KIB
MAX_UNIT_BYTES = GIB

_ROW = struct.Struct("<HQQQ")  # part, offset in it, checksum: low and high half
_LOW = 2**64 - 1
_MODULUS = 4096
_RESIDUE = 1847
_ID_BYTES = 16


class UnitPlace(NamedTuple):
    """Part and offset of a unit, and the XXH3-128 checksum of its bytes."""

    part: int
    offset: int
    checksum: int


@dataclass(frozen=True, slots=True)
class StripeManifest:
    """A striped file.

    Attributes:
        size_bytes: length of the file.
        unit_bytes: length of every unit but the last, which may be shorter.
        parts_id: names the folder of its parts, 32 hexadecimal digits.
        parts: how many part files there are.
        units: one for each unit of the file, in order.
    """

    size_bytes: int
    unit_bytes: int
    parts_id: str
    parts: int
    units: tuple[UnitPlace, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over length, unit and all checksums, in hexadecimal.

        Two files of the same unit have the same digest if they have the same content.
        """
        whole = hashlib.sha256(struct.pack("<QQ", self.size_bytes, self.unit_bytes))
        for unit in self.units:
            whole.update(unit.checksum.to_bytes(16, "little"))
        return whole.hexdigest()

    def unit_range(self, index: int) -> ByteRange:
        """Return the bytes of the file that unit `index` holds."""
        start = index * self.unit_bytes
        return ByteRange(start, min(self.size_bytes, start + self.unit_bytes))

    def part_bytes(self) -> list[int]:
        """Return the least length of each part, in bytes."""
        lengths = [0] * self.parts
        for index, unit in enumerate(self.units):
            stop = unit.offset + self.unit_range(index).size_bytes
            lengths[unit.part] = max(lengths[unit.part], stop)
        return lengths

    def encode(self) -> bytes:
        """Return the encoded manifest, padded to a length that `may_be_manifest` accepts.

        Raises:
            ValueError: there are more units than `MAX_UNITS`, or more parts than `MAX_PARTS`.
        """
        if len(self.units) > MAX_UNITS:
            raise ValueError(f"{len(self.units)} units are more than a manifest has room for")
        if self.parts > MAX_PARTS:
            raise ValueError(f"{self.parts} parts are more than a reader takes")
        rows = [(u.part, u.offset, u.checksum & _LOW, u.checksum >> 64) for u in self.units]
        header = {
            "size_bytes": self.size_bytes,
            "unit_bytes": self.unit_bytes,
            "parts_id": self.parts_id,
            "parts": self.parts,
            "digest": self.digest,
            "pad": "",
        }
        short = len(table.encode(MAGIC, VERSION, header, _ROW, rows))
        header["pad"] = " " * ((_RESIDUE - short) % _MODULUS)
        return table.encode(MAGIC, VERSION, header, _ROW, rows)


def may_be_manifest(size_bytes: int) -> bool:
    """Tell by its length whether a file may be a manifest, as one in 4,096 other files does.

    So a listing shows which files must be opened, even if other tools have copied them.
    """
    return size_bytes % _MODULUS == _RESIDUE and size_bytes <= MAX_BYTES


def is_manifest(head: bytes) -> bool:
    """Tell by its first bytes whether a file is a manifest, of any version."""
    return head.startswith(MAGIC)


def decode(data: bytes, name: str) -> StripeManifest:
    """Decode a manifest.

    Args:
        data: the whole file.
        name: of the file, for messages.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is damaged, or its fields contradict each other.
    """
    header, rows = table.decode(MAGIC, VERSION, _ROW, data, name)
    fields = Fields(header, name)
    layout = StripeManifest(
        size_bytes=fields.count("size_bytes"),
        unit_bytes=fields.count("unit_bytes", MAX_UNIT_BYTES),
        parts_id=fields.text("parts_id", 2 * _ID_BYTES),
        parts=fields.count("parts", MAX_PARTS),
        units=tuple(UnitPlace(part, offset, low | high << 64) for part, offset, low, high in rows),
    )
    _check(layout, name)
    if fields.text("digest", 64) != layout.digest:
        raise Corrupt(f"{name}: field 'digest' is not that of the checksums")
    return layout


def check_unit_bytes(unit_bytes: int) -> int:
    """Return `unit_bytes` if it is a power of two from 4 KiB to 1 GiB.

    Raises:
        ValueError: it is anything else.
    """
    if not MIN_UNIT_BYTES <= unit_bytes <= MAX_UNIT_BYTES or unit_bytes & (unit_bytes - 1):
        raise ValueError(f"{unit_bytes} is not a power of two between 4 KiB and 1 GiB")
    return unit_bytes


def check_id(parts_id: str) -> bool:
    """Tell whether a name is a well-formed id of parts."""
    return len(parts_id) == 2 * _ID_BYTES and not set(parts_id) - set("0123456789abcdef")


def part_name(index: int) -> str:
    """Return the name of a part in its folder."""
    return f"{index:04d}"


def _check(layout: StripeManifest, name: str) -> None:
    try:
        check_unit_bytes(layout.unit_bytes)
    except ValueError as error:
        raise Corrupt(f"{name}: field 'unit_bytes': {error}") from error
    if not check_id(layout.parts_id):
        raise Corrupt(f"{name}: field 'parts_id' is not 32 hexadecimal digits")
    if len(layout.units) != -(-layout.size_bytes // layout.unit_bytes):
        raise Corrupt(
            f"{name}: {len(layout.units)} units of {layout.unit_bytes} bytes do not make the "
            f"{layout.size_bytes} bytes of field 'size_bytes'"
        )
    places = []
    for index, unit in enumerate(layout.units):
        if unit.part >= layout.parts or unit.offset >= 2**62:
            raise Corrupt(f"{name}: unit {index} lies in part {unit.part}, which there is not")
        places.append((unit.part, unit.offset, unit.offset + layout.unit_range(index).size_bytes))
    places.sort()
    for (part, _, stop), (next_part, offset, _) in pairwise(places):
        if part == next_part and offset < stop:
            raise Corrupt(f"{name}: two units lie in the same place of part {part}")


def units_between(start: int, stop: int, unit_bytes: int) -> Sequence[int]:
    """Return the indices of the units that hold bytes `start` up to `stop` of a file."""
    return range(start // unit_bytes, -(-stop // unit_bytes)) if start < stop else range(0)
