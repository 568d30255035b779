"""Every store, and every wrapper that hides faults, passes the one suite."""

from __future__ import annotations

from pathlib import Path

import trio

from bootseer.store.api.base import Store
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.backoff import Backoff
from bootseer.store.wrappers.limit import LimitStore
from bootseer.store.wrappers.retry import RetryStore
from bootseer.testing.fault_store import FlakyStore
from bootseer.testing.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    def make_store(self, scratch: Path) -> Store:
        return MemoryStore()


class TestLocalStore(StoreSuite):
    def make_store(self, scratch: Path) -> Store:
        return LocalStore(scratch)


class TestWrappedLocalStore(StoreSuite):
    def make_store(self, scratch: Path) -> Store:
        limited = LimitStore(LocalStore(scratch), deadline_s=60, operations=trio.CapacityLimiter(4))
        return RetryStore(limited)


def now_and_then(count: int, operation: str, name: str) -> bool:
    """Fail often, except where the suite is stricter than a retry can be.

    A version that was replaced can't be opened again, to read on; and after a commit in doubt,
    somebody else's object with the same bytes can't be told from one's own. An object that grows is
    not begun again.
    """
    return count % 11 == 0 and operation not in ("pread", "commit", "grow", "sync", "finish")


class TestRetriedFlakyStore(StoreSuite):
    """What retry promises: a store that fails now and then looks like one that does not."""

    def make_store(self, scratch: Path) -> Store:
        flaky = FlakyStore(MemoryStore(), now_and_then)
        return RetryStore(flaky, Backoff(attempts=30, first_s=0))
