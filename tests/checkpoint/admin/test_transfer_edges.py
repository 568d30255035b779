"""What lies in the way of a transfer, changes meanwhile, or is kept by no store."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from bootseer_dev.material.checkpoints import SMALL_UNITS, UNIT_BYTES, export_folder, import_folder
from bootseer_dev.material.damage import flip

from bootseer.checkpoint.admin import resumable_file
from bootseer.checkpoint.admin.progress import LINK, LeftOut
from bootseer.checkpoint.admin.resumable_file import EXPORT_PREFIX, ResumableFile
from bootseer.checkpoint.files import source as source_module
from bootseer.checkpoint.files.stripe_manifest import MAGIC, PARTS_FOLDER
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.errors import Conflict, Corrupt, Unavailable
from bootseer.store.api.base import publish
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore
from bootseer.units import MIB

OLD_NS = 1_234_567_890_000_000_000


@pytest.fixture
def source(tmp_path):
    """A folder with a file that is striped, and one that is not in a folder below."""
    root = tmp_path / "source"
    (root / "folder").mkdir(parents=True)
    (root / "large").write_bytes(os.urandom(9 * UNIT_BYTES + 17))
    (root / "folder" / "small").write_bytes(b"small")
    for path in (root / "large", root / "folder" / "small", root / "folder"):
        os.utime(path, ns=(0, OLD_NS))
    return root


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


@pytest.fixture
def open_files(tmp_path):
    """Tells how many files of the test this process has open."""

    def count():
        links = Counter()
        for fd in Path("/proc/self/fd").iterdir():
            try:
                links[os.readlink(fd).startswith(str(tmp_path))] += 1
            except FileNotFoundError:
                continue
        return links[True]

    return count


def files(root):
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def failed(progress):
    return [(Path(failure.name).name, type(failure.error)) for failure in progress.failures]


# What is in the way


async def test_a_file_does_not_replace_a_folder_of_the_store(store, source):
    await store.mkdir("run/large")
    progress = await import_folder(store, source)
    assert failed(progress) == [("large", Conflict)]
    assert (progress.done_files, progress.total_files) == (1, 2)
    assert (await store.stat("run/large")).is_folder


@pytest.mark.parametrize("checksum", [False, True])
async def test_a_file_does_not_replace_a_local_folder(store, source, target, checksum):
    await import_folder(store, source)
    (target / "large").mkdir(parents=True)
    progress = await export_folder(store, target, checksum=checksum)
    assert failed(progress) == [("large", Conflict)]
    assert (target / "large").is_dir() and progress.done_files == 1


async def test_a_local_link_is_replaced_and_not_followed(store, tmp_path, target):
    """Though its own length and time are those of the file."""
    await publish(store, "file", b"12345")
    info = await store.stat("file")
    (tmp_path / "other").write_bytes(b"other")
    target.symlink_to("other")
    os.utime(target, ns=(0, info.mtime_ns), follow_symlinks=False)
    assert (await export_folder(store, target, "file")).moved_bytes == 5
    assert not target.is_symlink() and target.read_bytes() == b"12345"
    assert (tmp_path / "other").read_bytes() == b"other"


async def test_a_damaged_manifest_of_a_file_s_length_and_time_is_replaced(store, tmp_path):
    content = os.urandom(1847)
    (tmp_path / "file").write_bytes(content)
    os.utime(tmp_path / "file", ns=(0, OLD_NS))
    await publish(store, "file", MAGIC + content[len(MAGIC) :])
    await store.set_mtime("file", OLD_NS)
    assert (await CheckpointTree(store).stat("file")).problem is not None
    assert (await import_folder(store, tmp_path / "file", "file")).skipped_files == 0
    assert (tmp_path / "store" / "file").read_bytes() == content


async def test_what_is_left_of_an_export_goes_when_the_file_is_there(
    store, source, target, monkeypatch
):
    await import_folder(store, source / "large", "file")
    await export_folder(store, target, "file")
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", 1)
    ResumableFile(str(target), 8, 2, {}).close()
    left = [path for path in target.parent.iterdir() if path.name.startswith(EXPORT_PREFIX)]
    assert len(left) == 2
    assert (await export_folder(store, target, "file")).skipped_files == 1
    assert not any(path.exists() for path in left)
    left[0].mkdir()  # which is none, and cannot be removed as one
    assert (await export_folder(store, target, "file")).skipped_files == 1
    assert left[0].exists()


@pytest.mark.parametrize("direction", ["import", "export"])
@pytest.mark.parametrize("name", ["large", "folder/small"])
async def test_a_file_of_another_length_is_another_whatever_its_time(
    store, source, target, direction, name
):
    await import_folder(store, source)
    await export_folder(store, target)
    changed = (source if direction == "import" else target) / name
    changed.write_bytes(changed.read_bytes()[:-1])
    os.utime(changed, ns=(0, OLD_NS))
    if direction == "import":
        assert (await import_folder(store, source)).skipped_files == 1
    assert (await export_folder(store, target)).skipped_files == 1
    assert files(target) == files(source)


@pytest.mark.parametrize("name", ["large", "folder/small"])
async def test_an_export_compares_contents_when_told_to(store, source, target, name):
    """Of a striped file without the store's bytes."""
    await import_folder(store, source)
    await export_folder(store, target)
    assert (await export_folder(store, target, checksum=True)).skipped_files == 2
    flip(target / name)
    os.utime(target / name, ns=(0, OLD_NS))
    assert (await export_folder(store, target)).skipped_files == 2
    assert (await export_folder(store, target, checksum=True)).skipped_files == 1
    assert files(target) == files(source)


