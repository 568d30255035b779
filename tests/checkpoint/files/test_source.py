"""Where the bytes of a file come from: which reader of which object, and in which lane."""

import os

import pytest
import trio
import trio.testing
import xxhash

from bootseer.checkpoint.files import source as source_module
from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.source import READERS, PlainSource, StripedSource
from bootseer.checkpoint.files.stripe_manifest import MAGIC, StripeManifest, UnitPlace
from bootseer.core.ranges import ByteRange
from bootseer.errors import Closed, Conflict, Corrupt, NotFound, Transient
from bootseer.store.api.base import BlockLocation, publish
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import OpenCountingStore

PIECE = 4096
LARGE = 8 * PIECE
ID = "0" * 32
PARTS = f".bootseer-parts/{ID}"


class Watched(OpenCountingStore):
    """Notes what is done, too.

    Attributes:
        calls: operation and name of each.
        blocks: of every object; an error if they are not told.
    """

    def __init__(self):
        super().__init__(MemoryStore())
        self.calls = []
        self.blocks = Transient("not told")

    async def around(self, operation, name, call):
        self.calls.append((operation, name))
        return await call()

    async def block_locations(self, name):
        self.calls.append(("block_locations", name))
        await trio.lowlevel.checkpoint()
        if isinstance(self.blocks, Exception):
            raise self.blocks
        return self.blocks

    def count(self, operation):
        return sum(found == operation for found, _ in self.calls)


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(source_module, "PLAIN_PIECE_BYTES", PIECE)
    monkeypatch.setattr(source_module, "_LARGE_BYTES", LARGE)
    monkeypatch.setattr(source_module, "_FALLBACK_BLOCK_BYTES", 3 * PIECE)
    return Watched()


async def plain(store, content):
    await publish(store, "file", content)
    source = PlainSource(store, await store.stat("file"))
    store.calls.clear()
    return source


# Pieces


@pytest.mark.parametrize(("size", "pieces"), [(0, 0), (1, 1), (PIECE, 1), (PIECE + 1, 2)])
async def test_pieces_are_all_of_a_file(store, size, pieces):
    content = os.urandom(size)
    source = await plain(store, content)
    assert (source.name, source.size_bytes, source.pieces) == ("file", size, pieces)
    assert b"".join([await source.fetch(piece) for piece in range(pieces)]) == content
    await source.close()
    assert store.open_now == 0


async def test_the_last_piece_may_be_shorter(store):
    source = await plain(store, bytes(PIECE + 5))
    assert [source.piece_range(piece) for piece in (0, 1)] == [
        ByteRange(0, PIECE),
        ByteRange(PIECE, PIECE + 5),
    ]


# Lanes of ordinary objects


@pytest.mark.parametrize(("size", "asks"), [(LARGE - 1, 0), (LARGE, 1)])
async def test_where_the_blocks_of_a_large_object_are_is_asked_once(store, size, asks):
    store.blocks = [BlockLocation(0, 5 * PIECE, ("a",)), BlockLocation(5 * PIECE, PIECE, ("b",))]
    source = await plain(store, bytes(size))
    for _ in range(2):
        await source.plan()
    assert store.calls == [("block_locations", "file")] * asks
    assert [source.lane(piece) for piece in (4, 5)] == (["a", "b"] if asks else [1, 1])


async def test_without_an_answer_each_block_is_a_lane(store):
    source = await plain(store, bytes(LARGE))
    for _ in range(2):
        await source.plan()
    assert store.count("block_locations") == 1
    assert [source.lane(piece) for piece in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]


async def test_a_store_that_has_no_places_is_not_asked_for_them(monkeypatch):
    monkeypatch.setattr(source_module, "_LARGE_BYTES", 1)
    store = MemoryStore()
    await publish(store, "file", b"content")
    source = PlainSource(store, await store.stat("file"))
    await source.plan()
    assert source.lane(0) == 0


