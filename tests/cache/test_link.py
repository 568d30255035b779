"""The way to root's keeper of a node's blocks: several at once, and nothing for who is hostile."""

import random
import socket
import struct
import threading
from array import array
from contextlib import suppress

import pytest

from bootseer.cache.keeper import Claim
from bootseer.cache.link import MAX_BLOCKS, MAX_BYTES, serve_keeper
from bootseer.errors import Corrupt, NoSpace
from bootseer.testing.stored_image import cache_in, keeper_link, manifest_of, open_entry

pytestmark = pytest.mark.root  # the cache's folder has to be root's
BLOCK = 4096
CONTENT = random.Random(1).randbytes(10 * BLOCK + 100)
MANIFEST = manifest_of(CONTENT)


@pytest.fixture
def entry(tmp_path):
    entry = open_entry(cache_in(tmp_path), MANIFEST)
    yield entry
    entry.close()


def content(*blocks):
    return b"".join(CONTENT[i * BLOCK : (i + 1) * BLOCK] for i in blocks)


async def test_blocks_from_all_over_the_image_are_claimed_and_kept_at_once(entry):
    blocks = [1, 2, 5, 8, 10]  # the last is short
    async with keeper_link(entry) as link, keeper_link(entry) as other:
        assert await link.claim(blocks) == [Claim.GRANTED] * 5
        assert await other.claim(range(4, 7)) == [Claim.GRANTED, Claim.BUSY, Claim.GRANTED]
        await link.keep(blocks, content(*blocks))
        await other.release([4, 6])
        assert await link.claim([0, *blocks, 6]) == [
            Claim.GRANTED,
            *[Claim.PRESENT] * 5,
            Claim.GRANTED,
        ]
    found = entry.blocks()
    assert found.missing(range(11)) == [0, 3, 4, 6, 7, 9]
    for index in blocks:
        assert found.read(index * BLOCK, len(content(index))) == content(index)
    found.close()


async def test_what_cannot_be_kept_leaves_no_claim(entry):
    blocks = [1, 4, 7]
    has_room = iter([True, False])
    async with keeper_link(entry, lambda size: next(has_room)) as link, keeper_link(entry) as other:
        await link.claim(blocks)
        with pytest.raises(NoSpace):
            await link.keep(blocks, content(*blocks))
        assert await other.claim(blocks) == [Claim.PRESENT, Claim.GRANTED, Claim.GRANTED]
        with pytest.raises(Corrupt):
            await other.keep([4, 7], content(4, 4))
        with pytest.raises(Corrupt):
            await other.keep([7], content(7)[:-1])
        assert await link.claim(blocks) == [Claim.PRESENT, Claim.PRESENT, Claim.GRANTED]


async def test_a_block_without_bytes_is_not_kept_and_leaves_other_claims(entry):
    async with keeper_link(entry) as link, keeper_link(entry) as other:
        await link.claim([1, 4])
        for blocks, data in (([4], b""), ([1, 4], content(1))):
            with pytest.raises(Corrupt, match="no bytes of block 4"):
                await link.keep(blocks, data)
            assert await other.claim([4]) == [Claim.GRANTED]
            await other.release([4])
            await link.claim([4])
            if not data:
                assert await other.claim([1]) == [Claim.BUSY]


def request(what, blocks, data=b"", size_bytes=None):
    size_bytes = len(data) if size_bytes is None else size_bytes
    return struct.pack("<BxxxII", what, len(blocks), size_bytes) + array("I", blocks) + data


@pytest.mark.parametrize(
    "said",
    [
        request(1, [11]),
        request(1, [2**32 - 1]),
        request(1, [3, 4, 3]),
        request(1, []),
        request(1, range(MAX_BLOCKS + 1)),
        request(4, [1], size_bytes=MAX_BYTES + 1),
        request(77, [1]),
        request(4, [1], b"x", size_bytes=BLOCK),
        b"\xff" * 12,
    ],
    ids=["behind", "far behind", "twice", "none", "many", "long", "what", "cut", "noise"],
)
def test_what_makes_no_sense_ends_the_link(entry, said):
    keeper = entry.keeper(lambda size_bytes: True)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve_keeper, args=(keeper, MANIFEST, theirs))
    thread.start()
    with ours:
        ours.sendall(said)
        ours.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # not all of it was read
            assert ours.recv(1) == b""
    thread.join()
    keeper.close()
