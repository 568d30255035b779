"""Content of a mounted snapshot, as reads that its fast path does not answer ask for it."""

import random
from itertools import accumulate

import pytest

from bootseer.core.squashfs import BLOCK_RAW
from bootseer.core.treerows import BLOCK, BLOCK_BYTES, INODE, TreeRows
from bootseer.env.view import TreeContent
from bootseer.fuse.fastpath import Asked

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
    stored = [draw.choice([BLOCK_BYTES | BLOCK_RAW, 0]) for _ in range(COUNT)]
    starts = list(accumulate((length & ~BLOCK_RAW for length in stored), initial=START))
    table = bytearray(b"".join(map(BLOCK.pack, [7] * BEFORE + stored)))
    size_bytes = COUNT * BLOCK_BYTES
    inode = INODE.pack(size_bytes, 0, START, 0, BEFORE, COUNT, 0o100644, 1, 0, 0, bytes(32))
    places = Places()
    view = TreeContent(TreeRows(inode, b"", table, b""), places, print)
    await view.read(Asked(1, 0, first * BLOCK_BYTES, 1, 0))
    for index in (63, 64, 200, COUNT - 2):
        far_before = slice(BLOCK.size * BEFORE, BLOCK.size * (BEFORE + index // 64 * 64))
        table[far_before] = bytes(len(table[far_before]))  # nobody looks at these again
        places.asked.clear()
        await view.read(Asked(1, 0, index * BLOCK_BYTES, BLOCK_BYTES + 1, 0))
        wanted = (starts[index], starts[index + 2])
        assert places.asked == ([wanted] if wanted[0] < wanted[1] else [])
