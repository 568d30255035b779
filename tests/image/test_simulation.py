"""Several jobs of several users read images through the caches of two nodes, in a bad time.

Jobs come, read, copy, end and die at any step; others want the room of what they do not use; the
disk loses what was written to it, the store fails, images are removed from it, and the file that an
image was added from is written again while it is read.

What holds:

- All that a job reads is the image's. It fails only if the store does not give it, and never
  because of the cache, or of what other jobs do.
- An entry that a job uses stays until the job ends.
- The cache never takes up more than its quota, nor more than its accounts say, and when all have
  ended nothing of it is left that cannot be removed.
- While all is well, nothing is fetched twice for a node.
"""

from __future__ import annotations

import os
import random
import tempfile
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from bootseer_dev.actors.simulation import (
    SETTINGS,
    Died,
    Way,
    deterministic,
    ending_with,
    first_difference,
    in_this_thread,
    no_logs,
    search,
    without,
)
from bootseer_dev.material.stored_image import cache_in, manifest_of, open_entry, store_image
from hypothesis import given, note, settings
from hypothesis import strategies as st

from bootseer.cache import keeper as keeper_module
from bootseer.cache import keeper_link as link_module
from bootseer.cache.cached_blocks import CachedBlocks
from bootseer.cache.folder import BlockCache
from bootseer.cache.keeper import BlockKeeper
from bootseer.cache.ledger import Ledger
from bootseer.core import image_manifest
from bootseer.core.ranges import runs
from bootseer.errors import BootseerError, Closed, Unavailable
from bootseer.image.hot import pack_store
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.hot.pack import plan_pack
from bootseer.image.identity import OpenImage
from bootseer.image.library import catalog
from bootseer.image.library.source import ImageSource
from bootseer.image.serve.backfill import copy, fill
from bootseer.image.serve.image_blocks import ImageBlocks
from bootseer.image.serve.node_cache import NodeCache
from bootseer.store.memory import MemoryStore

pytestmark = pytest.mark.root  # the cache's folder has to be root's
BLOCK = 4096
USERS = (1001, 1002, 1003)
SIZES = (30_000, 65_536, 200_001)
IMAGES = [random.Random(seed).randbytes(size) for seed, size in enumerate(SIZES)]
MANIFESTS = [manifest_of(content) for content in IMAGES]
DIGESTS = [image_manifest.image_digest(manifest.encode()) for manifest in MANIFESTS]
QUOTAS = (1 << 30, 1 << 30, 400_000, 120_000, 20_000)
PACKED = 2
"""The image that has a hot pack."""
OPERATIONS = ("open", "pread", "stat")


class Node:
    """A node: its cache, and the jobs on it.

    A call of the cache is made as if all others of the node were stopped; where it has no lock,
    calls of others are made in the middle of it.
    """

    def __init__(self, world, folder, quota_bytes):
        self.world = world
        self.cache = cache_in(folder, quota_bytes, 0.7)
        self.top = folder / "cache" / "images"
        self.quota_bytes = quota_bytes
        self.calls = []
        self.is_looking = False
        self.jobs = []
        self.coming = set()
        self.fetched = set()

    async def call(self, function):
        """Have a call of the cache made, at a time that others may choose."""
        ended = trio.Event()

        def made():
            function()
            ended.set()

        self.calls.append(made)
        try:
            await trio.sleep(self.world.random.choice([0, 0, 0.01]))
            if made in self.calls:
                self.calls.remove(made)
                made()
        finally:
            if made in self.calls:
                self.calls.remove(made)
        assert ended.is_set()

    def between(self):
        """Let some others make their calls."""
        while not self.is_looking and self.calls and self.world.random.random() < 0.5:
            self.calls.pop(self.world.random.randrange(len(self.calls)))()

    def disk_use(self):
        return sum(path.lstat().st_blocks * 512 for path in self.top.rglob("*"))

    def check(self):
        self.is_looking = True
        charged = sum(account.charged_bytes for account in self.cache.accounts())
        self.is_looking = False
        used = self.disk_use()
        assert used <= charged <= self.quota_bytes, f"{used:,} {charged:,} {self.quota_bytes:,}"
        for job in self.jobs:
            if job.entry is not None:
                account = job.entry.path / "account"
                assert account.exists(), "an entry in use was removed"
                assert os.path.samestat(account.stat(), os.fstat(job.entry.entry.lock_fd))

    def damage(self):
        """The disk loses some of what was written to it; lengths only while nobody is there."""
        chance = self.world.random
        found = [path for name in ("data", "map") for path in sorted(self.top.glob(f"*/{name}"))]
        if not found:
            return
        path = chance.choice(found)
        size_bytes = path.stat().st_size
        if not size_bytes:  # it is being removed
            return
        if chance.random() < 0.3 and not self.jobs and not self.coming:
            os.truncate(path, chance.randrange(size_bytes))
            return
        with path.open("r+b") as file, suppress(OSError):  # nothing is behind it
            at = os.lseek(file.fileno(), chance.randrange(size_bytes), os.SEEK_DATA)
            room = os.lseek(file.fileno(), at, os.SEEK_HOLE) - at
            length = min(room, chance.choice([1, 8, BLOCK, 5 * BLOCK]))
            os.pwrite(file.fileno(), chance.choice([bytes, chance.randbytes])(length), at)

    def end(self):
        """See that nothing is left that cannot be removed."""
        self.check()
        if not self.top.exists():
            return
        for _ in range(5):
            assert self.cache.sweep() == []
        for account in self.cache.accounts():
            assert account.is_leaving or self.cache.remove(account.name)
        for _ in range(20):
            self.cache.sweep()
        assert self.disk_use() == 0