async def test_a_file_of_one_byte_is_brought_and_told_from_another(store, tmp_path, target):
    await publish(store, "file", b"1")
    await export_folder(store, target, "file")
    assert target.read_bytes() == b"1"
    target.write_bytes(b"2")
    assert (await export_folder(store, target, "file", checksum=True)).skipped_files == 0
    assert target.read_bytes() == b"1"


async def test_where_a_large_object_is_kept_is_asked_before_it_is_brought(
    store, placed, source, target, monkeypatch
):
    monkeypatch.setattr(source_module, "_LARGE_BYTES", UNIT_BYTES)
    await import_folder(store, source, plain=True)
    assert (await export_folder(placed, target)).failures == []
    assert placed.asked == ["run/large"]
    assert files(target) == files(source)


# Places


async def test_all_of_a_store_is_brought(store, source, target):
    await import_folder(store, source, "")
    assert (await store.stat("folder")).mtime_ns == OLD_NS
    progress = await export_folder(store, target, "")
    assert (progress.failures, progress.done_files) == ([], 2)
    assert files(target) == files(source)
    assert (target / "folder").stat().st_mtime_ns == OLD_NS
    assert target.stat().st_mtime_ns > OLD_NS, "a store's root has no time"


async def test_a_name_alone_is_in_the_working_folder(store, source, tmp_path, monkeypatch):
    await import_folder(store, source)
    monkeypatch.chdir(tmp_path)
    await export_folder(store, "alone", "run/folder/small")
    await export_folder(store, "tree")
    assert (tmp_path / "alone").read_bytes() == b"small"
    assert files(tmp_path / "tree") == files(source)


async def test_a_link_to_a_folder_is_the_folder_when_it_is_named(store, source, tmp_path, target):
    (tmp_path / "link").symlink_to("source")
    await import_folder(store, tmp_path / "link")
    await export_folder(store, target)
    assert files(target) == files(source)


async def test_what_is_neither_a_file_nor_a_folder_is_not_imported(store, source):
    os.mkfifo(source / "fifo")
    progress = await import_folder(store, source)
    assert progress.left_out == [LeftOut(str(source / "fifo"), LINK)]
    assert (progress.failures, progress.total_files) == ([], 2)
    with pytest.raises(Conflict, match="neither a file nor a folder"):
        await import_folder(store, source / "fifo")


