"""The agent's side of an image that a worker with the user's rights serves: cache and record."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

import trio

from bootseer.agent.messages.broker import MountKind, SetReadAhead, Unmount
from bootseer.agent.messages.client import RequestClient
from bootseer.agent.node.job import Job
from bootseer.agent.supervisor.image_cache import CacheEntryHandle, borrow_new, open_cache_entry
from bootseer.agent.supervisor.image_record import JobImage
from bootseer.agent.supervisor.kernel_mount import KernelMount
from bootseer.agent.supervisor.worker_process import Worker
from bootseer.cache.token import TOKEN_BYTES
from bootseer.config import Config
from bootseer.core.event import FALLBACK, OK, Event, one_line
from bootseer.core.fields import Fields
from bootseer.core.reference import ENVIRONMENT
from bootseer.core.speed import UNKNOWN, Speed
from bootseer.errors import BootseerError, Closed, Corrupt, NotFound
from bootseer.image.hot.trace import COMPLETE, MAX_TOUCHES, MISSED, Touch, check_disjoint
from bootseer.image.library.catalog import FILE_NAME

_READ_AHEAD_KIB = 128
"""How far the kernel reads ahead of readers while blocks come from the store: no further than of a
disk, for what a start reads is scattered, and every byte counts."""
_READ_AHEAD_CACHED_KIB = 4096
"""The same when all of the image is on this node."""
_REQUEST_KIB = 1024
"""The same for who reads ahead: the kernel's requests are no longer, even of those who ask for more
at once."""
_THREADS_S = 1.0
"""For the worker, and the threads that write for it, to end by themselves."""
_MESSAGE = "message from the worker"


class ServedImage(JobImage):
    """An image on a mount of the agent's, from its worker's start to its end.

    Attributes:
        served: set once it can be read, or never will be; `is_served` says which, and `why` why.
        number, mount: of its mount, and where that is.
        began_ns: when that was, nanoseconds since the epoch.
        leading: what every start reads of it.
        copies: all of it comes to the node at once; `copied` is set when that has ended.
    """

    def __init__(
        self,
        broker: RequestClient,
        lender: RequestClient,
        number: int,
        mount: str,
        worker: Worker,
        uri: str,
        kernel: KernelMount | None = None,
    ) -> None:
        """Take over a worker that has been started.

        Args:
            broker: has made the mount for it.
            lender: lends it what the node has of the image.
            number: of the mount.
            mount: path of that.
            worker: that serves it.
            uri: of the image, as the job names it.
            kernel: what the kernel may mount of it.
        """
        super().__init__(uri, "", 0)
        self.served = trio.Event()
        self.is_served = False
        self.why = "what was to serve it has ended"
        self.mount = mount
        self._broker = broker
        self._lender = lender
        self.number = number
        self.leading: list[Any] = []
        self.copies = False
        self.copied = trio.Event()
        self._worker = worker
        self._ended = trio.Event()
        self._closing = trio.Event()
        self._is_cached = False
        self._content = ""
        self._touches: list[Touch] = []
        self.began_ns = time.time_ns()
        self._reported = trio.Event()
        self._speeds = {"store": UNKNOWN, "file": UNKNOWN}
        self._kernel = kernel
        self._has_lent = False
        self._is_ending = False
        self.is_used = not self.is_tree

    @property
    def is_tree(self) -> bool:
        """Whether it is mounted as a tree, and not as a file: an environment is."""
        return self.path.startswith(ENVIRONMENT)

    @property
    def file(self) -> str:
        """Path under which it can be read."""
        return self.mount if self.is_tree else f"{self.mount}/{FILE_NAME}"

    async def to_be_read(self) -> dict[str, Any]:
        """Describe it for the worker that reads ahead, once it is known how."""
        root = self.mount if self.is_tree else ""
        if self._kernel is not None:
            await self._kernel.settled.wait()
            root = self._kernel.path
        return {
            "root": root,
            "op": "image",
            "ok": True,
            "path": self.file,
            "identity": self.digest,
            "size_bytes": self.size_bytes,
            "leading": self.leading,
            "copies": self.copies,
        }

    async def follow(
        self, job: Job, config: Config, hear: Callable[[dict[str, Any]], None]
    ) -> None:
        """Have it served until the worker ends; then reading it gives errors.

        Args:
            job: whose image it is.
            config: effective settings.
            hear: takes the worker's events.

        Raises:
            BootseerError: the worker ended without having been told to, or makes no sense.
        """
        error: BootseerError | None = None
        try:
            await self._worker.send_task(job._replace(image=self.path), config)
            async with trio.open_nursery() as nursery:
                try:
                    await self._obey(hear, nursery)
                except BootseerError as ended:
                    error = ended
                # The threads that write to the cache end when the worker has.
                nursery.cancel_scope.deadline = trio.current_time() + _THREADS_S
        finally:
            for event in (self._ended, self.served, self.copied, self._closing):
                event.set()
            if self._kernel is not None:
                self._kernel.settle()
        if error is not None and not self._reported.is_set():
            self._reported.set()
            raise error

    async def _obey(self, hear: Callable[[dict[str, Any]], None], nursery: trio.Nursery) -> None:
        while True:
            message, fd = await self._worker.channel.receive()
            op = message.get("op")
            if op == "cache":
                await self._lend(message, fd, hear, nursery)
                continue
            if fd is not None:
                os.close(fd)
            if op == "served":
                await self._take(message)
            elif op == "missing":
                return  # an empty folder is all that it shows, until its end
            elif op == "recorded":
                self._touches = _touches(message, self.size_bytes)
                self._closing.set()
            elif op == "copied":
                self.copied.set()
            elif op == "reported":
                speeds = Fields(message, _MESSAGE).part("speeds")
                self._speeds = {name: Speed.of(speeds.part(name)) for name in self._speeds}
                self._reported.set()
            else:
                if not self.is_served:
                    self._note_failure(message)
                hear(message)

    def _note_failure(self, message: dict[str, Any]) -> None:
        """Keep for who asks for the image what has been told of its end."""
        event = message.get("event")
        if isinstance(event, dict) and event.get("stage") == "image.mount":
            self.why = one_line(str(event.get("detail")))

    async def _take(self, message: dict[str, Any]) -> None:
        """Learn that it can be read, and what it is."""
        fields = Fields(message, _MESSAGE)
        self.digest = fields.text("identity", 200)
        self._content = fields.text("content", 64)
        self.size_bytes = fields.count("size_bytes")
        self.leading = list(fields.ranges("leading", 8))
        self._is_cached = fields.flag("is_cached")
        self.copies = fields.flag("copies")
        if self._kernel is not None and not self._has_lent:
            self._kernel.settle()
        await self._set_read_ahead(_REQUEST_KIB)
        self.is_served = True
        self.served.set()

    async def note_opened(self) -> None:
        """Learn that who reads ahead has opened it: what is set now is for all others."""
        await self._set_read_ahead(_READ_AHEAD_CACHED_KIB if self._is_cached else _READ_AHEAD_KIB)

    async def _set_read_ahead(self, kib: int) -> None:
        if self.is_tree:
            return  # many small files, and large ones that are read here and there
        with suppress(BootseerError):
            await self._broker.do(SetReadAhead(MountKind.IMAGE, self.number, kib))

    # The block cache.

    async def _lend(
        self,
        message: dict[str, Any],
        fd: int | None,
        hear: Callable[[dict[str, Any]], None],
        nursery: trio.Nursery,
    ) -> None:
        """Give the worker what the node has of an image that its user may read.

        The worker shows that with the image's token, or with the manifest itself: what it merely
        says counts for nothing.

        Args:
            message: which image, and its token if the worker has it.
            fd: of the manifest in sealed memory, None if the node ought to have it; closed then.
            hear: takes events.
            nursery: for the threads that write to the cache.
        """
        send = self._worker.channel.send
        try:
            fields = Fields(message, _MESSAGE)
            digest = fields.text("digest", 64)
            lent = await self._borrow(digest, _token(fields.text("token", 2 * TOKEN_BYTES)), fd)
        except NotFound:
            await send({"op": "cache", "ok": False, "manifest": True})
            return
        except BootseerError as error:
            hear(_fallback("image.cache", f"blocks are not kept on this node: {error}"))
            await send({"op": "cache", "ok": False, "manifest": False})
            return
        finally:
            if fd is not None:
                os.close(fd)
        if lent.strange:
            what = f"{lent.strange} files in the block cache are no part of it; agent.log has them"
            hear(_fallback("image.cache", what))
        self._has_lent = True
        if self._kernel is not None:
            mounted = [os.dup(fd) for fd in lent.readers]
            nursery.start_soon(self._kernel.make, digest, mounted, hear)
        with ExitStack() as theirs:
            ends = []
            fds = list(lent.readers)
            theirs.callback(lent.close_readers)
            for _ in range(2):
                end, its = socket.socketpair()
                ends.append(end)
                fds.append(theirs.enter_context(its).fileno())
            nursery.start_soon(lent.keep, ends)
            await send({"op": "cache", "ok": True})
            for opened in fds:
                await send({"op": "fd"}, fd=opened)

    async def _borrow(self, digest: str, token: bytes | None, fd: int | None) -> CacheEntryHandle:
        if fd is not None:
            return await borrow_new(self._lender, digest, fd)
        if token is None:
            raise NotFound("the worker has no token")
        return await open_cache_entry(self._lender, digest, token)

    # The record.

    def touched_bytes(self) -> int:
        """Say how much has been read; known at the end only."""
        return sum(t.stop - t.start for t in self._touches)

    async def close(self, deadline: float) -> Event:
        """End the recording; returns the stage that it was."""
        status, detail = OK, ""
        if self.is_served and not self._closing.is_set():
            with trio.move_on_at(deadline) as scope:
                with suppress(Closed):
                    await self._worker.channel.send({"op": "window"})
                await self._closing.wait()
            if scope.cancelled_caught:
                status, detail = FALLBACK, "what serves the image has not said what was read"
        news = self.news(self._touches)
        return Event(
            "image.record",
            self.began_ns,
            time.time_ns(),
            "agent",
            status,
            bytes=sum(t.stop - t.start for t in news),
            detail=detail or self.said(news),
        )

    def recorded(self) -> dict[str, Any]:
        """Describe it for the worker that publishes."""
        touches, holdout = self.judged(self.news(self._touches))
        return {
            "path": self.path,
            "digest": self.digest,
            "content": self._content,
            "size_bytes": self.size_bytes,
            "kind": MISSED if self.is_prefetched else COMPLETE,
            "touches": touches,
            "holdout": holdout,
            "speeds": {name: asdict(speed) for name, speed in self._speeds.items()},
        }

    # The end.

    async def end(self, timeout_s: float) -> None:
        """End it in so many seconds; whoever still reads it gets errors. The first call counts."""
        if self._is_ending:
            return
        self._is_ending = True
        if self.is_served:
            with trio.move_on_after(max(0.0, timeout_s)), suppress(Closed):
                await self._worker.channel.send({"op": "report"})
                await self._reported.wait()
        with suppress(BootseerError):
            await self._broker.do(Unmount(MountKind.IMAGE, self.number))
        if self._kernel is not None:
            await self._kernel.remove()
        with trio.move_on_after(_THREADS_S):
            await self._ended.wait()  # without a mount, it has nothing to do
        await self._worker.end()


def _token(text: str) -> bytes | None:
    """Decode a token that a worker presents, None if it has none.

    Raises:
        Corrupt: it is no token.
    """
    try:
        token = bytes.fromhex(text)
    except ValueError as error:
        raise Corrupt(f"{_MESSAGE}: something that is not a token") from error
    if len(token) not in (0, TOKEN_BYTES):
        raise Corrupt(f"{_MESSAGE}: a token of {len(token)} bytes")
    return token or None


def _touches(message: dict[str, Any], size_bytes: int) -> list[Touch]:
    rows = Fields(message, _MESSAGE).rows("touches", MAX_TOUCHES, 3)
    touches = [Touch(*row) for row in rows]
    check_disjoint([touch.range for touch in touches], size_bytes, _MESSAGE)
    return touches


def _fallback(stage: str, detail: str) -> dict[str, Any]:
    now = time.time_ns()
    event = Event(stage, now, now, "agent", FALLBACK, detail=one_line(detail))
    return {"op": "event", "event": event.document()}
