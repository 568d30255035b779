"""The manifest of an image in the store: its length, and the digest of every block.

With the manifest, a block from any source can be verified. The manifest's own digest names the
image.
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
"""Limit of an encoded manifest."""
MAX_BLOCKS = 1_000_000
BLOCK_BYTES = 64 * KIB
"""Small, so that a start fetches few unneeded bytes; large enough that digests take a
two-thousandth of the image."""
MAX_BLOCK_BYTES = MIB
PART_BYTES = 64 * MIB
"""Length of the objects that an image is stored in: the unit of resumed and retried uploads."""
_DIGEST_BYTES = 32
_ROW = struct.Struct(f"{_DIGEST_BYTES}s")


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """The manifest of an image.

    Attributes:
        size_bytes: length of the image.
        block_bytes: length of every block but the last, which may be shorter; a power of two.
        part_bytes: length of every stored object but the last; a multiple of the block length.
        sha256: digest of the whole image, in hexadecimal, as sha256sum(1) prints it.
        identity: identity in the names of traces and hot sets, see `bootseer.image.identity`.
        leading: range of superblock and tables, which every start reads first.
        digests: BLAKE3 digests of the blocks in order, 32 bytes each.
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
        return len(self.digests) // _DIGEST_BYTES

    @property
    def parts(self) -> int:
        return -(-self.size_bytes // self.part_bytes)

    def block_range(self, index: int) -> ByteRange:
        """Return the range of block ``index`` in the image."""
        start = index * self.block_bytes
        return ByteRange(start, min(self.size_bytes, start + self.block_bytes))

    def part_range(self, index: int) -> ByteRange:
        """Return the range of object ``index`` in the image."""
        start = index * self.part_bytes
        return ByteRange(start, min(self.size_bytes, start + self.part_bytes))

    def covering(self, offset: int, size_bytes: int) -> range:
        """Return the indexes of the blocks that overlap a range."""
        stop = min(self.size_bytes, offset + size_bytes)
        if offset >= stop:
            return range(0)
        return range(offset // self.block_bytes, -(-stop // self.block_bytes))

    def matches(self, index: int, data: bytes | bytearray | memoryview) -> bool:
        at = index * _DIGEST_BYTES
        return block_digest(data) == self.digests[at : at + _DIGEST_BYTES]

    def cut(self, blocks: Sequence[int], data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Split ``data`` into consecutive ``blocks``; yields index and bytes of each."""
        at = 0
        for index in blocks:
            size_bytes = self.block_range(index).size_bytes
            yield index, data[at : at + size_bytes]
            at += size_bytes

    def bad_block(self, blocks: Sequence[int], data: memoryview) -> int | None:
        """Return the first of consecutive ``blocks`` in ``data`` with a wrong digest, or None."""
        return next((i for i, block in self.cut(blocks, data) if not self.matches(i, block)), None)

    def encode(self) -> bytes:
        """Encode the manifest; equal images give equal bytes."""
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
    """Return the block length of an image: the shortest for which its manifest fits."""
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
        digest: digest of the image.

        Raises:
        UnknownVersion: the manifest has another version.
        Corrupt: it is damaged, or of another image.
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
        raise Corrupt(f"{name}: invalid block length of {block_bytes} bytes")
    if not manifest.part_bytes or manifest.part_bytes % MAX_BLOCK_BYTES:
        raise Corrupt(f"{name}: invalid part length of {manifest.part_bytes} bytes")
    if not size_bytes or manifest.blocks != -(-size_bytes // block_bytes):
        raise Corrupt(f"{name}: {manifest.blocks} digests do not fit {size_bytes} bytes")
    if any(r.stop > size_bytes for r in manifest.leading):
        raise Corrupt(f"{name}: its tables lie outside the image")
    return manifest
