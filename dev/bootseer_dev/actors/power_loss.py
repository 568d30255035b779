"""What a file system may hold after the power was lost, at any moment of what somebody does in it.

While a block of `PowerLoss` runs, calls that change names below a folder, and those that sync, are
noted. A file's content is on the disk as far as it was synced; what was written since may have
arrived, in any of its pages. A change of names is on the disk once one of its folders was synced;
until then it may be, in each folder in the order in which it was made. So a file system promises no
less, and most promise more.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

_PAGE = 4096
_OPEN = os.open
"""Itself, which is not noted."""
Names = dict[str, int]
"""Of a folder: the numbers (inodes) of what is in it."""


@dataclass
class _Change:
    """A change of names that is not on the disk for sure: in each folder, a name's new number."""

    sets: list[tuple[int, str, int | None]]

    @property
    def folders(self) -> set[int]:
        return {folder for folder, _, _ in self.sets}


@dataclass
class _Disk:
    """What is on the disk for sure, and what may be."""

    root: int
    folders: dict[int, Names] = field(default_factory=dict)
    synced: dict[int, bytes] = field(default_factory=dict)
    written: dict[int, bytes] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)

    def copy(self) -> _Disk:
        folders = {folder: dict(names) for folder, names in self.folders.items()}
        written = dict(self.written)
        return _Disk(self.root, folders, dict(self.synced), written, list(self.changes))

    def apply(self, change: _Change) -> None:
        for folder, name, number in change.sets:
            names = self.folders.setdefault(folder, {})
            if number is None:
                names.pop(name, None)
            else:
                names[name] = number

    def sync_folder(self, folder: int) -> None:
        """Have all changes in a folder on the disk, and those before them that they need."""
        needed = {folder}
        kept: list[_Change] = []
        for change in reversed(self.changes):
            if change.folders & needed:
                needed |= change.folders
            else:
                kept.insert(0, change)
        done = [change for change in self.changes if change not in kept]
        for change in done:
            self.apply(change)
        self.changes = kept

    def lose_power(self, chance: random.Random) -> None:
        """Decide what of all that is in doubt has arrived."""
        stopped: set[int] = set()
        arrives = chance.choice([0.0, 0.5, 0.9, 1.0])
        for change in self.changes:
            if change.folders & stopped or chance.random() >= arrives:
                stopped |= change.folders
            else:
                self.apply(change)
        self.changes = []
        for number, content in self.written.items():
            self.synced[number] = _mixed(chance, self.synced.get(number, b""), content)

    def put(self, target: Path) -> None:
        """Make a folder with all that is on the disk."""
        waiting = [(self.root, target)]
        while waiting:
            number, path = waiting.pop()
            if number in self.folders:
                path.mkdir(exist_ok=True)
                waiting += [(inside, path / name) for name, inside in self.folders[number].items()]
            else:
                path.write_bytes(self.synced.get(number, b""))
                path.chmod(0o600)


def _mixed(chance: random.Random, old: bytes, new: bytes) -> bytes:
    kind = chance.random()
    if kind < 0.3 or old == new:
        return old
    if kind < 0.5:
        return new
    content = bytearray(chance.choice([old, new]))
    for start in range(0, len(content), _PAGE):
        page = slice(start, start + _PAGE)
        # What never arrived is zeros, where the length did.
        before = old[page] or bytes(len(content[page]))
        arrived = chance.choice([before, new[page]])
        content[start : start + len(arrived)] = arrived
    return bytes(content)


