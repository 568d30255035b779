"""What goes by itself, and in which order."""

import os
import time

import pytest
from trio import to_thread

from bootseer.env import catalog, claim
from bootseer.env.collect import DAY_NS, collect
from bootseer.image import catalog as images
from bootseer.store.base import publish

DAYS = 30.0


@pytest.fixture
def made(installed):
    """Three snapshots of 1, 2 and 3 files, used 40, 20 and 10 days ago; and now."""
    now_ns = time.time_ns()
    found = [
        installed.run(
            f"for i in {' '.join('abc'[:n])}; do head -c 100000 /dev/urandom >TARGET/$i; done"
        )
        for n in (1, 2, 3)
    ]
    for snapshot, days in zip(found, (40, 20, 10), strict=True):
        installed.used(snapshot, now_ns - days * DAY_NS)
    return found, now_ns


def keys(collected, kind="environment"):
    return [gone.name for gone in collected.gone if gone.kind == kind]


def stored(*snapshots):
    return sum(s.image_bytes + s.frames_bytes for s in snapshots)


async def test_what_was_not_used_for_long_goes(installed, made):
    (old, *others), now_ns = made
    dry = await collect(installed.store, DAYS, 0, now_ns, True)
    assert keys(dry) == [old.key] and dry.freed_bytes == stored(old)
    assert len(await catalog.list_snapshots(installed.store)) == 3
    done = await collect(installed.store, DAYS, 0, now_ns, False)
    assert done == dry and (done.kept, done.kept_bytes) == (2, stored(*others))
    assert len(await catalog.list_snapshots(installed.store)) == 2
    assert (installed.root / "images" / old.image / "removed").exists()
    assert not (installed.root / "env/used" / old.key).exists()
    assert keys(await collect(installed.store, 0, 0, now_ns + 10**6 * DAY_NS, False)) == []


async def test_names_keep_from_age_and_not_from_the_quota(installed, made):
    (old, middle, new), now_ns = made
    await catalog.give_name(installed.store, "old", old.key)
    store = installed.store
    assert keys(await collect(store, DAYS, 0, now_ns, True)) == []
    quota = stored(old, middle, new) - 1
    assert keys(await collect(store, DAYS, quota, now_ns, True)) == [middle.key]
    assert keys(await collect(store, DAYS, stored(old), now_ns, True)) == [middle.key, new.key]
    done = await collect(store, DAYS, 1, now_ns, False)
    assert keys(done) == [middle.key, new.key, old.key]
    assert await catalog.list_names(store) == {}


async def test_what_is_in_use_stays_whatever_the_quota(installed, made):
    (old, middle, new), now_ns = made
    installed.used(new, now_ns - 10**9)
    assert keys(await collect(installed.store, 0, 1, now_ns, False)) == [old.key, middle.key]


async def test_leftovers_of_captures_go_after_a_day(installed):
    snapshot = await to_thread.run_sync(installed.run, "echo x >TARGET/x")
    store, other = installed.store, "f" * 64
    for key in (snapshot.key, other):
        await publish(store, f"{catalog.folder_of(key, 'ab' * 8)}/frames-0000", b"12345")
    now_ns = time.time_ns()
    assert (await collect(store, DAYS, 0, now_ns, False)).gone == []
    held = await claim.try_claim(store, other, "bob on n2")
    assert held is not None
    later_ns = now_ns + 2 * DAY_NS
    found = await collect(store, DAYS, 0, later_ns, True)
    assert sorted(keys(found, "capture")) == sorted(
        catalog.folder_of(key, "ab" * 8) for key in (snapshot.key, other)
    )
    assert len(keys(found, "claim")) == 1  # which had run out by then
    assert found.freed_bytes == 10
    await collect(store, DAYS, 0, later_ns, False)
    assert [info.name for info in await store.list("env/snapshots")] == [
        catalog.folder_of(snapshot.key)
    ]
    assert len(await store.list(catalog.folder_of(snapshot.key))) == 2
    assert await store.list("env/claims") == []
    assert (await catalog.read_index(store, snapshot)).tree


async def test_a_capture_that_goes_on_keeps_what_it_has(installed):
    store, key = installed.store, "f" * 64
    await publish(store, f"{catalog.folder_of(key, 'ab' * 8)}/frames-0000", b"12345")
    for path in (installed.root / "env/snapshots").rglob("*"):
        os.utime(path, (0, 0))
    await claim.try_claim(store, key, "bob on n2")
    assert (await collect(store, DAYS, 0, time.time_ns(), False)).gone == []


async def test_notes_go(installed):
    store = installed.store
    for name in ("env/last/x.json", "env/jobs/1", "env/jobs/2/a", "env/used/" + "e" * 64):
        await publish(store, name, b"")
    now_ns = time.time_ns()
    assert (await collect(store, DAYS, 0, now_ns, False)).gone == []
    found = await collect(store, DAYS, 0, now_ns + 2 * DAY_NS, False)
    assert keys(found, "note") == ["env/used/" + "e" * 64, "env/jobs/1", "env/jobs/2"]
    found = await collect(store, DAYS, 0, now_ns + 31 * DAY_NS, False)
    assert keys(found, "note") == ["env/last/x.json"]


async def test_what_cannot_be_judged_stays(installed):
    snapshot = await to_thread.run_sync(installed.run, "echo x >TARGET/x")
    manifest = installed.root / catalog.manifest_object(snapshot.key)
    whole = manifest.read_bytes()
    later_ns = time.time_ns() + 10 * DAY_NS
    for data in (whole.replace(b'"version": 1', b'"version": 2', 1), whole[1:]):
        manifest.write_bytes(data)
        found = await collect(installed.store, DAYS, 1, later_ns, False)
        assert found.gone == [] and found.problems
    # Too old, and damaged for good.
    found = await collect(installed.store, DAYS, 0, later_ns + 60 * DAY_NS, False)
    assert keys(found) == [snapshot.key]
    # Its squashfs is nobody's then.
    assert keys(found, "image") == [f"images/{snapshot.image}"]
    assert (installed.root / "images" / snapshot.image / "removed").exists()


async def test_images_go_a_day_after_their_environment(installed, made):
    (old, *_), now_ns = made
    await collect(installed.store, DAYS, 0, now_ns, False)
    removed = installed.root / "images" / old.image / "removed"
    assert keys(await collect(installed.store, DAYS, 0, now_ns, False), "image") == []
    os.utime(removed, (0, 0))
    found = await collect(installed.store, DAYS, 0, now_ns, True)
    assert keys(found, "image") == [f"images/{old.image}"] and removed.exists()
    await collect(installed.store, DAYS, 0, now_ns, False)
    assert old.image not in [i.name[7:] for i in await installed.store.list("images")]


async def test_other_images_are_left_alone(installed):
    about = images.About("train.sqsh", "ada", 1)
    await images.write_about(installed.store, "d" * 64, about)
    later_ns = time.time_ns() + 99 * DAY_NS
    assert (await collect(installed.store, DAYS, 1, later_ns, False)).gone == []
