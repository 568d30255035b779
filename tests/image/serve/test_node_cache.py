"""What a node has of an image, as far as that can be had: each thing that fails is done without."""

import random
import threading
from contextlib import ExitStack

import pytest
import trio
from bootseer_dev.material.stored_image import cache_in, keeper_link, manifest_of, open_entry

from bootseer.errors import Closed, Unavailable
from bootseer.image.serve.node_cache import NodeCache

pytestmark = pytest.mark.root  # the cache's folder has to be root's
BLOCK = 4096
CONTENT = random.Random(12).randbytes(10 * BLOCK)
MANIFEST = manifest_of(CONTENT)
FULL = "the block cache is full: further blocks are fetched when needed"


@pytest.fixture
def entries(tmp_path):
    """Open the entry of the image in a node's cache, as each of its jobs does."""
    cache = cache_in(tmp_path)
    with ExitStack() as opened:

        def make():
            entry = open_entry(cache, MANIFEST)
            opened.callback(entry.close)
            cached = entry.blocks()
            opened.callback(cached.close)
            return entry, cached

        yield make


def blocks_of(*indexes):
    return memoryview(b"".join(CONTENT[i * BLOCK : (i + 1) * BLOCK] for i in indexes))


async def test_it_grows_with_a_cache_and_a_way_to_it(entries, mock_clock):
    entry, cached = entries()
    async with keeper_link(entry) as link:
        assert NodeCache(cached, link).grows
        assert not NodeCache(cached).grows
        assert not NodeCache(None, link).grows


async def test_without_a_cache_everything_is_the_callers_to_fetch(entries):
    entry, cached = entries()
    async with keeper_link(entry) as link:
        for here in ((None, None), (None, link), (cached, None)):
            node = NodeCache(*here)
            assert await node.claim([1, 2, 5]) == ([1, 2, 5], [])
            assert node.missing(iter([1, 2, 5])) == [1, 2, 5]
            await node.keep([1], blocks_of(1))
            assert await node.read(BLOCK, 10) is None
            await node.release([1, 2, 5])


async def test_what_is_kept_is_there_for_this_job_and_for_others(entries):
    (entry, cached), (other, others) = entries(), entries()
    async with keeper_link(entry) as link, keeper_link(other) as others_link:
        node, later = NodeCache(cached, link), NodeCache(others, others_link)
        assert await node.claim([1, 2, 5, 7]) == ([1, 2, 5, 7], [])
        assert await later.claim([2, 5, 6]) == ([6], [2, 5])
        await node.keep([1, 2, 5], blocks_of(1, 2, 5))
        assert node.missing(range(8)) == [0, 3, 4, 6, 7]
        assert await node.read(BLOCK + 3, BLOCK) == CONTENT[BLOCK + 3 :][:BLOCK]
        assert later.missing(range(8)) == list(range(8)), "nobody has told it yet"
        assert await later.claim([1, 2, 3, 5, 7]) == ([3], [7])
        assert later.missing(range(8)) == [0, 3, 4, 6, 7]
        await node.release([7])
        assert await later.claim([7]) == ([7], [])


async def test_a_cache_without_room_is_left_alone_for_a_while(entries, mock_clock):
    asked, said = [], []

    def has_room(size_bytes):
        asked.append(size_bytes)
        return len(asked) > 2

    (entry, cached), (other, others) = entries(), entries()
    async with keeper_link(entry, has_room) as link, keeper_link(other) as others_link:
        node = NodeCache(cached, link, said.append)
        later = NodeCache(others, others_link)
        for times in (1, 2):
            assert node.grows
            await node.claim([1, 2])
            await node.keep([1], blocks_of(1))
            assert len(asked) == times and not node.grows
            mock_clock.jump(29)
            assert not node.grows
            await node.keep([2], blocks_of(2))
            assert len(asked) == times
            assert await later.claim([1, 2]) == ([1, 2], []), "nobody has a claim on them any more"
            await later.release([1, 2])
            mock_clock.jump(1)
        assert said == [FULL]
        assert node.missing([1, 2]) == [1, 2]
        await node.keep([1], blocks_of(1))
        assert len(asked) == 3 and node.grows
        assert node.missing([1, 2]) == [2]


class Failing:
    """A way to a keeper that fails, each time."""

    def __init__(self, error):
        self.error = error
        self.asked = 0

    async def claim(self, blocks, *, replace=False):
        await self.keep(blocks)

    async def release(self, blocks):
        await self.keep(blocks)

    async def keep(self, blocks, data=b""):
        await trio.lowlevel.checkpoint()
        self.asked += 1
        raise self.error


@pytest.mark.parametrize(
    ("error", "asks"), [(Closed("it is gone"), 1), (Unavailable("the disk is ill"), 3)]
)
async def test_a_keeper_that_fails_is_done_without_and_asked_again_if_it_is_there(
    entries, error, asks
):
    _, cached = entries()
    link, said = Failing(error), []
    node = NodeCache(cached, link, said.append)
    assert await node.claim([1, 2]) == ([1, 2], [])
    await node.keep([1], blocks_of(1))
    await node.release([2])
    assert link.asked == asks
    assert node.grows is (asks > 1)
    assert node.missing([1, 2]) == [1, 2]
    assert said == [f"the block cache does not grow: {error}"]


@pytest.mark.parametrize("call", ["claim", "keep", "release"])
async def test_a_keeper_is_done_without_whatever_it_is_that_fails(entries, call):
    _, cached = entries()
    said = []
    node = NodeCache(cached, Failing(Closed("it is gone")), said.append)
    assert node.grows
    await getattr(node, call)([1], *([blocks_of(1)] if call == "keep" else []))
    assert not node.grows and said == ["the block cache does not grow: it is gone"]


async def test_others_are_waited_for_up_to_the_limit_and_then_never_again(autojump_clock):
    said = []
    node, other = (NodeCache(note=said.append, patience_s=2.0) for _ in range(2))
    await trio.sleep(8)
    assert not await node.wait(6.0)
    assert len(said) == 1 and "another job" in said[0]
    assert not await node.wait(8.0)
    assert len(said) == 1 and trio.current_time() == 8.0
    assert await other.wait(6.5)
    assert len(said) == 1 and trio.current_time() > 8.0, "it has waited a little"


async def test_a_read_that_hangs_in_the_disk_can_be_given_up(entries, monkeypatch):
    _, cached = entries()
    may_end = threading.Event()
    monkeypatch.setattr(cached, "read", lambda offset, size_bytes: may_end.wait(5))
    with trio.move_on_after(0.01) as scope:
        await NodeCache(cached).read(0, BLOCK)
    assert scope.cancelled_caught
    may_end.set()
