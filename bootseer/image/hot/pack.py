"""A hot pack: the hot blocks of an image, one behind the other, and an index of their places.

Blocks are in the order in which a start reads them, so a prefetch in that order has long reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from bootseer.core import table
from bootseer.core.fields import Fields
from bootseer.core.image_manifest import MAX_BLOCK_BYTES, ImageManifest
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt
from bootseer.image.hot.hotset import HotSet
from bootseer.units import MIB

MAGIC = b"BSPACK\0\0"
VERSION = 1
_ROW = struct.Struct("<I")  # index of a block of the image
MAX_BYTES = MIB
"""Of an index."""
MAX_PACKED = 65_536
"""Blocks: 4 GiB where they have their usual length, ten times what a start of PyTorch reads."""
MAX_PART_BYTES = 64 * MIB
PART_BYTES = 16 * MIB
"""Of the objects that a pack is stored in. A writer may hold so much in memory to retry it, and
so there are enough objects for many machines."""
PIECE_BYTES = MIB
"""Blocks are sorted within so much of a pack. It is read at once, and blocks that are neighbours in
the image are claimed and kept together."""

MAX_SHARE = 0.5
"""Of an image: a start that reads more has long reads in the image itself."""
SETTLED_SHARE = 0.03
"""Of a hot set: a start may have missed so much and still confirm it."""
OUTDATED_SHARE = 0.05
"""Of the hot blocks: a pack may lack so many."""
IDLE_SHARE = 0.33
"""Of a pack's blocks: so many may not be hot any more."""


