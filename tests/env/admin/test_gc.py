"""What goes by itself, and in which order."""

import json
import os
import time

import pytest
from trio import to_thread

from bootseer.env.admin.gc import DAY_NS, IN_USE_NS, collect
from bootseer.env.snapshot import repository
from bootseer.errors import NotFound
from bootseer.image.library import catalog as images
from bootseer.store import key_lease
from bootseer.store.api.base import publish
from bootseer.testing.fault_store import FlakyStore
from bootseer.units import format_size

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
    return sum(s.image_bytes for s in snapshots)


async def test_what_was_not_used_for_long_goes(installed, made):
    (old, *others), now_ns = made
    dry = await collect(installed.store, DAYS, 0, now_ns, True)
    assert keys(dry) == [old.key] and dry.freed_bytes == stored(old)
    assert len(await repository.list_snapshots(installed.store)) == 3
    done = await collect(installed.store, DAYS, 0, now_ns, False)
    assert done == dry and (done.kept, done.kept_bytes) == (2, stored(*others))
    assert len(await repository.list_snapshots(installed.store)) == 2
    assert (installed.root / "images" / old.image / "removed").exists()
    assert not (installed.root / "env/used" / old.key).exists()
    assert keys(await collect(installed.store, 0, 0, now_ns + 10**6 * DAY_NS, False)) == []


@pytest.mark.parametrize(("late_ns", "days"), [(0, None), (1, 30), (DAY_NS - 1, 30), (DAY_NS, 31)])
async def test_what_is_as_old_as_it_may_be_stays(installed, late_ns, days):
    snapshot = await to_thread.run_sync(installed.run, "echo x >TARGET/x")
    used_ns = time.time_ns() - 10**9
    installed.used(snapshot, used_ns)
    now_ns = used_ns + int(DAYS) * DAY_NS + late_ns
    gone = (await collect(installed.store, DAYS, 0, now_ns, True)).gone
    reasons = [one.reason for one in gone if one.kind == "environment"]
    assert reasons == ([f"not used for {days} days"] if days else [])


async def test_what_is_as_much_as_it_may_be_stays(installed, made):
    snapshots, now_ns = made
    quota = stored(*snapshots)
    assert (await collect(installed.store, 0, quota, now_ns, True)).gone == []
    (gone,) = (await collect(installed.store, 0, quota - 1, now_ns, True)).gone
    size, limit = format_size(quota), format_size(quota - 1)
    assert (gone.name, gone.reason) == (snapshots[0].key, f"{size} are more than {limit}")


async def test_names_keep_from_age_and_not_from_the_quota(installed, made):
    (old, middle, new), now_ns = made
    await repository.give_name(installed.store, "old", old.key)
    store = installed.store
    assert keys(await collect(store, DAYS, 0, now_ns, True)) == []
    quota = stored(old, middle, new) - 1
    assert keys(await collect(store, DAYS, quota, now_ns, True)) == [middle.key]
    assert keys(await collect(store, DAYS, stored(old), now_ns, True)) == [middle.key, new.key]
    done = await collect(store, DAYS, 1, now_ns, False)
    assert keys(done) == [middle.key, new.key, old.key]
    assert await repository.list_names(store) == {}


async def test_what_is_in_use_stays_whatever_the_quota(installed, made):
    (old, middle, new), now_ns = made
    installed.used(new, now_ns - IN_USE_NS)
    assert keys(await collect(installed.store, 0, 1, now_ns, True)) == [old.key, middle.key]
    done = await collect(installed.store, 0, 1, now_ns + 1, True)
    assert keys(done) == [old.key, middle.key, new.key]
    installed.used(new, now_ns - 10**9)
    assert keys(await collect(installed.store, 0, 1, now_ns, False)) == [old.key, middle.key]


async def test_leftovers_of_captures_go_after_a_day(installed):
    snapshot = await to_thread.run_sync(installed.run, "echo x >TARGET/x")
    store, other = installed.store, "f" * 64
    for key in (snapshot.key, other):
        await publish(store, f"{repository.folder_of(key, 'ab' * 8)}/index", b"12345")
    now_ns = time.time_ns()
    assert (await collect(store, DAYS, 0, now_ns, False)).gone == []
    held = await key_lease.acquire(store, repository.lease_folder(other), "bob on n2")
    assert held is not None
    later_ns = now_ns + 2 * DAY_NS
    found = await collect(store, DAYS, 0, later_ns, True)
    assert sorted(keys(found, "capture")) == sorted(
        repository.folder_of(key, "ab" * 8) for key in (snapshot.key, other)
    )
    assert len(keys(found, "claim")) == 1  # which had run out by then
    assert keys(found, "image") == []
    assert found.freed_bytes == 10
    assert await collect(store, DAYS, 0, later_ns, False) == found
    assert [info.name for info in await store.list("env/snapshots")] == [
        repository.folder_of(snapshot.key)
    ]
    assert len(await store.list(repository.folder_of(snapshot.key))) == 2
    assert await store.list("env/claims") == []
    assert (await repository.read_index(store, snapshot)).tree


