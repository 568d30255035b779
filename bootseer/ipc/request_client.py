"""Client of another process of the agent, which has more rights."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from itertools import count
from typing import Any

import trio

from bootseer.errors import Closed, Corrupt, Unavailable
from bootseer.ipc.descriptors import close_all, receive
from bootseer.ipc.request import ERRORS, HEAD, MAX_BYTES, MAX_DESCRIPTORS, REPLY, Reply, Verbs

_ANSWER_S = 20.0
"""Default timeout of a reply, long enough for a busy node."""


def encode_request(verbs: Verbs, number: int, request: Any) -> bytes:
    """Encode a request.

    Args:
        verbs: the verbs that the server accepts.
        number: the request's number.
        request: one of the verbs.
    """
    verb = verbs.all.index(type(request))
    return HEAD.pack(number, verb) + verbs.layouts[verb].pack(*request)


def decode_reply(message: bytes) -> Reply:
    """Decode a reply.

    Raises:
        Corrupt: it is invalid.
    """
    try:
        number, kind, value, why = REPLY.unpack(message)
        text = why.rstrip(b"\0").decode(errors="replace")
        return Reply(number, ERRORS[kind - 1](text) if kind else None, value)
    except (struct.error, IndexError) as error:
        raise Corrupt(f"invalid reply of {len(message)} bytes") from error


class RequestClient:
    """Sends requests to one server; any number of tasks may use it."""

    def __init__(self, end: socket.socket, verbs: Verbs, name: str) -> None:
        """Take over a socket (SOCK_SEQPACKET).

        Args:
            end: our end of the socket.
            verbs: the verbs that the server accepts.
            name: the server's name, for messages.
        """
        self._end = end
        self._verbs = verbs
        self._name = name
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._sending = trio.Lock()  # one task at a time may wait for the socket
        self._is_closed = False

    async def run(self) -> None:
        """Pass replies to the waiting tasks, until cancelled.

        Raises:
            Closed: the server has ended.
        """
        self._end.setblocking(False)
        try:
            while True:
                await trio.lowlevel.wait_readable(self._end)
                message, fds = receive(self._end, MAX_BYTES, MAX_DESCRIPTORS)
                if not message:
                    raise Closed(f"the {self._name} has ended")
                self._hand_over(decode_reply(message), fds)
        except (OSError, Corrupt) as error:
            raise Closed(f"the {self._name} has ended: {error}") from error
        finally:
            self._is_closed = True
            for waiting in self._waiting.values():
                waiting.answered.set()

    async def ask(
        self, request: Any, fds: Sequence[int] = (), answer_s: float = _ANSWER_S
    ) -> tuple[Reply, list[int]]:
        """Send a request; returns its reply.

        Args:
            request: the request.
            fds: descriptors to send; stay the caller's.
            answer_s: timeout for the reply.

        Returns:
            The reply, and the descriptors that came with it; the caller closes them.

        Raises:
            BootseerError: the server's error.
            Closed: the server has ended.

            Cancellation: the request may still be carried out.
        """
        number, waiting = next(self._numbers), _Waiting()
        self._waiting[number] = waiting
        try:
            with trio.move_on_after(answer_s):
                await self._send(encode_request(self._verbs, number, request), fds)
                await waiting.answered.wait()
        finally:
            del self._waiting[number]
        if waiting.reply is None:
            why = "has ended" if self._is_closed else f"has not answered within {answer_s:g} s"
            raise (Closed if self._is_closed else Unavailable)(f"the {self._name} {why}")
        if waiting.reply.error is not None:
            close_all(waiting.fds)
            raise waiting.reply.error
        return waiting.reply, waiting.fds

    async def do(self, request: Any, fds: Sequence[int] = ()) -> Reply:
        """Send a request whose reply has no descriptors; see `ask`."""
        reply, back = await self.ask(request, fds)
        close_all(back)
        return reply

    async def _send(self, message: bytes, fds: Sequence[int]) -> None:
        async with self._sending:
            while not self._is_closed:
                try:
                    socket.send_fds(self._end, [message], fds)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._end)
                except OSError as error:
                    raise Closed(f"the {self._name} has ended: {error}") from error
                else:
                    return
        raise Closed(f"the {self._name} has ended")

    def _hand_over(self, reply: Reply, fds: list[int]) -> None:
        waiting = self._waiting.get(reply.number)
        if waiting is None or waiting.reply is not None:  # the requesting task has gone
            close_all(fds)
            return
        waiting.reply, waiting.fds = reply, fds
        waiting.answered.set()


class _Waiting:
    """A task that waits for a reply."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.reply: Reply | None = None
        self.fds: list[int] = []
