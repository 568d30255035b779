"""One `env run` at a time for each target, of all that see it: tasks of a node, nodes of a share.

The lock is a file beside the target, locked with flock(2) and removed by who has it when he ends.
Who waits for it has it open, gets it all the same, and reads in it what the one before has done.
Others who work there for him share the lock: nobody else has it before they have closed it, too.
Where no file can be made beside the target it is in the folder for temporary files, and keeps only
this node's processes apart; where files cannot be locked, nobody waits.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

_NAME_CHARS = 60


class TargetLock:
    """A target that is this process's alone.

    Attributes:
        fd: has the lock.
        is_done: who had it before, while this process waited, has made there what is to be made.
    """

    def __init__(self, fd: int, path: str, digest: bytes) -> None:
        """Use `locked`."""
        self.fd = fd
        self.is_done = not _has_name(fd, path)
        self._path = path
        self._digest = digest

    def remove(self, *, is_done: bool) -> None:
        """Remove it, and tell those who wait now whether anything is left to do."""
        with suppress(OSError):
            if _has_name(self.fd, self._path):
                os.unlink(self._path)
                # Without a name: nobody believes what a killed process has left.
                if is_done:
                    os.pwrite(self.fd, self._digest, 0)


class Turn:
    """What one process does while it has its targets.

    Attributes:
        fds: that have the locks.
        is_done: everything was made by others while this process waited; or by itself, by now.
    """

    def __init__(self, locks: Sequence[TargetLock]) -> None:
        """Begin with what the locks say."""
        self.fds = [lock.fd for lock in locks]
        self.is_done = bool(locks) and all(lock.is_done for lock in locks)


@contextmanager
def locked(
    targets: Sequence[str], what: Sequence[str], on_wait: Callable[[str], None]
) -> Iterator[Turn]:
    """Have targets for the length of a block.

    Args:
        targets: absolute paths of folders.
        what: tells what is to be made in them from all else.
        on_wait: told of each target that others have.
    """
    digest = hashlib.sha256("\0".join(what).encode("utf-8", "surrogateescape")).digest()
    real = sorted({os.path.realpath(target) for target in targets})  # in one order, for all
    with ExitStack() as opened:
        locks: list[TargetLock] = []
        for target in real:
            lock = _lock(target, real, digest, on_wait)
            if lock is not None:
                locks.append(lock)
                opened.callback(os.close, lock.fd)
        turn = Turn(locks)
        yield turn
        # Not after an error: who shares a lock may be at work, and others look for it by its name.
        for lock in locks:
            lock.remove(is_done=turn.is_done)


def _lock(
    target: str, targets: Sequence[str], digest: bytes, on_wait: Callable[[str], None]
) -> TargetLock | None:
    user = os.geteuid()
    folder, name = os.path.split(target)
    short = hashlib.sha256(os.fsencode(target)).hexdigest()[:16]
    paths = [os.path.join(tempfile.gettempdir(), f".bootseer-{user}-{short}.lock")]
    if not any(folder == other or folder.startswith(other + "/") for other in targets):
        paths.insert(0, os.path.join(folder, f".{name[:_NAME_CHARS]}.bootseer-{user}.lock"))
    for path in paths:
        with suppress(OSError):
            return TargetLock(_locked_file(path, digest, lambda: on_wait(target)), path, digest)
    return None


def _locked_file(path: str, digest: bytes, on_wait: Callable[[], None]) -> int:
    """Open a file of this user's, alone, and make it where there is none.

    Raises:
        OSError: it cannot be made or locked, or it is another user's.
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
                if not is_told:
                    on_wait()
                    is_told = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            if _has_name(fd, path) or os.pread(fd, len(digest), 0) == digest:
                return fd
        except OSError as error:
            os.close(fd)
            if error.errno == errno.ESTALE:  # another node has removed it
                continue
            raise
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _has_name(fd: int, path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    return False