class PowerLoss:
    """Notes what is done below a folder, to lose power at each moment of it.

    Attributes:
        promised: what is certain by now; whoever is watched adds to it, and `disks` gives it back.
    """

    def __init__(self, root: Path) -> None:
        """Begin with what is in a folder, all of it on the disk."""
        self.promised: list[Any] = []
        self._root = root
        self._lock = RLock()  # guards the rest
        self._moments: list[tuple[_Disk, list[Any]]] = []
        self._held: list[int] = []  # what has lost its name: its number gets no other use
        self._disk = _Disk(os.stat(root).st_ino)
        for path in [root, *root.rglob("*")]:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                names = {name: (path / name).lstat().st_ino for name in os.listdir(path)}
                self._disk.folders[status.st_ino] = names
            else:
                self._disk.synced[status.st_ino] = path.read_bytes()

    def disks(self, target: Path, seed: int, most: int = 1000) -> Iterator[tuple[Path, list[Any]]]:
        """Make the folders that there may be after a loss of power at each moment.

        Args:
            target: folder to make them in.
            seed: of the chances.
            most: of the moments, how many are looked at.

        Returns:
            The folder of each, and what was promised at that moment.
        """
        chance = random.Random(seed)
        moments = self._moments + [(self._seen(), list(self.promised))] * 3
        for number, (disk, promised) in enumerate(
            chance.sample(moments, most) if len(moments) > most else moments
        ):
            lost = disk.copy()
            lost.lose_power(chance)
            folder = target / str(number)
            lost.put(folder)
            yield folder, promised

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what this process does; one at a time."""
        originals = {name: getattr(os, name) for name in _CALLS}
        for name, original in originals.items():
            setattr(os, name, self._noting(name, original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(os, name, original)
            while self._held:
                os.close(self._held.pop())

    def _noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        note = getattr(self, f"_{name}")

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return note(original, *args, **kwargs)

        return call

    # What is noted.

    def _moment(self) -> None:
        self._moments.append((self._seen(), list(self.promised)))

    def _seen(self) -> _Disk:
        """Return the disk, with the content that files have by now."""
        disk = self._disk.copy()
        for path in self._root.rglob("*"):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    disk.written[path.lstat().st_ino] = path.read_bytes()
        return disk

    def _place(self, path: Any, folder: int | None) -> tuple[int, str] | None:
        """Return the folder's number and the name of a path; None if that is elsewhere."""
        text = os.fsdecode(path)
        if folder is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
        above, name = os.path.split(os.path.abspath(text))
        above = os.path.realpath(above)
        if os.path.commonpath([above, self._root]) != str(self._root):
            return None
        try:
            return os.stat(above).st_ino, name
        except OSError:
            return None

    def _changed(self, *sets: tuple[tuple[int, str] | None, int | None]) -> None:
        changes = [(*place, number) for place, number in sets if place is not None]
        if changes:
            self._disk.changes.append(_Change(changes))

    def _gone(self, path: str) -> None:
        """Keep the content of what loses its name: it may come back with that."""
        with suppress(OSError):
            status = os.lstat(path)
            self._held.append(_OPEN(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    self._disk.written[status.st_ino] = file.read()

    @staticmethod
    def _path(path: Any, folder: int | None) -> str:
        text = os.fsdecode(path)
        return text if folder is None else f"/proc/self/fd/{folder}/{text}"

    def _open(
        self, original: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> Any:
        makes = flags & os.O_CREAT and flags & os.O_TMPFILE != os.O_TMPFILE
        is_new = makes and not os.path.lexists(self._path(path, dir_fd))
        if is_new:
            self._moment()
        fd = original(path, flags, mode, dir_fd=dir_fd)
        if is_new:
            self._changed((self._place(path, dir_fd), os.fstat(fd).st_ino))
        return fd

    def _mkdir(
        self, original: Any, path: Any, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> None:
        self._moment()
        original(path, mode, dir_fd=dir_fd)
        place = self._place(path, dir_fd)
        number = os.lstat(self._path(path, dir_fd)).st_ino
        if place is not None:
            self._disk.folders[number] = {}
        self._changed((place, number))

    def _link(self, original: Any, src: Any, dst: Any, **kwargs: Any) -> None:
        self._moment()
        original(src, dst, **kwargs)
        folder = kwargs.get("dst_dir_fd")
        number = os.lstat(self._path(dst, folder)).st_ino
        self._changed((self._place(dst, folder), number))

    def _unlink(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        self._moment()
        self._gone(self._path(path, dir_fd))
        original(path, dir_fd=dir_fd)
        self._changed((self._place(path, dir_fd), None))

    _remove = _unlink

    def _rmdir(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        self._moment()
        self._gone(self._path(path, dir_fd))
        original(path, dir_fd=dir_fd)
        self._changed((self._place(path, dir_fd), None))

    def _rename(self, original: Any, src: Any, dst: Any, **kwargs: Any) -> None:
        self._moment()
        old, new = kwargs.get("src_dir_fd"), kwargs.get("dst_dir_fd")
        number = os.lstat(self._path(src, old)).st_ino
        self._gone(self._path(dst, new))
        original(src, dst, **kwargs)
        self._changed((self._place(src, old), None), (self._place(dst, new), number))

    _replace = _rename

    def _fsync(self, original: Any, fd: int) -> None:
        self._moment()
        original(fd)
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._disk.sync_folder(status.st_ino)
        else:
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                self._disk.synced[status.st_ino] = file.read()
        self._moment()

    _fdatasync = _fsync


_NAMES = ("open", "mkdir", "link", "unlink", "remove", "rmdir", "rename", "replace")
_CALLS = (*_NAMES, "fsync", "fdatasync")