class Link:
    """What `KeeperLink` is, without sockets. The keeper may die in the middle of a write."""

    def __init__(self, job, keeper):
        self._job = job
        self._keeper = keeper
        self._claims, self._blocks = trio.Lock(), trio.Lock()

    async def claim(self, blocks, *, replace=False):
        return await self._ask(
            self._claims,
            lambda keeper: [c for run in runs(blocks) for c in keeper.claim(run, replace=replace)],
        )

    async def release(self, blocks):
        await self._ask(self._claims, lambda keeper: [keeper.release(run) for run in runs(blocks)])

    async def keep(self, blocks, data):
        manifest, data = self._job.manifest, memoryview(data)
        await self._ask(
            self._blocks, lambda keeper: link_module._keep(keeper, manifest, list(blocks), data)
        )

    async def _ask(self, lock, call):
        chance = self._job.world.random
        async with lock:
            await trio.sleep(chance.choice([0, 0, 0.01]))
            if self._keeper is None:
                raise Closed("the keeper is gone")
            try:
                answer = call(self._keeper)
            except Died:
                self.close()
                self._job.lender_ends()
                raise Closed("the keeper is gone") from None
            except OSError as error:
                raise Unavailable(str(error)) from error
            await trio.sleep(chance.choice([0, 0, 0.1]))
        return answer

    def close(self):
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None


class Source(ImageSource):
    """Notes what is fetched for a node."""

    def __init__(self, store, job):
        super().__init__(store, DIGESTS[job.number])
        self._job = job

    async def read(self, manifest, blocks, *, checks=True):
        data = await super().read(manifest, blocks, checks=checks)
        fetched = {(self._job.number, index) for index in blocks}
        world, node = self._job.world, self._job.node
        if world.is_calm:
            assert not fetched & node.fetched, f"fetched twice: {fetched & node.fetched}"
        node.fetched |= fetched
        return data


