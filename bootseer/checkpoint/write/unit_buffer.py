"""Collect what is written to a file into units, and deal them to parts.

write(offset, data) ─► tail unit ──────────────┐
                  └─► spill (out of order) ─┐  ▼
place_all:                                  └► deal ─► parts
"""

from __future__ import annotations

from bootseer.checkpoint.files.source import FileSource
from bootseer.checkpoint.files.stripe_manifest import units_between
from bootseer.checkpoint.write.options import WriteContext
from bootseer.checkpoint.write.spill import Spill
from bootseer.checkpoint.write.stripe_writer import StripeWriter
from bootseer.errors import Closed


class UnitBuffer:
    """The content of a file that is being written.

    Each unit is in memory (the last one), in the spill, in a part, or in the base, which is the
    version of the file that it started from.

    Concurrency: one call at a time.

    Attributes:
        size_bytes: of the file.
        writer: of the parts.
    """

    def __init__(
        self, context: WriteContext, folder: str, mode: int | None, base: FileSource | None
    ) -> None:
        """Begin with the content of `base`, or nothing.

        Args:
            context: of all files that are being written.
            folder: to make parts in.
            mode: permission bits of the parts; the store's default if None.
            base: the version to start from; None for an empty file.
        """
        self.size_bytes = base.size_bytes if base else 0
        self.writer = StripeWriter(context, folder, mode)
        self._context = context
        self._mode = mode
        self._unit_bytes = context.options.unit_bytes
        self._base = base
        self._base_bytes = self.size_bytes
        self._tail: bytearray | None = None
        self._tail_unit = 0
        self._spill = Spill(context.options.spill_dir, context.options.spill_bytes)

    async def read(self, offset: int, size_bytes: int) -> bytes:
        stop = min(self.size_bytes, offset + size_bytes)
        pieces = []
        for unit in units_between(offset, stop, self._unit_bytes):
            start = unit * self._unit_bytes
            data = await self._load(unit)
            pieces.append(bytes(data[max(0, offset - start) : stop - start]))
        return b"".join(pieces)

    async def write(self, offset: int, view: memoryview) -> None:
        """Put bytes at an offset that is not beyond the end.

        Raises:
            FileTooLarge: too much was written out of order.
            BootseerError: a part could not be written.
        """
        while len(view):
            unit, inside = divmod(offset, self._unit_bytes)
            piece = view[: self._unit_bytes - inside]
            await self._put(unit, inside, piece)
            offset += len(piece)
            self.size_bytes = max(self.size_bytes, offset)
            view = view[len(piece) :]
            await self._deal_full_tail()

    async def extend(self, size_bytes: int) -> None:
        """Add zeros at the end; see `write`."""
        while self.size_bytes < size_bytes:
            unit, inside = divmod(self.size_bytes, self._unit_bytes)
            count = min(self._unit_bytes - inside, size_bytes - self.size_bytes)
            await self._put(unit, inside, memoryview(bytes(count)))
            self.size_bytes += count
            await self._deal_full_tail()

    async def cut(self, size_bytes: int) -> None:
        """Drop everything beyond a length; see `write`."""
        last, inside = divmod(size_bytes, self._unit_bytes)
        kept = await self._load(last) if inside else bytearray()
        for unit in units_between(size_bytes, self.size_bytes, self._unit_bytes):
            await self.writer.forget(unit)
            self._spill.drop(unit)
        self.size_bytes = size_bytes
        self._base_bytes = min(self._base_bytes, last * self._unit_bytes)
        self._tail = kept[:inside] if inside else None
        self._tail_unit = last

    async def place_all(self) -> None:
        """Store every unit in a part, and end all parts."""
        for unit in self._spill.units():
            await self.writer.deal(unit, await self._spill.get(unit, self._unit_bytes))
            self._spill.drop(unit)
        for unit in units_between(0, self._base_bytes, self._unit_bytes):
            is_tail = self._tail is not None and unit == self._tail_unit
            if not is_tail and not self.writer.has(unit):
                await self.writer.deal(unit, await self._load(unit))
        if self._tail and not self.writer.has(self._tail_unit):
            await self.writer.deal(self._tail_unit, bytearray(self._tail))
        await self.writer.drain()

    async def rewrite(self, folder: str) -> None:
        """Write all placed units once more, to fewer parts in another folder.

        If that fails, the old parts stay in use. Call `StripeWriter.drain` before.
        """
        writer = StripeWriter(self._context, folder, self._mode)
        try:
            for unit in sorted(self.writer.placed):
                await writer.deal(unit, bytearray(await self.writer.read(unit)))
            await writer.drain()
        except BaseException:
            writer.fail(Closed(f"{folder!r} was given up"))  # gc removes what is there
            raise
        self.writer = writer

    def move_base(self, name: str) -> None:
        """Set the new name of the base."""
        if self._base is not None:
            self._base.move(name)

    async def close(self) -> None:
        """Close the spill and the base; units that are not in parts are lost."""
        await self._spill.close()
        if self._base is not None:
            base, self._base, self._base_bytes = self._base, None, 0
            await base.close()

    async def _put(self, unit: int, inside: int, piece: memoryview) -> None:
        """Change some bytes of one unit."""
        at_end = unit * self._unit_bytes + inside == self.size_bytes
        if self._tail is None and at_end:
            self._tail, self._tail_unit = await self._load(unit), unit
            self._spill.drop(unit)
        if self._tail is not None and unit == self._tail_unit:
            self._tail[inside : inside + len(piece)] = piece
            await self.writer.forget(unit)
            return
        whole = not inside and len(piece) >= self._unit_length(unit)
        data = bytearray(piece) if whole else await self._load(unit)
        data[inside : inside + len(piece)] = piece
        await self._spill.put(unit, data, self._unit_bytes)
        await self.writer.forget(unit)

    async def _deal_full_tail(self) -> None:
        if self._tail is not None and len(self._tail) == self._unit_bytes:
            unit, data, self._tail = self._tail_unit, self._tail, None
            await self.writer.deal(unit, data)

    def _unit_length(self, unit: int) -> int:
        return min(self._unit_bytes, self.size_bytes - unit * self._unit_bytes)

    async def _load(self, unit: int) -> bytearray:
        """Return the present content of a unit."""
        length = self._unit_length(unit)
        if self._tail is not None and unit == self._tail_unit:
            return bytearray(self._tail[:length])
        if unit in self._spill:
            return (await self._spill.get(unit, self._unit_bytes))[:length]
        if self.writer.has(unit):
            return bytearray(await self.writer.read(unit))[:length]
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
