"""What is damaged of an image in a store, and where."""

from __future__ import annotations

import random

import pytest
from bootseer_dev.material.damage import flipped
from bootseer_dev.material.stored_image import manifest_of, store_image

from bootseer.core.image_manifest import ImageManifest
from bootseer.errors import Transient
from bootseer.image.library import catalog
from bootseer.image.library import verify as verify_module
from bootseer.image.library.verify import DamagedRange, verify
from bootseer.store.api.base import Store, publish
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore
from bootseer.units import KIB, MIB

CONTENT = random.Random(0).randbytes(5 * MIB + 3 * KIB)
MANIFEST = manifest_of(CONTENT)
BLOCK_BYTES = MANIFEST.block_bytes
CHUNK_BYTES = 64 * KIB


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is compared in sixteen of them."""
    monkeypatch.setattr(verify_module, "_CHUNK_BYTES", CHUNK_BYTES)


async def stored() -> tuple[MemoryStore, str, list[str]]:
    """Store the image; returns also the names of its parts."""
    store = MemoryStore()
    digest = await store_image(store, CONTENT, "image")
    return store, digest, [catalog.part_object(digest, i) for i in range(MANIFEST.parts)]


async def damages(store: Store, digest: str) -> tuple[list[DamagedRange], int]:
    """Compare, and count the bytes that were told of."""
    noted: list[int] = []
    found = await verify(store, digest, MANIFEST, noted.append)
    return found, sum(noted)


def part(index: int, manifest: ImageManifest = MANIFEST) -> bytes:
    found = manifest.part_range(index)
    return CONTENT[found.start : found.stop]


async def test_all_of_a_whole_image_is_compared() -> None:
    store, digest, _ = await stored()
    assert await damages(store, digest) == ([], len(CONTENT))


async def test_damage_is_told_block_by_block_and_in_order() -> None:
    store, digest, names = await stored()
    places = (20 * BLOCK_BYTES + 5, 20 * BLOCK_BYTES - 1, MIB - 1)
    for index in (4, 1):
        data = part(index)
        for place in places:
            data = flipped(data, place)
        await publish(store, names[index], data)
    found, noted = await damages(store, digest)
    reason = "it has another digest"
    blocks = (19 * BLOCK_BYTES, 20 * BLOCK_BYTES, MIB - BLOCK_BYTES)
    assert found == [
        DamagedRange(names[index], block, BLOCK_BYTES, reason)
        for index in (1, 4)
        for block in blocks
    ]
    assert noted == len(CONTENT)


async def test_an_object_that_ends_early_is_told_apart() -> None:
    store, digest, names = await stored()
    await publish(store, names[2], part(2)[: -BLOCK_BYTES - 1])
    await publish(store, names[5], part(5)[:-1])
    found, _ = await damages(store, digest)
    last = MIB - BLOCK_BYTES
    assert found == [
        DamagedRange(names[2], last - BLOCK_BYTES, BLOCK_BYTES, "it ends"),
        DamagedRange(names[2], last, BLOCK_BYTES, "it ends"),
        DamagedRange(names[5], 0, 3 * KIB, "it ends"),
    ]


async def test_what_is_behind_a_place_that_cannot_be_read_counts_as_damaged() -> None:
    inner, digest, names = await stored()
    left = 3

    def fails(count: int, operation: str, name: str) -> bool:
        nonlocal left
        left -= (operation, name) == ("pread", names[1])
        return left <= 0 and name == names[1]

    store: WrappedStore = FlakyStore(inner, fails)
    ([damage], noted) = await damages(store, digest)
    at = 2 * CHUNK_BYTES
    assert (damage.name, damage.offset, damage.size_bytes) == (names[1], at, MIB - at)
    assert damage.reason == str(Transient(f"cannot pread {names[1]!r}: flaky on purpose"))
    assert noted == len(CONTENT) - (MIB - at)
