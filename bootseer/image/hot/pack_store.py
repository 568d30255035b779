"""Hot packs in the store: read, write, find, remove.

packs/DIGEST/index             the index of the image's current pack; written last
packs/DIGEST/PACK/part-NNNN    the bytes of a pack, in order; PACK is the digest of its index

A pack that was replaced stays for a while: other nodes may be reading it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import trio

from bootseer.core.image_manifest import ImageManifest
from bootseer.errors import BootseerError, Conflict, Corrupt, NotFound
from bootseer.image.hot import pack as pack_format
from bootseer.image.hot.pack import PIECE_BYTES, HotPack
from bootseer.store.api.base import Store, publish, read_all
from bootseer.store.api.shared_reader import read_checked
from bootseer.store.open_parts import OpenParts
from bootseer.units import NS_PER_S

KEPT_S = 3600.0
"""How long a replaced pack stays: longer than the nodes of a job take to read it."""
_AHEAD = 8
"""Pieces that are read before a prefetch wants them: with the wanted one, enough reads at once to
hide the latency of the store."""
_RUN_PIECES = 4
"""Read at once."""
_AHEAD_OF_PEERS = 64
"""The same where nodes of a job read from each other."""


@dataclass(frozen=True, slots=True)
class StoredPack:
    """A pack in the store: its index, and the digest that names it."""

    pack: HotPack
    digest: str


def pack_folder(identity: str) -> str:
    """Name the store's folder for the packs of an image."""
    return f"packs/{identity}"


def index_object(identity: str) -> str:
    """Name the store's object with the index of an image's current pack."""
    return f"{pack_folder(identity)}/index"


def part_object(identity: str, digest: str, index: int) -> str:
    """Name the store's object for a part of a pack."""
    return f"{pack_folder(identity)}/{digest}/part-{index:04}"


async def read_index(store: Store, identity: str) -> StoredPack | None:
    """Read the index of an image's pack; None if it has none.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is damaged, or another image's.
    """
    name = index_object(identity)
    try:
        data = await read_all(store, name, pack_format.MAX_BYTES)
    except NotFound:
        return None
    pack = pack_format.decode(data, f"{name} in {store.url}")
    if pack.identity != identity:
        raise Corrupt(f"{name} in {store.url}: this is the pack of another image, {pack.identity}")
    return StoredPack(pack, pack_format.pack_digest(data))


