"""Files and trees between this machine and a store, whenever it is interrupted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from bootseer_dev.material.checkpoints import UNIT_BYTES, export_folder, import_folder
from bootseer_dev.material.damage import flip

from bootseer.checkpoint.admin import resumable_file
from bootseer.checkpoint.admin.progress import LINK, BatchProgress, LeftOut, for_each, walk
from bootseer.checkpoint.admin.resumable_file import EXPORT_PREFIX
from bootseer.checkpoint.files.leftovers import Leftovers
from bootseer.checkpoint.files.stripe_manifest import MAGIC, PARTS_FOLDER
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.errors import (
    BootseerError,
    Conflict,
    Corrupt,
    Transient,
    Unavailable,
)
from bootseer.store.local.store import LocalStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore, FullStore


@pytest.fixture
def source(tmp_path):
    """A tree with files of all kinds."""
    root = tmp_path / "source"
    (root / "folder" / "below").mkdir(parents=True)
    (root / "large").write_bytes(os.urandom(9 * UNIT_BYTES + 17))
    (root / "empty").write_bytes(b"")
    (root / "folder" / "small").write_bytes(b"small")
    (root / "folder" / "below" / "unit").write_bytes(os.urandom(UNIT_BYTES))
    (root / "folder" / "below" / "units").write_bytes(os.urandom(4 * UNIT_BYTES))
    (root / "folder" / "small").chmod(0o640)
    (root / "folder" / "below").chmod(0o750)
    for number, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(path, ns=(0, 1_234_567_890_000_000_000 + number * 10**9))
    return root


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def shape(root):
    """All that a transfer has to keep of a tree."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.stat()
        content = path.read_bytes() if path.is_file() else None
        name = str(path.relative_to(root))
        found[name] = (status.st_mode, status.st_mtime_ns, content)
    return found


class CountingStore(WrappedStore):
    """Counts what is read, and can end a scope at some operation."""

    def __init__(self, inner, ends=None, at=0):
        super().__init__(inner)
        self.scope = trio.CancelScope()
        self.operations = 0
        self.reads = 0
        self._at = at

    async def around(self, operation, name, call):
        self.operations += 1
        self.reads += operation == "pread"
        if self.operations == self._at:
            self.scope.cancel()
        return await call()


async def test_a_tree_comes_back_as_it_was(store, source, tmp_path):
    progress = await import_folder(store, source)
    assert (progress.failures, progress.done_files, progress.skipped_files) == ([], 5, 0)
    assert progress.moved_bytes == progress.total_bytes == progress.done_bytes
    forms = {e.name: e.layout is not None for e in await walk(CheckpointTree(store), "run")}
    assert forms["run/large"] and forms["run/folder/below/units"]
    assert not forms["run/folder/small"] and not forms["run/folder/below/unit"]
    progress = await export_folder(store, tmp_path / "target")
    assert (progress.failures, progress.done_files) == ([], 5)
    assert shape(tmp_path / "target") == shape(source)
    assert (tmp_path / "target").stat().st_mtime_ns == source.stat().st_mtime_ns


async def test_one_file_comes_back_as_it_was(store, source, tmp_path):
    await import_folder(store, source / "large", "here/file")
    await export_folder(store, tmp_path / "new" / "file", "here/file")
    assert (tmp_path / "new" / "file").read_bytes() == (source / "large").read_bytes()
    assert os.listdir(tmp_path / "new") == ["file"]


async def test_a_folder_that_is_only_put_into_stays_as_it_is(store, source, tmp_path):
    await store.mkdir("run", mode=0o711)
    await import_folder(store, source)
    assert (await store.stat("run")).mode == 0o711
    (tmp_path / "target").mkdir(mode=0o711)
    await export_folder(store, tmp_path / "target")
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o711
    assert shape(tmp_path / "target") == shape(source)


async def test_what_is_there_is_skipped(store, source, tmp_path):
    await import_folder(store, source)
    before = await walk(CheckpointTree(store), "run")
    again = await import_folder(store, source)
    assert (again.skipped_files, again.moved_bytes) == (5, 0)
    assert await walk(CheckpointTree(store), "run") == before
    await export_folder(store, tmp_path / "target")
    again = await export_folder(store, tmp_path / "target")
    assert (again.skipped_files, again.moved_bytes) == (5, 0)


