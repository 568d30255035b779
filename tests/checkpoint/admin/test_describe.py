"""What can be told of a file without reading it."""

import pytest

from bootseer.checkpoint.admin.describe import FileProblem, describe
from bootseer.checkpoint.files.parts import parts_folder
from bootseer.checkpoint.files.stripe_manifest import StripeManifest, UnitPlace
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.errors import NotFound, Unavailable
from bootseer.store.api.base import BlockLocation, publish
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore

UNIT = 4096
ID = "0" * 32
FOLDER = parts_folder("run", ID)
# The second part has lost what it had to a later one.
LAYOUT = StripeManifest(
    3 * UNIT - 100, UNIT, ID, 4, (UnitPlace(0, 0, 1), UnitPlace(2, 0, 2), UnitPlace(3, UNIT, 3))
)
LENGTHS = [UNIT, 0, UNIT, 2 * UNIT - 100]


class Placed(WrappedStore):
    """Tells on which machines an object is."""

    async def around(self, operation, name, call):
        return await call()

    async def block_locations(self, name):
        last = name[-1]
        return [
            BlockLocation(0, UNIT, (f"first of {last}", f"second of {last}")),
            BlockLocation(UNIT, UNIT, (f"second of {last}", f"third of {last}")),
        ]


def hosts(name):
    return tuple(f"{number} of {name[-1]}" for number in ("first", "second", "third"))


@pytest.fixture
async def store():
    store = MemoryStore()
    for index, length in enumerate(LENGTHS):
        await publish(store, f"{FOLDER}/{index:04d}", bytes(length))
    await publish(store, "run/file", LAYOUT.encode())
    await publish(store, "run/plain", b"plain")
    return store


def told(found):
    return [(part.index, part.need_bytes, part.size_bytes) for part in found.parts]


async def test_a_file_that_is_whole(store):
    found = await describe(CheckpointTree(store), "run/file")
    assert found.is_whole and found.problems == ()
    assert (found.entry.name, found.folder) == ("run/file", FOLDER)
    assert told(found) == [(n, length, length) for n, length in enumerate(LENGTHS)]
    assert {part.hosts for part in found.parts} == {()}


async def test_parts_that_are_missing_or_short_are_problems_if_something_is_in_them(store):
    await store.delete(f"{FOLDER}/0001")
    await publish(store, f"{FOLDER}/0002", bytes(UNIT - 1))
    await publish(store, f"{FOLDER}/0003", bytes(3 * UNIT))
    await store.delete(f"{FOLDER}/0000")
    found = await describe(CheckpointTree(store), "run/file")
    assert not found.is_whole
    assert told(found)[0] == (0, UNIT, None)
    assert told(found)[1:] == [(1, 0, None), (2, UNIT, UNIT - 1), (3, LENGTHS[3], 3 * UNIT)]
    assert [str(problem) for problem in found.problems] == [
        "run/file: unit 0 in part 0000: the part is missing",
        f"run/file: unit 1 in part 0002: the part has {UNIT - 1} of {UNIT} bytes",
    ]


async def test_all_parts_may_be_missing(store):
    await store.delete_tree(FOLDER)
    found = await describe(CheckpointTree(store), "run/file")
    assert found.folder == FOLDER
    assert [part.size_bytes for part in found.parts] == [None] * 4
    assert [problem.part for problem in found.problems] == [0, 2, 3]


async def test_a_manifest_that_cannot_be_used(store):
    data = LAYOUT.encode()
    await publish(store, "run/file", data[:-1] + bytes([data[-1] ^ 1]))
    found = await describe(CheckpointTree(store), "run/file")
    assert not found.is_whole and found.parts == ()
    (problem,) = found.problems
    assert (problem.name, problem.part, problem.units) == ("run/file", None, ())


async def test_what_is_no_striped_file(store):
    tree = CheckpointTree(store)
    for name in ("run", "run/plain"):
        found = await describe(tree, name)
        assert found.is_whole
        assert (found.folder, found.parts, found.hosts) == ("", (), ())
    with pytest.raises(NotFound):
        await describe(tree, "run/none")


async def test_on_which_machines_it_is(store):
    await store.delete(f"{FOLDER}/0002")
    tree = CheckpointTree(Placed(store))
    assert (await describe(tree, "run")).hosts == ()
    assert (await describe(tree, "run/plain")).hosts == hosts("plain")
    found = await describe(tree, "run/file")
    assert found.hosts == ()
    assert [part.hosts for part in found.parts] == [hosts("0"), hosts("1"), (), hosts("3")]


async def test_a_store_that_does_not_answer(store):
    def fails(count, operation, name):
        return operation == "block_locations"

    assert (await describe(CheckpointTree(FlakyStore(store, fails)), "run/file")).is_whole
    with pytest.raises(Unavailable):
        await FlakyStore(store, lambda *_: False).block_locations("run/file")


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (FileProblem("a/f", "it is damaged"), "a/f: it is damaged"),
        (FileProblem("a/f", "'a/f' is damaged"), "'a/f' is damaged"),
        (FileProblem("a/f", "a/f is short", 7, (5,)), "a/f: unit 5 in part 0007: a/f is short"),
        (FileProblem("f", "short", 0, (3, 4)), "f: units 3-4 in part 0000: short"),
        (FileProblem("f", "short", 0, (3, 5, 6, 7)), "f: units 3, 5-7 in part 0000: short"),
    ],
)
def test_a_problem_is_told_with_all_that_is_known_of_it(problem, expected):
    assert str(problem) == expected
