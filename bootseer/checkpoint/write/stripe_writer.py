"""Deal the units of a file to part files: each to the next part that can take one.

    deal(unit) ─► a part that is ready ─► write, sync ─► placed: unit → part and offset

The store places parts at random: two may share a machine while another is idle. So parts on a
machine that has too many are ended early, and new ones begun in their place.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import trio
import xxhash

from bootseer.checkpoint.files.stripe_manifest import MAX_PARTS, UnitPlace, part_name
from bootseer.checkpoint.write.options import WriteContext
from bootseer.errors import BootseerError, Closed, Denied, NoSpace, Unavailable
from bootseer.store.api.base import ObjectInfo, Placement
from bootseer.units import MIB

_PAUSE_S = 1.0
"""Pause before the next part, when one has broken before anything of it was stored."""
_MANY_PARTS = MAX_PARTS // 4
"""Parts ended at a block's end; the rest of the manifest's are for parts that break."""
_SETTLE_PAUSE_S = 0.2
_LOCATE_AGAIN_BYTES = 128 * MIB
"""Bytes after which the machines of a part are asked for again: each block has others."""


class _PendingUnit(NamedTuple):
    """A unit on its way to a part."""

    unit: int
    data: bytearray


@dataclass(eq=False)
class PartFile:
    """A part file, and what the store has acknowledged of it.

    Attributes:
        index: number of the part, which names it.
        size_bytes: acknowledged length.
        units: acknowledged units, which later ones may have replaced.
        hosts: machines of the last block, as far as known.
        located_bytes: length when the machines were asked for.
        is_open: more can be written to it.
        in_doubt: it did not end normally; the acknowledged units have to be read back.
        is_whole: it has ended, with the acknowledged units and nothing else.
    """

    index: int
    size_bytes: int = 0
    units: list[int] = field(default_factory=list)
    hosts: tuple[str, ...] = ()
    located_bytes: int = -_LOCATE_AGAIN_BYTES
    is_open: bool = True
    in_doubt: bool = False
    is_whole: bool = False


class StripeWriter:
    """Writes the units of one file to parts.

    Concurrency: one call at a time.

    Attributes:
        placed: part and offset of each acknowledged unit.
        parts: all part files so far.
        folder: name of the folder of the parts.
        error: why nothing more can be written.
    """

    def __init__(self, shared: WriteContext, folder: str, mode: int | None) -> None:
        """Write parts to `folder`, with permission bits `mode`."""
        self.placed: dict[int, UnitPlace] = {}
        self.parts: list[PartFile] = []
        self._shared = shared
        self.folder = folder
        self._mode = mode
        self._send: trio.MemorySendChannel[_PendingUnit] | None = None
        self._receive: trio.MemoryReceiveChannel[_PendingUnit] | None = None
        self._lengths: dict[int, int] = {}
        self._unplaced: set[int] = set()
        self._queue: list[_PendingUnit] = []
        self._writers = 0
        self._ended = trio.Event()
        self._moved = 0
        self._stuck_since_s: float | None = None
        self._tried_s = -math.inf
        self._pause_s = 0.0
        self.error: BootseerError | None = None

    def move(self, folder: str) -> None:
        """Set the new name of the folder, which has moved."""
        self.folder = folder

    def has(self, unit: int) -> bool:
        """Tell whether a unit is placed or on its way."""
        return unit in self.placed or unit in self._unplaced

    def check(self) -> None:
        """Raise the error after which nothing more can be written, if there is one."""
        if self.error is not None:
            raise self.error.again() from self.error

    async def deal(self, unit: int, data: bytearray) -> None:
        """Give a unit to a part; waits until a part can take one.

        Raises:
            BootseerError: the file cannot be stored.
        """
        self._unplaced.add(unit)
        self._queue.append(_PendingUnit(unit, data))
        await self._send_queued()

    async def forget(self, unit: int) -> None:
        """Forget the written content of a unit that has changed."""
        if unit in self._unplaced:
            await self.drain()
        self.placed.pop(unit, None)

    async def drain(self) -> None:
        """End all parts; then every unit is placed, and can be read.

        Raises:
            BootseerError: the file cannot be stored.
        """
        while self._writers or self._queue:
            await self._send_queued()
            if self._send is not None:
                self._send.close()
                self._send = self._receive = None
            if self._writers:
                await self._ended.wait()
        self.check()
        for part in self.parts:
            if part.in_doubt:
                await self._confirm(part)

    async def read(self, unit: int) -> bytes:
        """Return the content of a unit, after ending all parts."""
        await self.drain()
        return await self._read_placed(unit)

    def fail(self, error: BootseerError) -> None:
        """Write nothing more; `check` raises `error` from now on."""
        self.error = self.error or error
        if self._send is not None:
            self._send.close()
            assert self._receive is not None
            self._receive.close()
            self._send = self._receive = None

    async def ended(self) -> None:
        """Wait, after `fail`, until no part is being written."""
        while self._writers:
            await self._ended.wait()

    async def resume(self) -> None:
        """Write again after `fail`, beginning with the units that were not acknowledged."""
        await self.ended()
        self.error = None
        self._stuck_since_s = None

    async def _send_queued(self) -> None:
        while self._queue:
            dealt = self._queue.pop()
            try:
                await self._send_one(dealt)
            except BootseerError:
                self._queue.append(dealt)
                raise

    async def _send_one(self, dealt: _PendingUnit) -> None:
        self.check()
        now_s = trio.current_time()
        if now_s - self._tried_s > self._shared.options.stuck_s:  # It was idle, not stuck.
            self._stuck_since_s = None
        self._tried_s = now_s
        if self._send is None:
            self._send, self._receive = trio.open_memory_channel[_PendingUnit](0)
        send = self._send
        try:
            send.send_nowait(dealt)
        except trio.WouldBlock:
            options = self._shared.options
            if not self._writers or (
                self._writers < options.width and self._shared.open < options.streams
            ):
                self._start_writer(self._pause_s)
                self._pause_s = 0.0
            try:
                await send.send(dealt)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.check()
                raise

    def _start_writer(self, pause_s: float = 0.0) -> None:
        self._writers += 1
        self._shared.open += 1
        part = PartFile(len(self.parts))
        self.parts.append(part)
        assert self._receive is not None
        self._shared.nursery.start_soon(self._write_part, part, self._receive, pause_s)

    async def _write_part(
        self, part: PartFile, receive: trio.MemoryReceiveChannel[_PendingUnit], pause_s: float
    ) -> None:
        """Write one part until no more units come; units that are not acknowledged are queued."""
        options = self._shared.options
        waiting: list[tuple[_PendingUnit, UnitPlace]] = []
        size_bytes = 0
        try:
            await trio.sleep(pause_s)
            if self.error is not None:
                return
            async with self._shared.store.append(
                self._name(part),
                mode=self._mode,
                replication=options.replication,
                block_bytes=options.block_bytes,
            ) as appender:
                async for dealt in receive:
                    checksum = xxhash.xxh3_128_intdigest(dealt.data)
                    waiting.append((dealt, UnitPlace(part.index, size_bytes, checksum)))
                    size_bytes += len(dealt.data)
                    with self._shared.written.transfer():
                        await appender.write(dealt.data)
                    is_full = len(self.parts) < _MANY_PARTS and self._shared.is_full(size_bytes)
                    unsynced_bytes = size_bytes - part.size_bytes
                    is_early = unsynced_bytes < self._shared.unsynced_bytes()
                    if part.size_bytes and is_early and not is_full:
                        continue
                    with self._shared.written.transfer():
                        await appender.sync()
                    self._acknowledge(part, size_bytes, waiting)
                    await self._locate(part)
                    if self._is_crowded(part):
                        self._moved += 1
                        self._shared.moved += 1
                    elif not is_full or self._send is None:
                        continue
                    part.is_open = False
                    self._start_writer()
                    break
                with self._shared.written.transfer():
                    await appender.finish()
                self._acknowledge(part, size_bytes, waiting)
                part.is_whole = True
        except BootseerError as error:
            self._handle_broken(part, waiting, error)
        except trio.ClosedResourceError:
            self._requeue(part, waiting)  # `fail` was called
        except BaseException:
            # A caller that is not cancelled must not take it for done.
            self.fail(Closed(f"writing to {self._name(part)!r} was ended"))
            raise
        finally:
            part.is_open = False
            self._writers -= 1
            self._shared.open -= 1
            if not self._writers:
                self._ended.set()
                self._ended = trio.Event()

    def _acknowledge(
        self, part: PartFile, size_bytes: int, waiting: list[tuple[_PendingUnit, UnitPlace]]
    ) -> None:
        """Note that the store has all units that were written to a part."""
        for dealt, place in waiting:
            self._shared.written.size_bytes += len(dealt.data)
            self._unplaced.discard(dealt.unit)
            self.placed[dealt.unit] = place
            self._lengths[dealt.unit] = len(dealt.data)
            part.units.append(dealt.unit)
        part.size_bytes = size_bytes
        self._stuck_since_s = None
        waiting.clear()

    def _requeue(self, part: PartFile, waiting: list[tuple[_PendingUnit, UnitPlace]]) -> None:
        """Queue the units that a part has not acknowledged."""
        part.in_doubt = bool(part.units)
        self._queue += [dealt for dealt, _ in waiting]

    def _handle_broken(
        self, part: PartFile, waiting: list[tuple[_PendingUnit, UnitPlace]], error: BootseerError
    ) -> None:
        now_s = self._tried_s = self._shared.broke_s = trio.current_time()
        self._shared.broken += 1
        self._requeue(part, waiting)
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        is_stuck = now_s - self._stuck_since_s > self._shared.options.stuck_s
        pause_s = 0.0 if part.units else _PAUSE_S
        hopeless = isinstance(error, NoSpace | Denied | Closed)
        if hopeless or is_stuck or len(self.parts) >= MAX_PARTS:
            self.fail(error)
        elif self._send is not None:
            # In its place, so that there is always a part that takes units.
            self._start_writer(pause_s)
        else:
            self._pause_s = pause_s  # before the part that takes its units

    async def _locate(self, part: PartFile) -> None:
        """Ask for the machines of a part, once for each block."""
        store = self._shared.store
        if part.size_bytes - part.located_bytes < _LOCATE_AGAIN_BYTES:
            return
        part.located_bytes = part.size_bytes
        if isinstance(store, Placement):
            try:
                blocks = await store.block_locations(self._name(part))
            except BootseerError:
                return
            part.hosts = blocks[-1].hosts if blocks else ()

    def _is_crowded(self, part: PartFile) -> bool:
        """Tell whether a machine of the part has more than its share of the open parts."""
        if self._send is None or self._moved >= 2 * self._shared.options.width:
            return False
        load = Counter(host for other in self.parts if other.is_open for host in other.hosts)
        machines = {host for other in self.parts for host in other.hosts}
        share = math.ceil(load.total() / max(1, len(machines)))
        return any(load[host] > share for host in part.hosts)

    async def _confirm(self, part: PartFile) -> None:
        """Read back the units of a broken part: with one copy, they may be gone with its machine.

        With more copies, HDFS first has to end the part, and may ask the dead machine to.
        """
        with trio.move_on_after(self._shared.options.recovery_s):
            while True:
                try:
                    for unit in part.units:
                        if unit in self.placed and self.placed[unit].part == part.index:
                            await self._read_placed(unit)
                    part.in_doubt = False
                    return
                except BootseerError:
                    await trio.sleep(_SETTLE_PAUSE_S)
        raise Unavailable(
            f"what was written to {self._name(part)!r} is lost with its machine; write the file "
            "again, with more than one copy"
        )

    async def _read_placed(self, unit: int) -> bytes:
        place = self.placed[unit]
        part = self.parts[place.part]
        known = ObjectInfo(self._name(part), part.size_bytes, 0)
        async with self._shared.store.open(known.name, known=known) as reader:
            data = await reader.pread(place.offset, self._lengths[unit])
        if xxhash.xxh3_128_intdigest(data) != place.checksum:
            raise Unavailable(f"{known.name!r} does not return the data written to it")
        return data

    def _name(self, part: PartFile) -> str:
        return f"{self.folder}/{part_name(part.index)}"