async def test_what_has_changed_is_imported_again(store, source, tmp_path):
    await import_folder(store, source)
    old = (source / "large").stat()
    content = bytearray((source / "large").read_bytes())
    content[5 * UNIT_BYTES] ^= 1
    (source / "large").write_bytes(content)
    os.utime(source / "large", ns=(0, old.st_mtime_ns))  # its time does not tell
    (source / "folder" / "small").write_bytes(b"SMALL")
    again = await import_folder(store, source)
    assert (again.done_files - again.skipped_files, again.failures) == (2, [])
    await export_folder(store, tmp_path / "target")
    assert (tmp_path / "target" / "large").read_bytes() == content
    assert (tmp_path / "target" / "folder" / "small").read_bytes() == b"SMALL"
    assert list(await Leftovers(CheckpointTree(store)).unused("run")) == []


async def test_only_mode_and_time_of_what_has_the_content_are_brought(store, source):
    await import_folder(store, source)
    (source / "large").chmod(0o600)
    os.utime(source / "large", ns=(0, 10**18))
    again = await import_folder(store, source)
    assert again.moved_bytes == 0
    info = await store.stat("run/large")
    assert (info.mode, info.mtime_ns) == (0o600, 10**18)


@pytest.mark.parametrize("direction", ["import", "export"])
async def test_checksum_finds_what_times_hide(store, source, tmp_path, direction):
    target = tmp_path / "target"
    await import_folder(store, source, plain=True)
    await export_folder(store, target)
    changed = (source if direction == "import" else target) / "large"
    old = changed.stat()
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    os.utime(changed, ns=(0, old.st_mtime_ns))
    if direction == "import":
        assert (await import_folder(store, source, plain=True)).skipped_files == 5
        assert (await import_folder(store, source, plain=True, checksum=True)).skipped_files == 4
        assert (tmp_path / "store" / "run" / "large").read_bytes() == content
    else:
        assert (await export_folder(store, target)).skipped_files == 5
        assert (await export_folder(store, target, checksum=True)).skipped_files == 4
        assert shape(target) == shape(source)


@pytest.mark.parametrize("checksum", [False, True])
async def test_what_was_lost_is_imported_again(store, source, tmp_path, checksum):
    await import_folder(store, source)
    parts = tmp_path / "store/run" / PARTS_FOLDER
    for part in parts.glob("*/0000"):
        if checksum:
            flip(part)
        else:
            part.unlink()
    assert (await import_folder(store, source, checksum=checksum)).done_files
    assert not (await export_folder(store, tmp_path / "target")).failures
    assert shape(tmp_path / "target") == shape(source)


async def test_plain_replaces_what_is_striped(store, source, tmp_path):
    await import_folder(store, source)
    await import_folder(store, source, plain=True)
    assert shape(tmp_path / "store" / "run").keys() - {"large"} > shape(source).keys() - {"large"}
    assert (tmp_path / "store" / "run" / "large").read_bytes() == (source / "large").read_bytes()
    assert list(await Leftovers(CheckpointTree(store)).unused("run")) == []
    parts = tmp_path / "store" / "run" / ".bootseer-parts"
    assert list(parts.rglob("*")) == [parts / "sizes"]


async def test_what_a_store_cannot_have_is_named_and_the_rest_comes(store, source):
    (source / "link").symlink_to("large")
    (source / "new\nline").write_bytes(b"")
    folder = os.fsdecode(b"folder\xff")
    (source / folder).mkdir()
    (source / folder / "file").write_bytes(b"")
    (source / "manifest").write_bytes(MAGIC + b"of another tree")
    progress = await import_folder(store, source)
    assert progress.left_out == [LeftOut(str(source / "link"), LINK)]
    assert sorted(Path(f.name).name for f in progress.failures) == [folder, "manifest", "new\nline"]
    assert any("ckpt export" in str(failure.error) for failure in progress.failures)
    assert progress.done_files == 5


