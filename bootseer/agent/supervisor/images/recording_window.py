"""A start-up window: one prefetch worker, and the recording of its images' reads."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress

import trio

from bootseer.agent.messages.broker import WatchResidency
from bootseer.agent.messages.worker import (
    CheckpointFileAhead,
    CheckpointReadable,
    FromWorker,
    HoldPrefetch,
    ImageCopied,
    ImageFound,
    ImagesPrefetched,
    ImageUnreadable,
    PrefetchBegun,
    PrefetchProgress,
    Ready,
    ServedImageOpened,
    StageEnded,
    StoreAway,
    ToWorker,
    YieldToJob,
)
from bootseer.agent.node.job import Job
from bootseer.agent.supervisor.checkpoint_mount import MountedCheckpoint
from bootseer.agent.supervisor.images.image_mount import ServedImage
from bootseer.agent.supervisor.images.image_record import JobImage
from bootseer.agent.supervisor.images.residency_client import ResidencyClient
from bootseer.agent.supervisor.images.residency_record import SETTLE_S, WatchedImage
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import Worker
from bootseer.errors import BootseerError, Closed
from bootseer.ipc.descriptors import close_all, exactly

MAX_IMAGES = 8
_SAMPLING_SHARE = 0.1
"""Largest share of the agent's time spent on sampling: huge images are sampled less often."""


