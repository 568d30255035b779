"""Server of requests: each runs in a thread, and a failed one does not affect others.

Imports the standard library only.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import BoundedSemaphore, Thread
from typing import Any

from bootseer.errors import BootseerError, Corrupt, Unavailable
from bootseer.ipc.descriptors import close_all, receive
from bootseer.ipc.request import MAX_BYTES, MAX_DESCRIPTORS, Reply, Verbs

MAX_AT_ONCE = 64
"""Concurrent requests; the next one is read when one has ended."""

CarryOut = Callable[[Any, list[int], list[int]], int]
"""Carries out a request; takes its descriptors, which stay the caller's, and a list for the reply's
descriptors; returns the reply's value."""


class RequestServer:
    """Serves the requests of one client.

    Attributes:
        end: our end of the socket (SOCK_SEQPACKET).
        verbs: the accepted verbs.
        carry_out: carries out a request; raises BootseerError or OSError if it fails.
        here: verbs that run in the thread that calls `run`.
    """

    def __init__(
        self,
        end: socket.socket,
        verbs: Verbs,
        carry_out: CarryOut,
        here: tuple[type[Any], ...] = (),
    ) -> None:
        self.end, self.verbs, self.carry_out, self.here = end, verbs, carry_out, here
        self._at_once = BoundedSemaphore(MAX_AT_ONCE)

    def run(self) -> None:
        """Serve requests until the client has ended or sends an invalid message."""
        while True:
            try:
                message, fds = receive(self.end, MAX_BYTES, MAX_DESCRIPTORS)
            except OSError:  # the client has ended with a reply unread
                return
            if not message:
                return
            try:
                number, request = self.verbs.decode(message)
            except Corrupt as error:
                close_all(fds)
                print(f"closed the connection: {error}", file=sys.stderr)
                return
            self._at_once.acquire()
            if isinstance(request, self.here):
                self._answer(number, request, fds)
            else:
                Thread(target=self._answer, args=(number, request, fds), daemon=True).start()

    def _answer(self, number: int, request: Any, fds: list[int]) -> None:
        sent: list[int] = []
        try:
            reply = Reply(number, None, self.carry_out(request, fds, sent))
        except BootseerError as error:
            reply = Reply(number, error)
        except OSError as error:
            reply = Reply(number, Unavailable(str(error)))
        except Exception as error:  # noqa: BLE001 (one request never ends its server)
            import traceback  # imported only now: the broker's start does not need it

            with suppress(OSError):  # /run is full
                traceback.print_exc()
            reply = Reply(number, Unavailable(f"internal error: {type(error).__name__}"))
        finally:
            close_all(fds)
        try:
            with suppress(OSError):  # it has ended
                socket.send_fds(self.end, [reply.encode()], sent)
        finally:
            close_all(sent)
            self._at_once.release()