async def test_what_has_no_name_that_can_be_used_is_not_exported_silently(store, source, tmp_path):
    await import_folder(store, source)
    run = tmp_path / "store" / "run"
    (run / "link").symlink_to("large")
    (run / "folder" / "loss\tcurve").write_bytes(b"")
    folder = os.fsdecode(b"folder\xff")
    (run / folder).mkdir()
    (run / f"{EXPORT_PREFIX}{'0' * 32}").write_bytes(b"")
    progress = await export_folder(store, tmp_path / "back")
    assert progress.left_out == [LeftOut("run/link", LINK)]
    assert sorted(failure.name for failure in progress.failures) == [
        f"run/{EXPORT_PREFIX}{'0' * 32}",
        "run/folder/loss\tcurve",
        f"run/{folder}",
    ]
    assert progress.done_files == 5


async def test_an_export_that_was_not_completed_is_not_imported(store, source):
    (source / f"{EXPORT_PREFIX}{'0' * 32}.journal").write_bytes(b"")
    (source / f"{EXPORT_PREFIX}folder").mkdir()
    progress = await import_folder(store, source)
    assert [Path(one.name).name for one in progress.left_out] == [
        f"{EXPORT_PREFIX}{'0' * 32}.journal"
    ]
    assert not progress.failures and await CheckpointTree(store).find(f"run/{EXPORT_PREFIX}folder")


async def test_a_store_s_own_folder_is_not_imported(store, source, tmp_path):
    await import_folder(store, source)
    with pytest.raises(BootseerError, match="ckpt export"):
        await import_folder(store, tmp_path / "store" / "run", "copy")


@pytest.mark.parametrize("plain", [False, True])
async def test_a_file_that_changes_meanwhile_is_not_published(store, source, plain):
    path = source / "large"

    def fails(count, operation, name):
        if operation == ("write" if plain else "grow"):
            with path.open("ab") as file:
                file.write(b"more")
        return False

    progress = await import_folder(FlakyStore(store, fails), path, "file", plain=plain)
    assert isinstance(progress.failures[0].error, Conflict)
    assert list(await CheckpointTree(store).list()) == []
    assert list(await store.list(".bootseer-parts")) == []


async def test_no_space_ends_it(store, source):
    with pytest.raises(BootseerError, match="no space"):
        for name in range(20):
            (source / f"more{name}").write_bytes(bytes(UNIT_BYTES))
        progress = await import_folder(FullStore(store, 3 * UNIT_BYTES), source, plain=True)
        raise progress.failures[0].error


async def test_a_store_that_is_away_ends_it():
    tried = []

    async def fail(number):
        await trio.lowlevel.checkpoint()
        tried.append(number)
        raise (Unavailable if number % 2 else Transient)(str(number))

    progress = BatchProgress()
    with pytest.raises(Unavailable, match="7"):
        await for_each(range(20), fail, str, progress, at_once=1)
    assert tried == list(range(8))
    assert [failure.name for failure in progress.failures] == list(map(str, tried))


async def test_an_import_goes_on_wherever_it_was_cancelled(store, source, tmp_path):
    """At every step: what is visible is whole, and the same call completes the rest."""
    finished = False
    points = 0
    while not finished:
        points += 1
        counted = CountingStore(store, at=3 * points)
        with counted.scope:
            await import_folder(counted, source, f"run{points}")
            finished = True
        for entry in await walk(CheckpointTree(store), f"run{points}") if not finished else ():
            if not entry.is_folder:
                below = entry.name.partition("/")[2]
                await export_folder(store, tmp_path / "one", entry.name)
                assert (tmp_path / "one").read_bytes() == (source / below).read_bytes()
                (tmp_path / "one").unlink()
        assert (await import_folder(store, source, f"run{points}")).failures == []
        await export_folder(store, tmp_path / f"target{points}", f"run{points}")
        assert shape(tmp_path / f"target{points}") == shape(source)
    assert points > 20


