"""A user's store as the product uses it: with deadlines, and with retries of what may pass."""

from __future__ import annotations

import trio

from bootseer.store.base import Store
from bootseer.store.limit import LimitStore
from bootseer.store.locate import open_store
from bootseer.store.retry import RetryStore

MAX_OPERATIONS = 16
"""At once, of one process: enough to hide the latency of small objects, few for the servers."""


def connect(url: str, uid: int, deadline_s: float) -> Store:
    """Open the store of the user ``uid``; nothing is read yet.

    Args:
        url: with the user filled in.
        uid: the only one who may own and write it.
        deadline_s: for each attempt of each operation.

    Raises:
        ConfigError: the URL is not of a kind that this version can use.
    """
    limit = trio.CapacityLimiter(MAX_OPERATIONS)
    return RetryStore(
        LimitStore(open_store(url, owner_uid=uid), deadline_s=deadline_s, operations=limit)
    )