@pytest.mark.parametrize("blocks", range(1, 9))
async def test_a_piece_is_in_the_lane_of_the_block_that_it_begins_in(store, blocks):
    """By its number, where several machines have a copy."""
    lengths = [PIECE * (1 + block % 3) for block in range(blocks)]
    store.blocks = [
        BlockLocation(sum(lengths[:block]), lengths[block], (f"only {block}", "x")[: 1 + block % 2])
        for block in range(blocks)
    ]
    source = await plain(store, bytes(max(LARGE, sum(lengths))))
    await source.plan()
    for block, location in enumerate(store.blocks):
        expected = block if block % 2 else f"only {block}"
        for offset in range(location.offset, location.offset + location.size_bytes, PIECE):
            assert source.lane(offset // PIECE) == expected
    last = store.blocks[-1].hosts
    assert source.lane(100) == (last[0] if len(last) == 1 else blocks - 1)


# Readers of ordinary objects


@pytest.mark.parametrize(("size", "readers"), [(LARGE - 1, 1), (LARGE, READERS)])
async def test_a_large_object_is_read_by_several_readers(store, size, readers):
    source = await plain(store, bytes(size))
    for attempt in range(3):
        for piece in [*range(source.pieces)] * 2:
            await source.fetch(piece, attempt)
        assert store.open_now == readers * (attempt + 1), "later attempts have readers of their own"
    await source.close()
    assert store.open_now == 0


async def test_who_asks_for_one_piece_opens_one_reader(store):
    source = await plain(store, bytes(LARGE))
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(source.fetch, 1)
    assert store.open_now == store.count("open") == 1
    await source.close()


@pytest.mark.parametrize("piece", [0, 1, 7])
@pytest.mark.parametrize("gone", [False, True])
async def test_what_is_replaced_is_read_on_by_who_has_it_open(store, gone, piece):
    source = await plain(store, b"1" * LARGE)
    await source.open()
    await (store.delete("file") if gone else publish(store, "file", b"2" * LARGE))
    assert await source.fetch(piece) == b"1" * PIECE
    await source.close()


@pytest.mark.parametrize("piece", [0, 1])
async def test_what_is_replaced_before_it_is_open_is_an_error(store, piece):
    source = await plain(store, b"1" * LARGE)
    await publish(store, "file", b"2" * LARGE)
    with pytest.raises(Conflict):
        await source.fetch(piece)
    await store.delete("file")
    with pytest.raises(NotFound):
        await source.fetch(piece)
    await source.close()


async def test_what_has_moved_is_opened_where_it_is(store):
    source = await plain(store, b"content")
    await store.rename("file", "other")
    source.move("other")
    assert source.name == "other"
    assert await source.fetch(0) == b"content"
    await source.close()


async def test_nothing_is_read_of_what_was_closed(store):
    source = await plain(store, b"content")
    await source.close()
    with pytest.raises(Closed, match="file"):
        await source.fetch(0)
    assert store.calls == []


# Damaged manifests


@pytest.mark.parametrize("piece", [0, 1])
async def test_a_damaged_manifest_is_no_content_whatever_is_read_of_it(store, piece):
    source = await plain(store, MAGIC + bytes(PIECE))
    for _ in range(2):
        with pytest.raises(Corrupt, match=f"{PIECE + len(MAGIC)} bytes are not the length"):
            await source.fetch(piece)
    await source.close()


@pytest.mark.parametrize(("piece", "reads"), [(0, 2), (1, 3)])
async def test_whether_it_is_a_manifest_is_looked_at_once(store, piece, reads):
    source = await plain(store, bytes(PIECE + 1))
    for _ in range(2):
        await source.fetch(piece)
    assert store.count("pread") == reads
    await source.close()


@pytest.mark.parametrize(("limit", "reads"), [(0, 2), (-1, 1)])
async def test_what_is_too_long_for_a_manifest_is_not_looked_at(store, monkeypatch, limit, reads):
    content = MAGIC[:-1] + bytes(PIECE)
    monkeypatch.setattr(stripe_manifest, "MAX_BYTES", len(content) + limit)
    source = await plain(store, content)
    assert await source.fetch(1) == content[PIECE:]
    assert store.count("pread") == reads
    await source.close()


# Parts


@pytest.fixture
async def striped(store):
    """A file of three units, two of them in the second of its parts."""
    content = os.urandom(3 * PIECE - 7)
    pieces = [content[at : at + PIECE] for at in range(0, len(content), PIECE)]
    checksums = map(xxhash.xxh3_128_intdigest, pieces)
    places = [(1, 0), (0, 0), (1, PIECE)]
    units = tuple(UnitPlace(*place, check) for place, check in zip(places, checksums, strict=True))
    await publish(store, f"{PARTS}/0000", pieces[1])
    await publish(store, f"{PARTS}/0001", pieces[0] + pieces[2])
    layout = StripeManifest(len(content), PIECE, ID, 2, units)
    await publish(store, "file", layout.encode())
    source = StripedSource(store, await store.stat("file"), layout)
    store.calls.clear()
    return source, content


async def test_a_striped_file_is_read_from_its_parts(store, striped):
    source, content = striped
    assert [source.lane(piece) for piece in range(3)] == [1, 0, 1]
    assert b"".join([await source.fetch(piece) for piece in range(3)]) == content
    assert store.open_now == 2
    await source.fetch(2, 1)
    assert store.open_now == 3, "another attempt has a reader of its own"
    await source.close()
    assert store.open_now == 0


async def test_a_part_that_is_longer_than_it_need_be_is_read(store, striped):
    source, content = striped
    part = b"".join(content[at : at + PIECE] for at in (0, 2 * PIECE))
    await publish(store, f"{PARTS}/0001", part + b"more")
    assert await source.fetch(2) == content[2 * PIECE :]
    await source.close()


async def test_a_part_that_is_too_short_is_named(store, striped):
    source, content = striped
    await publish(store, f"{PARTS}/0001", content[:PIECE])
    with pytest.raises(Corrupt, match=f"0001' has {PIECE} bytes of the {2 * PIECE - 7}"):
        await source.fetch(0)
    await source.close()


async def test_a_part_that_is_missing_is_looked_for_once_more(store, striped, autojump_clock):
    source, _ = striped
    await store.delete(f"{PARTS}/0000")
    with pytest.raises(Corrupt, match="'0000' is missing"):
        await source.fetch(1)
    assert trio.current_time() == 1
    assert store.count("open") == 2
    await source.close()


async def test_a_part_is_found_though_it_was_between_two_steps_of_a_move(
    store, striped, autojump_clock
):
    source, content = striped
    await store.rename(PARTS, "elsewhere")
    async with trio.open_nursery() as nursery:

        async def come_back():
            await trio.sleep(0.5)
            await store.rename("elsewhere", PARTS)

        nursery.start_soon(come_back)
        assert await source.fetch(1) == content[PIECE : 2 * PIECE]
    await source.close()


@pytest.mark.parametrize("gone", [False, True])
async def test_a_file_that_was_replaced_is_not_called_damaged(store, striped, autojump_clock, gone):
    source, _ = striped
    await store.delete_tree(PARTS)
    await (store.delete("file") if gone else publish(store, "file", b"another"))
    with pytest.raises(Conflict, match="open it again"):
        await source.fetch(0)
    assert trio.current_time() == 0
    await source.close()