async def test_an_export_goes_on_where_it_was_cancelled(store, source, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", 2 * UNIT_BYTES)
    (source / "large").write_bytes(os.urandom(60 * UNIT_BYTES + 17))
    await import_folder(store, source / "large", "file")
    target = tmp_path / "target"
    whole = CountingStore(store)
    await export_folder(whole, target, "file")
    target.unlink()
    gone_on = 0
    for at in range(1, whole.operations, 4):
        counted = CountingStore(store, at=at)
        with counted.scope:
            await export_folder(counted, target, "file")
        assert not target.exists()
        again = CountingStore(store)
        progress = await export_folder(again, target, "file")
        assert target.read_bytes() == (source / "large").read_bytes()
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(EXPORT_PREFIX)] == []
        gone_on += progress.moved_bytes < progress.total_bytes == progress.done_bytes
        target.unlink()
    assert gone_on > 3


async def test_what_is_gone_on_with_is_of_the_same_version(store, source, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", 2 * UNIT_BYTES)
    await import_folder(store, source / "large", "file")
    counted = CountingStore(store, at=12)
    with counted.scope:
        await export_folder(counted, tmp_path / "target", "file")
    assert any(path.name.startswith(EXPORT_PREFIX) for path in tmp_path.iterdir())
    (source / "large").write_bytes(os.urandom(9 * UNIT_BYTES + 17))
    await import_folder(store, source / "large", "file")
    progress = await export_folder(store, tmp_path / "target", "file")
    assert progress.moved_bytes == progress.total_bytes
    assert (tmp_path / "target").read_bytes() == (source / "large").read_bytes()


async def test_a_damaged_unit_is_not_exported(store, source, tmp_path):
    await import_folder(store, source)
    parts = (tmp_path / "store" / "run" / ".bootseer-parts").glob("*/*")
    part = max(parts, key=lambda path: path.stat().st_size)
    content = bytearray(part.read_bytes())
    content[7] ^= 1
    part.write_bytes(content)
    progress = await export_folder(store, tmp_path / "target")
    assert [(f.name, type(f.error)) for f in progress.failures] == [("run/large", Corrupt)]
    assert progress.done_files == 4
    assert set(shape(source)) - set(shape(tmp_path / "target")) == {"large"}


async def test_an_object_that_is_replaced_meanwhile_is_not_exported(store, source, tmp_path):
    await import_folder(store, source, plain=True)
    large = tmp_path / "store" / "run" / "large"

    def fails(count, operation, name):
        if operation == "pread" and name == "run/large":
            os.utime(large, ns=(0, count))
        return False

    progress = await export_folder(FlakyStore(store, fails), tmp_path / "target", "run/large")
    assert isinstance(progress.failures[0].error, Conflict)
    assert not (tmp_path / "target").exists()


KILLED = """
import os, signal, sys
from bootseer.checkpoint.admin import resumable_file
from bootseer.cli.main import main
from bootseer import posix

resumable_file.JOURNAL_LEAST_BYTES = 4096
resumable_file.SYNC_BYTES = 4096
left = int(sys.argv.pop(1))

def dying(call):
    def called(*given):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*given)
    return called

posix.write_fully = dying(posix.write_fully)
resumable_file.ResumableFile.put = dying(resumable_file.ResumableFile.put)
main()
"""


def kill_at(point, *words):
    """Run the command line, and have it killed at the n-th piece that it writes."""
    command = [sys.executable, "-P", "-c", KILLED, str(point), "ckpt", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, cwd="/").returncode


@pytest.mark.parametrize("point", [1, 2, 5, 9, 12])
def test_goes_on_after_it_was_killed(source, tmp_path, point):
    (source / "empty").unlink()  # which would be taken for what is left of a manifest
    options = ("--unit", UNIT_BYTES, "--width", 3)
    store, target = tmp_path / "store" / "run", tmp_path / "target"
    assert kill_at(point, "import", source, store, *options) == -signal.SIGKILL
    assert kill_at(10**6, "import", source, store, *options) == 0
    assert kill_at(point, "export", store, target) == -signal.SIGKILL
    assert kill_at(10**6, "export", store, target) == 0
    assert shape(target) == shape(source)
    assert kill_at(10**6, "verify", "-R", store) == 0
    assert kill_at(10**6, "gc", "--older-than", "0s", store) == 0
    assert kill_at(10**6, "verify", "-R", store) == 0
    left = [p for p in store.rglob("*") if "making-" in p.name or "bootseer-tmp" in p.name]
    assert left == []
