"""Random operations on files of a file system, and the same on local ones, which may not differ.

    python -m bootseer_dev.files.fsx FOLDER MIRROR --seed N --operations N

prints each operation before it is done, so that the last ones are known whatever becomes of them,
and at the end a JSON object of how many there were of each kind. What is done follows from the seed
and from what the local files are like, never from time: a seed finds again what it has found.

Left out is what the checkpoint mount is known to do otherwise: nobody uses a file that was renamed
over.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from bootseer.units import KIB

T = TypeVar("T")

MODULE = "bootseer_dev.files.fsx"
DIFFERENT = 4
"""Exit code: the one file system did something else than the other."""
NAMES = ("a", "b", "c", "sub/d", "sub/e")
_UNITS = 24
"""Length of a file at most."""
_DESCRIPTORS = 6
_MAPPINGS = 2
_PAGE = 4096


class Difference(Exception):
    """The one file system did something else than the other."""


@dataclass(slots=True)
class Side:
    """One of the two file systems, and what is open there."""

    root: Path
    files: dict[int, int] = field(default_factory=dict)
    maps: dict[int, mmap.mmap] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return where a file is."""
        return self.root / name

    def whole(self, name: str, piece_bytes: int) -> bytes:
        """Read a file from its beginning, in pieces."""
        with self.path(name).open("rb", buffering=0) as file:
            return b"".join(iter(lambda: file.read(piece_bytes), b""))

    def names(self) -> list[str]:
        """List all files."""
        return sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*"))


class _Failure(NamedTuple):
    """Why an operation has failed."""

    code: int

    def __str__(self) -> str:
        return os.strerror(self.code)


