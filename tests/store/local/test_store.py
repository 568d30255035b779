"""What is special about a store in a directory: processes, crashes, links, owners, full disks."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from bootseer.errors import Conflict, Corrupt, Denied, NotFound, Transient, Unavailable
from bootseer.store.api.base import StoreSpace, publish, read_all
from bootseer.store.api.name import MAX_COMPONENTS, TEMPORARY_PREFIX
from bootseer.store.local.store import LocalStore

NOBODY = 65534

PUBLISH = """
import sys, trio
from pathlib import Path
from bootseer.store.api.base import publish
from bootseer.store.local.store import LocalStore

async def main():
    store = LocalStore(Path(sys.argv[1]))
    for size in range(1, 40):
        await publish(store, "folder/object", sys.argv[2].encode() * size * 1000)

trio.run(main)
"""

STOP_IN_THE_MIDDLE = """
import sys, trio
from pathlib import Path
from bootseer.store.local.store import LocalStore

async def main():
    async with LocalStore(Path(sys.argv[1])).create("folder/object") as writer:
        await writer.write(b"half of it")
        print("written", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""

TRY_AS_USER = """
import os, sys, trio
from pathlib import Path
from bootseer.errors import Denied
from bootseer.store.api.base import publish, read_all
from bootseer.store.local.store import LocalStore

async def main():
    store = LocalStore(Path(sys.argv[1]))
    for attempt in (
        lambda: read_all(store, "object", 1),
        lambda: publish(store, "new", b""),
        lambda: store.delete("object"),
    ):
        try:
            await attempt()
        except Denied as error:
            print(error)

os.setuid(int(sys.argv[2]))
trio.run(main)
"""

MAKE_AS_USER = """
import os, sys, trio
from pathlib import Path
from bootseer.store.local.store import LocalStore

os.setuid(int(sys.argv[2]))
trio.run(LocalStore(Path(sys.argv[1])).mkdir, "folder")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


@pytest.fixture
def deep(root: Path, store: LocalStore) -> Iterator[LocalStore]:
    """A store with 1,200 folders in each other, more than Python's own tools make or remove."""
    subprocess.run(["mkdir", "-p", root / ("a/" * 1200)], check=True)
    yield store
    subprocess.run(["rm", "-rf", root], check=True)


def temporaries(root: Path) -> list[Path]:
    return list(root.rglob(f"{TEMPORARY_PREFIX}*"))


def open_descriptors() -> set[str]:
    """What this process has open below its temporary folders."""
    links = (os.readlink(f"/proc/self/fd/{fd}") for fd in _fds())
    return {link for link in links if "/store" in link}


def _fds() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        if os.path.lexists(f"/proc/self/fd/{fd}"):
            yield fd


# Processes


async def test_two_processes_write_one_object(store: LocalStore, root: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-P", "-c", PUBLISH, str(root), letter])
        for letter in "ab"
    ]
    versions = set()
    while any(writer.poll() is None for writer in writers):
        try:
            content = await read_all(store, "folder/object", 40_000)
        except NotFound:
            continue
        assert content == content[:1] * len(content)
        assert len(content) % 1000 == 0
        versions.add(content)
    assert [writer.wait() for writer in writers] == [0, 0]
    assert versions
    assert (await store.stat("folder/object")).size_bytes == 39_000
    assert temporaries(root) == []


async def test_a_killed_writer_leaves_nothing_visible(store: LocalStore, root: Path) -> None:
    command = [sys.executable, "-P", "-c", STOP_IN_THE_MIDDLE, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.send_signal(signal.SIGKILL)
    assert await store.list("folder") == []
    [left] = temporaries(root)
    assert left.read_bytes() == b"half of it"
    assert f"-{writer.pid}-" in left.name
    assert await store.reap_temporaries(older_than_s=3600) == 0
    assert await store.reap_temporaries(older_than_s=0) == 1
    assert temporaries(root) == []


async def test_a_writer_that_was_reaped_says_so(store: LocalStore, root: Path) -> None:
    async with store.create("object") as writer:
        await writer.write(b"slow")
        assert await store.reap_temporaries(older_than_s=0) == 1
        with pytest.raises(Transient, match="temporary file was removed"):
            await writer.commit()
    assert await store.list() == []


async def test_reaping_a_store_that_is_not_there(store: LocalStore) -> None:
    assert await store.reap_temporaries(older_than_s=0) == 0


async def test_reaping_goes_as_deep_as_names_do(root: Path, deep: LocalStore) -> None:
    """Not as deep as folders can be made."""
    left = ["", "a/" * (MAX_COMPONENTS - 1), "a/" * MAX_COMPONENTS]
    for folder in left:
        (root / folder / f"{TEMPORARY_PREFIX}x").touch()
    assert await deep.reap_temporaries(older_than_s=0, folder="a") == 1
    assert (root / f"{TEMPORARY_PREFIX}x").exists()
    assert await deep.reap_temporaries(older_than_s=0) == 1
    assert (root / left[-1] / f"{TEMPORARY_PREFIX}x").exists()


# Publishing


async def test_syncs_before_and_after_the_rename(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.mkdir("folder")
    calls = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        calls.append("sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        real_fsync(fd)

    def rename(*args: str, **kwargs: int) -> None:
        calls.append("rename")
        real_rename(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    await publish(store, "folder/object", b"1")
    assert calls == ["sync file", "rename", "sync folder"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were synced."""
    folders = []
    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            folders.append(os.readlink(f"/proc/self/fd/{fd}"))
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return folders


async def test_a_new_folders_name_is_synced(tmp_path: Path, synced: list[str]) -> None:
    store = LocalStore(tmp_path / "a" / "b")
    await store.mkdir("c/d")
    below = ["", "/a", "/a/b", "/a/b/c"]
    assert synced == [f"{tmp_path}{folder}" for folder in below]
    await store.mkdir("c/d")
    assert len(synced) == len(below)


async def test_a_folder_that_another_made_meanwhile_is_synced_too(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_mkdir = os.mkdir

    def mkdir(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real_mkdir(path, mode, dir_fd=dir_fd)
        real_mkdir(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", mkdir)
    await LocalStore(tmp_path / "root").mkdir("folder")
    assert synced == [str(tmp_path), f"{tmp_path}/root"]


@pytest.mark.root
async def test_a_root_in_a_folder_that_cannot_be_listed() -> None:
    """As another user, who can make folders there all the same."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1733)
        command = [sys.executable, "-P", "-c", MAKE_AS_USER, f"{folder}/root", str(NOBODY)]
        subprocess.run(command, check=True)
        assert Path(folder, "root", "folder").is_dir()


@pytest.mark.parametrize("leave", ["commit", "abort", "cancel"])
async def test_leaves_no_temporary(store: LocalStore, root: Path, leave: str) -> None:
    with trio.CancelScope() as scope:
        async with store.create("object") as writer:
            await writer.write(b"1")
            assert len(temporaries(root)) == 1
            if leave == "commit":
                await writer.commit()
            elif leave == "cancel":
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert temporaries(root) == []
    assert open_descriptors() == set()


@pytest.mark.parametrize("error", [PermissionError(1, "no links"), OSError(95, "no links")])
async def test_not_overwriting_where_there_are_no_hard_links(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def link(*args: str, **kwargs: int) -> None:
        raise error

    monkeypatch.setattr(os, "link", link)
    await publish(store, "object", b"first", overwrite=False)
    with pytest.raises(Conflict):
        await publish(store, "object", b"second", overwrite=False)
    assert await read_all(store, "object", 9) == b"first"


async def test_a_link_made_by_a_call_that_was_repeated(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats a call whose answer was lost, and the second one finds the link of the first."""
    real_link = os.link

    def link(*args: str, **kwargs: int) -> None:
        real_link(*args, **kwargs)
        raise FileExistsError(17, "exists")

    monkeypatch.setattr(os, "link", link)
    await publish(store, "object", b"first", overwrite=False)
    assert await read_all(store, "object", 9) == b"first"
    assert temporaries(root) == []


# What is not an object


@pytest.mark.parametrize("name", ["link", "way/secret"])
async def test_symbolic_links_are_not_followed(
    store: LocalStore, root: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    root.mkdir()
    (root / "link").symlink_to(outside / "secret")
    (root / "way").symlink_to(outside)
    with pytest.raises(Denied, match="symbolic link"):
        await read_all(store, name, 99)
    with pytest.raises(Denied, match="symbolic link"):
        await store.stat(name)
    with pytest.raises(Denied, match="symbolic link"):
        await publish(store, "way/new", b"")
    with pytest.raises(Denied, match="symbolic link"):
        await store.list("way")
    assert await store.list() == []
    assert os.listdir(outside) == ["secret"]


async def test_writing_replaces_a_link_and_deleting_removes_it(
    store: LocalStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    root.mkdir()
    (root / "one").symlink_to(outside)
    (root / "two").symlink_to(outside)
    await publish(store, "one", b"object")
    await store.delete("two")
    assert outside.read_text() == "kept"
    assert await read_all(store, "one", 9) == b"object"


async def test_a_trees_links_are_removed_and_not_followed(
    store: LocalStore, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_bytes(b"1")
    await store.mkdir("folder/below")
    (root / "folder" / "below" / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "folder" / "fifo")
    await store.delete_tree("folder")
    assert os.listdir(root) == []
    assert os.listdir(tmp_path / "outside") == ["kept"]


async def test_a_tree_deeper_than_names_is_not_gone_down(deep: LocalStore) -> None:
    with pytest.raises(Conflict, match="deeper"):
        await deep.delete_tree("a")


async def test_attributes_are_not_changed_through_a_link(store: LocalStore, root: Path) -> None:
    await publish(store, "object", b"1")
    (root / "link").symlink_to("object")
    before = await store.stat("object")
    with pytest.raises(Denied):
        await store.set_mode("link", 0o777)
    with pytest.raises(Denied):
        await store.set_mtime("link", 0)
    after = await store.stat("object")
    assert (after, after.mode) == (before, before.mode)


@pytest.mark.root
async def test_says_whose_it_is_by_number(store: LocalStore, root: Path) -> None:
    await publish(store, "object", b"1")
    os.chown(root / "object", NOBODY, 12345)
    info = await store.stat("object")
    assert (info.owner, info.group) == (str(NOBODY), "12345")


async def test_space_is_the_file_systems(store: LocalStore, root: Path) -> None:
    assert await store.space() == StoreSpace(None, None)
    await store.mkdir("folder")
    status = os.statvfs(root)
    assert (await store.space()).total_bytes == status.f_blocks * status.f_frsize


async def test_a_fifo_is_refused_at_once(store: LocalStore, root: Path) -> None:
    root.mkdir()
    os.mkfifo(root / "fifo")
    with pytest.raises(Denied, match="not a regular file"):
        await read_all(store, "fifo", 1)
    with pytest.raises(Denied, match="not a regular file"):
        await store.stat("fifo")
    with pytest.raises(Denied, match="not a regular file"):
        await store.rename("fifo", "other")
    assert await store.list() == []
    assert open_descriptors() == set()


async def test_a_socket_is_refused(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    with pytest.raises(Denied, match="not a regular file"):
        await read_all(store, "socket", 1)


async def test_files_of_others_are_not_listed(store: LocalStore, root: Path) -> None:
    await publish(store, "object", b"")
    (root / ".nfs000000000000000100000002").write_text("removed while open")
    os.close(os.open(os.fsencode(root) + b"/not-unicode-\xff", os.O_CREAT | os.O_WRONLY))
    (root / "link").symlink_to("object")
    (root / f"{TEMPORARY_PREFIX}left").write_text("")
    listing = await store.list()
    assert [info.name for info in listing] == ["object"]
    assert [(one.name, bool(one.problem)) for one in listing.unlisted] == [
        ("link", False),
        ("not-unicode-\udcff", True),
    ]


async def test_a_file_cut_short_in_place_is_corrupt(store: LocalStore, root: Path) -> None:
    await publish(store, "object", b"0123456789")
    async with store.open("object") as reader:
        os.truncate(root / "object", 4)
        with pytest.raises(Corrupt, match="shorter"):
            await reader.pread(0, 10)


# Owners and modes


async def test_an_owned_store_is_private(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    store = LocalStore(root, os.geteuid())
    assert await store.list() == []
    assert not root.parent.exists()
    await publish(store, "folder/object", b"")
    modes = [
        stat.S_IMODE(path.stat().st_mode)
        for path in (root.parent, root, root / "folder", root / "folder" / "object")
    ]
    assert modes == [0o700, 0o700, 0o700, 0o600]


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
@pytest.mark.parametrize("folder", ["", "folder"])
async def test_refuses_folders_that_others_can_write_in(root: Path, mode: int, folder: str) -> None:
    store = LocalStore(root, os.geteuid())
    await publish(store, "folder/object", b"")
    (root / folder).chmod(mode)
    with pytest.raises(Denied, match="chmod go-w"):
        await read_all(store, "folder/object", 1)
    with pytest.raises(Denied, match="chmod go-w"):
        await publish(store, "folder/object", b"")
    assert open_descriptors() == set()


async def test_refuses_the_root_of_somebody_else(root: Path) -> None:
    root.mkdir()
    store = LocalStore(root, os.geteuid() + 1)
    with pytest.raises(Denied, match=f"owned by uid {os.geteuid()}"):
        await store.list()


async def test_does_not_make_a_root_for_somebody_else(root: Path) -> None:
    store = LocalStore(root, os.geteuid() + 1)
    with pytest.raises(Denied, match="make it as that user"):
        await publish(store, "object", b"")
    assert not root.exists()


def test_a_relative_root() -> None:
    with pytest.raises(ValueError, match="relative"):
        LocalStore(Path("here"))


async def test_a_root_that_is_a_file(root: Path) -> None:
    root.write_text("")
    with pytest.raises(Conflict):
        await LocalStore(root).list()


# Errors of the operating system


@pytest.mark.parametrize(
    ("number", "error"),
    [
        ("ENOENT", NotFound),
        ("EACCES", Denied),
        ("EPERM", Denied),
        ("EROFS", Denied),
        ("ENOSPC", Unavailable),
        ("EDQUOT", Unavailable),
        ("ENOTCONN", Unavailable),
        ("EMFILE", Unavailable),
        ("ESTALE", Transient),
        ("EIO", Transient),
        ("ETIMEDOUT", Transient),
    ],
)
async def test_translates_errors(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: str, error: type[Exception]
) -> None:
    def pread(fd: int, size: int, offset: int) -> bytes:
        code = getattr(errno, number)
        raise OSError(code, os.strerror(code))

    await publish(store, "folder/object", b"1")
    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(error, match=r"cannot read 'folder/object' in file:///.*/store: \w+"):
        await read_all(store, "folder/object", 1)


@pytest.mark.root
async def test_permission_denied() -> None:
    """As another user, in a process of its own, below a folder that this user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        await publish(LocalStore(root), "object", b"1")
        (root / "object").chmod(0o600)
        command = [sys.executable, "-P", "-c", TRY_AS_USER, folder, str(NOBODY)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split(" in ")[0] for line in done.stdout.splitlines()] == [
        "cannot open 'object'",
        "cannot create 'new'",
        "cannot delete 'object'",
    ]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "store"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
async def test_a_full_disk(tiny: Path) -> None:
    store = LocalStore(tiny)
    await publish(store, "object", b"before")
    with pytest.raises(Unavailable, match="no space left"):
        await publish(store, "object", bytes(100_000))
    assert await read_all(store, "object", 9) == b"before"
    assert temporaries(tiny) == []


@pytest.mark.root
async def test_a_read_only_file_system(tiny: Path) -> None:
    store = LocalStore(tiny)
    await publish(store, "object", b"before")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    with pytest.raises(Denied, match="read-only"):
        await publish(store, "object", b"after")
    assert await read_all(store, "object", 9) == b"before"


# A file system that hangs


class Stuck:
    """A system call that does not return before `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()
        self._real = getattr(os, name)
        monkeypatch.setattr(os, name, self._call)

    def _call(self, *args: object, **kwargs: object) -> object:
        self.entered.set()
        self.release.wait()
        return self._real(*args, **kwargs)

    async def wait_entered(self) -> None:
        await trio.to_thread.run_sync(self.entered.wait)


@pytest.fixture
def single(root: Path) -> LocalStore:
    """A store of one thread: its next operation begins when an abandoned one has ended."""
    return LocalStore(root, threads=trio.CapacityLimiter(1))


async def cancel_when_stuck(stuck: Stuck, scope: trio.CancelScope) -> None:
    await stuck.wait_entered()
    scope.cancel()


async def test_a_hung_read_is_abandoned(
    single: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(single, "object", b"1")
    stuck = Stuck(monkeypatch, "pread")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when_stuck, stuck, nursery.cancel_scope)
        await read_all(single, "object", 1)
    assert len(open_descriptors()) == 1  # The thread's, as long as it is stuck.
    stuck.release.set()
    await single.list()
    assert open_descriptors() == set()


async def test_a_hung_open_is_abandoned(
    single: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(single, "object", b"1")
    stuck = Stuck(monkeypatch, "fstat")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when_stuck, stuck, nursery.cancel_scope)
        await read_all(single, "object", 1)
    stuck.release.set()
    await single.list()
    assert open_descriptors() == set()


@pytest.mark.parametrize("call", ["write", "fsync"])
async def test_a_hung_write_is_abandoned(
    single: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Its thread removes the temporary; a commit stuck before the rename does not rename."""
    await publish(single, "object", b"old")
    stuck = Stuck(monkeypatch, call)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when_stuck, stuck, nursery.cancel_scope)
        await publish(single, "object", b"new")
    assert len(temporaries(root)) == 1
    stuck.release.set()
    assert await read_all(single, "object", 3) == b"old"
    assert temporaries(root) == []
    assert open_descriptors() == set()


async def test_a_hung_create_is_abandoned(
    single: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await single.mkdir("folder")
    stuck = Stuck(monkeypatch, "getpid")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when_stuck, stuck, nursery.cancel_scope)
        await publish(single, "folder/object", b"1")
    stuck.release.set()
    assert await single.list("folder") == []
    assert temporaries(root) == []
    assert open_descriptors() == set()
