"""The block cache: what is there is right, whatever happened to its files."""

import os
import random
from contextlib import ExitStack, closing

import pytest
from bootseer_dev.material.stored_image import cache_in, manifest_of, open_entry

from bootseer.cache.cached_blocks import CachedBlocks, no_blocks
from bootseer.cache.keeper import BlockClaim
from bootseer.cache.size import SUM_BYTES
from bootseer.errors import Corrupt, NoSpace

pytestmark = pytest.mark.root  # the cache's folder has to be root's
BLOCK = 4096
CONTENT = random.Random(1).randbytes(10 * BLOCK + 100)


@pytest.fixture
def cache(tmp_path):
    return cache_in(tmp_path)


@pytest.fixture
def entry(cache):
    entry = open_entry(cache, manifest_of(CONTENT))
    yield entry
    entry.close()


@pytest.fixture
def keeper(entry):
    keeper = entry.keeper(lambda size_bytes: True)
    yield keeper
    keeper.close()


@pytest.fixture
def opened(entry):
    """Open the entry for reading, until the test ends."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(entry.blocks()))


def block(index, count=1):
    return memoryview(CONTENT)[index * BLOCK : (index + count) * BLOCK]


def damage(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_written_blocks_are_read(entry, keeper, opened):
    keeper.keep(2, block(2, 3))
    keeper.keep(10, block(10))
    blocks = opened()
    assert blocks.missing(range(11)) == [0, 1, 5, 6, 7, 8, 9]
    assert blocks.read(2 * BLOCK + 5, 2 * BLOCK) == CONTENT[2 * BLOCK + 5 :][: 2 * BLOCK]
    assert blocks.read(10 * BLOCK, 100) == CONTENT[10 * BLOCK :]
    assert blocks.read(4 * BLOCK, BLOCK + 1) is None
    assert not blocks.is_complete
    assert blocks.present_bytes == len(CONTENT) - 7 * BLOCK > 0
    keeper.keep(0, block(0, 2))
    keeper.keep(5, block(5, 5))
    assert blocks.missing(range(11)) == [0, 1, 5, 6, 7, 8, 9]  # until it looks again
    blocks.refresh(range(11))
    assert blocks.read(0, len(CONTENT)) == CONTENT
    assert blocks.is_complete and blocks.present_bytes == len(CONTENT)


def test_only_blocks_of_the_image_are_written(entry, keeper, opened):
    for first, data in ((0, block(1)), (0, block(0)[:-1]), (3, bytes(BLOCK)), (10, block(9))):
        with pytest.raises(Corrupt):
            keeper.keep(first, memoryview(data))
    assert opened().missing(range(11)) == list(range(11))


@pytest.mark.parametrize("file", ["data", "map"])
@pytest.mark.parametrize("how", ["flip", "zero", "cut", "grow"])
def test_a_damaged_block_is_missing(entry, keeper, file, how, opened):
    keeper.keep(0, block(0, 10))
    at = 7 * (BLOCK if file == "data" else SUM_BYTES)
    path = entry.path / file
    size = path.stat().st_size
    if how == "flip":
        before = path.read_bytes()[at]
        damage(path, at, bytes([before ^ 1]))
    elif how == "zero":
        damage(path, at, bytes(SUM_BYTES))
    elif how == "cut":
        os.truncate(path, at)
    else:
        os.truncate(path, size + BLOCK)
    blocks = opened()
    assert blocks.read(0, 7 * BLOCK) == CONTENT[: 7 * BLOCK]
    if how == "grow":
        assert blocks.read(7 * BLOCK, 3 * BLOCK) == block(7, 3)
        return
    assert blocks.read(7 * BLOCK, BLOCK) is None
    assert 7 in blocks.missing(range(10))
    keeper.keep(7, block(7))
    blocks.refresh(range(7, 8), are_new=True)
    assert blocks.read(7 * BLOCK, BLOCK) == block(7)


def test_a_block_is_checked_whenever_it_is_read(entry, keeper, opened):
    keeper.keep(0, block(0))
    blocks = opened()
    assert blocks.read(0, 10) == CONTENT[:10]
    damage(entry.path / "data", 3, b"X")
    assert blocks.read(100, 2) is None
    assert blocks.damaged == 1 and blocks.is_lost(0)


def test_lost_blocks_stay_missing_after_a_refresh(entry, keeper, opened):
    keeper.keep(0, block(0, 10))
    keeper.keep(10, block(10))
    blocks = opened()
    assert blocks.is_complete and blocks.present_bytes == len(CONTENT)
    assert not blocks.is_lost(3) and blocks.damaged == 0
    damage(entry.path / "data", 3 * BLOCK, b"XX")
    assert blocks.read(2 * BLOCK, 3 * BLOCK) is None
    assert [blocks.is_lost(index) for index in (2, 3, 4)] == [False, True, False]
    blocks.refresh(range(11))
    assert blocks.missing(range(11)) == [3] and blocks.damaged == 1
    assert not blocks.is_complete
    assert blocks.present_bytes == len(CONTENT) - BLOCK
    blocks.refresh(range(3, 4), are_new=True)
    assert blocks.is_complete and not blocks.is_lost(3)


def test_absent_and_lost_blocks_are_missing(entry, keeper, opened):
    keeper.keep(0, block(0, 4))
    blocks = opened()
    damage(entry.path / "data", 0, b"XX")
    assert blocks.read(0, 1) is None
    assert blocks.present_bytes == len(CONTENT) - 8 * BLOCK


def test_all_that_a_cut_file_should_have_is_lost(entry, keeper, opened):
    keeper.keep(0, block(0, 10))
    blocks = opened()
    os.truncate(entry.path / "data", 6 * BLOCK)
    assert blocks.read(5 * BLOCK, 3 * BLOCK) is None
    assert blocks.missing(range(11)) == [5, 6, 7, 10] and blocks.damaged == 3


def test_a_node_that_keeps_no_blocks_has_none():
    with closing(no_blocks(manifest_of(CONTENT))) as blocks:
        assert blocks.missing(range(11)) == list(range(11))
        assert blocks.present_bytes == 0 and not blocks.is_complete
        assert blocks.read(0, 1) is None and blocks.damaged == 0


def test_unreadable_blocks_are_missing(entry, keeper):
    keeper.keep(0, block(0, 10))
    data, block_map = (os.open(entry.path / name, os.O_WRONLY) for name in ("data", "map"))
    with closing(CachedBlocks(data, block_map, entry.manifest)) as blocks:
        assert blocks.missing(range(11)) == list(range(11))
    data, block_map = (
        os.open(entry.path / "data", os.O_WRONLY),
        os.open(entry.path / "map", os.O_RDONLY),
    )
    with closing(CachedBlocks(data, block_map, entry.manifest)) as blocks:
        assert blocks.read(3 * BLOCK, 1) is None
        assert blocks.is_lost(3) and blocks.damaged == 1


def test_a_file_that_was_cut_and_has_grown_again_has_holes(entry, keeper, opened):
    keeper.keep(0, block(0, 10))
    blocks = opened()
    assert blocks.read(0, 10 * BLOCK) == block(0, 10)
    os.truncate(entry.path / "data", 3 * BLOCK)
    keeper.keep(9, block(9))
    assert blocks.read(5 * BLOCK, BLOCK) is None
    assert blocks.read(9 * BLOCK, BLOCK) == block(9)


def test_one_at_a_time_has_the_claim_on_a_block(entry, keeper):
    other = entry.keeper(lambda size_bytes: True)
    keeper.keep(1, block(1))
    assert keeper.claim(range(0, 3)) == [BlockClaim.GRANTED, BlockClaim.PRESENT, BlockClaim.GRANTED]
    assert other.claim(range(2, 4)) == [BlockClaim.BUSY, BlockClaim.GRANTED]
    keeper.keep(2, block(2))
    assert other.claim(range(2, 3)) == [BlockClaim.PRESENT]
    assert other.claim(range(2, 3), replace=True) == [BlockClaim.GRANTED]
    keeper.release(range(0, 11))
    assert other.claim(range(0, 1)) == [BlockClaim.GRANTED]
    other.close()  # as a process that dies
    assert keeper.claim(range(0, 4)) == [
        BlockClaim.GRANTED,
        BlockClaim.PRESENT,
        BlockClaim.PRESENT,
        BlockClaim.GRANTED,
    ]


def test_a_keeper_without_room_keeps_nothing(entry, opened):
    keeper = entry.keeper(lambda size_bytes: False)
    assert keeper.claim(range(1)) == [BlockClaim.GRANTED]
    with pytest.raises(NoSpace):
        keeper.keep(0, block(0))
    assert keeper.claim(range(1)) == [BlockClaim.GRANTED]
    assert opened().missing(range(1)) == [0]
    keeper.close()


def test_space_is_requested_in_whole_blocks_of_the_disk(entry):
    """An entry that is not in use any more is charged for what is on the disk."""
    asked = []
    keeper = entry.keeper(lambda size_bytes: asked.append(size_bytes) or True)
    keeper.keep(2, block(2, 3))
    keeper.keep(10, block(10))
    keeper.close()
    assert asked == [3 * BLOCK, BLOCK] and len(block(10)) < BLOCK
