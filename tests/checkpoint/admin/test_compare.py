"""A local file and one in a store are the same if their bytes are, or are taken for it by time."""

import os

import pytest
import xxhash

from bootseer.checkpoint.admin.compare import has_content, is_same_time, same_content
from bootseer.checkpoint.files.parts import parts_folder
from bootseer.checkpoint.files.stripe_manifest import StripeManifest, UnitPlace
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.errors import BootseerError, Corrupt
from bootseer.parallel import background
from bootseer.store.api.base import publish
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore

UNIT = 4096
CONTENT = os.urandom(20 * UNIT + 5)
ID = "0" * 32
DAMAGES = {
    "first": lambda data: b"x" + data[1:],
    "last": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "shorter": lambda data: data[:-1],
    "empty": lambda data: b"",
}


class Watched(WrappedStore):
    """Counts reads."""

    reads = 0

    async def around(self, operation, name, call):
        self.reads += operation == "pread"
        return await call()


@pytest.fixture
async def store():
    """A store with the content in one part."""
    store = Watched(MemoryStore())
    units = [CONTENT[at : at + UNIT] for at in range(0, len(CONTENT), UNIT)]
    places = tuple(
        UnitPlace(0, n * UNIT, xxhash.xxh3_128_intdigest(u)) for n, u in enumerate(units)
    )
    layout = StripeManifest(len(CONTENT), UNIT, ID, 1, places)
    await publish(store, f"{parts_folder('', ID)}/0000", CONTENT)
    await publish(store, "file", layout.encode())
    return store


@pytest.fixture
async def entry(store):
    entry = await CheckpointTree(store).stat("file")
    store.reads = 0
    return entry


@pytest.fixture
def local(tmp_path):
    """Makes a local file, and opens it."""
    opened = []

    def local(content, flags=os.O_RDONLY):
        (tmp_path / "file").write_bytes(content)
        opened.append(os.open(tmp_path / "file", flags))
        return opened[-1]

    yield local
    for fd in opened:
        os.close(fd)


async def is_same(store, entry, fd):
    async with background() as nursery:
        fetcher = Fetcher(nursery, FetchLimits(memory_bytes=UNIT))
        return await same_content(fetcher, CheckpointTree(store), entry, fd)


async def test_the_same_bytes_are_the_same(store, entry, local):
    fd = local(CONTENT)
    assert await has_content(fd, entry.layout)
    assert store.reads == 0
    assert await is_same(store, entry, fd)
    assert store.reads == 21


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_one_that_differs_anywhere_is_another(store, entry, local, damage):
    fd = local(damage(CONTENT))
    assert not await has_content(fd, entry.layout)
    assert not await is_same(store, entry, fd)


async def test_no_more_is_read_than_shows_the_difference(store, entry, local):
    assert not await is_same(store, entry, local(b"x" + CONTENT[1:]))
    assert store.reads == 1


async def test_what_cannot_be_read_is_neither(store, entry, local):
    with pytest.raises(BootseerError, match="Bad file descriptor"):
        await is_same(store, entry, local(CONTENT, os.O_WRONLY))
    await publish(store, f"{parts_folder('', ID)}/0000", bytes(len(CONTENT)))
    with pytest.raises(Corrupt):
        await is_same(store, entry, local(CONTENT))


@pytest.mark.parametrize(
    ("one_ns", "other_ns", "same"),
    [
        (10**18, 10**18, True),
        (10**18, 10**18 + 999_999, True),
        (10**18, 10**18 + 1_000_000, False),
        (10**18, 10**18 - 1, False),
        (1, 2, True),
    ],
)
def test_times_are_compared_to_a_millisecond(one_ns, other_ns, same):
    assert is_same_time(one_ns, other_ns) == is_same_time(other_ns, one_ns) == same
