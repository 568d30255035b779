"""How large an entry of the cache is, and what it may take up on the disk.

Part of the lender's side: imports the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from bootseer.cache.token import MAX_MANIFEST_BYTES
from bootseer.errors import Corrupt
from bootseer.units import KIB, MIB

SUM_BYTES = 8
"""Of the block map, for each block."""
MAX_BLOCKS = 1_000_000
"""The same as in `bootseer.core.image_manifest`, which the lender does not import."""
_MAX_IMAGE_BYTES = MAX_BLOCKS * MIB
_DISK_BLOCK_BYTES = 4 * KIB
_EXTENT_BYTES = 24
"""For each block of an image, of the file system's own: 12 bytes in ext4, whose tables are half
full in the worst case."""
_FOLDER_BYTES = 2 * _DISK_BLOCK_BYTES
"""The folder, and the first table of extents."""


@dataclass(frozen=True, slots=True)
class EntrySize:
    """What the lender knows of an image; whoever decodes the manifest says so.

    Attributes:
        manifest_bytes: length of the encoded manifest.
        image_bytes: length of the image.
        blocks: of the image.
    """

    manifest_bytes: int
    image_bytes: int
    blocks: int

    def check(self) -> None:
        """Check that an image can be like this.

        Raises:
            Corrupt: none can.
        """
        if not (
            0 < self.manifest_bytes <= MAX_MANIFEST_BYTES
            and 0 < self.blocks <= MAX_BLOCKS
            and 0 < self.image_bytes <= _MAX_IMAGE_BYTES
        ):
            raise Corrupt(f"no image has a manifest, a length and blocks like these: {self}")

    @property
    def fixed_bytes(self) -> int:
        """What the entry takes up on the disk before it has a block."""
        parts = (self.manifest_bytes, self.blocks * SUM_BYTES, self.blocks * _EXTENT_BYTES)
        return sum(map(on_disk, parts)) + _FOLDER_BYTES

    @property
    def most_bytes(self) -> int:
        """What it takes up with all of its blocks."""
        return self.fixed_bytes + on_disk(self.image_bytes)


def on_disk(size_bytes: int) -> int:
    """Return what so many bytes take up in whole blocks of a file system."""
    return -(-size_bytes // _DISK_BLOCK_BYTES) * _DISK_BLOCK_BYTES
