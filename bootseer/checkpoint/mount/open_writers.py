"""Which processes have a file open to write, and how the one that closes it ends, as /proc tells.

The kernel says who opens a file, and of a close(2) only that there was one: not by whom, nor
whether another descriptor of the file is left, in this process or in one that was forked.

Who closes waits for the serving process, which must not wait for him. A process that becomes
another program closes files under a lock that readers of its ``stat``, ``maps``, ``environ``,
``io`` and of the links in ``fd`` wait for (kernel 6.18); those of ``statm``, ``status``, ``fdinfo``
and of the names in ``fd`` do not. So ``stat`` is read of threads only that have no memory any more.
And since a look may by chance be the last to let go of what an ending process had mapped, and then
wait for a write to the mount, it runs in a thread, and is waited for no longer than `_LOOK_S`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum, auto
from typing import NamedTuple

import trio

_PF_EXITING = 0x4
_SIGNAL = 0x7F
"""The bits of an exit code that name the signal that a process dies of."""
_STATE, _FLAGS, _EXIT_CODE = 0, 6, 49
"""Of /proc/PID/stat, counted from after the program's name."""
_OPEN_FLAGS, _INO_NAME, _INO = 3, 6, 7
"""Of /proc/PID/fdinfo: pos, flags, mnt_id and ino, each with its name before it."""
_LOOK_S = 5.0
LOOKS = 16
"""At once, in threads of their own: those held up must not keep the store's calls from theirs."""


class CloseKind(Enum):
    """What a close(2) means.

    HELD: the file is open all the same, by another descriptor.
    LAST: it was the last one.
    KILLED: it was the last one, and the kernel closed it for a process that a signal ends.
    UNKNOWN: nothing can be told of the process that opened it.
    """

    HELD = auto()
    LAST = auto()
    KILLED = auto()
    UNKNOWN = auto()


class ProcessScan(NamedTuple):
    """What was found out.

    Attributes:
        closing: what the close(2) means.
        by_opener: who opened the file has closed it just now, and was not killed; others may still
            have it.
    """

    closing: CloseKind
    by_opener: bool = False


class OpenWriters:
    """Who has one open file.

    A descriptor comes into other processes by fork, so its holders are who opened it and processes
    that are younger than that. One that was sent through a socket to an older process is not seen:
    the file counts as closed then.

    Attributes:
        closing: what the last close(2) meant, as long as nothing was written since; None before.
    """

    def __init__(self, thread: int, looks: trio.CapacityLimiter) -> None:
        """Begin with who opens it, and waits for that.

        Args:
            thread: the kernel's number for it; 0 for one of another pid namespace.
            looks: at most `LOOKS` at once, those for all files of the mount together.
        """
        self._looks = looks
        self.closing: CloseKind | None = None
        self._since = _last_pid()
        self._opener = _process_of(thread)
        self._known = frozenset() if self._opener is None else frozenset([self._opener])

    async def look(self, inode: int) -> ProcessScan:
        """Find out what a close(2) means that waits for its answer.

        Cost: a call for each descriptor of the process that opened the file, and if processes were
        begun since, one for each process of the node and more for the user's young ones.

        Args:
            inode: of the file; no other file of the node has this number.
        """
        if not self._known:
            return ProcessScan(CloseKind.UNKNOWN)
        with trio.move_on_after(_LOOK_S):
            found, self._known = await trio.to_thread.run_sync(
                self._look, self._known, inode, abandon_on_cancel=True, limiter=self._looks
            )
            return found
        return ProcessScan(CloseKind.UNKNOWN)

    def _look(self, known: frozenset[int], inode: int) -> tuple[ProcessScan, frozenset[int]]:
        """Tell what it means, and who has it now."""
        holding: set[int] = set()
        unclear: set[int] = set()
        closed: set[int] = set()
        was_killed = False
        for pid in known | _begun_since(self._since):
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
    """Return what a small file of /proc says; pathlib would take three times as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def _last_pid() -> int:
    """Return the number that was last given to a process or thread."""
    return int(_read("/proc/loadavg").split()[4])


def _begun_since(last_pid: int) -> set[int]:
    """List the user's processes that have got their numbers after that one; these go round."""
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
    """Return a thread of a process that still has memory: in its exit it loses that first."""
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
    """Tell whether a signal ends a process that is in its exit; None if it is past that."""
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
    """Tell whether one of a process's descriptors can write a file; None where it may not be known.

    The file itself must not be asked for its number: it would be this process that has to answer.
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
