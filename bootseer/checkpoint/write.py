"""Write a file in stripes: units are dealt to whichever part can take one, and named at the end.

write(offset, data) ─► tail unit ─► deal ─► part writers ─► parts, synced
                  └─► spill (out of order) ─┘                  │
flush: all dealt, parts ended;   publish: folder renamed, manifest written ◄┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import trio
import xxhash

from bootseer.checkpoint.source import Source
from bootseer.checkpoint.spill import FileTooLarge, Spill
from bootseer.checkpoint.tree import CheckpointTree, Entry
from bootseer.core import stripe
from bootseer.core.stripe import MAX_PARTS, Layout, Unit, check_unit_bytes, part_name, units_between
from bootseer.errors import BootseerError, Closed, Denied, NoSpace, Unavailable
from bootseer.store.base import ObjectInfo
from bootseer.units import GIB, MIB

_BROKEN_PARTS = 16
"""So many may break before the file is given up."""
_SETTLE_S = 20.0
"""How long to wait for a store to end the part of a machine that has died."""
_SETTLE_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How files are striped.

    Attributes:
        unit_bytes: length of a stripe unit, a power of two.
        width: parts that one file is written to at once; more than there are DataNodes, for where
            HDFS puts a part is chance.
        streams: parts written to at once by all files together.
        memory_bytes: of all units that are being written or are not yet synced.
        replication: copies of each part; None for the file system's default.
        block_bytes: length of the parts' blocks; None for the file system's default.
        spill_dir: for what is written out of order; on a disk of the node.
        spill_bytes: of one file, at most.
    """

    unit_bytes: int = 4 * MIB
    width: int = 16
    streams: int = 32
    memory_bytes: int = 192 * MIB
    replication: int | None = None
    block_bytes: int | None = None
    spill_dir: str = "/var/tmp"
    spill_bytes: int = 8 * GIB

    def __post_init__(self) -> None:
        """Check the unit."""
        check_unit_bytes(self.unit_bytes)


class Drafts:
    """What all files that are being written have in common.

    Concurrency: the tasks of one trio run.
    """

    def __init__(
        self, tree: CheckpointTree, nursery: trio.Nursery, options: WriteOptions | None = None
    ) -> None:
        """Write to `tree`, in tasks of `nursery`."""
        self.tree = tree
        self.nursery = nursery
        self.options = options or WriteOptions()
        self.written_bytes = 0
        self.broken_parts = 0
        self._streams = 0

    def begin(self, name: str, mode: int | None, base: Source | None = None) -> Draft:
        """Begin a new version of a file.

        Args:
            name: where it will be published, unless it is moved until then.
            mode: permission bits; the store's default if None.
            base: the version that it starts out as; None for an empty file.
        """
        return Draft(self, name, mode, base)

    def _unsynced_bytes(self) -> int:
        """Return how much a part may hold back, with so many at work."""
        return self.options.memory_bytes // max(1, self._streams) - self.options.unit_bytes


class _Dealt(NamedTuple):
    """A unit on its way to a part."""

    unit: int
    data: bytearray


@dataclass(slots=True)
class _Part:
    """A part file, and what was acknowledged of it."""

    index: int
    size_bytes: int = 0
    units: list[int] = field(default_factory=list)
    in_doubt: bool = False


