"""The kernel's side of a view, without a kernel: errors, lookup counts, the list of mounts."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyfuse3
import pytest

from bootseer.errors import (
    Conflict,
    Corrupt,
    Denied,
    NoSpace,
    NotFound,
    OverQuota,
    Transient,
    Unavailable,
)
from bootseer.fuse.mountinfo import MountInfo, _parse, find_mount, read_mounts
from bootseer.fuse.operations import ViewOperations
from bootseer.fuse.view import ROOT_INODE, Attributes, Kernel, OpenedFile
from bootseer.fuse.writable import WritableOperations

CONTEXT: Any = None  # the view never sees who asks


class OneFile:
    """A root with one file; any call can be told to fail."""

    valid_s = 5.0

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.size_bytes = 1025
        self.forgotten: list[int] = []

    def _answer(self) -> Attributes:
        if self.error is not None:
            raise self.error
        return Attributes(
            inode=7, mode=stat.S_IFREG | 0o644, size_bytes=self.size_bytes, mtime_ns=5
        )

    def attach(self, kernel: Kernel) -> None:
        pass

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        return self._answer()

    async def attributes(self, inode: int) -> Attributes:
        return self._answer()

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        return [(b"file", self._answer())]

    async def link_target(self, inode: int) -> bytes:
        raise OSError(errno.EINVAL, "not a link")

    async def open(self, inode: int, flags: int) -> OpenedFile:
        self._answer()
        return OpenedFile(handle=3, keep_cache=True)

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes:
        self._answer()
        return b"x" * size_bytes

    async def close(self, handle: int) -> None:
        pass

    def forget(self, inode: int) -> None:
        self.forgotten.append(inode)


@pytest.fixture
def view() -> OneFile:
    return OneFile()


@pytest.fixture
def operations(view: OneFile) -> ViewOperations:
    return ViewOperations(view, on_start=lambda: None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("gone"), errno.ENOENT),
        (Denied("no"), errno.EACCES),
        (Conflict("replaced"), errno.ESTALE),
        (Corrupt("torn"), errno.EIO),
        (Unavailable("no store"), errno.EIO),
        (Transient("later"), errno.EIO),
        (NoSpace("full"), errno.ENOSPC),
        (OverQuota("full for you"), errno.EDQUOT),
        (PermissionError(errno.EPERM, "no"), errno.EPERM),
        (OSError("without a number"), errno.EIO),
        (OSError(512, "a number that the kernel refuses"), errno.EIO),
        (KeyError("a bug"), errno.EIO),
    ],
)
async def test_every_error_becomes_an_errno(
    view: OneFile, operations: ViewOperations, error: Exception, code: int
) -> None:
    view.error = error
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await operations.read(3, 0, 1)
    assert raised.value.errno == code


async def test_attributes_are_what_the_view_says(operations: ViewOperations) -> None:
    entry = await operations.getattr(7, CONTEXT)
    assert (entry.st_ino, entry.st_size, entry.st_blocks) == (7, 1025, 3)
    assert (entry.st_mtime_ns, entry.attr_timeout) == (5, 5.0)


async def test_a_missing_name_is_remembered_by_the_kernel(
    view: OneFile, operations: ViewOperations
) -> None:
    view.error = FileNotFoundError(errno.ENOENT, "none")
    entry = await operations.lookup(ROOT_INODE, b"none", CONTEXT)
    assert (entry.st_ino, entry.entry_timeout) == (0, 5.0)


async def test_a_file_is_forgotten_with_its_last_lookup(
    view: OneFile, operations: ViewOperations
) -> None:
    for _ in range(3):
        await operations.lookup(ROOT_INODE, b"file", CONTEXT)
    await operations.forget([(7, 2)])
    assert view.forgotten == []
    await operations.forget([(7, 1)])
    assert view.forgotten == [7]


async def test_a_listing_keeps_its_files_until_it_is_closed(
    view: OneFile, operations: ViewOperations
) -> None:
    handle = await operations.opendir(ROOT_INODE, CONTEXT)
    await operations.lookup(ROOT_INODE, b"file", CONTEXT)
    await operations.forget([(7, 1)])
    assert view.forgotten == []
    await operations.releasedir(handle)
    assert view.forgotten == [7]


@pytest.mark.parametrize("error", [None, OSError(errno.ESTALE, "gone"), NotFound("gone")])
async def test_a_listing_hands_out_attributes_of_now_if_there_are_any(
    view: OneFile, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    writable: Any = view
    operations = WritableOperations(writable, on_start=lambda: None)
    sizes = []

    def reply(token: object, name: bytes, entry: pyfuse3.EntryAttributes, after: int) -> bool:
        sizes.append(entry.st_size)
        return True

    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
    handle = await operations.opendir(ROOT_INODE, CONTEXT)
    view.size_bytes, view.error = 2000, error
    await operations.readdir(handle, 0, CONTEXT)
    assert sizes == [2000 if error is None else 1025]


async def test_a_long_name_does_not_reach_the_view(operations: ViewOperations) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await operations.lookup(ROOT_INODE, b"x" * 256, CONTEXT)
    assert raised.value.errno == errno.ENAMETOOLONG
    await operations.lookup(ROOT_INODE, b"x" * 255, CONTEXT)


def test_mounts_are_parsed() -> None:
    line = (
        "36 35 0:45 /a /mnt/with\\040blank rw,noatime master:1 shared:7"
        " - fuse.bootseer my\\040share rw,user_id=0"
    )
    assert _parse(line) == MountInfo(
        "36", "0:45", "/mnt/with blank", "fuse.bootseer", "my share", "rw,user_id=0"
    )


@pytest.mark.root
def test_a_mountpoints_name_does_not_break_the_list(tmp_path: Path) -> None:
    folder = tmp_path / "a\r1 \x0b\x85\u2028\udcff"
    folder.mkdir()
    look = "import sys; from bootseer.fuse.mountinfo import find_mount as f; print(f(sys.argv[1]))"
    steps = 'mount -t tmpfs none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", "sh", "-c", steps, "sh", folder, sys.executable, look]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "kind='tmpfs'" in found.stdout


def test_this_process_s_mounts_are_found() -> None:
    assert find_mount("/proc") in read_mounts(os.getpid())
    assert find_mount(str(Path(__file__))) is None
