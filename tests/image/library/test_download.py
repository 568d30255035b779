"""Images written back from a store: whole, or not at all."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
from bootseer_dev.material.damage import flipped
from bootseer_dev.material.stored_image import manifest_of, store_image

from bootseer.core.image_manifest import ImageManifest
from bootseer.errors import Corrupt, NoSpace, Transient
from bootseer.image.library import catalog
from bootseer.image.library import download as retrieve_module
from bootseer.image.library.download import retrieve
from bootseer.store.api.base import publish
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore
from bootseer.units import KIB, MIB

CONTENT = random.Random(0).randbytes(12 * MIB + 700)
MANIFEST = manifest_of(CONTENT, 64 * KIB)


async def test_all_of_an_image_is_written_and_told_of(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    digest = await store_image(store, CONTENT, "image", 64 * KIB)
    noted: list[int] = []
    await retrieve(store, digest, MANIFEST, tmp_path / "file", noted.append)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert sum(noted) == len(CONTENT)
    assert len(noted) == MANIFEST.parts  # so much at once, and no more


async def damaged_store(manifest: ImageManifest) -> tuple[MemoryStore, str]:
    store = MemoryStore()
    digest = await store_image(store, CONTENT, "image", manifest.block_bytes)
    part = manifest.part_range(3)
    damaged = flipped(CONTENT[part.start : part.stop], 5 * KIB)
    await publish(store, catalog.part_object(digest, 3), damaged)
    return store, digest


async def test_a_damaged_image_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    store, digest = await damaged_store(MANIFEST)
    with pytest.raises(Corrupt, match=rf"{catalog.part_object(digest, 3)}.* damaged at byte 0"):
        await retrieve(store, digest, MANIFEST, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


async def test_no_more_is_read_once_something_cannot_be_had(tmp_path: Path) -> None:
    inner = MemoryStore()
    digest = await store_image(inner, CONTENT, "image", 64 * KIB)
    store = FlakyStore(inner, lambda count, operation, name: operation == "pread")
    with pytest.raises(Transient, match="flaky on purpose"):
        await retrieve(store, digest, MANIFEST, tmp_path / "file")
    reads = sum(operation == "pread" for operation, _ in store.calls)
    assert reads < MANIFEST.parts
    assert os.listdir(tmp_path) == []


async def test_a_full_disk_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = LocalStore(tmp_path / "store")
    digest = await store_image(store, CONTENT, "image", 64 * KIB)
    monkeypatch.setattr(retrieve_module, "pwrite_fully", fail)
    noted: list[int] = []
    with pytest.raises(NoSpace, match="cannot write 'file'"):
        await retrieve(store, digest, MANIFEST, tmp_path / "file", noted.append)
    assert os.listdir(tmp_path) == ["store"]
    assert noted == []
