"""A file in the making in HDFS, without one."""

import gc
import threading
from pathlib import PurePath

import trio
from hdfs_native import FileWriter

from bootseer.store.hdfs import HdfsStore
from bootseer.store.hdfswrite import HdfsFile


class Raw:
    """What the library writes by."""

    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


class Calls:
    """Runs what is to be done in a thread."""

    async def run(self, operation, name, work, threads=None):
        return await trio.to_thread.run_sync(work)


def file(raw):
    return HdfsFile(Calls(), "name", "/name", lambda: FileWriter(raw))


async def test_it_is_not_closed_by_being_let_go():
    """A machine of its block that is silent would hold up the event loop."""
    raw = Raw()
    made = file(raw)
    await made.make()
    await made.make()  # once more, in the place of the first
    del made
    gc.collect()
    assert raw.closed == 0


async def test_it_is_closed_when_it_is_to_be():
    raw = Raw()
    made = file(raw)
    await made.make()
    await made.step("finish", made.close)
    assert raw.closed == 1


async def test_what_is_made_when_nobody_waits_for_it_any_more_is_deleted():
    class Late:
        def __init__(self):
            self.answers, self.deleted = threading.Event(), threading.Event()

        def create(self, path, options):
            self.answers.wait()
            return FileWriter(Raw())

        def delete(self, path, recursive):
            assert path == "/root/name"
            self.deleted.set()
            return True

    client = Late()
    store = HdfsStore("nowhere:1", PurePath("/root"))
    store._calls.client = lambda: client
    store._client = store._calls.client
    with trio.move_on_after(0.05) as scope:
        async with store.append("name"):
            pass
    client.answers.set()
    assert scope.cancelled_caught
    assert await trio.to_thread.run_sync(client.deleted.wait, 5)
