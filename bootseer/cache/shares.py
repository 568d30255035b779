"""Who may have how much of the block cache, and which entry gives way; no I/O.

Nobody may have more than a fixed share of the quota. What has no room otherwise takes that of
entries which nobody uses. Each user who used the cache in the last day has an equal part of it. Who
would have more than that part takes the place of own entries first, then of those of others who
have more than theirs. Who would not takes them in the other order. So nobody loses an entry to
others while having no more than an equal part.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace

from bootseer.units import NS_PER_S

ACTIVE_S = 86_400
"""How long after the last use of an entry of theirs users keep their part."""


@dataclass(frozen=True, slots=True)
class EntryUsage:
    """What an entry of the cache takes up, and for whom.

    Attributes:
        name: of the entry's folder.
        uid: of the user it is counted for.
        charged_bytes: that it takes up, or may without asking again.
        used_ns: last use, nanoseconds since 1970.
        is_leaving: it is being removed.
        is_open: some of that may not have been used yet.
    """

    name: str
    uid: int
    charged_bytes: int
    used_ns: int
    is_leaving: bool = False
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What there is to have.

    Attributes:
        total_bytes: of all together: the quota, or less if the disk has less.
        user_bytes: of each user.
        user_entries: of each user.
    """

    total_bytes: int
    user_bytes: int
    user_entries: int


@dataclass(frozen=True, slots=True)
class SpaceDemand:
    """What is wanted.

    Attributes:
        uid: of the user it will be counted for.
        more_bytes: that all entries together will take up more.
        user_bytes: that this user's will: more than that, if an entry changes hands.
        user_entries: the same in entries.
    """

    uid: int
    more_bytes: int
    user_bytes: int
    user_entries: int


class UsageBook:
    """The accounts of all entries at one moment."""

    def __init__(self, accounts: Iterable[EntryUsage], limits: CacheLimits, now_ns: int) -> None:
        """Take what `bootseer.cache.folder` has found."""
        self.accounts = list(accounts)
        self._limits = limits
        self._active_ns = now_ns - ACTIVE_S * NS_PER_S

    @property
    def charged_bytes(self) -> int:
        """What all entries take up, with those that are leaving."""
        return sum(a.charged_bytes for a in self.accounts)

    def equal_part(self, uid: int) -> int:
        """Return how much each active user may have unchallenged, this one included."""
        return self._limits.total_bytes // len(self._active() | {uid})

    def demand(self, account: EntryUsage, uid: int, more_bytes: int) -> SpaceDemand:
        """Say what it means that a user's job has so many bytes more of an entry.

        They are counted for the user whose entry it is, as long as that one has no more than an
        equal part by it. Otherwise the entry is taken over: nobody pays for what others do.
        """
        if account.uid != uid:
            bound = min(self._limits.user_bytes, self.equal_part(uid))
            if sum(a.charged_bytes for a in self._of(account.uid)) + more_bytes > bound:
                return SpaceDemand(uid, more_bytes, account.charged_bytes + more_bytes, 1)
        return SpaceDemand(account.uid, more_bytes, more_bytes, 0)

    def fits(self, demand: SpaceDemand) -> bool:
        """Whether there is room for it as it is."""
        more_bytes = self.charged_bytes + demand.more_bytes
        return more_bytes <= self._limits.total_bytes and self._user_fits(self.accounts, demand)

    def victim(self, demand: SpaceDemand, busy: Container[str]) -> EntryUsage | None:
        """Choose the entry that gives way next.

        Args:
            demand: that it is for.
            busy: names of entries that are in use.

        Returns:
            None if there will be room once those have left that are leaving, or there is nothing
            that may give way.
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
        """Whether there will be room if all gives way that may, as far as is known."""
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
        """Learn that an entry is being removed."""
        self.accounts.remove(account)
        self.accounts.append(replace(account, is_leaving=True))

    def _free_to_take(self, left: Sequence[EntryUsage], uid: int, part: int) -> list[EntryUsage]:
        """List others' entries that are not protected."""
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
