"""What the parts of a start ask of the store: as the table in docs/design says."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest
import trio
from bootseer_dev.actors.epilog import EpilogInStore, jobs, recording
from bootseer_dev.material.stored_image import manifest_of, store_image

from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.image.hot.pack_store import open_pack
from bootseer.image.hot.repository import read_hot_set
from bootseer.image.library import catalog
from bootseer.image.library.source import ImageSource
from bootseer.startup.plans import read_plan
from bootseer.store import key_lease
from bootseer.store.api.base import publish
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.backoff import Backoff
from bootseer.testing.fault_store import FlakyStore
from bootseer.units import KIB, MIB

PAGE = Path(__file__).parents[2] / "docs/design/034-calls-of-a-job.md"
CONTENT = random.Random(1).randbytes(2 * MIB)
FOLDER = "env/claims/key"
CKPT = "run/step"


def told():
    """Return the calls in the table of a start, by what makes them."""
    table = (
        PAGE.read_text().partition("A start, on each node:")[2].partition("The end of a job:")[0]
    )
    rows = re.findall(r"^\| (.+?) \| ([a-z]+ \d.*) \|$", table, re.MULTILINE)
    return {
        what: Counter({name: int(count) for name, count in re.findall(r"(\w+) (\d+)", calls)})
        for what, calls in rows
    }


class Start:
    """A store that has all that a start reads."""

    def __init__(self):
        self.memory = MemoryStore()
        self.image = self.hot = ""
        self.manifest = manifest_of(CONTENT, 64 * KIB)

    async def fill(self):
        (job,) = jobs("alice", 1, 1)
        recorded = recording(0, is_warm=False, ranges=8)
        store = FlakyStore(self.memory, lambda *_: False)
        await EpilogInStore(job, recorded, {"image.traces_per_run": 4}, store).run()
        self.hot = (await read_plan(self.memory, "alice", "train")).images[0].digest
        self.image = await store_image(self.memory, CONTENT, "train:v2", 64 * KIB)

    async def plan(self, store):
        assert await read_plan(store, "alice", "train")

    async def hot_set(self, store):
        assert await read_hot_set(store, self.hot)

    async def name(self, store):
        assert await catalog.resolve(store, "bootseer://train:v2") == self.image

    async def token(self, store):
        await catalog.read_token(store, self.image)

    async def encoded(self, store):
        assert (await catalog.read_manifest(store, self.image))[1] == self.manifest

    async def part(self, store):
        source = ImageSource(store, self.image)
        await source.open_first()
        await source.close()

    async def blocks(self, store):
        """Two reads of one part, less one."""
        source = ImageSource(store, self.image)
        await source.read(self.manifest, range(2))
        store.calls.clear()
        await source.read(self.manifest, range(4, 6))
        await source.close()

    async def pack(self, store):
        assert await open_pack(store, self.manifest, self.image) is None

    async def free(self, store):
        assert await key_lease.acquire(store, FOLDER, "n1")

    async def held(self, store):
        await key_lease.acquire(self.memory, FOLDER, "n1")
        assert await key_lease.acquire(store, FOLDER, "n2") is None

    async def tree(self, store, files):
        """Return the tree that a node has of a folder of striped files, and of small ones."""
        async with trio.open_nursery() as nursery:
            drafts = Drafts(CheckpointTree(self.memory), nursery, WriteOptions(unit_bytes=4 * KIB))
            for number in range(files):
                draft = drafts.begin(f"{CKPT}/{number:03}", None)
                await draft.write(0, CONTENT[: 8 * KIB + number])
                await draft.publish()
        await publish(self.memory, f"{CKPT}/latest", b"1000")
        return CheckpointTree(store)

    async def folder(self, store, files=100):
        tree = await self.tree(store, files)
        shown = await tree.show_folder(CKPT)
        assert [entry.size_bytes for entry in shown] == [*(8 * KIB + n for n in range(files)), 4]
        return tree, shown[0]

    async def folder_of_one(self, store):
        await self.folder(store, 1)

    async def later(self, store):
        tree, _ = await self.folder(store)
        store.calls.clear()
        assert (await tree.show(f"{CKPT}/050")).size_bytes == 8 * KIB + 50

    async def small(self, store):
        tree = await self.tree(store, 1)
        assert (await tree.show(f"{CKPT}/latest")).size_bytes == 4

    async def first(self, store):
        tree, shown = await self.folder(store)
        store.calls.clear()
        assert (await tree.check(shown)).layout is not None
        return tree

    async def again(self, store):
        tree = await self.first(store)
        (shown, *_) = await tree.show_folder(CKPT)
        store.calls.clear()
        assert (await tree.check(shown)).layout is not None

    async def look(self, store):
        lease = await key_lease.acquire(self.memory, FOLDER, "n1")
        with trio.move_on_after(1.4):  # pauses last at least half as long: 0.5 s, and then 1 s
            await key_lease.wait_for_end(store, FOLDER, lease, Backoff(first_s=1.0, longest_s=8.0))


WORK = {
    "warm plan": Start.plan,
    "hot set of an image": Start.hot_set,
    "name of a served image": Start.name,
    "token of its manifest": Start.token,
    "manifest, unless the node has it": Start.encoded,
    "each part of it that is read, once": Start.part,
    "each read of blocks that are neither in a hot pack nor on the node": Start.blocks,
    "hot pack: is there one": Start.pack,
    "lease of an import or a capture, free": Start.free,
    "the same, held by another node": Start.held,
    "each look whether it has ended": Start.look,
    "listing of a folder with the attributes of all its striped files": Start.folder,
    "the same, if only one of them is striped": Start.folder_of_one,
    "attributes of one of them, later": Start.later,
    "attributes of a file of a few bytes": Start.small,
    "first open of a striped file that was listed, beside its parts": Start.first,
    "opening it again, beside its parts": Start.again,
}


def test_each_line_of_the_table_is_counted():
    assert told().keys() == WORK.keys()


@pytest.mark.parametrize("what", WORK)
async def test_calls_are_those_of_the_table(what, autojump_clock):
    start = Start()
    await start.fill()
    store = FlakyStore(start.memory, lambda *_: False)
    await WORK[what](start, store)
    assert Counter(call[0] for call in store.calls) == told()[what]