async def test_of_several_captures_those_go_that_came_to_no_end(installed):
    snapshot = await to_thread.run_sync(installed.run, "echo x >TARGET/x")
    store, folder = installed.store, repository.folder_of(snapshot.key)
    names = ("0" * 15 + "1", "0" * 15 + "2", "f" * 15 + "e", "f" * 16, "f" * 15, "other")
    for name in names:
        await publish(store, f"{folder}/{name}/index", b"12345")
    await publish(store, f"{folder}/{'0' * 16}", b"no folder")
    now_ns = time.time_ns()
    for path in (installed.root / folder).rglob("*"):
        os.utime(path, (0, 0))
    os.utime(installed.root / folder / names[0], ns=(0, now_ns - DAY_NS))
    os.utime(installed.root / folder / names[2] / "index", ns=(0, now_ns - DAY_NS))
    found = await collect(store, DAYS, 0, now_ns, False)
    assert keys(found, "capture") == [f"{folder}/{names[1]}", f"{folder}/{names[3]}"]
    found = await collect(store, DAYS, 0, now_ns + 1, False)
    assert keys(found, "capture") == [f"{folder}/{names[0]}", f"{folder}/{names[2]}"]


@pytest.mark.parametrize("dry_run", [True, False])
async def test_an_empty_folder_of_a_snapshot_goes(installed, dry_run):
    key = "f" * 64
    folder = installed.root / repository.folder_of(key)
    folder.mkdir(parents=True)
    assert (await collect(installed.store, DAYS, 0, time.time_ns(), dry_run)).gone == []
    assert folder.exists() == dry_run


async def test_claims_go_that_have_run_out_for_long(installed):
    store, now_ns = installed.store, time.time_ns()
    ages_ns = {"1": 3600 * 10**9 - 1, "2": 3600 * 10**9, "3": -1, "4": 10**18}
    for digit, age_ns in ages_ns.items():
        document = {"format": "bootseer lease", "version": 1, "who": "bob on n2", "token": ""}
        content = json.dumps({**document, "until_ns": now_ns - age_ns}).encode()
        await publish(store, f"env/claims/{digit * 64}/0001.json", content)
    await publish(store, f"env/claims/{'5' * 64}/0003.json", b"damaged")
    await publish(store, "env/claims/0/0001.json", b"nobody's")
    found = (await collect(store, 0, 0, now_ns, True)).gone
    assert [(gone.kind, gone.name, gone.reason) for gone in found] == [
        ("claim", f"env/claims/{'2' * 64}/0001.json", "of bob on n2, run out"),
        ("claim", f"env/claims/{'4' * 64}/0001.json", "of bob on n2, run out"),
        ("claim", f"env/claims/{'5' * 64}/0003.json", "of nobody, run out"),
    ]
    assert len(await store.list("env/claims")) == 6
    assert (await collect(store, 0, 0, now_ns, False)).gone == found
    left = [info.name for info in await store.list("env/claims")]
    assert left == ["env/claims/0", f"env/claims/{'1' * 64}", f"env/claims/{'3' * 64}"]


async def test_a_capture_that_goes_on_keeps_what_it_has(installed):
    store, key = installed.store, "f" * 64
    await publish(store, f"{repository.folder_of(key, 'ab' * 8)}/index", b"12345")
    for path in (installed.root / "env/snapshots").rglob("*"):
        os.utime(path, (0, 0))
    await key_lease.acquire(store, repository.lease_folder(key), "bob on n2")
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


async def test_notes_stay_of_what_is_there_or_goes_on(installed):
    snapshot = await to_thread.run_sync(installed.run, "echo x >TARGET/x")
    store, key = installed.store, snapshot.key
    for name in (f"env/used/{key}", "env/jobs/1/old", "env/jobs/1/new", "env/jobs/2"):
        await publish(store, name, b"")
    (last,) = await store.list("env/last")
    now_ns = time.time_ns() + DAY_NS
    for name in (f"env/used/{key}", "env/jobs/1/old", "env/jobs/1"):
        os.utime(installed.root / name, ns=(0, 0))
    for name in ("env/jobs/1/new", "env/jobs/2"):
        os.utime(installed.root / name, ns=(0, now_ns - DAY_NS))
    os.utime(installed.root / last.name, ns=(0, now_ns - 30 * DAY_NS))
    assert (await collect(store, DAYS, 0, now_ns, False)).gone == []
    found = await collect(store, 0, 0, now_ns + 99 * DAY_NS, False)
    assert keys(found, "note") == ["env/jobs/1", "env/jobs/2"]  # for ever: env/last too