# What changes meanwhile


def touch(path):
    os.utime(path, ns=(0, OLD_NS + 1))


def cut(path):
    os.truncate(path, UNIT_BYTES)


def replace_alike(path):
    """Put another file of the same length and time in the place of one."""
    path.rename(path.with_name("before"))
    path.write_bytes(bytes(path.with_name("before").stat().st_size))
    os.utime(path, ns=(0, OLD_NS))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("change", "when"),
    [
        (touch, {"grow", "write"}),
        (cut, {"append", "create"}),
        (replace_alike, {"stat"}),
    ],
)
async def test_a_file_of_two_versions_is_not_published(
    store, source, open_files, plain, change, when
):
    changes = [change]

    def fails(count, operation, name):
        if operation in when and changes:
            changes.pop()(source / "large")
        return False

    progress = await import_folder(FlakyStore(store, fails), source / "large", "file", plain=plain)
    assert failed(progress) == [("large", Conflict)]
    assert "changed while it was being read" in str(progress.failures[0].error)
    assert await CheckpointTree(store).list() == []
    assert await store.list(PARTS_FOLDER) == []
    assert open_files() == 0


@pytest.mark.parametrize("least_bytes", [1, MIB])
async def test_an_object_that_could_be_read_to_its_end_though_it_was_replaced_is_not_exported(
    source, target, monkeypatch, least_bytes
):
    """Nor is anything kept of it to go on with."""
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", least_bytes)
    store = MemoryStore()
    await import_folder(store, source, plain=True)

    def fails(count, operation, name):
        if operation == "pread" and name == "run/large":
            store.put(name, b"another", 0o600, overwrite=True)
        return False

    progress = await export_folder(FlakyStore(store, fails), target)
    assert failed(progress) == [("large", Conflict)]
    assert "export it again" in str(progress.failures[0].error)
    assert files(target) == {"folder/small": b"small"}


async def test_a_striped_file_is_exported_though_its_manifest_has_another_time_meanwhile(
    store, source, tmp_path, target
):
    await import_folder(store, source / "large", "file")

    def fails(count, operation, name):
        if operation == "pread" and PARTS_FOLDER in name:
            os.utime(tmp_path / "store" / "file", ns=(0, count))
        return False

    assert (await export_folder(FlakyStore(store, fails), target, "file")).failures == []
    assert target.read_bytes() == (source / "large").read_bytes()


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_no_file_stays_open(store, source, target, open_files, plain, checksum):
    for _ in range(2):
        await import_folder(store, source, plain=plain, checksum=checksum)
        assert open_files() == 0
        await export_folder(store, target, checksum=checksum)
        assert open_files() == 0


async def test_a_folder_may_be_written_to_as_long_as_something_is_to_come(
    store, source, tmp_path, target
):
    (source / "folder").chmod(0o500)
    await import_folder(store, source)
    part = max((tmp_path / "store/run" / PARTS_FOLDER).glob("*/*"), key=lambda p: p.stat().st_size)
    flip(part)
    assert failed(await export_folder(store, target)) == [("large", Corrupt)]
    assert (target / "folder").stat().st_mode & 0o200
    flip(part)
    assert failed(await export_folder(store, target)) == []
    assert (target / "folder").stat().st_mode & 0o777 == 0o500


# How files are made


class Recorded(WrappedStore):
    """Notes with which options files and folders are made."""

    def __init__(self, inner):
        super().__init__(inner)
        self.options = {}

    async def around(self, operation, name, call):
        return await call()

    def create(self, name, **options):
        self.options[name] = options
        return super().create(name, **options)

    def append(self, name, **options):
        self.options[name] = options
        return super().append(name, **options)

    async def mkdir(self, name, **options):
        self.options[name] = options
        await super().mkdir(name, **options)


