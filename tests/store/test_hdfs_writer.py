"""A file in the making in HDFS, without one."""

import gc

import trio
from hdfs_native import FileWriter

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