async def test_what_cannot_be_judged_stays(installed):
    snapshot = await to_thread.run_sync(installed.run, "echo x >TARGET/x")
    manifest = installed.root / repository.manifest_object(snapshot.key)
    whole = manifest.read_bytes()
    later_ns = time.time_ns() + 10 * DAY_NS
    for data in (whole.replace(b'"version": 2', b'"version": 3', 1), whole[1:]):
        manifest.write_bytes(data)
        found = await collect(installed.store, DAYS, 1, later_ns, False)
        assert found.gone == [] and found.problems
    found = await collect(installed.store, 0, 1, later_ns + 60 * DAY_NS, False)
    assert found.gone == [] and "bootseer env rm" in found.problems[0]  # for ever
    # Too old, and damaged for good.
    found = await collect(installed.store, DAYS, 0, later_ns + 60 * DAY_NS, False)
    assert keys(found) == [snapshot.key]
    # Its squashfs is nobody's then.
    assert keys(found, "image") == [f"images/{snapshot.image}"]
    assert (installed.root / "images" / snapshot.image / "removed").exists()


async def test_what_has_come_meanwhile_is_not_judged(installed):
    snapshot = await to_thread.run_sync(installed.run, "echo x >TARGET/x")
    manifest = repository.manifest_object(snapshot.key)
    later_ns = time.time_ns() + 2 * DAY_NS
    looks = []

    def fails(count, operation, name):
        if (operation, name) == ("open", manifest):
            looks.append(name)
            if len(looks) == 1:
                raise NotFound("not yet")
        return False

    found = await collect(FlakyStore(installed.store, fails), DAYS, 1, later_ns, False)
    assert found.problems == [f"{snapshot.key[:12]} is new"]
    assert found.gone == []  # nor its image
    assert await repository.read_snapshot(installed.store, snapshot.key) == snapshot


async def test_images_of_captures_that_came_to_no_end_go(installed):
    store, now_ns = installed.store, time.time_ns()
    about = images.ImageOrigin(f"environment {'e' * 64}", "ada", 1)
    other = images.ImageOrigin("train.sqsh", "ada", 1)
    for digit, said in (("0", other), ("1", about), ("2", about), ("3", about)):
        await images.write_about(store, digit * 64, said)
    await publish(store, f"images/{'4' * 64}/part-0000", b"of nobody")
    await images.give_name(store, "kept", "1" * 64, 5)
    for path in (installed.root / "images").rglob("*"):
        os.utime(path, ns=(0, now_ns - DAY_NS - 1))
    os.utime(installed.root / f"images/{'2' * 64}/about.json", ns=(0, now_ns - DAY_NS))
    for dry_run in (True, False):
        found = await collect(store, DAYS, 1, now_ns, dry_run)
        assert keys(found, "image") == [f"images/{'3' * 64}"]
        assert (installed.root / f"images/{'3' * 64}/removed").exists() != dry_run
    assert (await collect(store, DAYS, 1, now_ns, False)).gone == []


async def test_images_go_a_day_after_their_environment(installed, made):
    (old, *_), now_ns = made
    await collect(installed.store, DAYS, 0, now_ns, False)
    removed = installed.root / "images" / old.image / "removed"
    assert keys(await collect(installed.store, DAYS, 0, now_ns, False), "image") == []
    for path in (removed, *removed.parent.iterdir()):
        os.utime(path, (0, 0))
    found = await collect(installed.store, DAYS, 0, now_ns, True)
    assert keys(found, "image") == [f"images/{old.image}"] and removed.exists()
    await collect(installed.store, DAYS, 0, now_ns, False)
    assert old.image not in [i.name[7:] for i in await installed.store.list("images")]


async def test_other_images_are_left_alone(installed):
    about = images.ImageOrigin("train.sqsh", "ada", 1)
    await images.write_about(installed.store, "d" * 64, about)
    later_ns = time.time_ns() + 99 * DAY_NS
    assert (await collect(installed.store, DAYS, 1, later_ns, False)).gone == []
