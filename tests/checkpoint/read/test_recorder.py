"""What is noted of a start's reads, and which names were the newest then."""

import pytest

from bootseer.checkpoint.read import recorder as reads_module
from bootseer.checkpoint.read.recorder import ReadRecorder
from bootseer.errors import Unavailable
from bootseer.store.api.base import publish
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore


class Watched(WrappedStore):
    """Notes which folders are listed; one of them is gone."""

    gone = ""

    def __init__(self):
        super().__init__(MemoryStore())
        self.listed = []

    async def around(self, operation, name, call):
        if operation == "list":
            self.listed.append(name)
            if self.gone == name:
                raise Unavailable("the store does not answer")
        return await call()


@pytest.fixture
def store():
    return Watched()


@pytest.fixture
def clock(monkeypatch):
    """Have it be a given time."""

    def set_ns(now_ns):
        monkeypatch.setattr(reads_module.time, "time_ns", lambda: now_ns)

    return set_ns


async def test_a_file_is_noted_once_however_often_it_is_opened(store, clock):
    reads = ReadRecorder(store)
    clock(7)
    first = reads.opened("a/file")
    clock(8)
    assert reads.opened("other") is not first
    assert reads.opened("a/file") is first
    assert (first.path, first.opened_ns, first.opens) == ("a/file", 7, 2)
    first.add(0, 10)
    files = await reads.close()
    assert [(file.path, file.opens) for file in files] == [("a/file", 2), ("other", 1)]
    assert [tuple(found) for found in files[0].ranges] == [(0, 10)]


async def test_nothing_counts_once_the_window_is_closed(store):
    reads = ReadRecorder(store)
    assert await reads.close() == []
    assert reads.opened("file") is None
    assert await reads.close() == []


async def test_no_more_files_are_noted_than_can_be_kept(store, monkeypatch):
    monkeypatch.setattr(reads_module, "MAX_FILES", 2)
    reads = ReadRecorder(store)
    noted = [reads.opened(name) is not None for name in ("a", "b", "c", "a")]
    assert noted == [True, True, False, True]
    assert [(file.path, file.opens) for file in await reads.close()] == [("a", 2), ("b", 1)]


async def test_what_was_made_after_a_file_was_opened_is_no_newer(store, clock):
    for number, made_ns in ((3, 10), (7, 20), (9, 21)):
        await publish(store, f"run/step_{number}/model", b"")
        await store.set_mtime(f"run/step_{number}", made_ns)
    reads = ReadRecorder(store)
    clock(20)
    for number in (3, 7):
        reads.opened(f"run/step_{number}/model")
    files = await reads.close()
    assert [file.newest for file in files] == [(), (1,)]


async def test_a_folder_is_listed_once_for_all_that_is_numbered_in_it(store):
    await publish(store, "run/step_1/shard_0", b"")
    reads = ReadRecorder(store)
    for name in ("shard_0", "shard_1", "other"):
        reads.opened(f"run/step_1/{name}")
    store.listed.clear()
    await reads.close()
    assert store.listed == ["run", "run/step_1"]


async def test_a_folder_that_is_not_told_has_nothing_newer(store):
    await publish(store, "run/step_2/model", b"")
    reads = ReadRecorder(store)
    reads.opened("run/step_1/model")
    store.gone = "run"
    (file,) = await reads.close()
    assert file.newest == (1,)
