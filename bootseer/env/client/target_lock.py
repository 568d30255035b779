"""Lock a target, so that one `env run` at a time works there: tasks of a node, nodes of a share.

The lock is a file beside the target. The process that locks it (flock(2)) removes it at its end,
and writes into it which result it has made. A process that waits has the file open. When it gets
the lock, it reads the result: if it wants the same, it is done, else it locks the target again. The
server shares the lock of its client: others get it only when both have closed it.

If no file can be made beside the target, it is in the folder for temporary files, and keeps only
this node's processes apart. If files cannot be locked, no process waits. No process waits for ever,
for the holder of a lock may be suspended.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from bootseer.env.client.temporary import prefix

HELD = "BOOTSEER_ENV_LOCKS"
"""Variable of a command that names the locks held around it; `env run` in it does not take them."""
_MOST_BYTES = 4096
_POLL_S = (0.01, 0.25)
"""First and longest pause between two attempts to lock."""


class TargetLock:
    """The lock of a target, held by this process.

    Attributes:
        fd: descriptor of the locked file.
    """

    def __init__(self, fd: int, path: str) -> None:
        """Use `locked`."""
        self.fd = fd
        self._path = path

    def remove(self, leaves: str) -> None:
        """Remove the lock, and tell processes that wait now which result was made, "" for none."""
        with suppress(OSError):
            if _has_name(self.fd, self._path):
                os.unlink(self._path)
                # Written when it has no name: what a killed process has left counts for nothing.
                os.pwrite(self.fd, leaves.encode(), 0)


class LockedTargets:
    """The targets that a process has tried to lock, and its result.

    Attributes:
        fds: descriptors of the locked files.
        held: value for `HELD`.
        late: a target that another process did not release in time, "" for none.
        found: the result that the last holder of a lock has made while this process waited; no
            target is locked then. "" if this process has the locks.
        leaves: the result of this process, for those that wait.
    """

    def __init__(
        self, locks: Sequence[TargetLock], found: str, held: str = "", late: str = ""
    ) -> None:
        """Take locks, and names of those that are held around this process."""
        self.late = late
        self.fds = [lock.fd for lock in locks]
        self.held = " ".join([*held.split(), *map(_identity, self.fds)])
        self.found = found
        self.leaves = ""


@contextmanager
def locked(
    targets: Sequence[str],
    on_wait: Callable[[str], None],
    *,
    until: float = math.inf,
    heeds: bool = True,
    held: str = "",
) -> Iterator[LockedTargets]:
    """Lock targets for the length of a block, or find the result that another process has made.

    Args:
        targets: absolute paths of folders.
        on_wait: called with each target that another process has locked.
        until: when to stop waiting, of `time.monotonic`.
        heeds: take the results of other processes; without, wait for all of them.
        held: value of `HELD` here; these locks are not waited for.
    """
    real = sorted({os.path.realpath(target) for target in targets})  # in one order, for all
    with ExitStack() as opened:
        locks: list[TargetLock] = []
        found = late = ""
        for target in real:
            try:
                lock, found = _lock(target, real, heeds, held.split(), until, on_wait)
            except _LockTimeout:
                late = target
                break
            if lock is not None:
                locks.append(lock)
                opened.callback(os.close, lock.fd)
            if found:
                break
        turn = LockedTargets(locks, found, held, late)
        yield turn
        # Not after an error: the server may still be at work, and others find the lock by its name.
        for lock in locks:
            lock.remove(turn.leaves)


def _lock(
    target: str,
    targets: Sequence[str],
    heeds: bool,
    held: Sequence[str],
    until: float,
    on_wait: Callable[[str], None],
) -> tuple[TargetLock | None, str]:
    """Lock a target, or return the result that was made there; neither if it cannot be locked.

    Raises:
        _LockTimeout: another process still has it.
    """
    for find_path in (_path_beside, _path_elsewhere):
        with suppress(OSError):
            path = find_path(target, targets)
            try:
                fd, found = _locked_file(path, heeds, held, until, lambda: on_wait(target))
            except _LockHeldByAncestor:
                return None, ""
            if not found:
                return TargetLock(fd, path), ""
            os.close(fd)
            return None, found
    return None, ""


def _path_beside(target: str, targets: Sequence[str]) -> str:
    folder, name = os.path.split(target)
    _check_outside(folder, targets)
    return os.path.join(folder, f"{prefix(name)}{os.geteuid()}.lock")


def _path_elsewhere(target: str, targets: Sequence[str]) -> str:
    import tempfile  # rarely needed

    folder = os.path.realpath(tempfile.gettempdir())  # raises OSError if there is none
    _check_outside(folder, targets)
    short = hashlib.sha256(os.fsencode(target)).hexdigest()[:16]
    return os.path.join(folder, f".bootseer-{os.geteuid()}-{short}.lock")


def _check_outside(folder: str, targets: Sequence[str]) -> None:
    """Refuse a folder in a target, where the lock would be captured.

    Raises:
        OSError: it is in one.
    """
    if any(os.path.join(folder, "").startswith(os.path.join(target, "")) for target in targets):
        raise PermissionError(folder)


class _LockHeldByAncestor(Exception):
    """The lock is held by the `env run` whose command has started this process."""


class _LockTimeout(Exception):
    """Another process has held the lock for too long."""


def _locked_file(
    path: str, heeds: bool, held: Sequence[str], until: float, on_wait: Callable[[], None]
) -> tuple[int, str]:
    """Open and lock a file of this user, and make it if there is none.

    Returns:
        Its descriptor, and the result that was written into it when it was removed, if `heeds`.

    Raises:
        OSError: it cannot be made or locked, or it is another user's.
        _LockHeldByAncestor: this process would never get it.
        _LockTimeout: another process still has it.
    """
    is_told = False
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            status = os.fstat(fd)
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            # Another user may have linked a file of this user here, to have it overwritten.
            if not is_own or status.st_nlink > 1:
                raise PermissionError(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if _identity(fd) in held:
                    raise _LockHeldByAncestor from None
                if not is_told:
                    on_wait()
                    is_told = True
                _wait_for_lock(fd, until)
            if _has_name(fd, path):
                return fd, ""
            found = os.pread(fd, _MOST_BYTES, 0).decode("ascii", "replace")
            if found and heeds:
                return fd, found
        except OSError as error:
            os.close(fd)
            if error.errno == errno.ESTALE:  # another node has removed it
                continue
            raise
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _wait_for_lock(fd: int, until: float) -> None:
    pause_s, longest_s = _POLL_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise _LockTimeout from None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)


def _identity(fd: int) -> str:
    """Identify a lock in any container, by inode and time: numbers of inodes are used again."""
    status = os.fstat(fd)
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _has_name(fd: int, path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    return False
