"""The end that carries requests out: each in a thread, and one that fails ends nothing else.

Standard library only.
"""

from __future__ import annotations

import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from threading import BoundedSemaphore, Thread
from typing import Any

from bootseer.errors import BootseerError, Corrupt, Unavailable
from bootseer.ipc.descriptors import close_all, receive
from bootseer.ipc.request import MAX_BYTES, MAX_DESCRIPTORS, Reply, Verbs

MAX_AT_ONCE = 64
"""Requests under way; the next are read when one of them has ended."""

CarryOut = Callable[[Any, list[int], list[int]], int]
"""Carries a request out, given the descriptors that came with it, which stay the caller's, and a
list that takes those that go with the reply; returns the reply's value."""


class RequestServer:
    """Carries out what one other process asks for."""

    def __init__(
        self, end: socket.socket, verbs: Verbs, carry_out: CarryOut, *here: type[Any]
    ) -> None:
        """Take over a socket (SOCK_SEQPACKET).

        Args:
            end: ours.
            verbs: that may be asked for.
            carry_out: raises BootseerError or OSError for what cannot be done.
            here: verbs that are carried out in the thread that calls `run`, and not in their own.
        """
        self._end = end
        self._verbs = verbs
        self._carry_out = carry_out
        self._here = here
        self._at_once = BoundedSemaphore(MAX_AT_ONCE)

    def run(self) -> None:
        """Carry requests out until the other process has ended, or talks nonsense."""
        while True:
            try:
                message, fds = receive(self._end, MAX_BYTES, MAX_DESCRIPTORS)
            except OSError:  # it has ended, and has left a reply unread
                return
            if not message:
                return
            try:
                number, request = self._verbs.decode(message)
            except Corrupt as error:
                close_all(fds)
                print(f"the sender of requests is given up: {error}", file=sys.stderr)
                return
            self._at_once.acquire()
            if isinstance(request, self._here):
                self._answer(number, request, fds)
            else:
                Thread(target=self._answer, args=(number, request, fds), daemon=True).start()

    def _answer(self, number: int, request: Any, fds: list[int]) -> None:
        sent: list[int] = []
        try:
            reply = Reply(number, None, self._carry_out(request, fds, sent))
        except BootseerError as error:
            reply = Reply(number, error)
        except OSError as error:
            reply = Reply(number, Unavailable(str(error)))
        except Exception as error:  # noqa: BLE001 (one request never ends its server)
            with suppress(OSError):  # /run is full
                traceback.print_exc()
            reply = Reply(number, Unavailable(f"internal error: {type(error).__name__}"))
        finally:
            close_all(fds)
        try:
            with suppress(OSError):  # it has ended
                socket.send_fds(self._end, [reply.encode()], sent)
        finally:
            close_all(sent)
            self._at_once.release()
