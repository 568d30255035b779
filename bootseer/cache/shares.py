"""Users' shares of the block cache, and the choice of entries to evict; no I/O.

A user may have at most a fixed share of the quota. If there is no space, unused entries are
evicted. Each user who used the cache in the last day has an equal part of it. A user above that
part evicts own entries first, then those of other users above their parts. A user within it evicts
in the opposite order. So users within their equal part never lose entries to others.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace

from bootseer.units import NS_PER_S

ACTIVE_S = 86_400
"""Time after the last use of an entry for which its user keeps a part."""


@dataclass(frozen=True, slots=True)
class EntryUsage:
    """The space an entry takes, and the user charged for it.

    Attributes:
        name: of the entry's folder.
        uid: the user charged.
        charged_bytes: bytes used or reserved.
        used_ns: last use, nanoseconds since 1970.
        is_leaving: it is being removed.
        is_open: part of the charge may be unused.
    """

    name: str
    uid: int
    charged_bytes: int
    used_ns: int
    is_leaving: bool = False
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """The cache's limits.

    Attributes:
        total_bytes: limit of all entries: the quota, or less if the disk has less.
        user_bytes: limit of each user's bytes.
        user_entries: limit of each user's entries.
    """

    total_bytes: int
    user_bytes: int
    user_entries: int


@dataclass(frozen=True, slots=True)
class SpaceDemand:
    """A demand for space.

    Attributes:
        uid: the user to be charged.
        more_bytes: additional bytes of all entries together.
        user_bytes: additional bytes of this user; greater if an entry changes its user.
        user_entries: additional entries of this user.
    """

    uid: int
    more_bytes: int
    user_bytes: int
    user_entries: int


class UsageBook:
    """The accounts of all entries at one moment."""

    def __init__(self, accounts: Iterable[EntryUsage], limits: CacheLimits, now_ns: int) -> None:
        """Take the accounts that `bootseer.cache.ledger` has read."""
        self.accounts = list(accounts)
        self._limits = limits
        self._active_ns = now_ns - ACTIVE_S * NS_PER_S

    @property
    def charged_bytes(self) -> int:
        """Return the bytes of all entries, including those being removed."""
        return sum(a.charged_bytes for a in self.accounts)

    def equal_part(self, uid: int) -> int:
        """Return the equal part in bytes of each active user, including this one."""
        return self._limits.total_bytes // len(self._active() | {uid})

    def demand(self, account: EntryUsage, uid: int, more_bytes: int) -> SpaceDemand:
        """Return the demand of a user's job for more bytes of an entry.

        They are charged to the entry's user while that user stays within an equal part. Otherwise
        the entry is charged to the requesting user: users do not pay for others' jobs.
        """
        if account.uid != uid:
            bound = min(self._limits.user_bytes, self.equal_part(uid))
            if sum(a.charged_bytes for a in self._of(account.uid)) + more_bytes > bound:
                return SpaceDemand(uid, more_bytes, account.charged_bytes + more_bytes, 1)
        return SpaceDemand(account.uid, more_bytes, more_bytes, 0)

    def fits(self, demand: SpaceDemand) -> bool:
        """Return whether there is space without eviction."""
        more_bytes = self.charged_bytes + demand.more_bytes
        return more_bytes <= self._limits.total_bytes and self._user_fits(self.accounts, demand)

    def victim(self, demand: SpaceDemand, busy: Container[str]) -> EntryUsage | None:
        """Return the next entry to evict.

        Args:
            demand: the demand for space.
            busy: names of entries in use.

        Returns:
            None if removals in progress suffice, or no entry may be evicted.
        """
        left = [a for a in self.accounts if not a.is_leaving]
        own = [a for a in left if a.uid == demand.uid and a.name not in busy]
        if not self._user_fits(left, demand):
            return _oldest(own)
        if sum(a.charged_bytes for a in left) + demand.more_bytes <= self._limits.total_bytes:
            return None
        part = self.equal_part(demand.uid)
        user_bytes = sum(a.charged_bytes for a in left if a.uid == demand.uid)
        if own and user_bytes + demand.user_bytes > part:
            return _oldest(own)
        others = [a for a in self._free_to_take(left, demand.uid, part) if a.name not in busy]
        return _oldest(others) or _oldest(own)

    def is_possible(self, demand: SpaceDemand) -> bool:
        """Return whether evicting all permitted entries would make enough space."""
        if demand.user_bytes > min(self._limits.user_bytes, self._limits.total_bytes):
            return False
        trial = copy(self)
        trial.accounts = list(self.accounts)
        busy = {a.name for a in self.accounts if a.is_open}
        while (victim := trial.victim(demand, busy)) is not None:
            trial.note_leaving(victim)
        trial.accounts = [a for a in trial.accounts if not a.is_leaving]
        return trial.fits(demand)

    def note_leaving(self, account: EntryUsage) -> None:
        """Record that an entry is being removed."""
        self.accounts.remove(account)
        self.accounts.append(replace(account, is_leaving=True))

    def _free_to_take(self, left: Sequence[EntryUsage], uid: int, part: int) -> list[EntryUsage]:
        """List other users' entries that may be evicted."""
        active, totals = self._active(), dict[int, int]()
        for account in left:
            totals[account.uid] = totals.get(account.uid, 0) + account.charged_bytes
        others = (a for a in left if a.uid != uid)
        return [a for a in others if a.uid not in active or totals[a.uid] > part]

    def _user_fits(self, accounts: Sequence[EntryUsage], demand: SpaceDemand) -> bool:
        theirs = [a for a in accounts if a.uid == demand.uid]
        return (
            sum(a.charged_bytes for a in theirs) + demand.user_bytes <= self._limits.user_bytes
            and len(theirs) + demand.user_entries <= self._limits.user_entries
        )

    def _active(self) -> set[int]:
        return {a.uid for a in self.accounts if not a.is_leaving and a.used_ns > self._active_ns}

    def _of(self, uid: int) -> list[EntryUsage]:
        return [a for a in self.accounts if a.uid == uid]


def _oldest(accounts: Sequence[EntryUsage]) -> EntryUsage | None:
    return min(accounts, key=lambda a: a.used_ns, default=None)