class Draft:
    """A version of a file in the making, which nobody sees before `publish`.

    Concurrency: one call at a time.

    Cancellation: of a call leaves the draft fit only to be discarded.
    """

    def __init__(self, shared: Drafts, name: str, mode: int | None, base: Source | None) -> None:
        """Use `Drafts.begin`."""
        self.name = name
        self.mode = self._parts_mode = mode
        self.mtime_ns: int | None = None
        self.size_bytes = base.size_bytes if base else 0
        self.changed = True
        self._shared = shared
        self._unit_bytes = shared.options.unit_bytes
        self._base = base
        self._base_bytes = self.size_bytes
        self._parts_id, self._folder = shared.tree.new_parts(name)
        self._parts: list[_Part] = []
        self._placed: dict[int, Unit] = {}
        self._tail: bytearray | None = None
        self._tail_unit = 0
        self._spill = Spill(shared.options.spill_dir, shared.options.spill_bytes)
        self._send: trio.MemorySendChannel[_Dealt] | None = None
        self._receive: trio.MemoryReceiveChannel[_Dealt] | None = None
        self._dealt: set[int] = set()
        self._again: list[_Dealt] = []
        self._writers = 0
        self._ended = trio.Event()
        self._error: BootseerError | None = None

    # Changing it

    async def write(self, offset: int, data: bytes | memoryview) -> None:
        """Put bytes at an offset, after zeros if that is beyond the end.

        Back-pressure: returns when all whole units but one are on their way to a part.

        Raises:
            FileTooLarge: too much was written out of order, or there is no manifest for so much.
            BootseerError: what was written before could not be stored; the draft is lost.
        """
        self._check()
        self._check_size(offset + len(data))
        self.changed = True
        if offset > self.size_bytes:
            await self._extend(offset)
        view = memoryview(data)
        while len(view):
            unit, inside = divmod(offset, self._unit_bytes)
            piece = view[: self._unit_bytes - inside]
            await self._put(unit, inside, piece)
            offset += len(piece)
            self.size_bytes = max(self.size_bytes, offset)
            view = view[len(piece) :]
            if self._tail is not None and len(self._tail) == self._unit_bytes:
                await self._deal_tail()

    async def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it by zeros; see `write`."""
        self._check()
        self._check_size(size_bytes)
        self.changed = True
        if size_bytes > self.size_bytes:
            await self._extend(size_bytes)
            return
        last, inside = divmod(size_bytes, self._unit_bytes)
        kept = await self._load(last) if inside else bytearray()
        for unit in units_between(size_bytes, self.size_bytes, self._unit_bytes):
            await self._undeal(unit)
            self._spill.drop(unit)
        self.size_bytes = size_bytes
        self._base_bytes = min(self._base_bytes, last * self._unit_bytes)
        self._tail = kept[:inside] if inside else None
        self._tail_unit = last

    async def read(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes as they are by now."""
        self._check()
        stop = min(self.size_bytes, offset + size_bytes)
        pieces = []
        for unit in units_between(offset, stop, self._unit_bytes):
            start = unit * self._unit_bytes
            data = await self._load(unit)
            pieces.append(bytes(data[max(0, offset - start) : stop - start]))
        return b"".join(pieces)

    # Ending it

    async def flush(self) -> None:
        """Return when all of it is in parts that survive; later writes may still follow.

        Raises:
            BootseerError: it cannot be stored; the draft is lost.
        """
        self._check()
        if not self.changed:
            return
        try:
            await self._place_all()
        except BootseerError as error:
            self._error = error
            raise
        self.changed = False

    async def publish(self) -> Entry:
        """Show it under its name, in the place of what is there, with its mode and time.

        Raises:
            BootseerError: it could not be stored, or not be named; nothing is visible.
        """
        await self.flush()
        await self._let_go()
        entry = await self._publish()
        if self.mode not in (None, self._parts_mode):
            await self._shared.tree.set_mode(entry, self.mode)
        if self.mtime_ns is not None:
            await self._shared.tree.store.set_mtime(entry.name, self.mtime_ns)
        return await self._shared.tree.stat(entry.name)

    async def _publish(self) -> Entry:
        tree = self._shared.tree
        if not self.size_bytes:
            return await tree.publish_plain(self.name, None, self.mode, self._folder)
        place = self._placed[0]
        if len(self._placed) == 1 and self._parts[place.part].size_bytes == self.size_bytes:
            content = f"{self._folder}/{part_name(place.part)}"
            return await tree.publish_plain(self.name, content, self.mode, self._folder)
        units = tuple(self._placed[unit] for unit in range(len(self._placed)))
        layout = Layout(self.size_bytes, self._unit_bytes, self._parts_id, len(self._parts), units)
        return await tree.publish(self.name, layout, self.mode, self._folder)

    async def discard(self) -> None:
        """Remove what was made of it."""
        self._error = self._error or Closed(f"{self.name!r} was given up")
        self._end_writers()
        await self._let_go()
        if self._parts:
            with trio.move_on_after(5, shield=True):
                try:
                    await self._shared.tree.store.delete_tree(self._folder)
                except BootseerError:
                    return  # it is reaped later

    async def _let_go(self) -> None:
        await self._spill.close()
        if self._base is not None:
            base, self._base, self._base_bytes = self._base, None, 0
            await base.close()

    # Units

    def _check(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error)) from self._error

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > stripe.MAX_UNITS * self._unit_bytes:
            raise FileTooLarge(
                f"{self.name!r}: {size_bytes} bytes are more than {stripe.MAX_UNITS} units of "
                f"{self._unit_bytes} hold: write it with larger units"
            )

    async def _put(self, unit: int, inside: int, piece: memoryview) -> None:
        """Change a part of one unit."""
        at_end = unit * self._unit_bytes + inside == self.size_bytes
        if at_end and not inside:
            await self._set_tail(unit, bytearray())
        if self._tail is None and at_end:
            await self._set_tail(unit, await self._load(unit))
        if self._tail is not None and unit == self._tail_unit:
            self._tail[inside : inside + len(piece)] = piece
            self._placed.pop(unit, None)
            return
        whole = not inside and len(piece) >= self._unit_length(unit)
        data = bytearray(piece) if whole else await self._load(unit)
        data[inside : inside + len(piece)] = piece
        await self._spill.put(unit, data, self._unit_bytes)
        await self._undeal(unit)

    async def _set_tail(self, unit: int, data: bytearray) -> None:
        """Make a unit the one that grows."""
        if self._tail is not None:
            await self._deal_tail()
        self._tail, self._tail_unit = data, unit
        self._spill.drop(unit)
        await self._undeal(unit)

    async def _deal_tail(self) -> None:
        assert self._tail is not None
        unit, data, self._tail = self._tail_unit, self._tail, None
        await self._deal(unit, data)

    async def _extend(self, size_bytes: int) -> None:
        """Add zeros at the end."""
        if size_bytes - self.size_bytes > self._shared.options.spill_bytes:
            raise NoSpace(f"{self.name!r}: too many bytes are left out, up to {size_bytes}")
        while self.size_bytes < size_bytes:
            unit, inside = divmod(self.size_bytes, self._unit_bytes)
            count = min(self._unit_bytes - inside, size_bytes - self.size_bytes)
            await self._put(unit, inside, memoryview(bytes(count)))
            self.size_bytes += count
            if self._tail is not None and len(self._tail) == self._unit_bytes:
                await self._deal_tail()

    def _unit_length(self, unit: int) -> int:
        return min(self._unit_bytes, self.size_bytes - unit * self._unit_bytes)

    async def _load(self, unit: int) -> bytearray:
        """Return a unit as it is by now, wherever it is."""
        length = self._unit_length(unit)
        if self._tail is not None and unit == self._tail_unit:
            return bytearray(self._tail[:length])
        if unit in self._spill:
            return (await self._spill.get(unit, self._unit_bytes))[:length]
        if unit in self._placed:
            return bytearray((await self._read_back(unit))[:length])
        if unit in self._dealt:
            await self._drain()
            return await self._load(unit)
        start = unit * self._unit_bytes
        if self._base is None or start >= self._base_bytes:
            return bytearray(length)
        data = bytearray()
        stop = min(start + length, self._base_bytes)
        for piece in units_between(start, stop, self._base.piece_bytes):
            begin, end = self._base.piece_range(piece)
            content = await self._base.fetch(piece)
            data += content[max(0, start - begin) : min(stop, end) - begin]
        return data.ljust(length, b"\0")

    async def _read_back(self, unit: int) -> bytes:
        """Read a unit that was placed; its part has to end for that."""
        await self._drain()
        return await self._read_placed(unit)

    async def _read_placed(self, unit: int) -> bytes:
        place = self._placed[unit]
        part = self._parts[place.part]
        name = f"{self._folder}/{part_name(part.index)}"
        known = ObjectInfo(name, part.size_bytes, 0)
        async with self._shared.tree.store.open(name, known=known) as reader:
            data = await reader.pread(place.offset, self._unit_bytes)
        length = self._unit_length(unit)
        if xxhash.xxh3_128_intdigest(data[:length]) != place.checksum:
            raise Unavailable(f"{name!r} does not give back what was written to it")
        return data

    async def _place_all(self) -> None:
        """Have every unit placed, and every part ended."""
        for unit in self._spill.units():
            await self._deal(unit, await self._spill.get(unit, self._unit_bytes))
            self._spill.drop(unit)
        for unit in units_between(0, self._base_bytes, self._unit_bytes):
            is_tail = self._tail is not None and unit == self._tail_unit
            if unit not in self._placed and unit not in self._dealt and not is_tail:
                await self._deal(unit, await self._load(unit))
        if self._tail and self._tail_unit not in self._placed:
            await self._deal(self._tail_unit, bytearray(self._tail))
        await self._drain()

    # Parts

    async def _deal(self, unit: int, data: bytearray) -> None:
        """Give a unit to a part that can take one; waits until there is one."""
        self._dealt.add(unit)
        self._again.append(_Dealt(unit, data))
        while self._again:
            await self._send_one(self._again.pop())

    async def _send_one(self, dealt: _Dealt) -> None:
        if self._send is None:
            self._send, self._receive = trio.open_memory_channel[_Dealt](0)
        try:
            self._send.send_nowait(dealt)
        except trio.WouldBlock:
            options = self._shared.options
            if not self._writers or (
                self._writers < options.width and self._shared._streams < options.streams
            ):
                self._start_writer()
            send = self._send
            try:
                await send.send(dealt)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._check()
                raise

    def _start_writer(self) -> None:
        self._writers += 1
        self._shared._streams += 1
        part = _Part(len(self._parts))
        self._parts.append(part)
        assert self._receive is not None
        self._shared.nursery.start_soon(self._write_part, part, self._receive)

    async def _write_part(self, part: _Part, receive: trio.MemoryReceiveChannel[_Dealt]) -> None:
        """Write one part until no more units come; what is not acknowledged is dealt again."""
        options = self._shared.options
        waiting: list[tuple[_Dealt, Unit]] = []
        try:
            async with self._shared.tree.store.append(
                f"{self._folder}/{part_name(part.index)}",
                mode=self._parts_mode,
                replication=options.replication,
                block_bytes=options.block_bytes,
            ) as appender:
                size_bytes = 0
                async for dealt in receive:
                    checksum = xxhash.xxh3_128_intdigest(dealt.data)
                    waiting.append((dealt, Unit(part.index, size_bytes, checksum)))
                    size_bytes += len(dealt.data)
                    await appender.write(dealt.data)
                    if size_bytes - part.size_bytes >= self._shared._unsynced_bytes():
                        await appender.sync()
                        self._acknowledge(part, size_bytes, waiting)
                await appender.finish()
                self._acknowledge(part, size_bytes, waiting)
        except BootseerError as error:
            self._note_broken(part, waiting, error)
        except trio.ClosedResourceError:
            pass  # the draft has been given up
        finally:
            self._writers -= 1
            self._shared._streams -= 1
            if not self._writers:
                self._ended.set()
                self._ended = trio.Event()

    def _acknowledge(
        self, part: _Part, size_bytes: int, waiting: list[tuple[_Dealt, Unit]]
    ) -> None:
        """Learn that a part has all that was written to it."""
        for dealt, place in waiting:
            self._shared.written_bytes += len(dealt.data)
            if dealt.unit in self._dealt:
                self._dealt.discard(dealt.unit)
                self._placed[dealt.unit] = place
                part.units.append(dealt.unit)
        part.size_bytes = size_bytes
        waiting.clear()

    def _note_broken(
        self, part: _Part, waiting: list[tuple[_Dealt, Unit]], error: BootseerError
    ) -> None:
        self._shared.broken_parts += 1
        part.in_doubt = bool(part.units)
        self._again += [dealt for dealt, _ in waiting]
        broken = sum(1 for other in self._parts if other.in_doubt) + 1
        if (
            isinstance(error, NoSpace | Denied)
            or len(self._parts) >= MAX_PARTS
            or broken > _BROKEN_PARTS
        ):
            self._fail(error)
        elif self._send is not None:
            # In its place, so that there is always one who receives.
            self._start_writer()

    def _fail(self, error: BootseerError) -> None:
        self._error = self._error or error
        self._end_writers()

    def _end_writers(self) -> None:
        if self._send is not None:
            self._send.close()
            assert self._receive is not None
            self._receive.close()
            self._send = self._receive = None

    async def _drain(self) -> None:
        """End all parts; then every unit that was dealt is placed."""
        while self._writers or self._again:
            again, self._again = self._again, []
            for dealt in again:
                await self._send_one(dealt)
            if self._send is not None:
                self._send.close()
                self._send = self._receive = None
            if self._writers:
                await self._ended.wait()
            self._check()
        for part in self._parts:
            if part.in_doubt:
                await self._confirm(part)

    async def _undeal(self, unit: int) -> None:
        """Take back what was said of a unit: it has changed."""
        if unit in self._dealt:
            await self._drain()
        self._placed.pop(unit, None)

    async def _confirm(self, part: _Part) -> None:
        """Read what a broken part has acknowledged: with one copy, its machine may be gone."""
        with trio.move_on_after(_SETTLE_S):
            while True:
                try:
                    for unit in part.units:
                        if unit in self._placed and self._placed[unit].part == part.index:
                            await self._read_placed(unit)
                    part.in_doubt = False
                    return
                except BootseerError:
                    await trio.sleep(_SETTLE_PAUSE_S)
        raise Unavailable(
            f"{self.name!r}: what was written to part {part_name(part.index)!r} is lost with its "
            "machine; write the file again, with more than one copy"
        )
