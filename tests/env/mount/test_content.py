"""Content of a mounted snapshot, as reads that its fast path does not answer ask for it."""

import errno
import random
from contextlib import suppress
from itertools import accumulate

import lz4.block
import pytest

from bootseer.core.ranges import ByteRange
from bootseer.core.tree_rows import BLOCK, BLOCK_BYTES, INODE, TreeRows
from bootseer.env.mount.content import AHEAD, TreeContent
from bootseer.errors import Unavailable
from bootseer.fuse.fastpath import ReadRequest
from bootseer.squashfs.superblock import BLOCK_RAW

BEFORE, COUNT, START = 5, 300, 1000


class Places:
    """Remembers which place in the squashfs is asked for."""

    def __init__(self):
        self.asked = []

    async def read(self, offset, size_bytes, is_urgent=True):
        self.asked.append((offset, offset + size_bytes))
        return memoryview(bytes(size_bytes))


@pytest.mark.parametrize("first", [0, COUNT - 1])
async def test_where_a_block_is_is_worked_out_once_for_a_file(first):
    draw = random.Random(3)
    stored = [draw.choice([BLOCK_BYTES | BLOCK_RAW, 9]) for _ in range(COUNT)]
    starts = list(accumulate((length & ~BLOCK_RAW for length in stored), initial=START))
    table = bytearray(b"".join(map(BLOCK.pack, [7] * BEFORE + stored)))
    size_bytes = COUNT * BLOCK_BYTES
    inode = INODE.pack(size_bytes, 0, START, BEFORE, COUNT, 0o100644, 1, 0, 0, bytes(32))
    places = Places()
    view = TreeContent(TreeRows(inode, b"", table, b""), places, print)
    with suppress(OSError):  # no content has these lengths
        await view.read(ReadRequest(1, 0, first * BLOCK_BYTES, 1, 0))
    for index in (63, 64, 200, COUNT - 2):
        far_before = slice(BLOCK.size * BEFORE, BLOCK.size * (BEFORE + index // 64 * 64))
        table[far_before] = bytes(len(table[far_before]))  # nobody looks at these again
        places.asked.clear()
        with suppress(OSError):
            await view.read(ReadRequest(1, 0, index * BLOCK_BYTES, BLOCK_BYTES + 1, 0))
        assert places.asked == [(starts[index], starts[index + 2])]


class Stored:
    """A squashfs of four blocks of a file: as they are, two compressed, and a short one."""

    def __init__(self):
        blocks = [random.randbytes(BLOCK_BYTES), bytes(BLOCK_BYTES), b"x" * BLOCK_BYTES]
        packed = [lz4.block.compress(block, store_size=False) for block in blocks[1:]]
        stored = [blocks[0], *packed, random.randbytes(1000)]
        self.content = b"".join([*blocks, stored[3]])
        self.lengths = [
            len(data) | (BLOCK_RAW if number in (0, 3) else 0) for number, data in enumerate(stored)
        ]
        self.stored = bytes(START) + b"".join(stored)
        self.asked = []
        self.error = None

    async def read(self, offset, size_bytes, is_urgent=True):
        if self.error is not None:
            raise self.error
        self.asked.append((ByteRange(offset, offset + size_bytes), is_urgent))
        return memoryview(self.stored)[offset : offset + size_bytes]

    def view(self, on_error=print):
        """Show it as the second of two files."""
        table = b"".join(map(BLOCK.pack, [7] * BEFORE + self.lengths))
        numbers = (BEFORE, len(self.lengths), 0o100644, 1, 0, 0)
        inode = INODE.pack(len(self.content), 0, START, *numbers, bytes(32))
        return TreeContent(TreeRows(bytes(INODE.size) + inode, b"", table, b""), self, on_error)


@pytest.mark.parametrize("offset", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 500])
@pytest.mark.parametrize("size_bytes", [1, BLOCK_BYTES, BLOCK_BYTES + 2, 5 * BLOCK_BYTES])
async def test_what_is_read_is_the_content(offset, size_bytes):
    stored = Stored()
    found = await stored.view().read(ReadRequest(2, 0, offset, size_bytes, 0))
    assert found == stored.content[offset : offset + size_bytes]


async def test_behind_the_end_nothing_is_read():
    stored = Stored()
    for offset in (len(stored.content), len(stored.content) + 1):
        assert await stored.view().read(ReadRequest(2, 0, offset, 10, 0)) == b""
    assert stored.asked == []


async def test_who_reads_ahead_lets_others_go_first_and_is_not_recorded():
    stored = Stored()
    view = stored.view()
    await view.read(ReadRequest(2, 0, 0, 1, AHEAD))
    assert view.touched.touches() == []
    await view.read(ReadRequest(2, 0, 0, 1, 0))
    first = ByteRange(START, START + BLOCK_BYTES)
    assert [touch.range for touch in view.touched.touches()] == [first]
    assert stored.asked == [(first, False), (first, True)]


@pytest.mark.parametrize("why", ["the store is gone", "another amount"])
async def test_what_cannot_be_read_is_an_error_of_the_file_and_is_told(why):
    stored, told = Stored(), []
    if why == "another amount":
        stored.lengths[3] -= 1
    else:
        stored.error = Unavailable(why)
    with pytest.raises(OSError) as caught:
        await stored.view(told.append).read(ReadRequest(2, 0, 3 * BLOCK_BYTES, 1, 0))
    assert caught.value.errno == errno.EIO
    [text] = told
    assert why in text