@dataclass(slots=True, eq=False)
class _Opened:
    """A descriptor or a mapping on both sides."""

    number: int
    file: int
    flags: int

    def __str__(self) -> str:
        return f"#{self.number}"

    @property
    def reads(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_WRONLY

    @property
    def writes(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY


class Machine:
    """Does one random operation after the other on both sides, and compares what comes of it."""

    def __init__(self, folder: Path, mirror: Path, seed: int, unit_bytes: int) -> None:
        """Begin with what is there, which is the same on both sides.

        Args:
            folder: of the file system that is tried.
            mirror: of one that is right.
            seed: of what is done.
            unit_bytes: the length whose multiples are most worth trying.
        """
        self.done: Counter[str] = Counter()
        self._sides = (Side(folder), Side(mirror))
        self._local = self._sides[1]
        self._random = random.Random(seed)
        self._unit_bytes = unit_bytes
        self._limit_bytes = _UNITS * unit_bytes
        self._numbers = 0
        self._named: dict[str, int] = {}
        self._opened: list[_Opened] = []
        self._mapped: list[_Opened] = []
        for side in self._sides:
            side.path("sub").mkdir(exist_ok=True)

    def step(self) -> None:
        """Do one operation.

        Raises:
            Difference: it came out differently, or so did one before it.
        """
        kind, (act, _) = self._random.choices(
            [*_KINDS.items()], [weight for _, weight in _KINDS.values()]
        )[0]
        act(self)
        self.done[kind] += 1

    def finish(self) -> None:
        """Close everything and compare everything."""
        self._close_all()
        self.compare_all()

    def compare_all(self) -> None:
        """Compare all names, lengths and bytes."""
        self._both("list", lambda side: side.names())
        for name in NAMES:
            self._compare(name, self._limit_bytes)

    # Descriptors

    def open(self) -> None:
        """Open or create a file in a random way."""
        if len(self._opened) == _DESCRIPTORS:
            return self.close()
        access = self._random.choice((os.O_RDONLY, os.O_RDWR, os.O_RDWR, os.O_WRONLY))
        flags = access | os.O_CREAT * (self._random.random() < 0.7)
        if access != os.O_RDONLY:
            flags |= os.O_TRUNC * (self._random.random() < 0.15)
            flags |= os.O_APPEND * (self._random.random() < 0.15)
        name = self._random.choice(NAMES)
        opened = _Opened(self._number(), self._named.get(name, 0), flags)

        def act(side: Side) -> None:
            side.files[opened.number] = os.open(side.path(name), flags, 0o644)

        if self._both(f"open {opened} {name} {_shown(flags)}", act) is None:
            return None
        opened.file = self._named.setdefault(name, opened.number)
        self._opened.append(opened)
        return None

    def close(self) -> None:
        """Close a descriptor or a mapping."""
        if self._mapped and self._random.random() < 0.3:
            self._unmap(self._random.choice(self._mapped))
        elif opened := self._choose():
            self._close(opened)

    def reopen(self) -> None:
        """Close everything, and compare a file as it is found afterwards."""
        self._close_all()
        self.compare()

    # Content

    def read(self) -> None:
        """Read from a descriptor, once or several times in sequence."""
        opened = self._choose(lambda o: o.reads)
        if opened is None:
            return
        at, size = self._edge(), self._length()
        for _ in range(self._random.choice((1, 1, 4))):
            self._both(
                f"read {opened} {size} at {at}",
                partial(_pread, opened.number, size, at),
            )
            at += size

    def write(self) -> None:
        """Write to a descriptor, where its file ends or anywhere."""
        opened = self._choose(lambda o: o.writes)
        if opened is None:
            return
        end = os.fstat(self._local.files[opened.number]).st_size
        at = end if self._random.random() < 0.4 else self._edge()
        data = self._random.randbytes(max(1, min(self._length(), self._limit_bytes - at)))
        if at == self._limit_bytes:
            return
        self._both(
            f"write {opened} {len(data)} at {at}",
            lambda side: os.pwrite(side.files[opened.number], data, at),
        )
        self._lengths(opened)

    def truncate(self) -> None:
        """Cut or extend a file, by a descriptor or by its name."""
        size = self._edge()
        if (opened := self._choose(lambda o: o.writes)) is None:
            name = self._random.choice(NAMES)
            self._both(
                f"truncate {name} to {size}", lambda side: os.truncate(side.path(name), size)
            )
            return
        self._both(
            f"truncate {opened} to {size}",
            lambda side: os.ftruncate(side.files[opened.number], size),
        )
        self._lengths(opened)

    def sync(self) -> None:
        """Make durable what was written."""
        if opened := self._choose():
            call = self._random.choice((os.fsync, os.fdatasync))
            self._both(f"sync {opened}", lambda side: call(side.files[opened.number]))

    def drop_caches(self) -> None:
        """Drop a file's pages."""
        opened = self._choose()
        if opened is not None:
            self._both(f"drop the pages of {opened}", partial(_drop_pages, opened.number))

    def map_read(self) -> None:
        """Map a file and read from memory."""
        opened = self._choose(lambda o: o.reads)
        if opened is not None and (mapped := self._map(opened, mmap.PROT_READ)):
            self._read_map(mapped)
            self._unmap(mapped)

    def map_write(self) -> None:
        """Write to the memory that is a file; the mapping may stay."""
        opened = self._choose(lambda o: o.reads and o.writes)
        if opened is None or len(self._mapped) == _MAPPINGS:
            return
        if mapped := self._map(opened, mmap.PROT_READ | mmap.PROT_WRITE):
            self._write_map(mapped)
            if self._random.random() < 0.5:
                self._unmap(mapped)

    def use_map(self) -> None:
        """Read, write or sync a mapping made before, whose file may have changed meanwhile."""
        if not self._mapped:
            return
        mapped = self._random.choice(self._mapped)
        self._random.choice((self._read_map, self._write_map, self._sync_map))(mapped)

    # Names

    def rename(self) -> None:
        """Give a file another name, perhaps another's, whose users close it before or after."""
        old, new = self._random.sample(NAMES, 2)
        over = self._named.get(new)
        if self._random.random() < 0.5:
            self._abandon(over)
        self._abandon_maps(over)
        done = self._both(
            f"rename {old} to {new}", lambda side: os.rename(side.path(old), side.path(new))
        )
        if done is not None:
            self._abandon(over)
            self._named[new] = self._named.pop(old)

    def remove(self) -> None:
        """Remove a file; who has it open may read on."""
        name = self._random.choice(NAMES)
        self._abandon_maps(self._named.get(name))
        if self._both(f"remove {name}", lambda side: side.path(name).unlink()) is not None:
            del self._named[name]

    def copy(self) -> None:
        """Copy a file into another, new or not."""
        old, new = self._random.sample(NAMES, 2)

        def act(side: Side) -> None:
            shutil.copyfile(side.path(old), side.path(new))

        if self._both(f"copy {old} to {new}", act) is not None:
            self._named.setdefault(new, self._number())

    def compare(self) -> None:
        """Open a file again and read all of it."""
        self._compare(self._random.choice(NAMES), self._random.choice((_PAGE, 77_777, 1 << 20)))

    # How it is done

    def _both(self, what: str, act: Callable[[Side], T]) -> tuple[T] | None:
        """Do the same on both sides; returns what came of it, or None where it fails."""
        print(what, flush=True)
        found, expected = (_outcome(act, side) for side in self._sides)
        if found != expected:
            raise Difference(f"{what}: {_difference(found, expected)}")
        if isinstance(expected, _Failure):
            print(f"  {expected}", flush=True)
            return None
        return (expected,)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _edge(self) -> int:
        """Choose an offset, most often beside the edge of a page or a unit."""
        step = self._random.choice((1, _PAGE, self._unit_bytes, self._unit_bytes))
        at = self._random.randrange(self._limit_bytes + 1) // step * step
        return min(self._limit_bytes, max(0, at + self._random.choice((-1, 0, 0, 1))))

    def _length(self) -> int:
        step = self._random.choice((1, 100, _PAGE, self._unit_bytes, 3 * self._unit_bytes))
        return self._random.choice((step, self._random.randrange(1, 2 * step + 1)))

    def _choose(self, test: Callable[[_Opened], bool] = lambda opened: True) -> _Opened | None:
        found = [opened for opened in self._opened if test(opened)]
        return self._random.choice(found) if found else None

    def _lengths(self, opened: _Opened) -> None:
        self._both(f"length {opened}", lambda side: os.fstat(side.files[opened.number]).st_size)

    def _compare(self, name: str, piece_bytes: int) -> None:
        self._both(f"compare {name}", lambda side: side.whole(name, piece_bytes))
        self._both(f"length {name}", lambda side: side.path(name).stat().st_size)

    def _close(self, opened: _Opened) -> None:
        self._opened.remove(opened)
        self._both(f"close {opened}", lambda side: os.close(side.files.pop(opened.number)))

    def _close_all(self) -> None:
        for mapped in [*self._mapped]:
            self._unmap(mapped)
        for opened in [*self._opened]:
            self._close(opened)

    def _abandon(self, file: int | None) -> None:
        for opened in [o for o in self._opened if o.file == file]:
            self._close(opened)

    def _abandon_maps(self, file: int | None) -> None:
        for mapped in [m for m in self._mapped if m.file == file]:
            self._unmap(mapped)

    def _map(self, opened: _Opened, protection: int) -> _Opened | None:
        if not os.fstat(self._local.files[opened.number]).st_size:
            return None
        mapped = _Opened(self._number(), opened.file, opened.flags)

        def act(side: Side) -> int:
            memory = mmap.mmap(side.files[opened.number], 0, prot=protection)
            side.maps[mapped.number] = memory
            return len(memory)

        self._both(f"map {mapped} of {opened}", act)
        self._mapped.append(mapped)
        return mapped

    def _unmap(self, mapped: _Opened) -> None:
        self._mapped.remove(mapped)
        self._both(f"unmap {mapped}", lambda side: side.maps.pop(mapped.number).close())

    def _mapped_range(self, mapped: _Opened) -> slice:
        """Choose bytes of a mapping that its file still has: others must not be touched."""
        memory = self._local.maps[mapped.number]
        size = min(len(memory), memory.size())
        start = min(self._edge(), max(0, size - 1))
        return slice(start, min(size, start + self._length()))

    def _read_map(self, mapped: _Opened) -> None:
        at = self._mapped_range(mapped)
        self._both(
            f"read map {mapped} {at.start} to {at.stop}", lambda side: side.maps[mapped.number][at]
        )

    def _write_map(self, mapped: _Opened) -> None:
        at = self._mapped_range(mapped)
        data = self._random.randbytes(at.stop - at.start)

        def act(side: Side) -> None:
            side.maps[mapped.number][at] = data

        self._both(f"write map {mapped} {at.start} to {at.stop}", act)

    def _sync_map(self, mapped: _Opened) -> None:
        self._both(f"sync map {mapped}", lambda side: side.maps[mapped.number].flush())


_KINDS: dict[str, tuple[Callable[[Machine], None], int]] = {
    "open": (Machine.open, 10),
    "close": (Machine.close, 6),
    "reopen": (Machine.reopen, 2),
    "read": (Machine.read, 16),
    "write": (Machine.write, 20),
    "truncate": (Machine.truncate, 5),
    "sync": (Machine.sync, 3),
    "drop caches": (Machine.drop_caches, 5),
    "map read": (Machine.map_read, 5),
    "map write": (Machine.map_write, 6),
    "use map": (Machine.use_map, 5),
    "rename": (Machine.rename, 4),
    "remove": (Machine.remove, 2),
    "copy": (Machine.copy, 2),
    "compare": (Machine.compare, 4),
}


def _outcome(act: Callable[[Side], T], side: Side) -> T | _Failure:
    try:
        return act(side)
    except OSError as error:
        return _Failure(error.errno or 0)


def _pread(number: int, size_bytes: int, offset: int, side: Side) -> bytes:
    return os.pread(side.files[number], size_bytes, offset)


def _drop_pages(number: int, side: Side) -> None:
    os.fsync(side.files[number])
    os.posix_fadvise(side.files[number], 0, 0, os.POSIX_FADV_DONTNEED)


def _shown(flags: int) -> str:
    access = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}[flags & os.O_ACCMODE]
    others = {os.O_CREAT: "create", os.O_TRUNC: "truncate", os.O_APPEND: "append"}
    return " ".join((access, *(name for flag, name in others.items() if flags & flag)))


def _difference(found: object, expected: object) -> str:
    if not isinstance(found, bytes) or not isinstance(expected, bytes):
        return f"{found!s:.200}, not {expected!s:.200}"
    pairs = zip(found, expected, strict=False)
    unlike = [at for at, (one, other) in enumerate(pairs) if one != other]
    where = f"{len(unlike)} differ, from {unlike[0]} to {unlike[-1]}" if unlike else "none differs"
    return f"{len(found)} bytes, not {len(expected)}; {where}"


def main() -> None:
    """Do random operations, or only compare, and exit with `DIFFERENT` at the first difference."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("mirror", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=0, help="how many; 0: only compare")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no longer than that")
    parser.add_argument("--unit", type=int, default=64 * KIB, help="stripe unit, in bytes")
    given = parser.parse_args()
    faulthandler.enable()
    machine = Machine(given.folder, given.mirror, given.seed, given.unit)
    until = time.monotonic() + given.seconds
    try:
        for _ in range(given.operations):
            if time.monotonic() > until:
                break
            machine.step()
        machine.finish()
    except Difference as error:
        print(f"DIFFERENT: {error}", flush=True)
        sys.exit(DIFFERENT)
    print(json.dumps(machine.done))


if __name__ == "__main__":
    main()
