"""A snapshot is stored whole or not at all; one that is damaged is captured again."""

import json
import os
import shutil

import pytest
import trio

from bootseer.core import image_manifest
from bootseer.env.capture import capture, upload
from bootseer.env.capture.upload import Provenance, publish_snapshot
from bootseer.env.client.key import KeyPart
from bootseer.env.client.scan import tree_digest
from bootseer.env.restore.atomic import RestoreTarget, restore
from bootseer.env.snapshot import manifest, repository
from bootseer.env.snapshot.chunk_source import ChunkSource
from bootseer.env.snapshot.chunks import split
from bootseer.errors import BootseerError, Conflict, NotFound, Transient, Unavailable
from bootseer.store.api import base as store_base
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import CHANGES, FlakyStore, HangingStore
from bootseer.units import MIB

STORY = Provenance((KeyPart("command", "make it"),), ("/target",), ("empty",), "user", "node", 1234)
KEY = STORY.key


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "made"
    (folder / "lib").mkdir(parents=True)
    return folder


@pytest.fixture
def made(folder):
    """What a command has made: enough for several parts, if these are small."""
    before = [capture.scan_before(str(folder))]
    for number in range(5):
        (folder / f"lib/{number}").write_bytes(os.urandom(600_000))
    os.link(folder / "lib/1", folder / "again")
    (folder / "link").symlink_to("lib")
    (folder / "out").symlink_to("/etc")
    before = [capture.Baseline({b"": before[0].tree[b""]}, {})]
    return lambda: capture.scan_after([str(folder)], before, os.geteuid())


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(image_manifest, "PART_BYTES", MIB)


async def store_it(store, made, tmp_path, **options):
    return await publish_snapshot(store, made, STORY, [], str(tmp_path), **options)


async def check_whole(store, folder, look, to):
    """See that what is published can be restored; False if nothing is."""
    try:
        found = await repository.read_snapshot(store, KEY)
    except NotFound:
        return False
    index = await repository.read_index(store, found)
    parent = os.open(to.parent, os.O_RDONLY)
    try:
        async with ChunkSource(store, found) as source:
            await trio.to_thread.run_sync(
                restore, index, split(index), source.read, [RestoreTarget(parent, to.name)]
            )
    finally:
        os.close(parent)
    assert tree_digest(look(to)) == tree_digest(look(folder))
    shutil.rmtree(to)
    return True


async def captures(store):
    """Folders of attempts that are in a store."""
    listed = await store.list(repository.folder_of(KEY))
    return [info.name.rpartition("/")[2] for info in listed if info.is_folder]


async def test_what_is_published_is_whole(made, folder, tmp_path, look):
    store = MemoryStore()
    counted = []
    found = await store_it(store, made(), tmp_path, count=counted.append)
    assert await check_whole(store, folder, look, tmp_path / "restored")
    assert sum(counted) >= found.content_bytes == 3_000_000
    assert await captures(store) == [found.capture]
    names = [info.name for info in await store.list(repository.folder_of(KEY, found.capture))]
    assert [name.rpartition("/")[2] for name in names] == ["index"]
    parts = await store.list(f"images/{found.image}")
    assert sum("part-" in info.name for info in parts) == 3
    assert (found.files, found.command_ms, found.outside) == (10, 1234, (b"0/out".hex(),))
    assert os.listdir(tmp_path) == ["made"]


def is_change(operation):
    return operation in CHANGES and not operation.startswith("delete")


async def count_changes(made, tmp_path):
    watched = FlakyStore(MemoryStore(), lambda *_: False)
    await store_it(watched, made(), tmp_path)
    return sum(is_change(operation) for operation, _ in watched.calls)


def nth_change(number):
    """Choose the n-th operation that changes something, but for those that remove."""
    seen = 0

    def fails(count, operation, name):
        nonlocal seen
        seen += is_change(operation)
        return is_change(operation) and seen == number

    return fails


@pytest.mark.parametrize("late", [False, True], ids=["not done", "done all the same"])
async def test_a_store_that_fails_at_any_step(made, folder, tmp_path, look, late):
    """One step fails; none is published without all that it needs, and the next attempt is good."""
    for number in range(1, 1 + await count_changes(made, tmp_path)):
        inner = MemoryStore()
        store = FlakyStore(inner, nth_change(number), late=late)
        with pytest.raises(Transient):
            await store_it(store, made(), tmp_path)
        is_there = await check_whole(inner, folder, look, tmp_path / "restored")
        if ("create", repository.manifest_object(KEY)) not in store.calls:
            assert await captures(inner) == []
        if not is_there:
            await store_it(inner, made(), tmp_path)
            assert await check_whole(inner, folder, look, tmp_path / "restored")
    assert is_there == late
    assert os.listdir(tmp_path) == ["made"]


