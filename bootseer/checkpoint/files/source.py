"""Read the content of a file: an ordinary object, or the parts of a striped file.

A source divides its file into pieces, names the lane of each (see
`bootseer.checkpoint.read.lanes`), and fetches them. Units of striped files are checked against
their checksums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace

import trio
import xxhash

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.parts import IF_MISSING, Parts, let_changes_settle, parts_beside
from bootseer.checkpoint.files.stripe_manifest import StripeManifest, part_name
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, Closed, Conflict, Corrupt, NotFound
from bootseer.peers.shared_files import SharedFiles
from bootseer.store.api.base import BlockLocation, ObjectInfo, Placement, Reader, Store
from bootseer.store.api.shared_reader import read_checked
from bootseer.units import MIB

PLAIN_PIECE_BYTES = 4 * MIB
READERS = 4
"""Readers of a large ordinary object: HDFS chooses a copy when a reader is opened."""
_LARGE_BYTES = 64 * MIB
_FALLBACK_BLOCK_BYTES = 128 * MIB
"""HDFS's default, used where the store does not tell the blocks."""


class FileSource(ABC):
    """The content of one version of a file, in pieces.

    Concurrency: any number of tasks may fetch at once.

    Attributes:
        size_bytes: of the file.
        piece_bytes: of every piece but the last, which may be shorter.
    """

    size_bytes: int
    piece_bytes: int
    _info: ObjectInfo

    @property
    def name(self) -> str:
        """Return the last known name of the file."""
        return self._info.name

    @property
    def pieces(self) -> int:
        """Return the number of pieces."""
        return -(-self.size_bytes // self.piece_bytes)

    def piece_range(self, piece: int) -> ByteRange:
        """Return the bytes of the file that a piece holds."""
        start = piece * self.piece_bytes
        return ByteRange(start, min(self.size_bytes, start + self.piece_bytes))

    async def plan(self) -> None:
        """Ask the store for what `lane` needs; call it before much is read ahead."""
        await trio.lowlevel.checkpoint()

    @abstractmethod
    def lane(self, piece: int) -> Hashable:
        """Return a name for the machine or part that has a piece, as far as known."""

    @abstractmethod
    async def fetch(self, piece: int, attempt: int = 0) -> bytes:
        """Return the bytes of a piece.

        Args:
            piece: its number.
            attempt: 0 for the first; later ones use readers opened again, which may lead to other
                copies.

        Raises:
            Corrupt: it is not what was written.
            Conflict: the file has been replaced or removed, and its opened version is gone.
        """

    def move(self, name: str) -> None:
        """Set the new name of a renamed file; readers stay open."""
        self._info = replace(self._info, name=name)

    @abstractmethod
    async def close(self) -> None:
        """Close all readers; fetches under way fail."""


class _Readers:
    """Readers of a store's objects, opened when first needed and closed together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._block = AsyncExitStack()
        self._open: dict[Hashable, Reader] = {}
        self._opening: dict[Hashable, trio.Lock] = {}
        self._closed = False

    async def get(
        self, key: Hashable, known: ObjectInfo, version: ObjectInfo | None = None
    ) -> Reader:
        """Return the reader of a key, opening the object if there is none.

        See `Store.open` for `known` and `version`.

        Raises:
            Closed: `close` was called, perhaps while the object was being opened.
        """
        if key not in self._open:
            async with self._opening.setdefault(key, trio.Lock()):
                if key not in self._open and not self._closed:
                    opened = self._store.open(known.name, known=known, version=version)
                    self._open[key] = await self._block.enter_async_context(opened)
        if self._closed:
            await self._block.aclose()
            raise Closed(f"{known.name!r} was closed while it was being read")
        return self._open[key]

    async def close(self) -> None:
        self._closed = True
        await self._block.aclose()


class PlainSource(FileSource):
    """An ordinary object."""

    def __init__(self, store: Store, info: ObjectInfo) -> None:
        """Read the version of an object that `info` describes; it is opened when first read."""
        self.size_bytes = info.size_bytes
        self.piece_bytes = PLAIN_PIECE_BYTES
        self._store = store
        self._info = info
        self._readers = _Readers(store)
        self._locations: Sequence[BlockLocation] = ()
        self._planned = False
        self._first: Reader | None = None
        self._looked = False

    async def open(self) -> None:
        """Open the object now, so that a missing permission is an error now.

        Raises:
            Conflict: it was replaced meanwhile.
        """
        await self._reader(0)

    async def plan(self) -> None:
        """Ask once where the blocks are; without an answer each block is a lane."""
        if self._planned or self.size_bytes < _LARGE_BYTES:
            return
        self._planned = True
        if isinstance(self._store, Placement):
            try:
                self._locations = await self._store.block_locations(self._info.name)
            except BootseerError:
                return

    def lane(self, piece: int) -> Hashable:
        """Return the DataNode if only one has the block, else the block's index."""
        offset = piece * self.piece_bytes
        if not self._locations:
            return offset // _FALLBACK_BLOCK_BYTES
        low, high = 0, len(self._locations) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._locations[middle].offset <= offset:
                low = middle
            else:
                high = middle - 1
        hosts = self._locations[low].hosts
        return hosts[0] if len(hosts) == 1 else low

    async def fetch(self, piece: int, attempt: int = 0) -> bytes:
        """See `FileSource.fetch`; only the store checks the content."""
        start, stop = self.piece_range(piece)
        return await self.read(start, stop - start, attempt)

    async def read(self, offset: int, size_bytes: int, attempt: int = 0) -> bytes:
        """Return some bytes, which need not be a piece."""
        copies = READERS if self.size_bytes >= _LARGE_BYTES else 1
        number = offset // self.piece_bytes % copies + attempt * copies
        reader = await self._reader(number)
        data = await reader.pread(offset, size_bytes)
        if not self._looked and self.size_bytes <= stripe_manifest.MAX_BYTES:
            # A manifest that has lost its end is not known by its length; and it is no content.
            magic_bytes = len(stripe_manifest.MAGIC)
            head = await reader.pread(0, magic_bytes) if offset else data[:magic_bytes]
            if stripe_manifest.is_manifest(head):
                raise Corrupt(
                    f"{self._info.name!r} is a damaged manifest: {self.size_bytes} bytes are not "
                    "the length of a whole one; restore the file from another copy"
                )
            self._looked = True
        return data

    async def close(self) -> None:
        await self._readers.close()

    async def _reader(self, number: int) -> Reader:
        if number and self._first is None and not self._info.version:
            # In S3 a reader alone has the ETag: all of them are to be of the first one's version.
            await self._reader(0)
        version = self._info if self._first is None else self._first.info
        try:
            reader = await self._readers.get(number, self._info, version)
        except (Conflict, NotFound):
            if not number or self._first is None:
                raise
            # It was replaced since it was opened; what is open can be read on where a store can.
            return self._first
        if not number:
            self._first = reader
        return reader


class StripedSource(FileSource):
    """A striped file; a piece is a unit."""

    def __init__(
        self,
        store: Store,
        info: ObjectInfo,
        layout: StripeManifest,
        shared: SharedFiles | None = None,
    ) -> None:
        """Read the version of a file that its manifest describes.

        Args:
            store: which has manifest and parts.
            info: of the manifest.
            layout: what it says.
            shared: tells which files other nodes read, too, and has another way to their parts.
        """
        self.size_bytes = layout.size_bytes
        self.piece_bytes = layout.unit_bytes
        self._store = store
        self._info = info
        self._layout = layout
        self._part_bytes = layout.part_bytes()
        self._parts = Parts(store)
        self._readers = _Readers(store)
        self._shared = None if shared is None else shared.file(layout.parts_id)
        self._shared_readers = _Readers(store if shared is None else shared.store)

    def lane(self, piece: int) -> Hashable:
        """Return the part: each had as many units as its machine could take."""
        return self._layout.units[piece].part

    async def fetch(self, piece: int, attempt: int = 0) -> bytes:
        """See `FileSource.fetch`; the unit's checksum is compared with the manifest's."""
        part = self._layout.units[piece].part
        if not attempt and self._shared is not None and await self._shared.is_shared():
            with suppress(BootseerError):  # the parts may be elsewhere, where `_part` looks
                return await self._unit(await self._shared_part(part), piece)
        return await self._unit(await self._part(part, attempt), piece)

    async def close(self) -> None:
        await self._readers.close()
        await self._shared_readers.close()

    async def _unit(self, reader: Reader, piece: int) -> bytes:
        unit = self._layout.units[piece]
        size_bytes = self._layout.unit_range(piece).size_bytes

        async def read() -> tuple[bytes, int | None]:
            data = await reader.pread(unit.offset, size_bytes)
            return data, None if xxhash.xxh3_128_intdigest(data) == unit.checksum else piece

        data, bad = await read_checked(reader, unit.offset, size_bytes, read)
        if bad is not None:
            raise Corrupt(
                f"{self._info.name!r}: unit {piece} (bytes {piece * self.piece_bytes} on) is not "
                f"what was written: checksum mismatch in {reader.info.name!r} at {unit.offset}"
            )
        return data

    async def _shared_part(self, part: int) -> Reader:
        """Return a reader that opens the part itself only if the nodes do not give it."""
        name = f"{parts_beside(self._info.name, self._layout)}/{part_name(part)}"
        known = ObjectInfo(name, self._part_bytes[part], 0)
        return await self._shared_readers.get(part, known)

    async def _part(self, part: int, attempt: int) -> Reader:
        need_bytes = self._part_bytes[part]
        for is_second in (False, True):
            if is_second:
                await let_changes_settle()
            async with aclosing(self._parts.folders(self._info.name, self._layout)) as folders:
                async for folder in folders:
                    known = ObjectInfo(f"{folder}/{part_name(part)}", need_bytes, 0)
                    with suppress(NotFound):
                        return self._checked(
                            await self._readers.get((part, attempt), known), need_bytes
                        )
            if await self._is_replaced():
                raise Conflict(
                    f"{self._info.name!r} was replaced or removed while being read; open it again"
                )
        raise Corrupt(f"{self._info.name!r}: part {part_name(part)!r} is missing; {IF_MISSING}")

    def _checked(self, reader: Reader, need_bytes: int) -> Reader:
        if reader.size_bytes < need_bytes:
            raise Corrupt(
                f"{self._info.name!r}: part {reader.info.name!r} has {reader.size_bytes} bytes of "
                f"the {need_bytes} that its manifest names"
            )
        return reader

    async def _is_replaced(self) -> bool:
        try:
            return not self._info.is_version(await self._store.stat(self._info.name))
        except NotFound:
            return True
