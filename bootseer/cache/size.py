"""The size of a cache entry, and its space on the disk.

Used by the lender: imports the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from bootseer.cache.token import MAX_MANIFEST_BYTES
from bootseer.errors import Corrupt
from bootseer.units import KIB, MIB

SUM_BYTES = 8
"""Bytes of the block map per block."""
MAX_BLOCKS = 1_000_000
"""The same as in `bootseer.core.image_manifest`, which the lender does not import."""
_MAX_IMAGE_BYTES = MAX_BLOCKS * MIB
_DISK_BLOCK_BYTES = 4 * KIB
_EXTENT_BYTES = 24
"""File system metadata per block: 12 bytes in ext4, with tables half full in the worst case."""
_FOLDER_BYTES = 2 * _DISK_BLOCK_BYTES
"""The folder, and the first table of extents."""


@dataclass(frozen=True, slots=True)
class EntrySize:
    """The sizes of an image, from the process that decodes its manifest.

    Attributes:
        manifest_bytes: length of the encoded manifest.
        image_bytes: length of the image.
        blocks: number of blocks of the image.
    """

    manifest_bytes: int
    image_bytes: int
    blocks: int

    def check(self) -> None:
        """Check that the sizes are consistent.

        Raises:
            Corrupt: no image has these sizes.
        """
        if not (
            0 < self.manifest_bytes <= MAX_MANIFEST_BYTES
            and 0 < self.blocks <= MAX_BLOCKS
            and 0 < self.image_bytes <= _MAX_IMAGE_BYTES
        ):
            raise Corrupt(f"the sizes of the image are not consistent: {self}")

    @property
    def fixed_bytes(self) -> int:
        """Return the entry's bytes on the disk without any blocks."""
        parts = (self.manifest_bytes, self.blocks * SUM_BYTES, self.blocks * _EXTENT_BYTES)
        return sum(map(on_disk, parts)) + _FOLDER_BYTES

    @property
    def most_bytes(self) -> int:
        """Return the entry's bytes on the disk with all of its blocks."""
        return self.fixed_bytes + on_disk(self.image_bytes)


def on_disk(size_bytes: int) -> int:
    """Return a size rounded up to whole blocks of a file system."""
    return -(-size_bytes // _DISK_BLOCK_BYTES) * _DISK_BLOCK_BYTES
