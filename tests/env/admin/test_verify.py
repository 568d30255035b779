"""What a snapshot is stored in is compared with what it promises, file by file."""

import hashlib
import os
from functools import partial
from types import SimpleNamespace

import pytest
from trio import to_thread

from bootseer.env.admin import verify as verify_module
from bootseer.env.admin.verify import verify
from bootseer.env.snapshot import frames, repository
from bootseer.env.snapshot.frames import Frame
from bootseer.env.snapshot.index import ContentPlace
from bootseer.image.library import catalog as images
from bootseer.image.library.upload import UploadProgress

SIZES = (0, 1, 400, 512, 2500, 0, 1000, 3000, 7, 0)


@pytest.fixture
def snapshot(installed, monkeypatch, tmp_path):
    """A snapshot with several files in a frame, and files in several frames and parts."""
    monkeypatch.setattr(frames, "cut", partial(frames.cut, frame_bytes=2000))
    monkeypatch.setattr(repository, "PART_BYTES", 3000)
    (tmp_path / "made").mkdir()
    for number, size_bytes in enumerate(SIZES):
        (tmp_path / f"made/{number}").write_bytes(os.urandom(size_bytes))
    return installed.run(f"cp {tmp_path}/made/* TARGET")


async def test_all_is_read_and_nothing_is_wrong(installed, snapshot):
    progress = UploadProgress()
    assert await verify(installed.store, snapshot.key, progress) == []
    whole = snapshot.frames_bytes + snapshot.image_bytes
    assert (progress.done_bytes, progress.total_bytes) == (whole, whole)


async def test_a_damaged_frame_is_named_and_the_files_that_have_content_in_it(installed, snapshot):
    index = await repository.read_index(installed.store, snapshot)
    table = await repository.read_frames(installed.store, snapshot)
    assert len(table) > 5 and snapshot.frames_bytes > 2 * repository.PART_BYTES
    for frame in table:
        part, offset = divmod(frame.stored_start, repository.PART_BYTES)
        name = repository.frames_object(snapshot.key, snapshot.capture, part)
        installed.damage(name, offset)
        problems = await verify(installed.store, snapshot.key, UploadProgress())
        installed.damage(name, offset)
        assert problems[0].name == name and "is damaged" in problems[0].reason
        assert [(found.name, found.reason) for found in problems[1:]] == [
            (f"{installed.target}/{number}", "its content is damaged or missing")
            for number, size_bytes in enumerate(SIZES)
            for start in [index.places[b"0/%d" % number].tar]
            if size_bytes and start < frame.start + frame.size_bytes
            if start + size_bytes > frame.start
        ]


def test_a_file_that_ends_where_a_damaged_frame_begins_is_whole():
    data = os.urandom(1000)
    tree = SimpleNamespace(size_bytes=500, digest=hashlib.sha256(data[500:]).digest())
    index = SimpleNamespace(places={b"0/file": ContentPlace(0, (), 500)}, tree={b"0/file": tree})
    files = verify_module._Files(SimpleNamespace(targets=("/target",)), index)
    files.add(Frame(0, 1000, 0, 0, b""), memoryview(data))
    files.add(Frame(1000, 1000, 0, 0, b""), None)
    assert files.problems() == []


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


@pytest.mark.parametrize("table", ["index", "frames"])
async def test_what_can_be_compared_is_compared_though_a_table_is_gone(installed, snapshot, table):
    folder = repository.folder_of(snapshot.key, snapshot.capture)
    await installed.store.delete(f"{folder}/{table}")
    name = repository.frames_object(snapshot.key, snapshot.capture, 1)
    await to_thread.run_sync(installed.damage, name)
    found = [
        problem.name for problem in await verify(installed.store, snapshot.key, UploadProgress())
    ]
    assert found == [f"{folder}/index", name] if table == "index" else [f"{folder}/frames"]
