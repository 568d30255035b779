"""What snapshots are called in a store, and what goes with one."""

import json
import os
import time
from dataclasses import replace

import pytest
from trio import to_thread

from bootseer.env.snapshot import repository
from bootseer.errors import ConfigError, Conflict, Corrupt, NotFound
from bootseer.store.api.base import publish
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore

KEYS = ("1" * 64, "1" * 8 + "2" * 56, "3" * 64)


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


async def make(store, *keys):
    """Make folders of snapshots without a manifest."""
    for key in keys:
        await publish(store, f"{repository.folder_of(key)}/x", b"")


# The last use.


@pytest.mark.parametrize(("age_s", "is_noted"), [(3000, False), (4000, True)])
async def test_a_use_is_noted_to_the_hour(store, tmp_path, age_s, is_noted):
    await repository.note_use(store, KEYS[0])
    path = tmp_path / "store/env/used" / KEYS[0]
    used_ns = time.time_ns() - age_s * 10**9
    os.utime(path, ns=(used_ns, used_ns))
    await repository.note_use(store, KEYS[0])
    assert (path.stat().st_mtime_ns != used_ns) == is_noted


async def test_a_use_that_cannot_be_noted_fails_nothing():
    await repository.note_use(FlakyStore(MemoryStore(), lambda *_: True), KEYS[0])


async def test_what_was_used_last_is_listed_first(installed):
    found = [await to_thread.run_sync(installed.run, f"echo {n} >TARGET/x") for n in range(3)]
    now_ns = time.time_ns()
    for snapshot, age in zip(found, (2, 1, 3), strict=True):
        installed.used(snapshot, now_ns - age * 10**9)
    await make(installed.store, "f" * 64)
    os.utime(installed.root / repository.folder_of("f" * 64), (0, 0))
    for name in ("0", "F" * 64, "f" * 63):
        await publish(installed.store, f"env/snapshots/{name}/manifest.json", b"")
    listed = await repository.list_snapshots(installed.store)
    assert [one.key for one in listed] == [*(found[n].key for n in (1, 0, 2)), "f" * 64]
    assert [now_ns - one.used_ns for one in listed[:3]] == [10**9, 2 * 10**9, 3 * 10**9]
    assert listed[3].used_ns == 0
    assert listed[3].problem == "its capture is running or was interrupted"
    assert [one.problem for one in listed[:3]] == ["", "", ""]


async def test_what_was_captured_after_its_last_use_was_used_then(installed):
    snapshot = await to_thread.run_sync(installed.run, "echo 1 >TARGET/x")
    installed.used(snapshot, 10**9)
    (listed,) = await repository.list_snapshots(installed.store)
    assert listed.used_ns == 10**9
    os.utime(installed.root / "env/used" / snapshot.key, ns=(5, 5))
    (listed,) = await repository.list_snapshots(installed.store)
    assert listed.used_ns == 10**9


# Names.


async def test_a_key_is_found_by_how_it_begins(store):
    await make(store, *KEYS)
    assert await repository.resolve(store, "3" * 8) == KEYS[2]
    assert await repository.resolve(store, "1" * 9) == KEYS[0]
    with pytest.raises(Conflict, match="2 environments begin with 11111111:"):
        await repository.resolve(store, "1" * 8)
    for reference in ("3" * 7, "4" * 8):
        with pytest.raises(NotFound, match="env ls"):
            await repository.resolve(store, reference)
    assert await repository.resolve(store, "4" * 64) == "4" * 64  # who reads it finds out


async def test_a_name_comes_before_how_a_key_begins(store):
    await make(store, *KEYS)
    await repository.give_name(store, "3" * 8, KEYS[0])
    assert await repository.resolve(store, "3" * 8) == KEYS[0]


@pytest.mark.parametrize("name", ["", ".", ".x", "-x", "x/y", "x y", "x" * 129, "a" * 64, "é"])
async def test_what_cannot_be_a_name_is_refused(store, name):
    with pytest.raises(ConfigError, match="cannot be the name of an environment"):
        await repository.give_name(store, name, KEYS[0])
    assert await repository.list_names(store) == {}


async def test_a_name_that_is_damaged_is_told_and_others_are_listed(store):
    await repository.give_name(store, "good", KEYS[0])
    await repository.give_name(store, "x" * 128, KEYS[1])
    await publish(store, "env/names/bad", b"what?")
    assert await repository.list_names(store) == {"good": KEYS[0], "x" * 128: KEYS[1]}
    with pytest.raises(Corrupt, match="the name bad of an environment is damaged"):
        await repository.resolve(store, "bad")


async def test_a_file_names_an_environment(store, tmp_path):
    path = tmp_path / "key.json"
    path.write_text(json.dumps({"key": KEYS[0], "parts": []}))
    assert await repository.resolve(store, str(path)) == KEYS[0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[]", "has no key"),
        (b"{}", "has no key"),
        (b'{"key": 5}', "has no key"),
        (b'{"key": "1234"}', "has no key"),
    ],
)
async def test_a_file_that_names_no_environment_is_told(store, tmp_path, content, why):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        await repository.resolve(store, str(tmp_path / "file"))


async def test_what_is_no_file_names_no_environment(store, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no regular file"):
        await repository.resolve(store, str(tmp_path / "pipe"))
    with pytest.raises(NotFound, match="cannot be read"):
        await repository.resolve(store, str(tmp_path / "none"))


# Going.


async def test_an_image_stays_as_long_as_a_snapshot_has_it(installed):
    """Two commands may make the same."""
    found = [await to_thread.run_sync(installed.run, f"echo {n} >TARGET/x") for n in range(2)]
    found[1] = replace(found[1], image=found[0].image)
    manifest = repository.manifest_object(found[1].key)
    await publish(installed.store, manifest, found[1].encode())
    removed = installed.root / "images" / found[0].image / "removed"
    for name, snapshot in zip(("one", "two"), found, strict=True):
        await repository.give_name(installed.store, name, snapshot.key)
    await repository.remove(installed.store, found[0].key)
    assert not removed.exists()
    assert await repository.list_names(installed.store) == {"two": found[1].key}
    assert await repository.read_snapshot(installed.store, found[1].key) == found[1]
    await repository.remove(installed.store, found[1].key)
    assert removed.exists()
    with pytest.raises(NotFound):
        await repository.remove(installed.store, found[1].key)


async def test_the_manifest_goes_first(installed):
    """The rest is nothing without it, should this end half-way."""
    snapshot = await to_thread.run_sync(installed.run, "echo 1 >TARGET/x")
    watched = FlakyStore(installed.store, lambda *_: False)
    await repository.remove(watched, snapshot.key)
    going = [call for call in watched.calls if call[0].startswith("delete")]
    assert going[:2] == [
        ("delete", repository.manifest_object(snapshot.key)),
        ("delete_tree", repository.folder_of(snapshot.key)),
    ]


async def test_a_snapshot_that_is_damaged_goes_too(installed):
    snapshot = await to_thread.run_sync(installed.run, "echo 1 >TARGET/x")
    installed.damage(repository.manifest_object(snapshot.key), 2)
    await repository.remove(installed.store, snapshot.key, now=True)
    assert await repository.list_snapshots(installed.store) == []
    assert (installed.root / "images" / snapshot.image).exists()  # whose it is cannot be told