async def test_files_are_made_with_their_mode_and_as_the_options_say(store, source):
    (source / "folder" / "small").chmod(0o640)
    (source / "large").chmod(0o604)
    recorded = Recorded(store)
    await import_folder(
        recorded, source, write=replace(SMALL_UNITS, replication=2, block_bytes=MIB)
    )
    as_said = {"replication": 2, "block_bytes": MIB}
    assert recorded.options["run/folder/small"] == {"mode": 0o640, **as_said}
    parts = [name for name in recorded.options if "/making-" in name]
    assert parts
    assert all(recorded.options[name] == {"mode": 0o604, **as_said} for name in parts)
    assert recorded.options["run/large"]["mode"] == 0o604


async def test_a_folder_can_be_written_to_until_all_is_in_it(store, source):
    (source / "folder").chmod(0o1550)
    recorded = Recorded(store)
    progress = await import_folder(recorded, source)
    assert (progress.failures, recorded.options["run/folder"]) == ([], {"mode": 0o1750})
    assert (await store.stat("run/folder")).mode == 0o1550


class Timeless(WrappedStore):
    """Keeps neither modes nor times."""

    @property
    def capabilities(self):
        return replace(self._inner.capabilities, attributes=False)

    async def around(self, operation, name, call):
        if operation in ("set_mode", "set_mtime"):
            raise Unavailable(f"there is no {operation}")
        return await call()


async def test_contents_tell_files_apart_where_there_are_no_times(store, source):
    store = Timeless(store)
    assert (await import_folder(store, source)).failures == []
    assert (await store.stat("run/folder/small")).mtime_ns != OLD_NS
    assert (await import_folder(store, source)).skipped_files == 2
    (source / "folder" / "small").write_bytes(b"SMALL")
    os.utime(source / "folder" / "small", ns=(0, (await store.stat("run/folder/small")).mtime_ns))
    again = await import_folder(store, source)
    assert (again.skipped_files, again.moved_bytes) == (1, 5)


async def test_folders_are_as_they_are_made_where_there_are_no_modes_and_times(
    store, source, target
):
    (source / "folder").chmod(0o500)
    await import_folder(store, source)
    assert (await export_folder(Timeless(store), target)).failures == []
    status = (target / "folder").stat()
    assert status.st_mode & 0o200 and status.st_mtime_ns > OLD_NS


async def test_a_time_that_cannot_be_set_is_no_failure(store, source):
    class Unset(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "set_mtime":
                raise Unavailable("access times are off")
            return await call()

    assert (await import_folder(Unset(store), source)).failures == []


# Publishing


async def test_what_is_being_published_is_published_though_it_was_cancelled(source):
    class Ended(WrappedStore):
        async def around(self, operation, name, call):
            if (operation, name) == ("create", "file"):
                scope.cancel()
                await trio.lowlevel.checkpoint()
            return await call()

    store = MemoryStore()
    with trio.CancelScope() as scope:
        await import_folder(Ended(store), source / "large", "file")
    assert scope.cancelled_caught
    entry = await CheckpointTree(store).stat("file")
    assert entry.layout is not None and entry.size_bytes == 9 * UNIT_BYTES + 17


async def test_what_is_not_published_for_a_minute_is_a_failure(source, autojump_clock):
    class Hanging(WrappedStore):
        async def around(self, operation, name, call):
            if (operation, name) == ("create", "file"):
                await trio.sleep_forever()
            return await call()

    store = MemoryStore()
    progress = await import_folder(Hanging(store), source / "large", "file")
    assert failed(progress) == [("large", Unavailable)]
    assert "60 s" in str(progress.failures[0].error)
    assert trio.current_time() == 60
    assert await CheckpointTree(store).find("file") is None


async def test_to_store_the_parts_may_take_longer(source, autojump_clock):
    class Slow(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "finish":
                await trio.sleep(100)
            return await call()

    progress = await import_folder(Slow(MemoryStore()), source / "large", "file")
    assert failed(progress) == [] and trio.current_time() >= 100
