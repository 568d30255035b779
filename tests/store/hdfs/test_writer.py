"""A file in the making in HDFS, without one."""

import gc
import math
import threading
from pathlib import PurePath

import pytest
import trio
from hdfs_native import FileWriter

from bootseer.errors import Transient, Unavailable
from bootseer.store.hdfs import writer
from bootseer.store.hdfs.client import HdfsCalls
from bootseer.store.hdfs.store import HdfsStore
from bootseer.store.hdfs.writer import HdfsFile
from bootseer.store.wrappers.backoff import Backoff


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


@pytest.mark.parametrize("operation", ["create", "append"])
async def test_what_is_made_when_nobody_waits_for_it_any_more_is_deleted(operation):
    class Late:
        def __init__(self):
            self.answers, self.deleted = threading.Event(), threading.Event()
            self.path = None

        def create(self, path, options):
            self.answers.wait()
            self.path = path
            return FileWriter(Raw())

        def delete(self, path, recursive):
            if path == self.path:
                self.deleted.set()
            return True

    client = Late()
    store = HdfsStore("nowhere:1", PurePath("/root"))
    store._calls.client = lambda: client
    store._client = store._calls.client
    with trio.move_on_after(0.05) as scope:
        async with getattr(store, operation)("name"):
            pass
    client.answers.set()
    assert scope.cancelled_caught
    assert await trio.to_thread.run_sync(client.deleted.wait, 5)


class Steps:
    """A client and its files, which note what is done, and fail or hang when they are told to.

    Attributes:
        done: the steps so far, with the length of what was written.
        answers: of the next writes, what they do: "hang", or what they raise; then they work.
        waits_s: how long a file's first sync came after its first bytes.
    """

    url = "hdfs://namenode/root"
    failed_s = HdfsCalls("", "", None, None).failed_s

    def __init__(self, *answers):
        self.done = []
        self.answers = list(answers)
        self.waits_s = []
        self.file = HdfsFile(self, "name", "/root/name", self.make)

    async def run(self, operation, name, work, threads=None):
        assert name == "name"
        await trio.lowlevel.checkpoint()
        answer = self.answers.pop(0) if operation == "write" and self.answers else None
        if answer == "hang":
            await trio.sleep_forever()
        if answer:
            raise answer
        return work()

    def client(self):
        return self

    def make(self):
        self.done.append("make")
        return FileWriter(self)

    def delete(self, path, recursive):
        assert (path, recursive) == ("/root/name", False)
        self.done.append("delete")

    def write(self, data):
        assert type(data) is bytes
        self.done.append(len(data))
        self.written_s = trio.current_time()

    def hsync(self):
        self.done.append("sync")
        self.waits_s.append(trio.current_time() - self.written_s)

    def close(self):
        self.done.append("close")


FIRST = writer._FIRST_BYTES


async def test_only_the_first_bytes_are_synced_at_once(autojump_clock):
    steps = Steps()
    await steps.file.make()
    await steps.file.write(b"")
    assert steps.done == ["make"]
    await steps.file.write(memoryview(bytes(FIRST + 5)))
    await steps.file.write(b"12")
    await steps.file.write(b"")
    assert steps.done == ["make", FIRST, "sync", 5, 2]
    steps.file.sync()
    steps.file.sync()
    assert steps.done[5:] == ["sync"]
    steps.file.close()
    assert steps.done[6:] == ["close"]


async def test_what_is_closed_is_synced_before(autojump_clock):
    steps = Steps()
    await steps.file.make()
    await steps.file.write(b"1")
    await steps.file.write(b"2")
    steps.file.close()
    assert steps.done == ["make", 1, "sync", 1, "sync", "close"]


LOST = Transient("All DataNodes failed")


async def test_a_file_that_cannot_be_begun_is_made_again(autojump_clock):
    steps = Steps(LOST, LOST)
    await steps.file.make()
    await steps.file.write(bytes(FIRST))
    assert steps.done == ["make", "delete", "make", "delete", "make", FIRST, "sync"]


@pytest.mark.parametrize(
    ("since_s", "wait_s"),
    [
        (math.inf, writer._LISTEN_S),
        (writer._WARY_S, writer._LISTEN_S),
        (writer._WARY_S - 1, writer._LISTEN_WARY_S),
    ],
)
async def test_the_first_sync_comes_later_while_machines_may_be_dead(
    autojump_clock, since_s, wait_s
):
    steps = Steps()
    assert steps.failed_s == -math.inf
    steps.failed_s = trio.current_time() - since_s
    await steps.file.make()
    await steps.file.write(b"1")
    assert steps.waits_s == pytest.approx([wait_s])


async def test_a_file_is_given_up_after_so_many_attempts(autojump_clock):
    attempts = writer._ATTEMPTS.attempts
    steps = Steps(*[LOST] * (attempts + 5))
    await steps.file.make()
    with pytest.raises(Transient) as raised:
        await steps.file.write(b"1")
    assert raised.value is LOST
    assert steps.done == ["make", "delete"] * attempts
    pauses_s = [writer._ATTEMPTS.longest_s] * (attempts - 1)
    assert sum(pauses_s) / 4 < trio.current_time() < sum(pauses_s)


async def test_a_silent_machine_gets_more_time_at_each_attempt(autojump_clock, monkeypatch):
    """Less of it once it is known that there is one, in whatever file."""
    monkeypatch.setattr(writer, "_ATTEMPTS", Backoff(attempts=4, first_s=0, longest_s=0))
    steps = Steps(*["hang"] * 4)
    await steps.file.make()
    with pytest.raises(Transient, match="cannot write 'name' in hdfs://namenode/root: no answer"):
        await steps.file.write(b"1")
    growth = writer._PATIENCE_GROWTH
    wary_s = writer._PATIENCE_WARY_S * (growth + growth**2 + growth**3)
    assert trio.current_time() == pytest.approx(writer._PATIENCE_S + wary_s)
    assert steps.failed_s == trio.current_time()


async def test_other_failures_are_no_reason_to_begin_again(autojump_clock):
    steps = Steps(Unavailable("no"))
    await steps.file.make()
    with pytest.raises(Unavailable):
        await steps.file.write(b"1")
    assert steps.done == ["make"]
