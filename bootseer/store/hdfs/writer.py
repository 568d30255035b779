"""Files in the making in HDFS, made again until one has found machines that are alive.

hdfs-native writes a block to the DataNodes that the NameNode has chosen. If one of them does not
answer, the file is lost: the library neither gives the block back nor says whom to leave out, as
Java's does. And for the ten minutes until the NameNode calls a machine dead it still chooses it.
So a file's first bytes are synced at once, and until that works the file is deleted and made again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import trio
from hdfs_native import FileWriter

from bootseer.errors import Transient
from bootseer.store.api.base import Data
from bootseer.store.api.write_sequence import WriteSequence
from bootseer.store.hdfs.client import HdfsCalls
from bootseer.store.wrappers.backoff import Backoff
from bootseer.units import KIB

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

_ATTEMPTS = Backoff(attempts=40, first_s=0.005, longest_s=0.1)
"""Where two of three choices fall on a dead machine, all of them do once in ten million times."""
_FIRST_BYTES = 64 * KIB
"""What an attempt writes: as much of a large file as of a small one."""
_PATIENCE_S = 1.5
_PATIENCE_WARY_S = 0.5
_PATIENCE_GROWTH = 1.25
"""For an attempt, and how much more whenever it was too little: a silent machine costs no more, and
a busy cluster gets its time. The library itself listens for three seconds, or for ever."""
_LISTEN_S = 0.002
_LISTEN_WARY_S = 0.05
"""If a machine of the pipeline but the first is dead, the library overlooks what the first one says
of it; and a sync that is sent before that one hangs up waits for ever, in a thread that is lost. In
124 files with one of three DataNodes dead, 45 threads were lost without a pause, 29 with the short
one, 1 with the long one."""
_WARY_S = 60.0
"""After an attempt has failed, in whatever file."""


class HdfsFile:
    """A file in the making.

    Concurrency: one step at a time, as its writer's gate sees to.

    Cancellation: what was under way is left to its thread, and no other step may follow.

    Attributes:
        path: where it is.
        is_left: nobody is going to write to it any more; if it is made only then, it is deleted.
    """

    def __init__(
        self, calls: HdfsCalls, name: str, path: str, make: Callable[[], FileWriter]
    ) -> None:
        """Nothing is made yet.

        Args:
            calls: by which it is written.
            name: of the object, for messages.
            path: where it is going to be.
            make: makes it, in a thread.
        """
        self.path = path
        self.is_left = False
        self._calls = calls
        self._name = name
        self._make = make
        self._writer: RawFileWriter
        self._thread: trio.CapacityLimiter
        self._is_begun = self._is_unsynced = False

    async def make(self) -> None:
        self._writer = await self._calls.run("create", self._name, self._make_one)
        # A step that hangs takes no place from what asks the NameNode.
        self._thread = trio.CapacityLimiter(1)

    async def discard(self) -> None:
        await self._calls.run("discard", self._name, self._delete)

    async def write(self, data: Data) -> None:
        """Append data; the first of all is synced.

        Raises:
            Transient: it is deleted if it could not be begun.
        """
        view = memoryview(data).cast("B")
        if view and not self._is_begun:
            await self._begin(bytes(view[:_FIRST_BYTES]))
            data = view = view[_FIRST_BYTES:]
        if view:
            # The library takes anything else byte by byte.
            whole = bytes(data) if isinstance(data, memoryview) else data
            await self.step("write", partial(self._writer.write, whole))
            self._is_unsynced = True

    async def step(self, operation: str, work: Callable[[], object]) -> None:
        """Do something with it in a thread of its own."""
        await self._calls.run(operation, self._name, work, threads=self._thread)

    def sync(self) -> None:
        """Have all that was written on disk; in a thread."""
        if self._is_unsynced:
            self._writer.hsync()
            self._is_unsynced = False

    def close(self) -> None:
        """Sync and end it; in a thread."""
        self.sync()
        self._writer.close()

    async def _begin(self, data: bytes) -> None:
        """Write and sync the first bytes, to the file or to one in its place."""
        growth = 1.0
        for attempt in range(1, _ATTEMPTS.attempts + 1):
            try:
                patience_s = _PATIENCE_WARY_S if self._is_wary() else _PATIENCE_S
                with trio.move_on_after(patience_s * growth):
                    await self.step("write", partial(self._writer.write, data))
                    await trio.sleep(_LISTEN_WARY_S if self._is_wary() else _LISTEN_S)
                    await self.step("write", self._writer.hsync)
                    self._is_begun = True
                    return
                growth *= _PATIENCE_GROWTH
                failure = Transient(f"cannot write {self._name!r} in {self._calls.url}: no answer")
            except Transient as error:
                failure = error
            self._calls.failed_s = trio.current_time()
            await self.discard()
            if attempt < _ATTEMPTS.attempts:
                await trio.sleep(_ATTEMPTS.pause_s(attempt))
                await self.make()
        raise failure

    def _is_wary(self) -> bool:
        return trio.current_time() - self._calls.failed_s < _WARY_S

    def _make_one(self) -> RawFileWriter:
        made = self._make()
        # Python closes a FileWriter when it is let go, as it does its own files, in whatever thread
        # that happens; and a machine that is silent holds it up for a quarter of a minute.
        writer: RawFileWriter = made.inner
        made.inner = cast("RawFileWriter", SimpleNamespace(close=lambda: None))
        if self.is_left:
            self._delete()
        return writer

    def _delete(self) -> None:
        self._calls.client().delete(self.path, False)


@dataclass(eq=False)
class HdfsWriter:
    """Writes a temporary file and gives it its name.

    Attributes:
        is_published: it has its name.
    """

    calls: HdfsCalls
    file: HdfsFile
    path: str
    gate: WriteSequence
    overwrite: bool = field(kw_only=True)
    is_published: bool = False

    async def write(self, data: Data) -> None:
        with self.gate.step():
            await self.file.write(data)

    async def commit(self) -> None:
        with self.gate.step(last=True):
            await self.file.step("commit", self._publish)

    def _publish(self) -> None:
        self.file.close()
        if self.file.is_left:  # Abandoned meanwhile: don't replace what others wrote since.
            return
        self.calls.client().rename(self.file.path, self.path, self.overwrite)
        self.is_published = True


@dataclass(eq=False)
class HdfsAppender:
    """Writes to a file under its own name.

    Attributes:
        is_finished: it has ended.
    """

    file: HdfsFile
    gate: WriteSequence
    is_finished: bool = False

    async def write(self, data: Data) -> None:
        with self.gate.step():
            await self.file.write(data)

    async def sync(self) -> None:
        with self.gate.step():
            await self.file.step("sync", self.file.sync)

    async def finish(self) -> None:
        with self.gate.step(last=True):
            await self.file.step("finish", self.file.close)
            self.is_finished = True
