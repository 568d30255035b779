"""Hot packs in a store: written by one or by many, read instead of the image, never trusted."""

import random
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from bootseer_dev.material.damage import flipped
from bootseer_dev.material.stored_image import (
    cache_in,
    keeper_link,
    manifest_of,
    open_entry,
    readable,
    store_image,
)

from bootseer.core import image_manifest
from bootseer.errors import Corrupt, NotFound, Transient, Unavailable
from bootseer.image.hot import pack_store
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.hot.pack import pack_digest, plan_pack
from bootseer.image.library import catalog
from bootseer.image.serve.node_cache import NodeCache
from bootseer.store.api.base import Capabilities, publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore, HangingStore, SlowStore
from bootseer.units import MIB, NS_PER_S

pytestmark = pytest.mark.root  # the cache's folder has to be root's
BLOCK = 4096
CONTENT = random.Random(7).randbytes(40 * MIB + 77)
MANIFEST = manifest_of(CONTENT)
DIGEST = image_manifest.image_digest(MANIFEST.encode())
IDENTITY = MANIFEST.identity
HOT = sorted(random.Random(8).sample(range(MANIFEST.blocks), 4500), key=lambda i: i % 97)
FOLDER = pack_store.pack_folder(IDENTITY)


def hot_set(blocks):
    ranges = [HotRange(i * BLOCK, i * BLOCK + 1, n, 1_000_000) for n, i in enumerate(blocks)]
    return HotSet(IDENTITY, len(CONTENT), ("c.1",), tuple(ranges))


PACK = plan_pack(MANIFEST, DIGEST, hot_set(HOT))
NAME = pack_digest(PACK.encode())


def content(index):
    return CONTENT[index * BLOCK : (index + 1) * BLOCK]


async def pieces(blocks):
    await trio.lowlevel.checkpoint()
    return b"".join(map(content, blocks))


class Noting(SlowStore):
    """Notes which objects are read."""

    def __init__(self, store, delay_s=0.0):
        super().__init__(store, delay_s)
        self.read = []

    async def around(self, operation, name, call):
        if operation == "pread":
            self.read.append(name)
        return await super().around(operation, name, call)

    def count(self, what):
        return sum(what in name for name in self.read)


@pytest.fixture
async def store():
    memory = MemoryStore()
    await store_image(memory, CONTENT, "test")
    await pack_store.write_pack(memory, PACK, pieces)
    return Noting(memory)


@pytest.fixture
def node(tmp_path):
    """One node: `open` is a job's way to the image, with the pack in use."""
    cache = cache_in(tmp_path)

    class Node:
        def __init__(self):
            self.said = []

        @asynccontextmanager
        async def open(self, store, has_room=lambda size_bytes: True):
            async with AsyncExitStack() as opened:
                entry = open_entry(cache, MANIFEST)
                opened.callback(entry.close)
                cached = entry.blocks()
                opened.callback(cached.close)
                link = await opened.enter_async_context(keeper_link(entry, has_room))
                own = NodeCache(cached, link)
                source = None
                try:
                    source = await pack_store.open_pack(store, MANIFEST, DIGEST)
                except Corrupt as error:
                    self.said.append(error)
                if source is not None:
                    opened.push_async_callback(source.close)
                async with readable(store, DIGEST, MANIFEST, own) as blocks:
                    if source is not None:
                        blocks.use_pack(source, self.said.append)
                    yield blocks

    return Node()


async def read_ahead(blocks, wanted=tuple(HOT), streams=16):
    """Read as the prefetch does: in the order of the hot set, some at once."""
    left = iter(wanted)

    async def stream():
        for index in left:
            data = await blocks.read(index * BLOCK, BLOCK, is_urgent=False)
            assert data == content(index)

    async with trio.open_nursery() as nursery:
        for _ in range(streams):
            nursery.start_soon(stream)


def parts():
    return [pack_store.part_object(IDENTITY, NAME, i) for i in range(PACK.parts)]


# Writing.


async def test_what_is_written_is_the_blocks_one_behind_the_other(store):
    stored = await pack_store.read_index(store, IDENTITY)
    assert stored.pack == PACK and stored.digest == NAME
    assert PACK.parts == 2
    data = b"".join([await read_all(store, name, 64 * MIB) for name in parts()])
    assert data == b"".join(map(content, PACK.blocks))


