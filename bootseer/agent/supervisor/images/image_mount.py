"""The supervisor's side of an image mount; a worker with the user's rights serves it."""

from __future__ import annotations

import time
from contextlib import suppress

import trio

from bootseer.agent.messages.broker import MountKind, SetReadAhead, Unmount
from bootseer.agent.messages.worker import (
    BorrowBlocks,
    CloseWindow,
    FetchAhead,
    ImageCopied,
    ImageMissing,
    ImageReadable,
    ImageRecorded,
    ImageReported,
    ImageServed,
    RecordedImage,
    ReportImage,
    StageEnded,
)
from bootseer.agent.node.job import Job
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.agent.supervisor.images.block_lending import BlockLending
from bootseer.agent.supervisor.images.image_record import JobImage
from bootseer.agent.supervisor.images.kernel_mount import KernelMount
from bootseer.agent.supervisor.worker_process import Worker
from bootseer.config import Config
from bootseer.core.event import FALLBACK, OK, Event
from bootseer.core.ranges import ByteRange
from bootseer.core.reference import ENVIRONMENT
from bootseer.core.speed import UNKNOWN
from bootseer.errors import BootseerError, Closed, Corrupt
from bootseer.image.hot.trace import COMPLETE, MAX_TOUCHES, MISSED, Touch, check_disjoint
from bootseer.image.library.catalog import FILE_NAME
from bootseer.ipc.channel import unexpected
from bootseer.ipc.descriptors import close_all
from bootseer.ipc.request_client import RequestClient

_READ_AHEAD_KIB = 128
"""The kernel's read-ahead while blocks come from the store; small, as reads are scattered."""
_READ_AHEAD_CACHED_KIB = 4096
"""The kernel's read-ahead when all of the image is on this node."""
_REQUEST_KIB = 1024
"""The kernel's read-ahead for the prefetch worker: it limits the size of requests, too."""
_THREADS_S = 1.0
"""Time for the worker, and the threads that write for it, to end."""
_MESSAGE = "message from the worker"


