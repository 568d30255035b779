"""Tell a waiting client how far the work is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

import trio

from bootseer.env.client.messages import KeepWaiting, RestoreProgress
from bootseer.env.server.connection import ServerConnection
from bootseer.errors import Closed

_SILENCE_S = 15.0
"""The client gives up after six times as long without a message."""
_PROGRESS_S = 0.5


@contextmanager
def keep_client_waiting(connection: ServerConnection, nursery: trio.Nursery) -> Iterator[None]:
    """Have the client wait for the length of a block, however long that takes."""
    scope = trio.CancelScope()

    async def send() -> None:
        with scope, suppress(Closed):
            while True:
                await trio.sleep(_SILENCE_S)
                await connection.send(KeepWaiting())

    nursery.start_soon(send)
    try:
        yield
    finally:
        scope.cancel()


class UnpackProgress:
    """How much is unpacked: counted by threads, and sent to the client."""

    def __init__(self, total_bytes: int) -> None:
        """Begin with nothing of so many bytes."""
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = Lock()

    def count(self, size_bytes: int) -> None:
        """Count bytes that are unpacked; any thread may call this."""
        with self._lock:
            self._done_bytes += size_bytes

    async def send(self, connection: ServerConnection) -> None:
        """Send the progress, until cancelled, or for as long as the client is there."""
        with suppress(Closed):
            while True:
                await trio.sleep(_PROGRESS_S)
                await connection.send(RestoreProgress(self._done_bytes, self._total_bytes))