async def test_the_index_of_another_image_is_damage(store):
    index = await read_all(store, pack_store.index_object(IDENTITY), MIB)
    await publish(store, pack_store.index_object("sqfs1-other"), index)
    with pytest.raises(Corrupt, match=f"another image, {IDENTITY}"):
        await pack_store.read_index(store, "sqfs1-other")


async def test_an_image_without_a_pack():
    assert await pack_store.read_index(MemoryStore(), IDENTITY) is None
    assert not await pack_store.remove(MemoryStore(), IDENTITY)


async def test_many_that_write_at_once_all_come_to_an_end():
    memory = MemoryStore()
    store = SlowStore(memory, 0.001)
    other = plan_pack(MANIFEST, DIGEST, hot_set(HOT[: len(HOT) // 2]))
    written = []
    async with trio.open_nursery() as nursery:
        for pack in (PACK, other) * 3:

            async def write(pack=pack):
                written.append(await pack_store.write_pack(store, pack, pieces))

            nursery.start_soon(write)
    assert len(written) == 6
    stored = await pack_store.read_index(memory, IDENTITY)
    assert stored.pack in (PACK, other)
    source = await pack_store.open_pack(memory, MANIFEST, DIGEST)
    for run in source.runs(stored.pack.blocks):
        assert await source.read(run) == b"".join(map(content, run))
    await source.close()


async def test_a_write_that_was_interrupted_goes_on_where_it_was():
    memory = MemoryStore()
    asked = []

    async def failing(blocks):
        asked.append(blocks)
        if len(asked) == 17:
            raise Transient("the store is gone")
        return await pieces(blocks)

    with pytest.raises(Transient):
        await pack_store.write_pack(memory, PACK, failing)
    assert await pack_store.read_index(memory, IDENTITY) is None
    written = await pack_store.write_pack(memory, PACK, pieces)
    assert written == PACK.part_range(1).size_bytes
    assert (await pack_store.read_index(memory, IDENTITY)).pack == PACK


async def test_what_is_there_is_not_written_again(store):
    async def not_asked(blocks):
        raise AssertionError(blocks)

    assert await pack_store.write_pack(store, PACK, not_asked) == 0


async def test_a_damaged_pack_is_written_anew(store):
    await publish(store, parts()[1], bytes(PACK.part_range(1).size_bytes))
    assert await pack_store.write_pack(store, PACK, pieces) == 0, "it has its length"
    assert await pack_store.write_pack(store, PACK, pieces, replace=True) == PACK.size_bytes
    data = b"".join([await read_all(store, name, 64 * MIB) for name in parts()])
    assert data == b"".join(map(content, PACK.blocks))


async def test_copies_are_asked_for_where_there_is_such_a_thing():
    class Copying(MemoryStore):
        capabilities = Capabilities(atomic_rename=True, replication=True, attributes=True)
        copies = {}  # noqa: RUF012 (of this one test)

        async def set_replication(self, name, copies):
            self.copies[name] = copies
            if name.endswith("index"):
                raise Transient("not now")

    store = Copying()
    await pack_store.write_pack(store, PACK, pieces)
    assert store.copies == {}
    await pack_store.write_pack(store, PACK, pieces, copies=7)
    assert store.copies == dict.fromkeys([*parts(), pack_store.index_object(IDENTITY)], 7)
    await pack_store.write_pack(MemoryStore(), PACK, pieces, copies=7)


async def test_packs_that_were_replaced_go_after_a_while(store):
    other = plan_pack(MANIFEST, DIGEST, hot_set(HOT[:100]))
    await pack_store.write_pack(store, other, pieces)

    async def folders():
        return sum(entry.is_folder for entry in await store.list(FOLDER))

    await pack_store.sweep(store, IDENTITY)
    assert await folders() == 2, "somebody may be reading the first"
    await pack_store.sweep(store, IDENTITY, older_than_s=-1)
    assert await folders() == 1
    source = await pack_store.open_pack(store, MANIFEST, DIGEST)
    assert source.pack == other
    assert await source.read(other.blocks[:1]) == content(other.blocks[0])
    await source.close()


HOUR_NS = 3600 * NS_PER_S
OLD = f"{FOLDER}/{'0' * 64}"


@pytest.fixture
async def replaced(store, monkeypatch):
    """An old pack and the one in its place, both an hour old; returns what a sweep leaves."""
    now_ns = 2_000_000_000 * NS_PER_S
    monkeypatch.setattr(pack_store, "time", SimpleNamespace(time_ns=lambda: now_ns))
    await publish(store, f"{OLD}/part-0000", b"x")
    await publish(store, f"{OLD}/part-0001", b"x")

    async def set_ages(*youngest):
        for folder in await store.list(FOLDER):
            for entry in (folder, *await store.list(folder.name)):
                age_ns = HOUR_NS - (entry.name in youngest)
                await store.set_mtime(entry.name, now_ns - age_ns)

    async def sweep(*youngest):
        await set_ages(*youngest)
        await pack_store.sweep(store, IDENTITY)
        return [e.name for e in await store.list(FOLDER)]

    return sweep


USED = [f"{FOLDER}/{NAME}", f"{FOLDER}/index"]


async def test_a_pack_goes_when_it_was_replaced_an_hour_ago(replaced):
    assert await replaced() == USED


@pytest.mark.parametrize("name", [f"{FOLDER}/index", OLD, f"{OLD}/part-0000", f"{OLD}/part-0001"])
async def test_a_pack_stays_if_anything_has_changed_in_the_last_hour(replaced, name):
    assert await replaced(name) == [OLD, *USED]


async def test_a_pack_stays_as_long_as_nobody_knows_which_is_used(replaced, store):
    await publish(store, pack_store.index_object(IDENTITY), b"damaged")
    assert await replaced() == [OLD, *USED]


async def test_what_was_never_finished_goes(replaced, store):
    await store.delete(pack_store.index_object(IDENTITY))
    assert await replaced() == []


async def test_a_sweep_does_not_mind_another(replaced, store):
    class Other(SlowStore):
        async def around(self, operation, name, call):
            if operation == "delete_tree":
                await call()
            return await super().around(operation, name, call)

    await replaced(OLD)
    await store.set_mtime(OLD, 0)
    await pack_store.sweep(Other(store, 0), IDENTITY)
    assert [e.name for e in await store.list(FOLDER)] == USED


async def test_what_is_in_the_making_stays(store):
    making = f"{FOLDER}/{'0' * 64}/part-0000"
    async with store.create(making) as writer:
        await writer.write(b"x")
        await pack_store.sweep(store, IDENTITY)
        await writer.commit()
    await pack_store.sweep(store, IDENTITY)
    assert await read_all(store, making, 10) == b"x"


async def test_all_of_it_can_be_removed(store):
    assert await pack_store.remove(store, IDENTITY)
    assert await store.list(FOLDER) == []
    assert await pack_store.open_pack(store, MANIFEST, DIGEST) is None


async def test_what_is_being_removed_is_not_found_any_more(store):
    failing = FlakyStore(store, lambda count, operation, name: operation == "delete_tree")
    with pytest.raises(Transient):
        await pack_store.remove(failing, IDENTITY)
    assert await pack_store.read_index(store, IDENTITY) is None


# Reading.


@pytest.fixture
async def source(store):
    source = await pack_store.open_pack(store, MANIFEST, DIGEST)
    yield source
    await source.close()


async def test_who_wants_a_block_is_given_its_piece_and_at_least_eight_behind_it_once(source):
    """Four are read at once, so those behind it end where four do."""
    piece = MIB // BLOCK
    assert source.draw([]) == []
    cold = next(i for i in range(MANIFEST.blocks) if i not in PACK.blocks)
    assert source.draw([cold, PACK.blocks[piece - 1]]) == list(PACK.blocks[: 12 * piece])
    assert source.draw([PACK.blocks[0], PACK.blocks[4 * piece - 1]]) == []
    assert source.draw([PACK.blocks[4 * piece]]) == list(PACK.blocks[12 * piece : 16 * piece])
    last = len(PACK.blocks) // piece * piece
    assert source.draw([PACK.blocks[-1]]) == list(PACK.blocks[last:])
    assert source.draw(PACK.blocks) == list(PACK.blocks[16 * piece : last])


async def test_what_is_read_at_once_lies_together_in_four_pieces(source):
    piece = MIB // BLOCK
    rows = [0, 1, 2, 5, piece - 1, piece, 4 * piece - 1, 4 * piece, 16 * piece - 1, 16 * piece]
    runs = [[0, 1, 2], [5], [piece - 1, piece], [4 * piece - 1], [4 * piece]]
    runs += [[16 * piece - 1], [16 * piece]]
    blocks = [PACK.blocks[row] for row in rows]
    found = [[PACK.blocks[row] for row in run] for run in runs]
    assert source.runs(iter(blocks)) == source.runs(blocks[::-1]) == found


async def test_nodes_that_read_from_each_other_begin_elsewhere_in_what_is_ahead(source, store):
    alone = source.runs(PACK.blocks)
    for node, first in ((0, 0), (16, len(alone) // 4), (64 + 32, len(alone) // 2)):
        one = await pack_store.open_pack(store, MANIFEST, DIGEST, node=node)
        assert one.draw(PACK.blocks[:1]) == list(PACK.blocks), "more than there is"
        assert one.runs(PACK.blocks) == alone[first:] + alone[:first]
        await one.close()


async def test_a_pack_that_was_closed_is_not_read_any_more(source):
    await source.close()
    with pytest.raises(Unavailable, match="not read any more"):
        await source.read(PACK.blocks[:1])


async def test_what_is_read_ahead_comes_from_the_pack_and_once(store, node):
    async with node.open(store) as blocks:
        await read_ahead(blocks)
        assert blocks.stats.fetched_bytes == blocks.stats.packed_bytes == PACK.size_bytes
        assert blocks.stats.fetches == blocks.stats.packed_reads == -(-PACK.size_bytes // (4 * MIB))
    assert store.count("images/") == 0
    assert node.said == []


async def test_what_the_node_has_is_not_read_again(store, node):
    per_piece = MIB // BLOCK
    has = [*PACK.blocks[: 3 * per_piece], *PACK.blocks[4 * per_piece : 4 * per_piece + 10]]
    async with node.open(store) as blocks:
        for index in has:
            await blocks.read(index * BLOCK, BLOCK)
        assert blocks.stats.packed_reads == 0, "who waits is not told to wait for more"
    store.read.clear()
    async with node.open(store) as blocks:
        await read_ahead(blocks)
        assert (
            blocks.stats.fetched_bytes
            == blocks.stats.packed_bytes
            == PACK.size_bytes - len(has) * BLOCK
        )
    store.read.clear()
    async with node.open(store) as blocks:
        await read_ahead(blocks)
    assert store.count("part") == 0


async def test_what_is_not_in_the_pack_comes_from_the_image(store, node):
    cold = sorted(set(range(MANIFEST.blocks)) - set(PACK.blocks))[:200]
    async with node.open(store) as blocks:
        await read_ahead(blocks, cold)
        assert blocks.stats.packed_reads == 0


async def test_a_job_that_waits_joins_what_is_under_way_and_else_goes_first(store, node):
    slow = Noting(store, 0.01)
    async with node.open(slow) as blocks, trio.open_nursery() as nursery:
        nursery.start_soon(read_ahead, blocks)
        await trio.testing.wait_all_tasks_blocked()
        first, last = PACK.blocks[0], PACK.blocks[-2]
        assert await blocks.read(first * BLOCK, BLOCK) == content(first)
        assert slow.count("images/") == 0
        assert await blocks.read(last * BLOCK, BLOCK) == content(last)
        assert slow.count("images/") <= 1
        assert blocks.stats.packed_bytes < PACK.size_bytes


async def test_two_jobs_of_a_node_read_the_pack_once(store, node):
    slow = Noting(store, 0.002)
    async with (
        node.open(slow) as one,
        node.open(slow) as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(read_ahead, one)
        nursery.start_soon(read_ahead, other)
    assert one.stats.fetched_bytes + other.stats.fetched_bytes == PACK.size_bytes
    assert slow.count("images/") == 0


async def test_a_damaged_block_is_told_once_and_comes_from_the_image(store, node):
    data = bytearray(await read_all(store, parts()[1], 64 * MIB))
    data[5 * BLOCK + 3] ^= 1
    await publish(store, parts()[1], bytes(data))
    async with node.open(store) as blocks:
        await read_ahead(blocks)
        assert blocks.stats.packed_bytes > 0
    assert len(node.said) == 1
    assert isinstance(node.said[0], Corrupt) and "part-0001" in str(node.said[0])
    assert store.count("images/") > 0


class Growing(NodeCache):
    """A node that takes all that it is given."""

    grows = True


async def test_of_a_pack_as_much_is_read_at_once_as_of_an_image(store, autojump_clock):
    hanging = HangingStore(store, ())
    noting = Noting(hanging)
    source = await pack_store.open_pack(noting, MANIFEST, DIGEST)
    hanging.operations = {"pread"}
    noting.read.clear()
    async with (
        readable(noting, DIGEST, MANIFEST, Growing()) as blocks,
        trio.open_nursery() as nursery,
    ):
        blocks.use_pack(source, lambda error: None)
        for index in (PACK.blocks[0], PACK.blocks[9 * MIB // BLOCK]):
            nursery.start_soon(partial(blocks.read, index * BLOCK, BLOCK, is_urgent=False))
            await trio.sleep(1)
        assert noting.count("packs/") == 5, "all of it, in pieces of 4 MiB"
        nursery.cancel_scope.cancel()
    await source.close()


async def test_what_cannot_be_read_of_a_piece_comes_from_the_image_all_of_it(store, node):
    """Another job of the node has brought some of the piece meanwhile: it is read in three."""
    broken = FlakyStore(store, lambda count, operation, name: "packs/" in name and "part" in name)
    pack = plan_pack(MANIFEST, DIGEST, hot_set(HOT[:200]))
    piece = pack.blocks
    await pack_store.write_pack(store, pack, pieces)
    async with node.open(broken) as blocks, node.open(store) as other:
        for index in (piece[50], piece[100]):
            await other.read(index * BLOCK, BLOCK)
        await other.settle()
        await blocks.read(piece[0] * BLOCK, BLOCK, is_urgent=False)
        await blocks.settle()
        assert blocks.stats.packed_reads == 0 and len(node.said) == 1
        fetched_bytes = blocks.stats.fetched_bytes
        for index in piece:
            assert await blocks.read(index * BLOCK, BLOCK) == content(index)
        assert blocks.stats.fetched_bytes == fetched_bytes


async def test_a_part_that_is_cut_short(store, node):
    data = await read_all(store, parts()[0], 64 * MIB)
    await publish(store, parts()[0], data[: 3 * MIB + 5])
    async with node.open(store) as blocks:
        await read_ahead(blocks)
    assert len(node.said) == 1


async def test_a_pack_that_goes_while_it_is_read(store, node):
    async with node.open(store) as blocks:
        await read_ahead(blocks, HOT[:300])
        assert blocks.stats.packed_bytes > 0
        await pack_store.remove(store, IDENTITY)
        await read_ahead(blocks)
    assert len(node.said) == 1 and isinstance(node.said[0], NotFound)


async def test_a_store_that_fails_in_the_middle_of_the_pack(store, node):
    def fails(count, operation, name):
        return operation == "pread" and "packs/" in name and count > 2

    async with node.open(FlakyStore(store, fails)) as blocks:
        await read_ahead(blocks)
    assert len(node.said) == 1


@pytest.mark.parametrize("damage", ["noise", "cut", "other image"])
async def test_an_index_that_is_damaged_or_stale(store, node, damage):
    name = pack_store.index_object(IDENTITY)
    data = await read_all(store, name, MIB)
    if damage == "noise":
        data = flipped(data, 50)
    elif damage == "cut":
        data = data[:-1]
    else:
        data = plan_pack(MANIFEST, "ef" * 32, hot_set(HOT)).encode()
    await publish(store, name, data)
    async with node.open(store) as blocks:
        await read_ahead(blocks, HOT[:500])
        assert blocks.stats.packed_reads == 0
    assert len(node.said) == 1 and isinstance(node.said[0], Corrupt)


async def test_a_node_that_keeps_nothing_does_not_read_the_pack_for_nothing(store, node):
    async with node.open(store, lambda size_bytes: False) as blocks:
        await read_ahead(blocks)
        assert blocks.stats.packed_bytes <= 16 * MIB < PACK.size_bytes


async def test_an_image_of_which_a_part_is_gone_as_well_is_an_error(store, node):
    await pack_store.remove(store, IDENTITY)
    await publish(store, catalog.part_object(DIGEST, 3), b"")
    async with node.open(store) as blocks:
        with pytest.raises(Corrupt):
            await blocks.read(3 * MIB, BLOCK, is_urgent=False)
