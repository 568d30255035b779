"""What is lent of the block cache to a worker that its user has taken over, or a supervisor."""

import os
import random
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.material.image_entry import create_image
from bootseer_dev.material.stored_image import manifest_of

from bootseer.agent.lender.lender import MAX_LENT, open_cache
from bootseer.agent.messages.lender import VERBS, CreateEntry, OpenEntry
from bootseer.agent.messages.worker import (
    FROM_WORKER,
    BlocksLent,
    BlocksRefused,
    BorrowBlocks,
    supervisor_end,
    worker_end,
)
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.agent.supervisor.images.block_lending import BlockLending
from bootseer.cache.reservation_client import ReservationClient
from bootseer.cache.token import entry_name, manifest_token, seal_manifest
from bootseer.core import image_manifest
from bootseer.errors import Corrupt, NotFound, Unavailable
from bootseer.ipc.request import MAX_DESCRIPTORS
from bootseer.ipc.request_client import RequestClient

pytestmark = pytest.mark.root
BLOCK = 4096
ALICE, BOB = 1001, 1002
SECRET = random.Random(1).randbytes(50 * BLOCK)
MANIFEST = manifest_of(SECRET).encode()
DIGEST = image_manifest.image_digest(MANIFEST)
TOKEN = manifest_token(MANIFEST)


@pytest.fixture
def bobs(start_lender):
    """The lender of a job of Bob's, on a node that has an image of Alice's."""
    lender = start_lender(BOB)
    fd = seal_manifest(MANIFEST)
    entry = create_image(open_cache(lender.settings), DIGEST, fd, ALICE)
    keeper = entry.keeper()
    keeper.keep(0, memoryview(SECRET))
    keeper.close()
    entry.close()
    os.close(fd)
    return lender


@asynccontextmanager
async def mallory(bobs):
    """Bob's worker, taken over: sends what it likes, and gets what the agent answers."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    agent, worker = supervisor_end(ours), worker_end(theirs)
    lender = RequestClient(bobs.end, VERBS, "lender")
    worker_of_it = SimpleNamespace(channel=agent)
    lending = BlockLending(lender, worker_of_it, None)
    events = EventLog("/nowhere/events.jsonl")

    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        outer.start_soon(lender.run)

        async def ask(token, fd=None, digest=DIGEST):
            """Ask for the cache; returns the answer, and what can be read of what came with it."""
            wanted = BorrowBlocks(digest, token)
            with trio.fail_after(10):
                await lending.answer(wanted, [] if fd is None else [fd], events, nursery)
                answer, fds = await worker.receive()
                got = [os.pread(fd, 100, 0) for fd in fds[:3]]
                for fd in fds:
                    os.close(fd)
            return answer, got

        yield ask, events
        while nursery.child_tasks:  # what keeps blocks ends with the worker's ends
            await trio.sleep(0.01)
        outer.cancel_scope.cancel()
    agent.close()
    worker.close()


async def test_the_token_opens_the_entry(bobs):
    async with mallory(bobs) as (ask, events):
        answer, got = await ask(TOKEN.hex())
        assert answer == BlocksLent() and got[0] == MANIFEST[:100] and got[1] == SECRET[:100]
    assert len(events) == 0


@pytest.mark.parametrize(
    "token",
    [
        "",
        DIGEST,
        "0" * 64,
        manifest_token(MANIFEST[:-32]).hex(),
        manifest_token(bytes.fromhex(DIGEST)).hex(),
        entry_name(TOKEN),
    ],
)
async def test_without_the_token_nothing_is_lent(bobs, token):
    """Neither for the image's digest nor for anything else that she may know."""
    async with mallory(bobs) as (ask, _):
        answer, got = await ask(token)
        assert answer == BlocksRefused(wants_manifest=True) and not got
    assert [a.uid for a in open_cache(bobs.settings).accounts()] == [ALICE]


@pytest.mark.parametrize("token", [TOKEN.hex()[:-2], TOKEN.hex()[:-1] + "x", "x" * 64, "00 " * 22])
def test_an_invalid_token_is_refused_on_receipt(token):
    with pytest.raises(Corrupt, match="token"):
        FROM_WORKER.decode(FROM_WORKER.encode(BorrowBlocks(DIGEST, token)))


async def test_a_manifest_of_hers_does_not_get_at_anothers_blocks(bobs):
    own = manifest_of(bytes(50 * BLOCK)).encode()
    async with mallory(bobs) as (ask, events):
        for handed in (own, own[:-32] + MANIFEST[-32:], MANIFEST[:1000], b"", bytes(10_000)):
            fd = seal_manifest(handed)
            answer, got = await ask(TOKEN.hex(), fd)
            os.close(fd)
            assert answer == BlocksRefused(wants_manifest=False) and not got
        assert len(events) == 5
        # Of her own image she gets an entry of her own, whatever token she states with it.
        fd = seal_manifest(own)
        digest = image_manifest.image_digest(own)
        answer, got = await ask(TOKEN.hex(), fd, digest)
        os.close(fd)
        assert answer == BlocksLent() and got[0] == own[:100] and got[1] == bytes(100)
    by_uid = {a.uid: a.name for a in open_cache(bobs.settings).accounts()}
    assert by_uid == {ALICE: entry_name(TOKEN), BOB: entry_name(manifest_token(own))}


