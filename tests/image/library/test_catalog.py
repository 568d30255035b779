"""Names of images in a store, and what is said of the image that has one."""

import json
from types import SimpleNamespace

import pytest

from bootseer.errors import ConfigError, NotFound, Transient
from bootseer.image.library import catalog
from bootseer.image.library.catalog import ImageOrigin, NamedImage
from bootseer.store.api.base import publish, read_all
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore, SlowStore
from bootseer.units import NS_PER_S

DIGEST = "ab" * 32
OTHER = "cd" * 32
NOW_NS = 1_800_000_000 * NS_PER_S


@pytest.fixture
def now(monkeypatch):
    now = SimpleNamespace(ns=NOW_NS)
    monkeypatch.setattr(catalog, "time", SimpleNamespace(time_ns=lambda: now.ns))
    return now


@pytest.fixture
async def store():
    """A store that has an image of two names; what is in it does not matter."""
    store = MemoryStore()
    await publish(store, catalog.part_object(DIGEST, 0), b"content")
    for name in ("one", "two"):
        await catalog.give_name(store, name, DIGEST, 7)
    return store


async def is_there(store):
    try:
        await store.stat(catalog.part_object(DIGEST, 0))
    except NotFound:
        return False
    return True


@pytest.mark.parametrize(
    "name",
    ["!~", "x" * 200, "/" * 83 + "x", "f" * 63, "f" * 65, "F" * 64, "docker://host#a/b:1"],
)
def test_what_can_be_a_name(name):
    assert catalog.check_name(name) == name
    assert not catalog.is_digest(name)


@pytest.mark.parametrize("name", ["x" * 201, "/" * 83 + "xx", "0" * 64, " ", "a b", "\x7f"])
def test_what_is_too_long_or_means_something_else_is_no_name(name):
    with pytest.raises(ConfigError):
        catalog.check_name(name)


@pytest.mark.parametrize(
    "name", ["bootseer://x", "docker://bootseer://x", "docker://me@host#a/b:1", "bootseer://"]
)
def test_a_name_that_asks_for_another_is_refused(name):
    """It was given, and could not be addressed afterwards, not even to remove it."""
    with pytest.raises(ConfigError, match="name it"):
        catalog.check_name(name)


def test_where_things_are():
    assert catalog.name_object("a/b:1") == "image-names/a%2Fb%3A1.json"
    assert catalog.part_object(DIGEST, 12) == f"images/{DIGEST}/part-0012"
    assert catalog.manifest_object(DIGEST) == f"images/{DIGEST}/manifest"
    assert catalog.token_object(DIGEST) == f"images/{DIGEST}/token"


async def test_a_name_says_of_which_image_it_is_since_when_and_how_long_that_is(now):
    store = MemoryStore()
    await catalog.give_name(store, "a/b", DIGEST, 7)
    now.ns += 5
    await catalog.give_name(store, "c", OTHER, 8)
    assert await catalog.list_names(store) == [
        NamedImage("a/b", DIGEST, 7, NOW_NS),
        NamedImage("c", OTHER, 8, NOW_NS + 5),
    ]
    for reference in ("a/b", "bootseer://a/b", DIGEST, f"bootseer://{DIGEST}"):
        assert await catalog.resolve(store, reference) == DIGEST
    data = await read_all(store, catalog.name_object("c"), 1000)
    assert data.endswith(b"}\n") and json.loads(data)["version"] == 1


async def test_where_an_image_comes_from_is_said_if_it_is_known(store):
    assert await catalog.read_about(store, DIGEST) is None
    about = ImageOrigin("/images/a.sqsh", "alice", NOW_NS)
    await catalog.write_about(store, DIGEST, about)
    assert await catalog.read_about(store, DIGEST) == about
    down = FlakyStore(store, lambda *call: True)
    with pytest.raises(Transient):
        await catalog.read_about(down, DIGEST)
    name = f"images/{DIGEST}/about.json"
    document = json.loads(await read_all(store, name, 10_000))
    for change in ({"added_by": "x" * 257}, {"added_ns": -1}):
        await publish(store, name, json.dumps(document | change).encode())
        assert await catalog.read_about(store, DIGEST) is None
    for change in ({"added_by": "x" * 256}, {"added_ns": 0}, {"optimized_from": "f" * 64}):
        await publish(store, name, json.dumps(document | change).encode())
        assert await catalog.read_about(store, DIGEST) is not None


async def test_an_image_that_is_not_there_is_named(store):
    with pytest.raises(NotFound, match=f"there is no image {OTHER} in memory"):
        await catalog.read_manifest(store, OTHER)
    with pytest.raises(NotFound, match=r"there is no image 'other' in memory.*image import"):
        await catalog.resolve(store, "other")


async def test_rights_are_those_of_the_manifest_and_the_token(tmp_path):
    store = LocalStore(tmp_path)
    await catalog.write_manifest(store, DIGEST, b"manifest", mode=0o640)
    for name in (catalog.manifest_object(DIGEST), catalog.token_object(DIGEST)):
        assert (await store.stat(name)).mode == 0o640


async def test_an_image_goes_a_day_after_its_last_name(store, now):
    removed = f"images/{DIGEST}/removed"
    assert await catalog.remove(store, "one") == (DIGEST, False)
    assert await catalog.remove(store, "two") == (DIGEST, True)
    await store.set_mtime(removed, now.ns - 86_400 * NS_PER_S + 1)
    assert await catalog.list_removed(store) == await catalog.sweep(store) == []
    assert not await catalog.drop(store, DIGEST)
    assert await is_there(store)
    now.ns += 1
    assert await catalog.list_removed(store) == await catalog.sweep(store) == [DIGEST]
    assert not await is_there(store)
    assert await catalog.list_removed(store) == []


async def test_all_names_go_with_the_digest(store):
    await catalog.give_name(store, "other", OTHER, 7)
    assert await catalog.remove(store, f"bootseer://{DIGEST}") == (DIGEST, True)
    assert [named.name for named in await catalog.list_names(store)] == ["other"]
    assert await is_there(store), "jobs may be reading it"


async def test_an_image_that_is_removed_at_once_is_gone_with_its_last_name_only(store):
    assert await catalog.remove(store, "one", now=True) == (DIGEST, False)
    assert await is_there(store)
    assert await catalog.remove(store, "bootseer://two", now=True) == (DIGEST, True)
    assert not await is_there(store)


async def test_an_image_that_was_listed_and_has_a_name_again_is_not_dropped(store):
    await catalog.remove(store, DIGEST)
    assert await catalog.list_removed(store, 0) == [DIGEST]
    # As by who has crashed in `give_name`: the name is there, and the image said to be removed.
    await catalog.give_name(store, "three", DIGEST, 7)
    assert await catalog.list_removed(store, 0) == []
    await publish(store, f"images/{DIGEST}/removed", b"")
    assert not await catalog.drop(store, DIGEST, 0)
    assert await catalog.list_removed(store, 0) == []
    await catalog.remove(store, "three")
    await catalog.revive(store, DIGEST)
    await catalog.revive(store, DIGEST)  # as good as once
    assert await catalog.list_removed(store, 0) == []
    assert not await catalog.drop(store, DIGEST, 0) and await is_there(store)


async def test_two_may_drop_an_image_at_once(store):
    class Other(SlowStore):
        async def around(self, operation, name, call):
            if operation == "delete_tree":
                await call()
            return await super().around(operation, name, call)

    await catalog.remove(store, DIGEST)
    assert await catalog.drop(Other(store, 0), DIGEST, 0)
    assert not await is_there(store)
