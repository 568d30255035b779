"""The way to root's keeper of a node's blocks: several at once, and nothing for who is hostile."""

import os
import random
import socket
import struct
import threading
from array import array
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
import trio
from bootseer_dev.material.stored_image import cache_in, keeper_link, manifest_of, open_entry

from bootseer.cache.keeper import BlockClaim, BlockKeeper
from bootseer.cache.keeper_link import (
    MAX_BLOCKS,
    MAX_BYTES,
    KeeperLink,
    serve_keeper,
    shared_memory,
)
from bootseer.errors import Closed, Corrupt, NoSpace, Unavailable

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
        assert await link.claim(blocks) == [BlockClaim.GRANTED] * 5
        assert await other.claim(range(4, 7)) == [
            BlockClaim.GRANTED,
            BlockClaim.BUSY,
            BlockClaim.GRANTED,
        ]
        await link.keep(blocks, content(*blocks))
        await other.release([4, 6])
        assert await link.claim([0, *blocks, 6]) == [
            BlockClaim.GRANTED,
            *[BlockClaim.PRESENT] * 5,
            BlockClaim.GRANTED,
        ]
    found = entry.blocks()
    assert found.missing(range(11)) == [0, 3, 4, 6, 7, 9]
    for index in blocks:
        assert found.read(index * BLOCK, len(content(index))) == content(index)
    found.close()


async def test_a_failed_write_leaves_no_claim(entry):
    blocks = [1, 4, 7]
    has_room = iter([True, False])
    async with keeper_link(entry, lambda size: next(has_room)) as link, keeper_link(entry) as other:
        await link.claim(blocks)
        with pytest.raises(NoSpace):
            await link.keep(blocks, content(*blocks))
        assert await other.claim(blocks) == [
            BlockClaim.PRESENT,
            BlockClaim.GRANTED,
            BlockClaim.GRANTED,
        ]
        with pytest.raises(Corrupt):
            await other.keep([4, 7], content(4, 4))
        with pytest.raises(Corrupt):
            await other.keep([7], content(7)[:-1])
        assert await link.claim(blocks) == [
            BlockClaim.PRESENT,
            BlockClaim.PRESENT,
            BlockClaim.GRANTED,
        ]


async def test_a_block_without_bytes_is_not_kept_and_leaves_other_claims(entry):
    async with keeper_link(entry) as link, keeper_link(entry) as other:
        await link.claim([1, 4])
        for blocks, data in (([4], b""), ([1, 4], content(1))):
            with pytest.raises(Corrupt, match="no bytes of block 4"):
                await link.keep(blocks, data)
            assert await other.claim([4]) == [BlockClaim.GRANTED]
            await other.release([4])
            await link.claim([4])
            if not data:
                assert await other.claim([1]) == [BlockClaim.BUSY]


async def test_a_present_block_can_be_claimed_if_damaged(entry):
    async with keeper_link(entry) as link:
        await link.keep([3], content(3))
        assert await link.claim([2, 3]) == [BlockClaim.GRANTED, BlockClaim.PRESENT]
        assert await link.claim([2, 3], replace=True) == [BlockClaim.GRANTED] * 2


async def test_as_much_as_is_taken_at_once_is_claimed_and_kept():
    data = bytes(MAX_BYTES)
    manifest = manifest_of(data + b"more")
    blocks = range(MAX_BLOCKS)
    async with memory_link(manifest) as link:
        assert await link.claim(blocks) == [BlockClaim.GRANTED] * MAX_BLOCKS
        await link.keep(blocks, data)
        assert await link.claim([*blocks[1:], MAX_BLOCKS]) == [
            *[BlockClaim.PRESENT] * (MAX_BLOCKS - 1),
            BlockClaim.GRANTED,
        ]
        with pytest.raises(Closed):
            await link.claim(range(MAX_BLOCKS + 1))


async def test_a_failed_claim_is_reported_and_the_link_continues():
    async with memory_link(MANIFEST, claims=("/dev/null", os.O_RDONLY)) as link:
        for _ in range(2):
            with pytest.raises(Unavailable, match="Bad file descriptor"):
                await link.claim([1, 2])
        await link.keep([1], content(1))


@asynccontextmanager
async def memory_link(manifest, claims=None):
    """A link to a keeper whose files are in memory, and have room."""
    fds = [os.memfd_create(name) for name in ("data", "map")]
    fds.append(os.memfd_create("claims") if claims is None else os.open(*claims))
    keeper = BlockKeeper(*fds, manifest, lambda size_bytes: True)
    memory = shared_memory()
    pairs = [socket.socketpair() for _ in range(2)]
    threads = [
        threading.Thread(target=serve_keeper, args=(keeper, manifest, theirs, memory))
        for _, theirs in pairs
    ]
    for thread in threads:
        thread.start()
    link = KeeperLink.of(*(ours.detach() for ours, _ in pairs), os.dup(memory))
    try:
        yield link
    finally:
        link.close()
        for thread in threads:
            thread.join()
        os.close(memory)
        keeper.close()


