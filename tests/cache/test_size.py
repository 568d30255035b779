"""How large an entry of the cache may be, and what it takes up."""

import pytest

from bootseer.cache.size import MAX_BLOCKS, SUM_BYTES, EntrySize, on_disk
from bootseer.cache.token import MAX_MANIFEST_BYTES
from bootseer.errors import Corrupt
from bootseer.units import KIB, MIB

MOST = EntrySize(MAX_MANIFEST_BYTES, MAX_BLOCKS * MIB, MAX_BLOCKS)


@pytest.mark.parametrize("size", [EntrySize(1, 1, 1), MOST])
def test_an_image_may_be_as_small_and_as_large_as_that(size):
    size.check()


@pytest.mark.parametrize("field", ["manifest_bytes", "image_bytes", "blocks"])
@pytest.mark.parametrize("size", ["none", "negative", "more"])
def test_an_image_is_nothing_else(field, size):
    wrong = {"none": 0, "negative": -1, "more": getattr(MOST, field) + 1}[size]
    fields = {"manifest_bytes": 1, "image_bytes": 1, "blocks": 1} | {field: wrong}
    with pytest.raises(Corrupt, match=f"{field}={wrong}"):
        EntrySize(**fields).check()


@pytest.mark.parametrize(
    ("size_bytes", "taken"), [(0, 0), (1, 4 * KIB), (4 * KIB, 4 * KIB), (4 * KIB + 1, 8 * KIB)]
)
def test_files_take_up_whole_blocks(size_bytes, taken):
    assert on_disk(size_bytes) == taken


@pytest.mark.parametrize(
    ("size", "fixed_bytes"),
    [
        (EntrySize(1, 1, 1), 20 * KIB),  # manifest, map, extents; the folder and a table
        (EntrySize(4 * KIB, 1, 4 * KIB // 24), 20 * KIB),
        (EntrySize(4 * KIB + 1, 1, 4 * KIB // 24 + 1), 28 * KIB),
        (EntrySize(1, 1, 4 * KIB // SUM_BYTES + 1), (4 + 8 + 16 + 8) * KIB),
    ],
)
def test_fixed_bytes_of_an_empty_entry(size, fixed_bytes):
    assert size.fixed_bytes == size.most_bytes - 4 * KIB == fixed_bytes


def test_an_entry_takes_up_its_image_in_the_end():
    size = EntrySize(1, 5 * MIB + 1, 1)
    assert size.most_bytes == size.fixed_bytes + 5 * MIB + 4 * KIB
