"""The manifest of an image in the store: its length, and the digest of every block.

Whoever has the manifest can tell of any block, wherever it comes from, whether it is the image's.
The manifest's own digest names the image.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blake3 import blake3

from bootseer.core import table
from bootseer.core.fields import Fields
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt
from bootseer.units import GIB, KIB, MIB

MAGIC = b"BSIMAGE\0"
VERSION = 1
MAX_BYTES = 64 * MIB
"""Of a manifest."""
MAX_BLOCKS = 1_000_000
BLOCK_BYTES = 64 * KIB
"""Small enough that a start touches little else with what it needs, large enough that digests are
a two-thousandth of the image."""
MAX_BLOCK_BYTES = MIB
PART_BYTES = 64 * MIB
"""Of the objects that an image is stored in: what is sent again if sending was interrupted, and
what `bootseer.store.wrappers.retry` can send again by itself."""
_DIGEST_BYTES = 32
_ROW = struct.Struct(f"{_DIGEST_BYTES}s")


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """What an image holds.

    Attributes:
        size_bytes: length of the image.
        block_bytes: length of every block but the last, which may be shorter; a power of two.
        part_bytes: length of every object that it is stored in, but the last; whole blocks.
        sha256: of the whole image, in hexadecimal, as sha256sum(1) prints it.
        identity: what its traces and hot sets are named after, see `bootseer.image.identity`.
        leading: superblock and tables, what every start reads first.
        digests: of the blocks in order, BLAKE3, 32 bytes each.
    """

    size_bytes: int
    block_bytes: int
    part_bytes: int
    sha256: str
    identity: str
    leading: tuple[ByteRange, ...]
    digests: bytes | memoryview

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return len(self.digests) // _DIGEST_BYTES

    @property
    def parts(self) -> int:
        """How many objects it is stored in."""
        return -(-self.size_bytes // self.part_bytes)

    def block_range(self, index: int) -> ByteRange:
        """Return the bytes of the image that block ``index`` holds."""
        start = index * self.block_bytes
        return ByteRange(start, min(self.size_bytes, start + self.block_bytes))

    def part_range(self, index: int) -> ByteRange:
        """Return the bytes of the image that object ``index`` holds."""
        start = index * self.part_bytes
        return ByteRange(start, min(self.size_bytes, start + self.part_bytes))

    def covering(self, offset: int, size_bytes: int) -> range:
        """Return the indexes of the blocks that hold any of these bytes."""
        stop = min(self.size_bytes, offset + size_bytes)
        if offset >= stop:
            return range(0)
        return range(offset // self.block_bytes, -(-stop // self.block_bytes))

    def matches(self, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Whether this is what block ``index`` holds."""
        at = index * _DIGEST_BYTES
        return block_digest(data) == self.digests[at : at + _DIGEST_BYTES]

    def cut(self, blocks: Sequence[int], data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Cut ``data`` into the blocks that lie one behind the other in it; yields index, bytes."""
        at = 0
        for index in blocks:
            size_bytes = self.block_range(index).size_bytes
            yield index, data[at : at + size_bytes]
            at += size_bytes

    def bad_block(self, blocks: Sequence[int], data: memoryview) -> int | None:
        """Return the first of some blocks, one behind the other in ``data``, that is not its."""
        return next((i for i, block in self.cut(blocks, data) if not self.matches(i, block)), None)

    def encode(self) -> bytes:
        """Encode as a file; equal images give equal bytes."""
        header = {
            "size_bytes": self.size_bytes,
            "block_bytes": self.block_bytes,
            "part_bytes": self.part_bytes,
            "sha256": self.sha256,
            "identity": self.identity,
            "leading": self.leading,
        }
        return table.encode(MAGIC, VERSION, header, _ROW, _ROW.iter_unpack(self.digests))


def block_digest(data: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of a block's bytes."""
    return blake3(data).digest()


def block_bytes_for(size_bytes: int) -> int:
    """Choose how long the blocks of an image are: as short as its manifest has room for."""
    block_bytes = BLOCK_BYTES
    while -(-size_bytes // block_bytes) > MAX_BLOCKS:
        block_bytes *= 2
    return block_bytes


def image_digest(manifest: bytes) -> str:
    """Return the digest of an image, in hexadecimal, from its encoded manifest."""
    return table.digest_of(manifest).hex()


def decode(data: bytes, name: str, digest: str) -> ImageManifest:
    """Decode the manifest of the image with a known digest.

    Args:
        data: the manifest; `ImageManifest.digests` refers to it.
        name: for messages.
        digest: of the image.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is damaged, or another image's.
    """
    header, digests = table.open_table(MAGIC, VERSION, _ROW.size, data, name)
    if image_digest(data) != digest:
        raise Corrupt(f"{name}: this is the manifest of another image, {image_digest(data)}")
    fields = Fields(header, name)
    manifest = ImageManifest(
        size_bytes=fields.count("size_bytes", MAX_BLOCKS * MAX_BLOCK_BYTES),
        block_bytes=fields.count("block_bytes", MAX_BLOCK_BYTES),
        part_bytes=fields.count("part_bytes", GIB),
        sha256=fields.text("sha256", 64),
        identity=fields.text("identity", 200),
        leading=tuple(fields.ranges("leading", 8)),
        digests=digests,
    )
    block_bytes, size_bytes = manifest.block_bytes, manifest.size_bytes
    if block_bytes < 4 * KIB or block_bytes & (block_bytes - 1):
        raise Corrupt(f"{name}: blocks of {block_bytes} bytes are not acceptable")
    if not manifest.part_bytes or manifest.part_bytes % MAX_BLOCK_BYTES:
        raise Corrupt(f"{name}: parts of {manifest.part_bytes} bytes are not acceptable")
    if not size_bytes or manifest.blocks != -(-size_bytes // block_bytes):
        raise Corrupt(f"{name}: {manifest.blocks} digests do not fit {size_bytes} bytes")
    if any(r.stop > size_bytes for r in manifest.leading):
        raise Corrupt(f"{name}: its tables lie outside the image")
    return manifest