@contextmanager
def bare_link():
    """A link, and the other ends of its sockets for claims and for blocks."""
    pairs = [socket.socketpair() for _ in range(2)]
    link = KeeperLink(*(ours for ours, _ in pairs), shared_memory())
    try:
        yield link, *(theirs for _, theirs in pairs)
    finally:
        link.close()
        for _, theirs in pairs:
            theirs.close()


@pytest.mark.parametrize(
    "said", [b"", struct.pack("<BxxxI", 0, 0)[:5], struct.pack("<BxxxI", 0, 2)]
)
async def test_requests_to_a_dead_keeper_raise_closed(said):
    with bare_link() as (link, claims, blocks):
        claims.sendall(said)
        claims.shutdown(socket.SHUT_WR)
        for _ in range(2):
            with pytest.raises(Closed, match="is gone"):
                await link.claim([1])
        blocks.sendall(struct.pack("<BxxxI", 0, 0))
        await link.keep([1], b"x")  # over a socket of its own
        blocks.close()
        with pytest.raises(Closed, match="is gone"):
            await link.keep([1], b"x" * 100_000)


async def test_after_a_request_that_was_cancelled_no_answer_is_taken_for_another(autojump_clock):
    with bare_link() as (link, claims, _):
        with trio.move_on_after(5) as scope:
            await link.claim([1])
        assert scope.cancelled_caught
        claims.sendall(struct.pack("<BxxxI", 0, 1) + bytes([BlockClaim.GRANTED]))
        for call in (link.claim([2]), link.release([2])):
            with pytest.raises(Closed, match="is gone"):
                await call


async def test_a_keepers_error_is_raised_and_the_link_continues():
    kinds = {1: NoSpace, 2: Corrupt, 3: Unavailable}
    with bare_link() as (link, _, blocks):
        for how, kind in kinds.items():
            blocks.sendall(struct.pack("<BxxxI", how, 4) + b"full")
            with pytest.raises(kind, match=r"^full$") as raised:
                await link.keep([1], b"x")
            assert type(raised.value) is kind
        blocks.sendall(struct.pack("<BxxxI", 0, 0))
        await link.keep([1], b"x")


def request(what, blocks, size_bytes=0):
    return struct.pack("<BxxxII", what, len(blocks), size_bytes) + array("I", blocks)


@contextmanager
def served(entry):
    """The other end of a socket to a keeper, and the memory that is shared with it."""
    keeper, memory = entry.keeper(lambda size_bytes: True), shared_memory()
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve_keeper, args=(keeper, MANIFEST, theirs, memory))
    thread.start()
    with ours:
        yield ours, memory
    thread.join()
    os.close(memory)
    keeper.close()


def test_frames_are_as_they_are_described(entry):
    answers = [
        (request(1, [3, 10]), 0, b"\1\1"),
        (request(4, [3], BLOCK), 0, b""),
        (request(1, [3]), 0, b"\2"),
        (request(2, [3]), 0, b"\1"),
        (request(3, [3, 10]), 0, b""),
        (request(4, [3]), 2, b"there are no bytes of block 3"),
    ]
    with served(entry) as (ours, memory):
        os.pwrite(memory, content(3), 0)
        for asked, how, said in answers:
            ours.sendall(asked)
            assert ours.recv(1000) == struct.pack("<BxxxI", how, len(said)) + said


def test_the_shared_memory_keeps_its_length(entry):
    with served(entry) as (_, memory):
        for size_bytes in (0, 1 << 30):
            with pytest.raises(PermissionError):
                os.ftruncate(memory, size_bytes)
        with pytest.raises(PermissionError):
            os.pwrite(memory, b"x", MAX_BYTES)
        assert os.fstat(memory).st_size == MAX_BYTES


def test_bytes_that_change_in_the_shared_memory_are_never_kept_wrong(entry):
    """Who writes them may change them while the keeper compares them with their digests."""
    good, bad = content(3), bytes(BLOCK)
    outcomes = set()
    changing = threading.Event()

    def change(memory):
        while not changing.is_set():
            os.pwrite(memory, bad, 0)
            os.pwrite(memory, good, 0)

    with served(entry) as (ours, memory):
        os.pwrite(memory, good, 0)
        changer = threading.Thread(target=change, args=(memory,))
        changer.start()
        for _ in range(300):
            ours.sendall(request(4, [3], BLOCK))
            outcomes.add(ours.recv(1000)[0])
            blocks = entry.blocks()
            assert blocks.read(3 * BLOCK, BLOCK) in (None, good)
            assert not blocks.damaged
            blocks.close()
        changing.set()
        changer.join()
    assert outcomes <= {0, 2} and 0 in outcomes


@pytest.mark.parametrize(
    "said",
    [
        request(1, [11]),
        request(1, [2**32 - 1]),
        request(1, [3, 4, 3]),
        request(1, []),
        request(1, range(MAX_BLOCKS + 1)),
        request(4, [1], MAX_BYTES + 1),
        request(77, [1]),
        request(1, [1, 2])[:-1],
        b"\xff" * 12,
    ],
    ids=["behind", "far behind", "twice", "none", "many", "long", "what", "cut", "noise"],
)
def test_an_invalid_request_ends_the_link(entry, said):
    with served(entry) as (ours, _):
        ours.sendall(said)
        ours.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # not all of it was read
            assert ours.recv(1) == b""