class HangsOnce(FlakyStore):
    """Hangs at an operation, before it is done or after that."""

    async def around(self, operation, name, call):
        self.calls.append((operation, name))
        if not self._fails(len(self.calls), operation, name):
            return await call()
        if self._late:
            await call()
        self.reached.set()
        await trio.sleep_forever()


@pytest.mark.parametrize("late", [False, True], ids=["not done", "done all the same"])
async def test_who_is_cancelled_at_any_step(made, folder, tmp_path, look, late):
    for number in range(1, 1 + await count_changes(made, tmp_path)):
        inner = MemoryStore()
        store = HangsOnce(inner, nth_change(number), late=late)
        store.reached = trio.Event()
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store_it, store, made(), tmp_path)
                await store.reached.wait()
                nursery.cancel_scope.cancel()
        is_there = await check_whole(inner, folder, look, tmp_path / "restored")
        if ("create", repository.manifest_object(KEY)) not in store.calls:
            assert await captures(inner) == []
        if not is_there:
            await store_it(inner, made(), tmp_path)
            assert await check_whole(inner, folder, look, tmp_path / "restored")
    assert is_there == late
    with trio.fail_after(5):
        while os.listdir(tmp_path) != ["made"]:
            await trio.sleep(0.01)


@pytest.mark.parametrize("operation", sorted({"create", "write", "commit"}))
async def test_a_store_that_never_answers(made, tmp_path, operation):
    inner = MemoryStore()
    with trio.move_on_after(0.3) as limit:
        await store_it(HangingStore(inner, {operation}), made(), tmp_path)
    assert limit.cancelled_caught
    assert [found.snapshot for found in await repository.list_snapshots(inner)] in ([], [None])


async def test_somebody_has_published_before(made, folder, tmp_path, look):
    store = MemoryStore()
    first = await store_it(store, made(), tmp_path)
    with pytest.raises(Conflict):
        await store_it(store, made(), tmp_path)
    assert await captures(store) == [first.capture]
    assert await check_whole(store, folder, look, tmp_path / "restored")
    second = await store_it(store, made(), tmp_path, replace=True)
    assert second.capture in await captures(store)
    assert await repository.read_snapshot(store, KEY) == second


LATER = {
    "changed": lambda folder: (folder / "lib/3").write_bytes(bytes(30_000)),
    "longer": lambda folder: (folder / "lib/3").write_bytes(bytes(31_000)),
    "removed": lambda folder: (folder / "lib/3").unlink(),
    "replaced": lambda folder: os.replace(folder / "lib/4", folder / "lib/3"),
    "removed with its folder": lambda folder: shutil.rmtree(folder / "lib"),
}


@pytest.mark.parametrize("later", LATER)
async def test_a_file_that_has_become_another(made, folder, tmp_path, later):
    store = MemoryStore()
    seen = made()
    os.utime(folder / "lib/3", ns=(0, 1))
    LATER[later](folder)
    with pytest.raises(Conflict, match=r"the result is not stored|another length"):
        await store_it(store, seen, tmp_path)
    assert await captures(store) == []
    with pytest.raises(NotFound):
        await repository.read_snapshot(store, KEY)


async def test_a_file_that_becomes_another_while_it_is_stored(made, folder, tmp_path):
    store = MemoryStore()

    def count(size_bytes):
        if (folder / "lib/4").exists():
            (folder / "lib/4").unlink()

    with pytest.raises(Conflict, match=r"'lib/4' was changed"):
        await store_it(store, made(), tmp_path, count=count)
    assert await captures(store) == []