class Job:
    """A job that reads an image: the lender's side, the keeper's and the reader's."""

    def __init__(self, world, node, number):
        self.world = world
        self.node = node
        self.number = number
        self.manifest = MANIFESTS[number]
        self.uid = world.random.choice(USERS)
        self.way = Way(world.store, world.random.randrange(2**32), OPERATIONS)
        self.entry = self.cached = self.link = None
        self.is_dead = self.is_ending = False
        self.reads = 0

    def say(self, *words):
        self.world.say(f"job {id(self) % 1000} of image {self.number}:", *words)

    @contextmanager
    def coming(self):
        """Be known to the node, though nothing can be asked of it yet."""
        self.node.coming.add(self)
        try:
            yield
        finally:
            self.node.coming.discard(self)

    async def run(self, task_status):
        with ending_with(Died), self.coming():
            await self.node.call(self._open)
            async with AsyncExitStack() as closing, trio.open_nursery() as self.nursery:
                if self.entry is not None:
                    self.cached = self.entry.blocks()
                    self.link = Link(self, self.entry.keeper())
                self.cache = NodeCache(self.cached, self.link)
                self.source = Source(self.way, self)
                closing.push_async_callback(self.source.close)
                if self.world.random.random() < 0.3:
                    self.source.use_file(self.world.file(self.number), 10.0, self.say)
                self.blocks = ImageBlocks(self.manifest, self.source, self.cache, self.nursery)
                if self.number == PACKED and self.world.random.random() < 0.5:
                    await self._use_pack(closing)
                self.node.jobs.append(self)
                self.node.coming.discard(self)
                self.say("begins", self.uid, "with" if self.entry else "without", "a cache")
                task_status.started()
                await trio.sleep_forever()

    async def _use_pack(self, closing):
        pack = await pack_store.open_pack(self.way, self.manifest, DIGESTS[self.number])
        if pack is not None:
            closing.push_async_callback(pack.close)
            self.blocks.use_pack(pack, self.say)

    def _open(self):
        with suppress(BootseerError):
            self.entry = open_entry(self.node.cache, self.manifest, self.uid)

    def lender_ends(self):
        """Nobody keeps blocks any more: the entry is not in use, whoever reads it still."""
        entry, self.entry = self.entry, None
        if entry is not None:
            entry.close()

    async def read(self):
        chance = self.world.random
        size = chance.choice([1, 100, BLOCK, 3 * BLOCK + 5, 12 * BLOCK, 1 << 20])
        at = chance.choice([0, chance.randrange(self.manifest.size_bytes), 10 * BLOCK])
        is_urgent = chance.random() < 0.7
        self.reads += 1
        try:
            data = await self.blocks.read(at, size, is_urgent=is_urgent)
        except BootseerError as error:
            self.say("read", at, size, repr(error))
            assert self.may_fail, repr(error)
        else:
            assert data == IMAGES[self.number][at : at + size], f"{at}, {size}"
        finally:
            self.reads -= 1

    async def copy(self):
        try:
            await copy(self.blocks, self.cache)
        except BootseerError as error:
            self.say("copy", repr(error))
            return
        await self.blocks.settle()
        if self.entry is not None and self.world.is_calm:
            assert self.cached.is_complete

    async def fill(self):
        await fill(self.blocks, self.cache, 1e6)

    @property
    def may_fail(self):
        return self.way.failures or self.number in self.world.removed

    async def end(self):
        if self.is_dead or self.is_ending:
            return
        self.is_ending = True
        self.way.failing = {}
        while self.reads:
            await trio.sleep(0.1)
        with trio.fail_after(1000):
            await self.blocks.settle()
        fetcher = self.blocks._fetcher
        assert not fetcher._waiting and fetcher._scheduler.running == {True: 0, False: 0}
        self.close()
        if self.entry is not None:
            await self.node.call(self.lender_ends)
        self.say("ends")

    async def die(self):
        """Everything of it is killed at once."""
        if self.is_dead or self.is_ending:
            return
        self.say("dies")
        self.is_dead = True
        self.close()
        entry, self.entry = self.entry, None
        if entry is not None:
            os.close(entry.entry.lock_fd)

    def close(self):
        self.node.jobs.remove(self)
        self.nursery.cancel_scope.cancel()
        if self.link is not None:
            self.link.close()
        if self.cached is not None:
            self.cached.close()


class World:
    """The store, the nodes and the files."""

    def __init__(self, plan, folder):
        self.random = random.Random(plan.seed)
        self.is_calm = plan.is_calm
        self.store = MemoryStore()
        self.folder = folder
        self.removed = set()
        self.told = []
        self.files = []
        self.nodes = []
        for number in range(2):
            at = folder / f"node{number}"
            at.mkdir()
            quota = QUOTAS[0] if plan.is_calm else QUOTAS[plan.quota]
            self.nodes.append(Node(self, at, quota))

    def say(self, *words):
        self.told.append(f"{trio.current_time():8.2f} " + " ".join(map(str, words)))

    async def prepare(self):
        for number, content in enumerate(IMAGES):
            await store_image(self.store, content, f"image{number}")
            (self.folder / f"image{number}").write_bytes(content)
            manifest, digest = MANIFESTS[number], DIGESTS[number]
            hot = tuple(
                HotRange(i * BLOCK, (i + 1) * BLOCK, n, 1)
                for n, i in enumerate(range(manifest.blocks - 2, 0, -2))
            )
            found = HotSet(manifest.identity, manifest.size_bytes, ("c.1",), hot)

            async def pieces(blocks, content=content):
                return b"".join(content[i * BLOCK : (i + 1) * BLOCK] for i in blocks)

            if number == PACKED:
                await pack_store.write_pack(self.store, plan_pack(manifest, digest, found), pieces)

    def file(self, number):
        path = self.folder / f"image{number}"
        self.files.append(os.open(path, os.O_RDONLY))
        return OpenImage(str(path), self.files[-1], self.manifest_size(number), 0)

    def manifest_size(self, number):
        return MANIFESTS[number].size_bytes

    def write_file_anew(self, number):
        path = self.folder / f"image{number}"
        content = self.random.choice([b"", IMAGES[number][:-1], self.random.randbytes(50_000)])
        path.write_bytes(content)

    async def remove(self, number):
        if number in self.removed:
            return
        self.removed.add(number)
        for index in range(MANIFESTS[number].parts):
            await self.store.delete(catalog.part_object(DIGESTS[number], index))

    def torn_write(self, fd, data, at):
        """Write, or die in the middle of it."""
        if not self.is_calm and self.random.random() < 0.05:
            os.pwrite(fd, data[: self.random.randrange(len(data) + 1)], at)
            raise Died
        os.pwrite(fd, data, at)

    @contextmanager
    def locked(self, ledger, locked):
        (node,) = (node for node in self.nodes if node.top == ledger._folder)
        node.between()
        with locked(ledger):
            yield
        node.between()