class ServedImage(JobImage):
    """An image on a mount of the agent's, from its worker's start to its end.

    Attributes:
        served: set once it can be read, or never will be; see `is_served` and `why`.
        is_new: the store has no such image.
        number, mount: number and path of its mount.
        began_ns: when it was mounted, nanoseconds since the epoch.
        leading: what every start reads of it.
        copies: the whole image is being copied to the node; `copied` is set at the end of that.
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
            broker: made the mount.
            lender: lends cached blocks of the image.
            number: number of the mount.
            mount: path of the mount.
            worker: the image's server.
            uri: URI of the image, as the job names it.
            kernel: the kernel's mount of the image.
        """
        super().__init__(uri, "", 0)
        self.served = trio.Event()
        self.is_served = False
        self.is_new = False
        self.why = "its server has ended"
        self.mount = mount
        self._broker = broker
        self._lending = BlockLending(lender, worker, kernel)
        self.number = number
        self.leading: list[ByteRange] = []
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
        self._speeds = ImageReported(UNKNOWN, UNKNOWN)
        self._kernel = kernel
        self._is_ending = False
        self.is_used = not self.is_tree

    @property
    def is_tree(self) -> bool:
        """Return whether it is an environment, mounted as a tree, and not a file."""
        return self.path.startswith(ENVIRONMENT)

    @property
    def file(self) -> str:
        return self.mount if self.is_tree else f"{self.mount}/{FILE_NAME}"

    async def readable_message(self) -> ImageReadable:
        """Describe the image for the prefetch worker, once it is served."""
        tree = self.mount if self.is_tree else ""
        if self._kernel is not None:
            await self._kernel.settled.wait()
            tree = self._kernel.path
        return ImageReadable(
            self.file, tree, self.digest, self.size_bytes, self.leading, self.copies
        )

    async def follow(self, job: Job, config: Config, events: EventLog) -> None:
        """Follow the worker until it ends; then reads give errors.

        Args:
            job: the image's job.
            config: effective settings.
            events: log for the worker's events.

        Raises:
            BootseerError: the worker ended unasked, or sent an invalid message.
        """
        error: BootseerError | None = None
        try:
            await self._worker.send_task(job._replace(image=self.path), config)
            async with trio.open_nursery() as nursery:
                try:
                    await self._handle_messages(events, nursery)
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

    async def _handle_messages(self, events: EventLog, nursery: trio.Nursery) -> None:
        while True:
            message, fds = await self._worker.channel.receive()
            try:
                match message:
                    case BorrowBlocks():
                        await self._lending.answer(message, fds, events, nursery)
                    case ImageServed():
                        await self._note_served(message)
                    case ImageMissing():
                        self.is_new = message.is_new
                        return
                    case ImageRecorded():
                        touched = [touch.range for touch in message.touches]
                        if len(touched) > MAX_TOUCHES:
                            raise Corrupt(f"{_MESSAGE}: more than {MAX_TOUCHES} touches")
                        check_disjoint(touched, self.size_bytes, _MESSAGE)
                        self._touches = message.touches
                        self._closing.set()
                    case ImageCopied():
                        self.copied.set()
                    case ImageReported():
                        self._speeds = message
                        self._reported.set()
                    case StageEnded():
                        if not self.is_served and message.event.stage == "image.mount":
                            self.why = message.event.detail  # the error for requests of the image
                        events.note(message.event)
                    case _:
                        raise unexpected(message)
            finally:
                close_all(fds)

    async def _note_served(self, image: ImageServed) -> None:
        """Record the image's properties: it can be read now."""
        self.digest = image.identity
        self._content = image.content
        self.size_bytes = image.size_bytes
        self.leading = image.leading
        self._is_cached = image.is_cached
        self.copies = image.copies
        if self._kernel is not None and not self._lending.has_lent:
            self._kernel.settle()
        await self._set_read_ahead(_REQUEST_KIB)
        self.is_served = True
        self.served.set()

    async def note_opened(self) -> None:
        """Set the read-ahead for the job's reads, once the prefetch worker has opened the image."""
        await self._set_read_ahead(_READ_AHEAD_CACHED_KIB if self._is_cached else _READ_AHEAD_KIB)

    async def fetch_ahead(self, ranges: list[ByteRange]) -> None:
        """Have an environment's hot ranges fetched in large reads: those of its files are small."""
        if self.is_tree:
            with suppress(Closed):
                await self._worker.channel.send(FetchAhead(ranges))

    async def _set_read_ahead(self, kib: int) -> None:
        if self.is_tree:
            return  # many small files, and scattered reads of large ones
        with suppress(BootseerError):
            await self._broker.do(SetReadAhead(MountKind.IMAGE, self.number, kib))

    # The record.

    def touched_bytes(self) -> int:
        """Return the bytes read so far; known at the end only."""
        return sum(t.stop - t.start for t in self._touches)

    async def close(self, deadline: float) -> Event:
        """End the recording; returns its event."""
        status, detail = OK, ""
        if self.is_served and not self._closing.is_set():
            with trio.move_on_at(deadline) as scope:
                with suppress(Closed):
                    await self._worker.channel.send(CloseWindow())
                await self._closing.wait()
            if scope.cancelled_caught:
                status, detail = FALLBACK, "the image server did not report its reads"
        new_touches = self.new_touches(self._touches)
        return Event(
            "image.record",
            self.began_ns,
            time.time_ns(),
            "agent",
            status,
            bytes=sum(t.stop - t.start for t in new_touches),
            detail=detail or self.summary(new_touches),
        )

    def recorded(self) -> RecordedImage:
        touches, holdout = self.to_record(self.new_touches(self._touches))
        kind = MISSED if self.is_prefetched else COMPLETE
        about = (self.path, self.digest, self.size_bytes, kind, touches, holdout)
        return RecordedImage(*about, self._content, *self._speeds)

    # The end.

    async def end(self, timeout_s: float) -> None:
        """End the worker within so many seconds; readers then get errors. The first call counts."""
        if self._is_ending:
            return
        self._is_ending = True
        if self.is_served:
            with trio.move_on_after(max(0.0, timeout_s)), suppress(Closed):
                await self._worker.channel.send(ReportImage())
                await self._reported.wait()
        with suppress(BootseerError):
            await self._broker.do(Unmount(MountKind.IMAGE, self.number))
        if self._kernel is not None:
            await self._kernel.remove()
        with trio.move_on_after(_THREADS_S):
            await self._ended.wait()  # without a mount, the worker has nothing to do
        await self._worker.end()
