"""Read an image in a store through, and compare every block with its digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bootseer.core.image_manifest import ImageManifest
from bootseer.core.ranges import split
from bootseer.errors import BootseerError
from bootseer.image.library.catalog import part_object
from bootseer.parallel import for_each
from bootseer.store.api.base import Store
from bootseer.units import MIB

_CHUNK_BYTES = 4 * MIB
_STREAMS = 4


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A range of an object that is not what it should be.

    Attributes:
        name: of the object.
        offset, size_bytes: of what is wrong or cannot be read in it.
        reason: one line.
    """

    name: str
    offset: int
    size_bytes: int
    reason: str


async def verify(
    store: Store, digest: str, manifest: ImageManifest, note: Callable[[int], None]
) -> list[DamagedRange]:
    """Compare all of an image's bytes in the store with its manifest.

    Args:
        store: that has it.
        digest: of the image.
        manifest: what it should hold.
        note: told of bytes that have been compared.

    Returns:
        What is damaged, in order.
    """
    found: list[DamagedRange] = []

    async def compare(index: int) -> None:
        await _compare(store, digest, manifest, index, found, note)

    await for_each(range(manifest.parts), compare, _STREAMS)
    return sorted(found, key=lambda d: (d.name, d.offset))


async def _compare(
    store: Store,
    digest: str,
    manifest: ImageManifest,
    index: int,
    found: list[DamagedRange],
    note: Callable[[int], None],
) -> None:
    """Compare a part; of one that cannot be read, the rest counts as damaged."""
    name = part_object(digest, index)
    part = manifest.part_range(index)
    at = part.start
    try:
        async with store.open(name) as reader:
            for chunk in split(part, _CHUNK_BYTES):
                at = chunk.start
                data = memoryview(await reader.pread(at - part.start, chunk.size_bytes))
                for number in manifest.covering(at, chunk.size_bytes):
                    block = manifest.block_range(number)
                    content = data[block.start - at : block.stop - at]
                    if not manifest.matches(number, content):
                        is_cut = len(content) < block.size_bytes
                        reason = "it ends" if is_cut else "it has another digest"
                        found.append(
                            DamagedRange(name, block.start - part.start, block.size_bytes, reason)
                        )
                note(chunk.size_bytes)
    except BootseerError as error:
        found.append(DamagedRange(name, at - part.start, part.stop - at, str(error)))
