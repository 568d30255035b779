"""Find out from /proc which processes have a file open to write, and whether one was killed.

The kernel tells which process opens a file. Of a close(2) it tells neither the process nor whether
another descriptor of the file is open, in the same process or in a forked one.

The closing process waits for the serving process, which must not wait for it in turn. A process
in execve(2) closes files under a lock that readers of its ``stat``, ``maps``, ``environ``, ``io``
and of the links in ``fd`` wait for (kernel 6.18); readers of ``statm``, ``status``, ``fdinfo`` and
of the names in ``fd`` do not. So ``stat`` is read only of threads that have no memory any more. A
scan may drop the last reference to memory of an ending process, and then wait for a write to the
mount. So it runs in a thread, and is given up after `_SCAN_S`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum, auto
from typing import NamedTuple

import trio

_PF_EXITING = 0x4
_SIGNAL = 0x7F
"""Bits of an exit code with the signal that killed the process."""
_STATE, _FLAGS, _EXIT_CODE = 0, 6, 49
"""Fields of /proc/PID/stat, counted after the program's name."""
_OPEN_FLAGS, _INO_NAME, _INO = 3, 6, 7
"""Words of /proc/PID/fdinfo: pos, flags, mnt_id and ino, each after its name."""
_SCAN_S = 5.0
SCANS_AT_ONCE = 16
"""Scans at once; a limit of their own, so that blocked scans do not take threads of the store."""


class CloseKind(Enum):
    """The kind of a close(2).

    HELD: another descriptor of the file is open.
    LAST: it closed the last descriptor.
    KILLED: the kernel closed the last descriptor because a signal killed the process.
    UNKNOWN: /proc does not show the process that opened it.
    """

    HELD = auto()
    LAST = auto()
    KILLED = auto()
    UNKNOWN = auto()


class ProcessScan(NamedTuple):
    """Result of a scan.

    Attributes:
        closing: what the close(2) means.
        by_opener: the process that opened the file has closed it now, and was not killed; others
            may still have it open.
    """

    closing: CloseKind
    by_opener: bool = False


class OpenWriters:
    """The processes that have one handle of a file.

    Processes inherit a descriptor by fork. So the process that opened the file may have it, and
    processes that started later. A descriptor that was sent through a socket to an older process is
    not seen; the file counts as closed then.

    Attributes:
        closing: kind of the last close(2); None before that, and after a write.
    """

    def __init__(self, thread: int, limiter: trio.CapacityLimiter) -> None:
        """Begin with the thread that opens the file, and waits for the answer.

        Args:
            thread: its id; 0 for one of another pid namespace.
            limiter: for the scans of all files of the mount, `SCANS_AT_ONCE` at once.
        """
        self._limiter = limiter
        self.closing: CloseKind | None = None
        self._since = _last_pid()
        self._opener = _process_of(thread)
        self._known = frozenset() if self._opener is None else frozenset([self._opener])

    async def scan(self, inode: int) -> ProcessScan:
        """Return the kind of a close(2) that waits for the answer.

        Cost: a call for each descriptor of the process that opened the file; if processes have
        started since, one for each process of the node, and more for new ones of the user.

        Args:
            inode: of the file; no other file of the node has this number.
        """
        if not self._known:
            return ProcessScan(CloseKind.UNKNOWN)
        with trio.move_on_after(_SCAN_S):
            found, self._known = await trio.to_thread.run_sync(
                self._scan, self._known, inode, abandon_on_cancel=True, limiter=self._limiter
            )
            return found
        return ProcessScan(CloseKind.UNKNOWN)

    def _scan(self, known: frozenset[int], inode: int) -> tuple[ProcessScan, frozenset[int]]:
        """Return the result, and the processes that may have the file open now."""
        holding: set[int] = set()
        unclear: set[int] = set()
        closed: set[int] = set()
        was_killed = False
        for pid in known | _started_since(self._since):
            alive = _alive_thread(pid)
            if alive is not None:
                has_it = _has_open(alive, inode)
                if has_it:
                    holding.add(pid)
                elif pid in known:
                    (unclear if has_it is None else closed).add(pid)
            elif pid in known:
                by_signal = _exits_by_signal(pid)
                if by_signal is False:
                    closed.add(pid)
                was_killed |= bool(by_signal)
        if holding:
            closing = CloseKind.HELD
        elif unclear:
            closing = CloseKind.UNKNOWN
        else:
            closing = CloseKind.KILLED if was_killed and not closed else CloseKind.LAST
        return ProcessScan(closing, self._opener in closed), frozenset(holding | unclear)


def _read(path: str) -> bytes:
    """Return the content of a small file of /proc; pathlib takes three times as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def _last_pid() -> int:
    """Return the id of the newest process or thread."""
    return int(_read("/proc/loadavg").split()[4])


def _started_since(last_pid: int) -> set[int]:
    """Return the user's processes with ids given after `last_pid`; ids wrap around."""
    now = _last_pid()
    if now == last_pid:
        return set()
    own = os.geteuid()
    found = set()
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            pid = int(name)
            young = last_pid < pid <= now if last_pid < now else not now < pid <= last_pid
            if young and os.stat(f"/proc/{pid}").st_uid == own:
                found.add(pid)
    return found


def _process_of(thread: int) -> int | None:
    with suppress(OSError):
        for line in _read(f"/proc/{thread}/status").splitlines():
            if line.startswith(b"Tgid:"):
                return int(line.split()[1])
    return None


def _alive_thread(pid: int) -> int | None:
    """Return a thread of a process that still has memory; an exit releases that first."""
    if _has_memory(pid):
        return pid
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            if _has_memory(int(tid)):
                return int(tid)
    return None


def _has_memory(thread: int) -> bool:
    try:
        return not _read(f"/proc/{thread}/statm").startswith(b"0 ")
    except OSError:
        return False


def _exits_by_signal(pid: int) -> bool | None:
    """Tell whether a signal killed a process that is exiting; None if it has exited."""
    is_waiting = by_signal = False
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            if _has_memory(int(tid)):
                continue
            with suppress(OSError):
                words = _read(f"/proc/{pid}/task/{tid}/stat").rpartition(b")")[2].split()
                if int(words[_FLAGS]) & _PF_EXITING:
                    is_waiting |= words[_STATE] not in (b"Z", b"X")
                    by_signal |= bool(int(words[_EXIT_CODE]) & _SIGNAL)
    return by_signal if is_waiting else None


def _has_open(thread: int, inode: int) -> bool | None:
    """Tell whether a descriptor of a process can write a file; None if /proc does not tell.

    A stat of the file itself would be answered by this process, so its number is read from /proc.
    """
    folder = f"/proc/{thread}"
    try:
        descriptors = os.listdir(f"{folder}/fd")
    except PermissionError:
        return None
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            words = _read(f"{folder}/fdinfo/{descriptor}").split()
        except PermissionError:
            return None
        except OSError:
            continue  # closed meanwhile
        if words[_INO_NAME : _INO_NAME + 1] != [b"ino:"]:
            return None  # a kernel before 5.14
        if int(words[_INO]) == inode and int(words[_OPEN_FLAGS], 8) & os.O_ACCMODE:
            return True
    return False