async def test_memory_that_can_change_is_not_taken(bobs):
    fd = os.memfd_create("manifest", os.MFD_ALLOW_SEALING)
    os.write(fd, MANIFEST)
    async with mallory(bobs) as (ask, _):
        answer, got = await ask("", fd)
        assert isinstance(answer, BlocksRefused) and not got
    os.close(fd)


# A supervisor that somebody has taken over: the lender takes its word for nothing either.


@pytest.fixture
def sealed():
    fd = seal_manifest(MANIFEST)
    yield fd
    os.close(fd)


DECODED = image_manifest.decode(MANIFEST, "", DIGEST)


def new(**other):
    size = {"image_bytes": DECODED.size_bytes, "blocks": DECODED.blocks}
    return CreateEntry(**({"manifest_bytes": len(MANIFEST)} | size | other))


def close(fds):
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("token", [bytes(32), bytes.fromhex(DIGEST), TOKEN[:31] + b"x"])
def test_the_lender_lends_nothing_without_the_token(bobs, token):
    reply, fds = bobs.ask(OpenEntry(token))
    assert isinstance(reply.error, NotFound) and not fds


def test_a_token_or_a_manifest_gives_access_to_read_and_keep_blocks(bobs, sealed):
    for request, handed in ((OpenEntry(TOKEN), []), (new(), [sealed])):
        reply, fds = bobs.ask(request, handed)
        assert reply.error is None and reply.value == 0 and len(fds) == 7
        manifest, data, block_map, *keepers = fds
        assert os.pread(manifest, 1 << 20, 0) == MANIFEST
        assert os.pread(data, 100, 0) == SECRET[:100]
        for fd in (manifest, data, block_map):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.pwrite(fd, b"x", 0)
        assert os.fstat(keepers[0]).st_ino == os.fstat(data).st_ino
        close(fds)


def test_a_manifest_that_can_change_is_not_taken_by_the_lender_either(bobs):
    fd = os.memfd_create("manifest", os.MFD_ALLOW_SEALING)
    os.write(fd, MANIFEST)
    reply, fds = bobs.ask(new(), [fd])
    os.close(fd)
    assert isinstance(reply.error, Corrupt) and not fds


@pytest.mark.parametrize(
    "other",
    [
        {"manifest_bytes": len(MANIFEST) - 1},
        {"manifest_bytes": 0},
        {"image_bytes": -1},
        {"image_bytes": 1 << 62},
        {"blocks": 0},
        {"blocks": 1 << 62},
    ],
)
def test_sizes_that_no_image_has_are_refused(bobs, sealed, other):
    reply, fds = bobs.ask(new(**other), [sealed])
    assert isinstance(reply.error, Corrupt) and not fds
    lengths = [os.stat(next_entry(bobs) / name).st_size for name in ("manifest", "data")]
    assert lengths == [len(MANIFEST), len(SECRET)]


def next_entry(bobs):
    (account,) = open_cache(bobs.settings).accounts()
    return Path(bobs.settings.cache_dir, "images", account.name)


def test_an_entry_is_in_use_until_its_keeper_has_gone(bobs):
    cache = open_cache(bobs.settings)
    (account,) = cache.accounts()
    _, fds = bobs.ask(OpenEntry(TOKEN))
    assert not cache.remove(account.name)
    close(fds[:6])
    assert not cache.remove(account.name)
    os.close(fds[6])
    wait_until(lambda: cache.remove(account.name), "nobody uses the entry")


@pytest.mark.parametrize("count", [0, 2, MAX_DESCRIPTORS])
def test_a_manifest_request_takes_exactly_one_descriptor(bobs, sealed, count):
    reply, fds = bobs.ask(new(), [sealed] * count)
    assert isinstance(reply.error, Corrupt) and not fds


def test_a_keeper_gets_space_and_an_invalid_request_closes_its_socket(bobs):
    own = manifest_of(bytes(50 * BLOCK)).encode()
    fd = seal_manifest(own)
    reply, fds = bobs.ask(new(manifest_bytes=len(own)), [fd])
    os.close(fd)
    assert reply.error is None
    close(fds[:6])
    end = socket.socket(fileno=fds[6])
    assert ReservationClient(end).reserve(BLOCK, BLOCK) >= BLOCK
    charged = {a.uid: a.charged_bytes for a in open_cache(bobs.settings).accounts()}
    assert charged[BOB] >= BLOCK
    end.settimeout(20)
    end.send(b"nonsense")
    assert end.recv(100) == b""
    end.close()


def test_entries_in_use_by_a_job_are_limited(bobs):
    kept = []
    for _ in range(MAX_LENT):
        reply, fds = bobs.ask(OpenEntry(TOKEN))
        assert reply.error is None
        close(fds[:6])
        kept.append(fds[6])
    reply, fds = bobs.ask(OpenEntry(TOKEN))
    assert isinstance(reply.error, Unavailable) and not fds
    os.close(kept.pop())
    wait_until(lambda: lends(bobs), "there is room for one more")
    close(kept)


def lends(bobs):
    reply, fds = bobs.ask(OpenEntry(TOKEN))
    close(fds)
    return reply.error is None
