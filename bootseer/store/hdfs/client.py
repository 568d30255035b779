"""Calls of hdfs-native, each in a thread that can be left behind."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio
from hdfs_native import Client

from bootseer.store.hdfs.errors import translated
from bootseer.store.hdfs.options import HdfsOptions

T = TypeVar("T")

DEADLINES = {
    "dfs.client.socket-timeout": "3000",
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "500",
}
"""Of the library's own, which would take minutes; what they do not cover, `LimitStore` does."""


@dataclass(eq=False)
class HdfsCalls:
    """One client of an HDFS, made at the first use: it must not be older than a fork.

    Attributes:
        failed_s: when DataNodes last did not take the beginning of a file, by trio's clock.
        authority: ``hdfs://HOST:PORT``, or ``hdfs://`` and a nameservice.
        url: of the store, for messages.
        options: how to reach it.
        threads: how many calls may be under way at once.
    """

    authority: str
    url: str
    options: HdfsOptions
    threads: trio.CapacityLimiter
    failed_s: float = -math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _made: Client | None = None

    def client(self) -> Client:
        """Return the client; for use in a thread of `run`."""
        with self._lock:
            if self._made is None:
                options = self.options
                self._made = Client(
                    self.authority,
                    dict(DEADLINES),
                    config_dir=options.conf_dir or None,
                    kerberos_cache=options.kerberos_cache or None,
                    # The library takes none without a cache, nor a cache without one.
                    kerberos_principal=options.kerberos_principal or None,
                )
            return self._made

    async def run(
        self,
        operation: str,
        name: str,
        work: Callable[[], T],
        *,
        threads: trio.CapacityLimiter | None = None,
    ) -> T:
        """Call `work` in a thread, and say what its errors mean.

        Args:
            operation: for messages.
            name: of the object, for messages.
            work: may block.
            threads: to count the thread against instead of all others, until it ends: what may
                hang for ever must not take a place from what asks the NameNode.

        Cancellation: the thread is left behind.
        """

        def guarded() -> T:
            # Here, because a panic must not reach the event loop.
            with translated(operation, name, self.url):
                return work()

        return await trio.to_thread.run_sync(
            guarded, abandon_on_cancel=True, limiter=threads or self.threads
        )
