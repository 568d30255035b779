"""One `env run` at a time for each target, of all that see it: tasks of a node, nodes of a share.

The lock is a file beside the target, locked with flock(2) and removed by who has it when he ends.
Who waits for it has it open, gets it all the same, and reads in it what the one before has made:
if that is what he wants, too, he is done; else he locks the targets anew, as any newcomer. Others
who work there for him share the lock: nobody else has it before they have closed it, too. Where no
file can be made beside the target it is in the folder for temporary files, and keeps only this
node's processes apart; where files cannot be locked, nobody waits. Nobody waits for ever: who has a
target may have been suspended.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from bootseer.env.client.temporary import prefix

HELD = "BOOTSEER_ENV_LOCKS"
"""Variable of a command with the locks that it runs under: `env run` in it does not take these."""
_MOST_BYTES = 4096
_POLL_S = (0.01, 0.25)
"""Between two looks at a lock, at first and at last."""


class TargetLock:
    """A target that is this process's alone.

    Attributes:
        fd: has the lock.
    """

    def __init__(self, fd: int, path: str) -> None:
        """Use `locked`."""
        self.fd = fd
        self._path = path

    def remove(self, leaves: str) -> None:
        """Remove it, and tell those who wait now what has been made, "" for nothing."""
        with suppress(OSError):
            if _has_name(self.fd, self._path):
                os.unlink(self._path)
                # Without a name: nobody believes what a killed process has left.
                os.pwrite(self.fd, leaves.encode(), 0)


class LockedTargets:
    """What one process does while it has its targets.

    Attributes:
        fds: that have the locks.
        held: for `HELD`.
        late: a target that another has still, "" for none.
        found: what one who had a target before has made, while this process waited for that; the
            targets are nobody's then. "" if they are this process's.
        leaves: what this process has made, for those who wait meanwhile.
    """

    def __init__(
        self, locks: Sequence[TargetLock], found: str, held: str = "", late: str = ""
    ) -> None:
        """Begin with what the locks say, and with those that are held around this process."""
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
    """Have targets for the length of a block, or find out what has been made in one of them.

    Args:
        targets: absolute paths of folders.
        on_wait: told of each target that others have.
        until: when to wait no longer, of `time.monotonic`.
        heeds: what others have made counts; else all are waited for.
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
        # Not after an error: who shares a lock may be at work, and others look for it by its name.
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
    """Lock a target, or return what has been made there; neither where it cannot be locked.

    Raises:
        _Late: another has it still.
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
    folder = os.path.realpath(tempfile.gettempdir())  # raises OSError if there is none
    _check_outside(folder, targets)
    short = hashlib.sha256(os.fsencode(target)).hexdigest()[:16]
    return os.path.join(folder, f".bootseer-{os.geteuid()}-{short}.lock")


def _check_outside(folder: str, targets: Sequence[str]) -> None:
    """Refuse a folder that is in a target, of which all is captured.

    Raises:
        OSError: it is.
    """
    if any(os.path.join(folder, "").startswith(os.path.join(target, "")) for target in targets):
        raise PermissionError(folder)


class _LockHeldByAncestor(Exception):
    """A lock is that of an `env run` whose command this process belongs to."""


class _LockTimeout(Exception):
    """Another has a lock for longer than is waited."""


def _locked_file(
    path: str, heeds: bool, held: Sequence[str], until: float, on_wait: Callable[[], None]
) -> tuple[int, str]:
    """Open a file of this user's, alone, and make it where there is none.

    Returns:
        Its descriptor, and what was written into it when it was removed, if that is heeded.

    Raises:
        OSError: it cannot be made or locked, or it is another user's.
        _HeldAround: it would never be this process's.
        _Late: another has it still.
    """
    is_told = False
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            status = os.fstat(fd)
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            # Another link may be to a file of the user's that somebody wants to be written to.
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
    """Tell a lock from all others, in any container: numbers of files are used again."""
    status = os.fstat(fd)
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _has_name(fd: int, path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    return False