async def test_more_links_that_lead_out_than_a_manifest_names(made, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(upload, "MAX_OUTSIDE", 3)
    for number in range(2):
        (folder / f"out {number}").symlink_to("/etc")
    assert len((await store_it(MemoryStore(), made(), tmp_path)).outside) == 3
    (folder / "out 2").symlink_to("/etc")
    with pytest.raises(Unavailable, match="4 links point outside their targets"):
        await store_it(MemoryStore(), made(), tmp_path)


async def test_a_manifest_that_would_be_too_long(made, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "MAX_BYTES", 300)
    store = MemoryStore()
    with pytest.raises(Unavailable, match="and may have 300"):
        await store_it(store, made(), tmp_path)
    assert await captures(store) == []


async def test_what_no_index_takes_is_not_published(made, folder, tmp_path, monkeypatch):
    """Rather than found damaged, and captured again, at each run."""
    monkeypatch.setattr("bootseer.env.snapshot.index.MAX_XATTRS_BYTES", 10)
    seen = made()
    seen.tree[b"0/lib/2"] = seen.tree[b"0/lib/2"]._replace(xattrs=((b"user.a", bytes(100)),))
    store = MemoryStore()
    with pytest.raises(BootseerError):
        await store_it(store, seen, tmp_path)
    assert await captures(store) == []


async def test_no_folder_for_the_squashfs(made, tmp_path):
    with pytest.raises(Unavailable, match=r"no file can be made in .*/none"):
        await store_it(MemoryStore(), made(), tmp_path / "none")


async def test_a_part_that_cannot_be_stored_ends_it_soon(made, tmp_path):
    failing = FlakyStore(MemoryStore(), lambda n, operation, name: "part-0001" in name)
    with pytest.raises(Transient, match="part-0001"):
        await store_it(failing, made(), tmp_path)
    assert not any("index" in name for _, name in failing.calls)


async def test_a_part_that_cannot_be_stored_does_not_wait_for_another(made, tmp_path):
    class Hanging(FlakyStore):
        async def around(self, operation, name, call):
            if operation == "commit" and "part-0000" in name:
                await trio.sleep_forever()
            return await super().around(operation, name, call)

    store = Hanging(MemoryStore(), lambda n, operation, name: "part-0001" in name)
    with trio.fail_after(10), pytest.raises(Transient, match="part-0001"):
        await store_it(store, made(), tmp_path)


# Manifests that are not what they should be.


SCRIPT = "echo 1 > {0}/file; ln -s file {0}/link; ln -s /etc {0}/out"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


async def captured(lab, target, script=SCRIPT):
    """Have a snapshot; returns its key and its manifest."""
    await lab.run(script.format(target), target)
    (listed,) = await repository.list_snapshots(lab.store)
    name = repository.manifest_object(listed.key)
    document = json.loads(await store_base.read_all(lab.store, name, 1 << 20))
    shutil.rmtree(target)
    return listed.key, document


async def check_recaptured(lab, target, is_damage=True):
    """The command runs, once, and then does not."""
    before = lab.runs()
    done = await lab.run(SCRIPT.format(target), target)
    assert (done.status, lab.runs()) == (0, before + is_damage)
    assert "stored as" in done.text
    shutil.rmtree(target)
    done = await lab.run(SCRIPT.format(target), target)
    assert (done.status, lab.runs()) == (0, before + is_damage)
    assert "unpacked" in done.text
    assert (target / "file").read_text() == "1\n"


FIELDS = {
    "format": ["another", None, 5],
    "version": ["1", -1, None],
    "key": ["0" * 64, "x", None, 5],
    "parts": [None, {}, []],
    "targets": [[], ["/elsewhere"], ["relative"], ["/"], ["/a/../b"], None, ["/a", "/b"]],
    "bases": [[], None, ["empty", "empty"], ["x" * 65]],
    "capture": ["", "../../../x", None, "0" * 16],
    "digest": ["", None],
    "image": ["x", None],
    "image_bytes": [-1, "1", None],
    "index": ["0" * 64, "", None],
    "files": [-1, 0.5, None],
    "content_bytes": [-1, None],
    "outside": [["x"], None, [], ["00" * 5000]],
    "findings": [None, [5], [{"kind": "x"}]],
    "captured_ns": [-1, None],
    "captured_by": [None, "a\nb"],
    "node": [None, 5],
    "command_ms": [None, -1],
}


@pytest.mark.parametrize("field", FIELDS)
async def test_a_manifest_with_a_wrong_field_is_captured_anew(lab, target, field):
    key, document = await captured(lab, target)
    assert set(FIELDS) == set(document)
    for value in FIELDS[field]:
        changed = {name: found for name, found in document.items() if name != field}
        if value is not None:
            changed[field] = value
        name = repository.manifest_object(key)
        await store_base.publish(lab.store, name, json.dumps(changed).encode())
        await check_recaptured(lab, target)
        shutil.rmtree(target)


@pytest.mark.parametrize("version", [0, 3])
async def test_a_manifest_of_another_version_stays(lab, target, version):
    """Who wrote it can use it: two that capture in turn help nobody."""
    key, document = await captured(lab, target)
    name = repository.manifest_object(key)
    content = json.dumps(document | {"version": version}).encode()
    await store_base.publish(lab.store, name, content)
    before = lab.runs()
    done = await lab.run(SCRIPT.format(target), target)
    assert (done.status, lab.runs()) == (0, before + 1)
    assert "only version 2" in done.text and "stored as" not in done.text
    assert await store_base.read_all(lab.store, name, 1 << 20) == content


async def test_a_manifest_of_an_outdated_version_is_captured_anew(lab, target):
    key, document = await captured(lab, target)
    old = document | {"version": 1, "frames": "0" * 64, "frames_bytes": 9}
    name = repository.manifest_object(key)
    await store_base.publish(lab.store, name, json.dumps(old).encode())
    await check_recaptured(lab, target)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b" " * (5 << 20)])
