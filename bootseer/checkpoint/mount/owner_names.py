"""Map the store's names of owners to this node's ids."""

from __future__ import annotations

import grp
import pwd
from functools import lru_cache

from bootseer.store.api.base import ObjectInfo

NOBODY = 65534


class OwnerNames:
    """Maps the store's names of users and groups to ids.

    The store checks permissions; these ids are what `ls -l` shows. Root's files appear as nobody's,
    since a user's mount must not show ids of root.
    """

    def __init__(self, uid: int, gid: int, user: str) -> None:
        """Show the files of `user` as those of `uid` and `gid`."""
        self.own = (uid, gid)
        self._user = user

    def of(self, info: ObjectInfo) -> tuple[int, int]:
        """Return the ids of owner and group; nobody's where this node does not know the name."""
        uid, gid = self.own
        if info.owner in (None, self._user):
            return uid, gid
        return _uid(str(info.owner)), _gid(str(info.group or ""))


@lru_cache(maxsize=1024)
def _uid(name: str) -> int:
    try:
        uid = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        return NOBODY
    return uid or NOBODY


@lru_cache(maxsize=1024)
def _gid(name: str) -> int:
    try:
        gid = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        return NOBODY
    return gid or NOBODY
