"""What the agent lends of the block cache to a worker that its user has taken over."""

import os
import random
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from bootseer.agent.node.channel import Channel
from bootseer.agent.supervisor.image_mount import ServedImage, open_cache
from bootseer.cache.token import entry_name, manifest_token, seal_manifest
from bootseer.core import image
from bootseer.testing.image_entry import create_image
from bootseer.testing.stored_image import manifest_of

pytestmark = pytest.mark.root
BLOCK = 4096
ALICE, BOB = 1001, 1002
SECRET = random.Random(1).randbytes(50 * BLOCK)
MANIFEST = manifest_of(SECRET).encode()
DIGEST = image.image_digest(MANIFEST)
TOKEN = manifest_token(MANIFEST)


@pytest.fixture
def config(tmp_path):
    """Settings of a node that has an image of Alice's."""
    settings = {
        "node.cache_dir": str(tmp_path / "cache"),
        "cache.quota_gib": 1.0,
        "cache.free_share": 0.0,
        "cache.user_share": 0.5,
    }
    fd = seal_manifest(MANIFEST)
    entry = create_image(open_cache(settings), DIGEST, fd, ALICE)
    keeper = entry.keeper()
    keeper.keep(0, memoryview(SECRET))
    keeper.close()
    entry.close()
    os.close(fd)
    return settings


@asynccontextmanager
async def mallory(config):
    """Bob's worker, taken over: sends what it likes, and gets what the agent answers."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    agent, worker = Channel(ours), Channel(theirs)
    served = ServedImage("/nowhere", SimpleNamespace(channel=agent), f"bootseer://{DIGEST}")
    served._uid = BOB
    told = []

    async with trio.open_nursery() as nursery:

        async def ask(message, fd=None):
            """Ask for the cache; returns the answer, and what can be read of what came with it."""
            held = None if fd is None else os.dup(fd)
            with trio.fail_after(10):
                await served._lend({"op": "cache", **message}, held, config, told.append, nursery)
                answer, _ = await worker.receive()
                got = []
                if answer["ok"]:
                    fds = [(await worker.receive())[1] for _ in range(5)]
                    got = [os.pread(fd, 100, 0) for fd in fds[:3]]
                    for fd in fds:
                        os.close(fd)
            return answer, got

        yield ask, told
        nursery.cancel_scope.cancel()
    agent.close()
    worker.close()


async def test_the_token_opens_the_entry(config):
    async with mallory(config) as (ask, told):
        answer, got = await ask({"digest": DIGEST, "token": TOKEN.hex()})
        assert answer["ok"] and got[0] == MANIFEST[:100] and got[1] == SECRET[:100]
    assert not told


@pytest.mark.parametrize(
    "token",
    [
        "",
        DIGEST,
        "0" * 64,
        manifest_token(MANIFEST[:-32]).hex(),
        manifest_token(bytes.fromhex(DIGEST)).hex(),
        entry_name(TOKEN),
        TOKEN.hex()[:-2],
        TOKEN.hex()[:-1] + "x",
        "x" * 64,
    ],
)
async def test_without_the_token_nothing_is_lent(config, token):
    """Neither for the image's digest nor for the store and the version, which she may state."""
    async with mallory(config) as (ask, _):
        more = {"store": "file:///home/alice/.bootseer", "version": "1 alice"}
        answer, got = await ask({"digest": DIGEST, "token": token, **more})
        assert not answer["ok"] and not got
    assert [a.uid for a in open_cache(config).accounts()] == [ALICE]


async def test_a_manifest_of_hers_does_not_get_at_anothers_blocks(config):
    own = manifest_of(bytes(50 * BLOCK)).encode()
    async with mallory(config) as (ask, told):
        for handed in (own, own[:-32] + MANIFEST[-32:], MANIFEST[:1000], b"", bytes(10_000)):
            fd = seal_manifest(handed)
            answer, got = await ask({"digest": DIGEST, "token": TOKEN.hex()}, fd)
            os.close(fd)
            assert answer == {"op": "cache", "ok": False, "manifest": False} and not got
        assert len(told) == 5
        # Of her own image she gets an entry of her own, whatever token she states with it.
        fd = seal_manifest(own)
        digest = image.image_digest(own)
        answer, got = await ask({"digest": digest, "token": TOKEN.hex()}, fd)
        os.close(fd)
        assert answer["ok"] and got[0] == own[:100] and got[1] == bytes(100)
    by_uid = {a.uid: a.name for a in open_cache(config).accounts()}
    assert by_uid == {ALICE: entry_name(TOKEN), BOB: entry_name(manifest_token(own))}


async def test_memory_that_can_change_is_not_taken(config):
    fd = os.memfd_create("manifest", os.MFD_ALLOW_SEALING)
    os.write(fd, MANIFEST)
    async with mallory(config) as (ask, _):
        answer, got = await ask({"digest": DIGEST, "token": ""}, fd)
        assert not answer["ok"] and not got
    os.close(fd)