@dataclass(frozen=True, slots=True)
class HotPack:
    """The index of a pack.

    Attributes:
        image: digest of the image.
        identity: names the traces and hot sets of the image.
        block_bytes: length of the image's blocks, but for its last.
        part_bytes: length of every object that the pack is stored in, but the last.
        size_bytes: of all blocks together.
        blocks: indexes of the image's blocks, in the order of the pack.
    """

    image: str
    identity: str
    block_bytes: int
    part_bytes: int
    size_bytes: int
    blocks: tuple[int, ...]

    @property
    def parts(self) -> int:
        return -(-self.size_bytes // self.part_bytes)

    def part_range(self, index: int) -> ByteRange:
        """Return the bytes of the pack that object ``index`` holds."""
        start = index * self.part_bytes
        return ByteRange(start, min(self.size_bytes, start + self.part_bytes))

    def row_range(self, rows: range) -> ByteRange:
        """Return the bytes of the pack that consecutive rows of the index describe."""
        return ByteRange(
            rows.start * self.block_bytes, min(self.size_bytes, rows.stop * self.block_bytes)
        )

    def encode(self) -> bytes:
        """Encode the index as a file; equal packs give equal bytes."""
        header = {
            "image": self.image,
            "identity": self.identity,
            "block_bytes": self.block_bytes,
            "part_bytes": self.part_bytes,
            "size_bytes": self.size_bytes,
        }
        return table.encode(MAGIC, VERSION, header, _ROW, ((index,) for index in self.blocks))


def pack_digest(index: bytes) -> str:
    """Return the digest that names a pack, in hexadecimal, from its encoded index."""
    return table.digest_of(index).hex()


def plan_pack(manifest: ImageManifest, image: str, hot_set: HotSet) -> HotPack:
    """Choose the blocks of an image's pack, and their order.

    Args:
        manifest: of the image.
        image: its digest.
        hot_set: of it.
    """
    wanted = hot_blocks(manifest, hot_set)
    per_piece = PIECE_BYTES // manifest.block_bytes
    blocks = [
        index
        for first in range(0, len(wanted), per_piece)
        for index in sorted(wanted[first : first + per_piece])
    ]
    last = manifest.blocks - 1
    if last in blocks:  # it may be shorter than the others, so it goes behind all of them
        blocks.remove(last)
        blocks.append(last)
    return HotPack(
        image=image,
        identity=manifest.identity,
        block_bytes=manifest.block_bytes,
        part_bytes=PART_BYTES,
        size_bytes=sum(manifest.block_range(index).size_bytes for index in blocks),
        blocks=tuple(blocks),
    )


def hot_blocks(manifest: ImageManifest, hot_set: HotSet) -> list[int]:
    """List the blocks with hot bytes: first those that every start reads, then by first touch."""
    ranges: list[ByteRange] = [*manifest.leading]
    ranges += (r.range for r in hot_set.ranges)
    return list(dict.fromkeys(_covered(manifest, ranges)))


def has_settled(
    manifest: ImageManifest, hot_set: HotSet, touched: Iterable[tuple[int, int]]
) -> bool:
    """Whether a start has confirmed the hot set of earlier starts: it read hardly anything else.

    Args:
        manifest: of the image.
        hot_set: as it was before that start's own trace was merged.
        touched: start and stop of the ranges that the start has read.
    """
    hot = set(hot_blocks(manifest, hot_set))
    read = set(_covered(manifest, (ByteRange(*r) for r in touched)))
    return bool(hot_set.ranges) and len(read - hot) <= SETTLED_SHARE * len(hot)


def is_worth_it(manifest: ImageManifest, wanted: HotPack) -> bool:
    """Whether a start reads this pack faster than the image."""
    return 0 < len(wanted.blocks) <= min(MAX_PACKED, MAX_SHARE * manifest.blocks)


def is_outdated(current: HotPack, wanted: HotPack) -> bool:
    """Whether a pack differs so much from the hot blocks of today that it is written again."""
    if (current.image, current.block_bytes) != (wanted.image, wanted.block_bytes):
        return True
    has, wants = set(current.blocks), set(wanted.blocks)
    return len(wants - has) > OUTDATED_SHARE * len(wants) or len(has - wants) > IDLE_SHARE * len(
        has
    )


def decode(data: bytes, name: str) -> HotPack:
    """Decode the index of a pack.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is damaged, or its fields do not fit each other.
    """
    header, rows = table.decode(MAGIC, VERSION, _ROW, data, name)
    fields = Fields(header, name)
    pack = HotPack(
        image=fields.text("image", 64),
        identity=fields.text("identity", 200),
        block_bytes=fields.count("block_bytes", MAX_BLOCK_BYTES),
        part_bytes=fields.count("part_bytes", MAX_PART_BYTES),
        size_bytes=fields.count("size_bytes", MAX_PACKED * MAX_BLOCK_BYTES),
        blocks=tuple(index for (index,) in rows),
    )
    count = len(pack.blocks)
    if not 0 < count <= MAX_PACKED or len(set(pack.blocks)) != count:
        raise Corrupt(f"{name}: {count} blocks, or one of them twice, are not acceptable")
    if not pack.part_bytes or pack.part_bytes % MAX_BLOCK_BYTES:
        raise Corrupt(f"{name}: parts of {pack.part_bytes} bytes are not acceptable")
    if not (count - 1) * pack.block_bytes < pack.size_bytes <= count * pack.block_bytes:
        raise Corrupt(f"{name}: {count} blocks do not fit {pack.size_bytes} bytes")
    return pack


def check_fits(pack: HotPack, manifest: ImageManifest, image: str, name: str) -> None:
    """Check that a pack is this image's.

    Args:
        pack: as decoded.
        manifest: of the image.
        image: its digest.
        name: of the pack, for messages.

    Raises:
        Corrupt: it is not.
    """
    if pack.image != image or pack.block_bytes != manifest.block_bytes:
        raise Corrupt(f"{name}: this is the pack of another image, {pack.image[:12]}")
    last = manifest.blocks - 1
    size_bytes = (len(pack.blocks) - 1) * pack.block_bytes
    size_bytes += manifest.block_range(pack.blocks[-1]).size_bytes
    if max(pack.blocks) > last or size_bytes != pack.size_bytes:
        raise Corrupt(f"{name}: its blocks are not those of the image")
    if manifest.size_bytes % manifest.block_bytes and last in pack.blocks[:-1]:
        raise Corrupt(f"{name}: the image's last block is not the pack's")


def _covered(manifest: ImageManifest, ranges: Iterable[ByteRange]) -> Iterable[int]:
    for r in ranges:
        yield from manifest.covering(r.start, r.size_bytes)
