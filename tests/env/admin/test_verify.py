"""What a snapshot is stored in is compared with what it promises, file by file."""

import os
from functools import partial

import pytest
from trio import to_thread

from bootseer.core import image_manifest
from bootseer.env.admin import verify as verify_module
from bootseer.env.admin.verify import verify
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.chunks import split
from bootseer.image.library import catalog as images
from bootseer.image.library.upload import UploadProgress
from bootseer.units import KIB, MIB

SIZES = (0, 1, 400, 512, 4_600_000, 0, 1000, 3000, 7, 0)


@pytest.fixture
def snapshot(installed, monkeypatch, tmp_path):
    """A snapshot with several files in a chunk, a file in several chunks, and several parts."""
    monkeypatch.setattr(verify_module, "split", partial(split, chunk_bytes=2000))
    monkeypatch.setattr(image_manifest, "PART_BYTES", MIB)
    (tmp_path / "made").mkdir()
    for number, size_bytes in enumerate(SIZES):
        (tmp_path / f"made/{number}").write_bytes(os.urandom(size_bytes))
    return installed.run(f"cp {tmp_path}/made/* TARGET")


async def test_all_is_read_and_nothing_is_wrong(installed, snapshot):
    progress = UploadProgress()
    assert await verify(installed.store, snapshot.key, progress) == []
    index = await repository.read_index(installed.store, snapshot)
    total = snapshot.image_bytes + sum(chunk.stored_bytes for chunk in split(index))
    assert (progress.done_bytes, progress.total_bytes) == (total, total)


async def test_a_damaged_part_is_named_and_the_files_that_have_content_in_it(installed, snapshot):
    index = await repository.read_index(installed.store, snapshot)
    assert snapshot.image_bytes > 4 * MIB
    for part in range(5):
        name = images.part_object(snapshot.image, part)
        installed.damage(name, 0)
        problems = await verify(installed.store, snapshot.key, UploadProgress())
        installed.damage(name, 0)
        block = range(part * MIB, part * MIB + 64 * KIB)
        lost = {
            piece.path
            for chunk in split(index, 2000)
            if chunk.start < block.stop and chunk.stop > block.start
            for piece in chunk.pieces
        }
        assert lost
        assert [(found.name, found.reason) for found in problems[:-1]] == [
            (f"{installed.target}/{path[2:].decode()}", "its content is damaged or missing")
            for path in sorted(lost)
        ]
        assert problems[-1].name == name and "damaged at byte" in problems[-1].reason


async def test_an_image_without_a_manifest_is_named(installed, snapshot):
    name = images.manifest_object(snapshot.image)
    await installed.store.delete(name)
    [problem] = await verify(installed.store, snapshot.key, UploadProgress())
    assert problem.name == name


async def test_every_file_is_compared_with_its_digest(installed, snapshot, monkeypatch):
    real = repository.read_index

    async def read_index(store, snapshot):
        index = await real(store, snapshot)
        for path in index.places:
            index.tree[path] = index.tree[path]._replace(digest=bytes(32))
        return index

    monkeypatch.setattr(repository, "read_index", read_index)
    problems = await verify(installed.store, snapshot.key, UploadProgress())
    assert problems[0].name.endswith("/index")
    assert [(found.name, found.reason) for found in problems[1:]] == [
        (f"{installed.target}/{number}", "its SHA-256 is not the index's")
        for number in range(len(SIZES))
    ]


async def test_the_squashfs_is_compared_though_the_index_is_gone(installed, snapshot):
    index = f"{repository.folder_of(snapshot.key, snapshot.capture)}/index"
    await installed.store.delete(index)
    part = images.part_object(snapshot.image, 1)
    await to_thread.run_sync(installed.damage, part)
    problems = await verify(installed.store, snapshot.key, UploadProgress())
    assert [problem.name for problem in problems] == [index, part]