class PackSource:
    """A pack, open for reading until it is closed.

    Every byte is checked: the index by its own digest, blocks by the digests of the image.
    """

    def __init__(
        self, store: Store, stored: StoredPack, manifest: ImageManifest, node: int | None = None
    ) -> None:
        """Read a pack whose index fits the image; see `open_pack` for the arguments."""
        self._ahead = _AHEAD if node is None else _AHEAD_OF_PEERS
        self._first = (node or 0) % self._ahead
        self.pack = stored.pack
        self._store = store
        self._manifest = manifest
        self._rows = {index: row for row, index in enumerate(stored.pack.blocks)}
        self._per_piece = PIECE_BYTES // stored.pack.block_bytes
        self._per_run = _RUN_PIECES * self._per_piece
        self._per_part = stored.pack.part_bytes // stored.pack.block_bytes
        self._pieces = -(-len(stored.pack.blocks) // self._per_piece)
        self._drawn = bytearray(self._pieces)
        self._parts = OpenParts(store, partial(part_object, stored.pack.identity, stored.digest))

    def draw(self, wanted: Iterable[int]) -> list[int]:
        """List the blocks to read now that these are wanted; each block is listed only once.

        They are those of the pieces with the wanted blocks, and of some pieces behind: a prefetch
        wants them next.
        """
        rows = (self._rows.get(index) for index in wanted)
        found: list[int] = []
        for piece in dict.fromkeys(row // self._per_piece for row in rows if row is not None):
            stop = -(-(piece + 1 + self._ahead) // _RUN_PIECES) * _RUN_PIECES
            for next_piece in range(piece, min(stop, self._pieces)):
                if not self._drawn[next_piece]:
                    self._drawn[next_piece] = 1
                    start = next_piece * self._per_piece
                    found += self.pack.blocks[start : start + self._per_piece]
        return found

    def runs(self, blocks: Iterable[int]) -> list[list[int]]:
        """Cut blocks of the pack into runs, in the order to read them; `read` takes one."""
        rows = sorted(self._rows[index] for index in blocks)

        def place(pair: tuple[int, int]) -> tuple[int, int, int]:
            number, row = pair
            return row - number, row // self._per_run, row // self._per_part

        found = [
            [self.pack.blocks[row] for _, row in group]
            for _, group in groupby(enumerate(rows), place)
        ]
        first = len(found) * self._first // self._ahead
        return found[first:] + found[:first]

    async def read(self, blocks: Sequence[int], *, checks: bool = True) -> memoryview:
        """Read a run of blocks.

        Args:
            blocks: the run.
            checks: whether to compare them with the manifest; else the caller does.

        Raises:
            Corrupt: a block is damaged or missing.
            BootseerError: the store does not give them.
        """
        first = self._rows[blocks[0]]
        place = self.pack.row_range(range(first, first + len(blocks)))
        index = place.start // self.pack.part_bytes
        reader = await self._parts.part(index)
        at = place.start - self.pack.part_range(index).start

        async def read() -> tuple[memoryview, int | None]:
            data = memoryview(await reader.pread(at, place.size_bytes))
            if not checks:
                return data, None
            return data, await trio.to_thread.run_sync(self._manifest.bad_block, blocks, data)

        data, bad = await read_checked(reader, at, place.size_bytes, read)
        if bad is not None:
            raise Corrupt(
                f"{reader.info.name!r} in {self._store.url}: block {bad} of the image is damaged"
            )
        return data

    async def close(self) -> None:
        await self._parts.close()


async def open_pack(
    store: Store,
    manifest: ImageManifest,
    image: str,
    parts: Store | None = None,
    node: int | None = None,
) -> PackSource | None:
    """Open the pack of an image; None if it has none. Its objects are opened when they are read.

    Args:
        store: that has it.
        manifest: of the image.
        image: its digest.
        parts: another way to the objects that are never replaced; None for none.
        node: index of this node, if its job's nodes read from each other: each begins elsewhere,
            so that they do not all ask the same ones.

    Raises:
        Corrupt: its index is damaged, of another image, or does not fit this one.
        BootseerError: the store does not give it.
    """
    stored = await read_index(store, manifest.identity)
    if stored is None:
        return None
    pack_format.check_fits(stored.pack, manifest, image, f"the hot pack of {manifest.identity}")
    return PackSource(parts or store, stored, manifest, node)


async def write_pack(
    store: Store,
    pack: HotPack,
    pieces: Callable[[Sequence[int]], Awaitable[bytes]],
    *,
    replace: bool = False,
    copies: int = 0,
) -> int:
    """Write a pack, and make it the image's current one; returns how many bytes were written.

    Args:
        store: to write it to.
        pack: its index.
        pieces: returns the bytes of blocks of the image, one block behind the other.
        replace: overwrite objects of this pack that exist: they are damaged.
        copies: the replication of the pack, if the store has such a thing; 0 for the store's
            default.

    Raises:
        BootseerError: the store does not take it. The next attempt resumes with what was written.

    Concurrency: any number of nodes, with the same or with different packs: none fails because of
    another. The index that is written last counts.

    Durability: after a crash, either index is there, and the pack that it names.
    """
    index = pack.encode()
    digest = pack_format.pack_digest(index)
    written_bytes = 0
    names = [part_object(pack.identity, digest, number) for number in range(pack.parts)]
    for number, name in enumerate(names):
        part = pack.part_range(number)
        if not replace and await _has(store, name, part.size_bytes):
            continue
        with suppress(Conflict):  # another node has written the same bytes
            async with store.create(name, overwrite=replace) as writer:
                for blocks in _pieces(pack, number):
                    await writer.write(await pieces(blocks))
                await writer.commit()
            written_bytes += part.size_bytes
    await publish(store, index_object(pack.identity), index)
    if copies and store.capabilities.replication:
        for name in (*names, index_object(pack.identity)):
            with suppress(BootseerError):  # fewer copies are only slower
                await store.set_replication(name, copies)
    return written_bytes


async def sweep(store: Store, identity: str, older_than_s: float = KEPT_S) -> None:
    """Remove packs of an image that were replaced or given up so long ago."""
    until_ns = time.time_ns() - older_than_s * NS_PER_S
    entries = await store.list(pack_folder(identity))
    indexes = [entry for entry in entries if not entry.is_folder]
    if any(entry.mtime_ns > until_ns for entry in indexes):
        return  # the pack before it may still be read
    try:
        stored = await read_index(store, identity)
    except Corrupt:
        return  # the pack in use is unknown
    used = stored.digest if stored is not None else ""
    for folder in entries:
        if folder.is_folder and folder.name.rpartition("/")[2] != used:
            changed = [folder, *await store.list(folder.name)]  # a node may be writing it
            if all(entry.mtime_ns <= until_ns for entry in changed):
                with suppress(NotFound):
                    await store.delete_tree(folder.name)


async def remove(store: Store, identity: str) -> bool:
    """Remove all packs of an image; returns whether there was any. Readers go on without."""
    with suppress(NotFound):
        await store.delete(index_object(identity))  # first, so that no node begins to read
    try:
        await store.delete_tree(pack_folder(identity))
    except NotFound:
        return False
    return True


async def _has(store: Store, name: str, size_bytes: int) -> bool:
    try:
        return (await store.stat(name)).size_bytes == size_bytes
    except NotFound:
        return False


def _pieces(pack: HotPack, part: int) -> Iterable[tuple[int, ...]]:
    """Cut the blocks of a part into pieces."""
    per_part, per_piece = (n // pack.block_bytes for n in (pack.part_bytes, PIECE_BYTES))
    blocks = pack.blocks[part * per_part : (part + 1) * per_part]
    return (blocks[at : at + per_piece] for at in range(0, len(blocks), per_piece))
