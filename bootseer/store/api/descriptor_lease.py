"""Descriptors that a task may give up while a thread is still stuck in a call on them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TypeVar

import trio

from bootseer.errors import Closed

T = TypeVar("T")

CLOSE_GRACE_S = 1.0
"""The longest a task waits for a close: long enough for any file system that answers at all."""


class Lease:
    """Resources used from threads, cleaned up by the last one that releases them.

    A thread that hangs in a file system can't be stopped, only abandoned. The descriptor it works
    on must stay open until it returns: closed earlier, its number could be given to another file,
    which the thread would then read from or write to. So the task and its threads share a lease:
    `end` cleans up when no thread is at work, otherwise the last thread does when it returns.

    Concurrency: one task opens and ends; any number of tasks run work in between. `_lock` guards
    `_users` and `_ended`; nothing waits while holding it.
    """

    def __init__(self, threads: trio.CapacityLimiter) -> None:
        """Run the work in at most as many threads as `threads` allows."""
        self.resources = ExitStack()
        self._threads = threads
        self._lock = threading.Lock()
        self._users = 0
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the task has let go; work of several steps asks this before one that matters."""
        return self._ended

    async def run(self, work: Callable[[], T]) -> T:
        """Call `work` in a thread, which may add to `resources` what it opens.

        Cancellation: the thread is abandoned and ends alone; its result is dropped.

        Raises:
            Closed: the lease has ended.
        """
        return await trio.to_thread.run_sync(
            self._use, work, abandon_on_cancel=True, limiter=self._threads
        )

    async def end(self) -> None:
        """Let go; what is still held by a thread is cleaned up by that thread.

        Errors of closing are of no interest: what must not be lost was synced before.

        Cancellation: none; this waits for `CLOSE_GRACE_S` at most and then leaves it to a thread.
        """
        with self._lock:
            self._ended = True
            idle = self._users == 0
        if idle:
            deadline = trio.current_time() + CLOSE_GRACE_S
            with trio.CancelScope(deadline=deadline, shield=True):
                # A limiter of its own: closing must not queue behind threads that hang.
                await trio.to_thread.run_sync(
                    self._clean_up, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
                )

    def _use(self, work: Callable[[], T]) -> T:
        with self._lock:
            if self._ended:
                raise Closed("the object was closed, and cannot be used any more")
            self._users += 1
        try:
            return work()
        finally:
            with self._lock:
                self._users -= 1
                last = self._ended and self._users == 0
            if last:
                self._clean_up()

    def _clean_up(self) -> None:
        with suppress(OSError):
            self.resources.close()
