"""What is written out of order, on the node's disk."""

import errno
import os

import pytest

from bootseer.checkpoint.write import spill as spill_module
from bootseer.checkpoint.write.spill import FileTooLarge, Spill
from bootseer.errors import NoSpace, Unavailable

UNIT = 4096


@pytest.fixture
async def spill(tmp_path):
    spill = Spill(str(tmp_path), 2 * UNIT)
    yield spill
    await spill.close()


async def test_units_come_back_as_they_were(spill, tmp_path):
    contents = {7: os.urandom(UNIT), 2: os.urandom(UNIT - 1)}
    for unit, content in contents.items():
        await spill.put(unit, content, UNIT)
    assert spill.units() == [2, 7]
    assert os.listdir(tmp_path) == []
    for unit, content in contents.items():
        assert unit in spill
        assert await spill.get(unit, UNIT) == content
    contents[2] = os.urandom(UNIT)
    await spill.put(2, contents[2], UNIT)
    assert [await spill.get(unit, UNIT) for unit in (2, 7)] == [contents[2], contents[7]]


async def test_it_takes_what_there_is_room_for_and_no_more(spill):
    for unit in (0, 1):
        await spill.put(unit, bytes(UNIT), UNIT)
    with pytest.raises(FileTooLarge, match="written out of order"):
        await spill.put(2, bytes(UNIT), UNIT)
    await spill.put(1, b"1" * UNIT, UNIT)
    assert await spill.get(1, UNIT) == b"1" * UNIT
    spill.drop(0)
    assert (0 in spill, spill.units()) == (False, [1])
    spill.drop(0)
    await spill.put(2, bytes(UNIT), UNIT)


async def test_it_can_be_used_again_after_it_was_closed(spill):
    await spill.put(3, b"3" * UNIT, UNIT)
    await spill.close()
    assert (3 in spill, spill.units()) == (False, [])
    await spill.close()
    await spill.put(4, b"4" * UNIT, UNIT)
    assert await spill.get(4, UNIT) == b"4" * UNIT


async def test_nothing_is_made_before_it_is_needed(tmp_path):
    spill = Spill(str(tmp_path / "none"), 2 * UNIT)
    assert spill.units() == []
    await spill.close()
    with pytest.raises(Unavailable, match="No such file"):
        await spill.put(0, bytes(UNIT), UNIT)
    assert 0 not in spill


@pytest.mark.parametrize(
    ("number", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)]
)
async def test_a_full_disk_is_no_space_and_a_broken_one_is_none(
    spill, monkeypatch, number, is_full
):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(spill_module, "pwrite_fully", fail)
    with pytest.raises(Unavailable) as raised:
        await spill.put(0, bytes(UNIT), UNIT)
    assert isinstance(raised.value, NoSpace) == is_full


async def test_a_unit_that_has_been_cut_off_is_an_error(spill):
    await spill.put(0, bytes(UNIT), UNIT)
    os.ftruncate(spill._fd, UNIT - 1)
    with pytest.raises(Unavailable, match="does not keep"):
        await spill.get(0, UNIT)