class RecordingWindow:
    """The window from the start of a prefetch worker until the reads are recorded.

    Attributes:
        images: the recorded images.
        is_used: the job itself uses them, not only its plan.
        settled: set once the worker has found its image, or has none.
        prefetched: set once the worker has prefetched its image, or has ended.
        recorded: set at the end.
    """

    def __init__(
        self,
        job: Job,
        context: JobContext,
        served: ServedImage | None = None,
        checkpoint: MountedCheckpoint | None = None,
        on_message: Callable[[FromWorker], None] = lambda message: None,
        *,
        is_used: bool = True,
    ) -> None:
        """Create a window; nothing is started yet.

        Args:
            job: the job, as sent to the worker.
            context: the job's context.
            served: the image, if it is served and not a file.
            checkpoint: the checkpoint, if it is prefetched too.
            on_message: called with worker messages that concern more than this window.
            is_used: the job itself uses the image, not only its plan.
        """
        self.images: list[JobImage] = []
        self.is_used = is_used
        self.settled = trio.Event()
        self.prefetched = trio.Event()
        self.recorded = trio.Event()
        self._job = job
        self._config = context.config
        self._outages = context.outages
        self._store_url = context.store_url
        self._events = context.events
        self._images_first = context.images_first
        self._on_message = on_message
        self._broker = context.broker
        self._served = served
        self._checkpoint = checkpoint
        self._worker: Worker | None = None
        self._has_task = trio.Event()
        self._failed: set[JobImage] = set()
        self._is_identified = job.is_served or not job.image
        self._scope = trio.CancelScope()
        self._time = trio.CancelScope()

    def use(self) -> None:
        """Count the window's images as used, and its time from now."""
        self.is_used = True
        for image in self.images:
            image.is_used = True
        self._time.deadline = trio.current_time() + self._config.image.window_s

    def close(self, *, is_cut_short: bool = False) -> None:
        """Close the window.

        Args:
            is_cut_short: the job has ended within the window.
        """
        if is_cut_short and not (self._scope.cancel_called or self.recorded.is_set()):
            for image in self.images:
                image.is_cut_short = True
            if not self._is_identified:
                self._events.fall_back(
                    "image.identify", "the job ended first: nothing is recorded of the image"
                )
        self._scope.cancel()

    async def detach(self) -> None:
        """Let the worker continue at low priority while the job starts."""
        await self.tell(YieldToJob())

    async def tell(self, message: ToWorker) -> None:
        """Send the worker a message, if it is running."""
        if self._worker is not None:
            with suppress(Closed):
                await self._worker.channel.send(message)

    async def run(self, worker: Worker) -> None:
        """Follow the worker until the window closes; then end it and close the recording."""
        self._worker = worker
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sample_often)
            if self._job.checkpoint:
                nursery.start_soon(self._announce_checkpoint, worker)
            if self._job.is_served:
                nursery.start_soon(self._announce_image, worker)
            try:
                with self._scope, self._time:
                    self._time.deadline = trio.current_time() + self._config.image.window_s
                    await self._follow(worker)
                    # Even without the worker, record its images to the end of the window: a
                    # shortened recording would look complete.
                    await trio.sleep_forever()
            finally:
                nursery.cancel_scope.cancel()
                try:
                    self._note_ready(Ready("the worker has ended"))
                    self._worker = None
                    with trio.CancelScope(shield=True):
                        await worker.end()
                        await self._close_recording()
                finally:
                    self.recorded.set()  # in any case: the epilog waits for it

    async def _close_recording(self) -> None:
        self._sample()
        deadline = trio.current_time() + SETTLE_S
        if self._checkpoint is not None:
            with trio.move_on_at(deadline):
                await self._checkpoint.close_window()
        for image in self.images:
            try:
                event = await image.close(deadline)
            except BootseerError as error:
                self._give_up(image, error)
            else:
                if image not in self._failed:
                    self._events.note(event)

    async def _follow(self, worker: Worker) -> None:
        try:
            outage = self._outages.recent(self._store_url)
            if outage:
                self._events.fall_back("store.outage", f"{self._store_url} is not asked: {outage}")
            await worker.send_task(self._job, self._config, outage)
            self._has_task.set()
            while True:
                message, fds = await worker.channel.receive()
                try:
                    await self._handle(message, fds)
                finally:
                    close_all(fds)
        except BootseerError as error:
            self._events.fall_back("agent.worker", f"the prefetch worker has ended early: {error}")
            self._note_ready(Ready("the worker has ended"))
        finally:
            self.prefetched.set()

    async def _handle(self, message: FromWorker, fds: list[int]) -> None:
        match message:
            case ImageFound() if len(self.images) < MAX_IMAGES:
                reply, (end,) = await self._broker.ask(WatchResidency(), exactly(fds, 1))
                pages = ResidencyClient(socket.socket(fileno=end), reply.value)
                image = WatchedImage(message, pages)
                image.is_used = self.is_used
                self.images.append(image)
                self.settled.set()
            case PrefetchBegun() if self.images:
                self.images[-1].note_prefetch(message)
                if self._served is not None:
                    await self._served.fetch_ahead(message.ranges)
            case PrefetchProgress() if self.images:
                self.images[-1].note_progress(message)
            case ServedImageOpened() if self._served is not None:
                await self._served.note_opened()
            case CheckpointFileAhead() if self._checkpoint is not None:
                self._checkpoint.note_ahead(message)
            case ImagesPrefetched():
                self.prefetched.set()
            case StoreAway():
                self._outages.note(self._store_url, message.why)
            case StageEnded():
                self._is_identified |= message.event.stage == "image.identify"
                self._events.note(message.event)
            case Ready():
                self._note_ready(message)
            case _:
                self._on_message(message)

    def _note_ready(self, message: Ready) -> None:
        self.settled.set()
        self._on_message(message)

    async def _announce_checkpoint(self, worker: Worker) -> None:
        """Tell the worker when to prefetch the checkpoint, or that it never can be read."""
        await self._has_task.wait()
        is_served = self._checkpoint is not None and await self._checkpoint.is_served()
        if is_served:
            await self.prefetched.wait()
            await self._images_first.wait()
        with suppress(Closed):
            await worker.channel.send(CheckpointReadable(is_served))

    async def _announce_image(self, worker: Worker) -> None:
        """Tell the worker when the image can be read, or that it never will be."""
        await self._has_task.wait()
        image = self._served
        message: ToWorker = ImageUnreadable()
        if image is not None:
            await image.served.wait()
            if image.is_served:
                self.images.append(image)
                message = await image.readable_message()
        with suppress(Closed):
            await worker.channel.send(message)
            if image is not None and image.copies:
                await image.copied.wait()
                await worker.channel.send(ImageCopied())

    async def _sample_often(self) -> None:
        took_s = 0.0
        is_held = False
        while True:
            interval_s = self._config.image.sample_interval_s
            await trio.sleep(max(interval_s, took_s / _SAMPLING_SHARE))
            began_s = time.monotonic()
            self._sample()
            took_s = time.monotonic() - began_s
            seen = [image for image in self.images if image not in self._failed]
            if is_held != any(not image.is_worth() for image in seen):
                is_held = not is_held
                await self.tell(HoldPrefetch(is_held))

    def _sample(self) -> None:
        for image in self.images:
            if image not in self._failed:
                try:
                    image.sample()
                except BootseerError as error:
                    self._give_up(image, error)

    def _give_up(self, image: JobImage, error: BootseerError) -> None:
        """Stop sampling an image and report why, once; its touches so far are kept."""
        if image not in self._failed:
            self._failed.add(image)
            image.is_cut_short = True
            self._events.fall_back("image.record", str(error))