async def test_a_manifest_that_is_none_is_captured_anew(lab, target, content):
    key, _ = await captured(lab, target)
    await store_base.publish(lab.store, repository.manifest_object(key), content)
    await check_recaptured(lab, target)


async def test_the_manifest_of_another_key_is_captured_anew(lab, target):
    key, _ = await captured(lab, target)
    await lab.run(f"echo other > {target}/other", target)
    shutil.rmtree(target)
    (other,) = [found for found in await repository.list_snapshots(lab.store) if found.key != key]
    name = repository.manifest_object(other.key)
    content = await store_base.read_all(lab.store, name, 1 << 20)
    await store_base.publish(lab.store, repository.manifest_object(key), content)
    await check_recaptured(lab, target)
    assert not (target / "other").exists()


async def test_what_the_session_is_told_is_told_to_people(lab, target, monkeypatch):
    """A file that a job changes while it is stored: nothing is kept, and the status is its own."""
    original = capture.scan_after

    def scan_after(*args):
        made = original(*args)
        (target / "file").write_text("2\n")
        os.utime(target / "file", ns=(0, 1))
        return made

    monkeypatch.setattr(capture, "scan_after", scan_after)
    done = await lab.run(SCRIPT.format(target), target)
    assert done.status == 0
    assert "not stored: 'file' was changed" in done.text.replace("b'file'", "'file'")
    assert "was changed" in lab.errors()["env.capture"]
    assert await captures_in(lab.store) == []
    monkeypatch.undo()


async def captures_in(store):
    found = await repository.list_snapshots(store)
    return [listed.snapshot for listed in found if listed.snapshot]


async def test_a_target_that_is_gone_after_the_command(lab, target):
    done = await lab.run(f"rm -rf {target}", target)
    assert done.status == 0
    assert "not stored: a target cannot be read" in done.text
    assert await repository.list_snapshots(lab.store) == []


async def test_who_is_killed_while_it_is_stored_leaves_the_next_to_do_it(lab, target, monkeypatch):
    """The session ends in mid-publish, and its claim with it."""
    monkeypatch.setattr("bootseer.store.key_lease.LASTS_S", 0.3)
    inner = lab.store
    hanging = HangsOnce(
        inner, lambda n, operation, name: "manifest" in name and operation == "commit"
    )
    hanging.reached = trio.Event()
    async with trio.open_nursery() as nursery:

        async def first():
            await lab.run(SCRIPT.format(target), target, context=lab.context(hanging))

        nursery.start_soon(first)
        await hanging.reached.wait()
        nursery.cancel_scope.cancel()
    assert await captures_in(inner) == []
    shutil.rmtree(target)
    done = await lab.run(SCRIPT.format(target), target)
    assert "stored as" in done.text


@pytest.mark.root
async def test_a_disk_that_is_full(lab, target):
    """The command runs, and fails by itself if there is no room for it either."""
    script = f"head -c 3000000 /dev/zero > {target}/large"
    await lab.run(script, target)
    (before,) = await repository.list_snapshots(lab.store)
    shutil.rmtree(target)
    target.mkdir()
    for options, status in [("size=1m", 1), ("size=8m", 0)]:
        await trio.run_process(["mount", "-t", "tmpfs", "-o", options, "none", target])
        try:
            done = await lab.run(script, target)
            assert done.status == status
            if status:
                assert "without capturing it" in done.text
                assert "has 1.05 MB left" in done.text
            assert os.listdir(target) == ["large"]
        finally:
            await trio.run_process(["umount", target])
    assert lab.runs() == 2
    assert [found.snapshot for found in await repository.list_snapshots(lab.store)] == [
        before.snapshot
    ]


async def test_a_store_on_a_disk(lab, target, tmp_path):
    lab.store = LocalStore(tmp_path / "store")
    await captured(lab, target)
    done = await lab.run(SCRIPT.format(target), target)
    assert "unpacked" in done.text
    left = [path for path in (tmp_path / "store").rglob("*") if "tmp" in path.name]
    assert left == []