KINDS = ["start"] * 3 + ["read"] * 8 + ["copy", "fill", "end", "end"]
BAD = [
    "die",
    "away",
    "away",
    "back",
    "damage",
    "damage",
    "remove",
    "evict",
    "sweep",
    "file",
    "crash",
]
STEP = st.tuples(
    st.sampled_from([*KINDS, *KINDS, *BAD]),
    st.integers(0, 1),
    st.integers(0, 7),
    st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0, 5.0, 40.0]),
)


@dataclass
class Plan:
    """What is drawn for a run.

    Attributes:
        steps: kind, node, job or image, and the seconds until the next one.
        quota: which one the nodes have.
        is_calm: nothing bad happens.
        seed: of all that is random in it.
    """

    steps: list
    quota: int
    is_calm: bool
    seed: int


PLANS = st.builds(
    Plan,
    steps=st.lists(STEP, min_size=8, max_size=60),
    quota=st.integers(0, len(QUOTAS) - 1),
    is_calm=st.booleans(),
    seed=st.integers(0, 2**32),
)


async def simulate(plan, world):
    await world.prepare()
    async with trio.open_nursery() as nursery:
        for kind, where, which, pause_s in plan.steps:
            node = world.nodes[where]
            if world.is_calm and kind in BAD:
                continue
            if kind == "start":
                nursery.start_soon(nursery.start, Job(world, node, which % len(IMAGES)).run)
            elif kind == "damage":
                node.damage()
            elif kind == "sweep":
                nursery.start_soon(node.call, node.cache.sweep)
            elif kind == "evict":
                names = [a.name for a in node.cache.accounts() if not a.is_leaving]
                if names:
                    node.cache.remove(names[which % len(names)])
            elif kind == "remove" and which == 0:
                await world.remove(0)
            elif kind == "file":
                world.write_file_anew(which % len(IMAGES))
            elif kind == "crash" and which < 2:
                for job in list(node.jobs):
                    await job.die()
                for _ in range(which + 1):
                    node.damage()
            elif node.jobs:
                job = node.jobs[which % len(node.jobs)]
                if job.is_ending:
                    continue
                if kind == "away":
                    job.way.fail()
                elif kind == "back":
                    job.way.failing = {}
                elif kind in ("end", "die"):
                    nursery.start_soon(getattr(job, kind))
                elif kind in ("read", "copy", "fill"):
                    job.nursery.start_soon(getattr(job, kind))
            node.check()
            await trio.sleep(pause_s)
        await trio.sleep(1000)
        for node in world.nodes:
            node.check()
            for job in list(node.jobs):
                await job.end()
    for node in world.nodes:
        node.end()


def check(plan):
    locked = Ledger.locked
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        os.chmod(folder, 0o755)
        world = World(plan, Path(folder))
        patch.setattr(Ledger, "locked", lambda ledger: world.locked(ledger, locked))
        patch.setattr(keeper_module, "pwrite_fully", world.torn_write)
        patch.setattr(trio.to_thread, "run_sync", in_this_thread)
        try:
            deterministic(plan.seed, simulate, plan, world)
        finally:
            for fd in world.files:
                os.close(fd)
            note("\n".join(world.told))


@settings(SETTINGS, max_examples=100, derandomize=True)
@given(PLANS)
def test_several_jobs_in_a_bad_time(plan):
    check(plan)


@pytest.mark.simulations
@pytest.mark.timeout(0)
def test_more_of_it(capfd):
    with capfd.disabled(), no_logs():
        assert search(PLANS, check)


MENDS = {
    "what is read is compared with its checksum": (
        (CachedBlocks, "_check"),
        "if checksum(data[block.start - start : block.stop - start]) != self.sums[index]:",
        "if False:",
    ),
    "a block that is there is not fetched": (
        (BlockKeeper, "claim"),
        "if not replace:",
        "if False:",
    ),
    "an entry in use is locked": (
        (BlockCache, "_opened"),
        "fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "pass",
    ),
    "room is asked for before it is used": (
        (BlockKeeper, "_keep"),
        "if not self.has_room(on_disk(len(data))):",
        "if False:",
    ),
}


@pytest.mark.simulations
@pytest.mark.timeout(0)
@pytest.mark.leaves_open  # the run that found one has ended in its midst
@pytest.mark.parametrize("mend", MENDS)
def test_without_a_mend_there_are_differences(mend):
    (owner, name), there, instead = MENDS[mend]
    with no_logs(), without(owner, name, there, instead):
        found = first_difference(PLANS, check)
    if not isinstance(found, AssertionError):
        raise found
