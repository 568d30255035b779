"""Stores that have just failed to answer, so that no other process waits for them again.

An outage is a small file, in a folder that only one account, and root, can write to. It is a hint:
a folder that is not safe, or a full disk, costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from contextlib import suppress

from bootseer.errors import BootseerError
from bootseer.folder_ownership import check_alone
from bootseer.units import NS_PER_S

LASTS_S = 60.0
"""How long a store that did not answer is left alone."""
_MAX_BYTES = 1000
_SESSION = "/run/user/{}"
"""Of systemd's, removed when the user's last session ends."""
_OWN = "/dev/shm/bootseer-{}"


def user_folder(uid: int) -> str:
    """Return the folder for the outages that a user's own commands have seen on this machine.

    Args:
        uid: id of the user that this process runs as.

    Raises:
        OSError, Denied: there is no folder that only this user can write to.
    """
    session, own = _SESSION.format(uid), _OWN.format(uid)
    with suppress(OSError, BootseerError):
        check_alone(session, uid=uid)
        return session
    with suppress(FileExistsError):
        os.mkdir(own, 0o700)
    check_alone(own, uid=uid)
    return own


class Outages:
    """The outages that one account's processes have seen on this machine.

    Concurrency: any number of processes of the account.
    """

    def __init__(self, folder: str) -> None:
        """Use a folder, which is checked each time.

        Args:
            folder: its path; only this process's account, and root, can write there.
        """
        self._folder = folder

    def note(self, url: str, why: str) -> None:
        """Remember that a store has not answered just now."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        with suppress(OSError, BootseerError):
            fd = os.open(self._path(url), flags, 0o600)
            try:
                os.write(fd, why.encode(errors="backslashreplace")[:_MAX_BYTES])
            finally:
                os.close(fd)

    def clear(self, url: str) -> None:
        """Forget an outage: the store has answered."""
        with suppress(OSError, BootseerError):
            os.unlink(self._path(url))

    def recent(self, url: str) -> str:
        """Return why a store did not answer within the last minute; "" if it is to be asked."""
        try:
            fd = os.open(self._path(url), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                info = os.fstat(fd)
                age_s = (time.time_ns() - info.st_mtime_ns) / NS_PER_S
                if not stat.S_ISREG(info.st_mode) or not 0 <= age_s < LASTS_S:
                    return ""
                why = os.read(fd, _MAX_BYTES).decode(errors="replace") or "no answer"
            finally:
                os.close(fd)
        except (OSError, BootseerError):
            return ""
        return f"{why}, {age_s:.0f} s ago"

    def _path(self, url: str) -> str:
        check_alone(self._folder, uid=os.geteuid())
        name = hashlib.sha256(url.encode()).hexdigest()[:32]
        return f"{self._folder}/outage-{name}"
