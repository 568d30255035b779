"""The images of a job: the one named at submission, and those requested later."""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import cycle

import trio

from bootseer.agent.broker.mounts import MAX_IMAGES
from bootseer.agent.messages.broker import Role, StartImageServer
from bootseer.agent.node.job import Job
from bootseer.agent.supervisor.images.image_mount import ServedImage
from bootseer.agent.supervisor.images.recording_window import RecordingWindow
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import start
from bootseer.core.reference import ENVIRONMENT, reference
from bootseer.errors import BootseerError, ConfigError, Unavailable, UnknownImage

MAX_SERVED = 8
"""Served images of a job on a node: each takes a process and descriptors of the agent's."""
MAX_MOUNTS = MAX_IMAGES
"""Mounts of a job on a node, including those left by servers that have ended."""


class ServedImages:
    """A job's image mounts, by image name.

    Attributes:
        windows: recording windows of images requested later; the first image is in the job's own.
    """

    def __init__(self, context: JobContext) -> None:
        self.windows: list[RecordingWindow] = []
        self._context = context
        self._folder = context.folder
        self._job = context.job
        self._broker = context.broker
        self._events = context.events
        self._mounting = trio.Lock()
        self._numbers = cycle(range(1, MAX_MOUNTS + 1))
        self._mounts: list[ServedImage] = []
        self._by_name: dict[str, ServedImage] = {}
        self._ending = False

    def begin(self, image: ServedImage, nursery: trio.Nursery) -> None:
        """Follow the image that the broker mounted before the supervisor ran."""
        self._keep(image)
        self._context.start("image.serve", nursery, self._follow, image, self._job)

    async def serve(self, uri: str, nursery: trio.Nursery, *, is_later: bool = True) -> str:
        """Mount an image unless mounted; returns its path once it can be read.

        Args:
            uri: URI of the image, as a container runtime or a user names it.
            nursery: for the mount's tasks, which last until the end of the job.
            is_later: the job itself requests it, after its start.

        Raises:
            ConfigError: ``uri`` is not a URI.
            UnknownImage: the store has no such image.
            Unavailable: the image cannot be served.

        Cancellation: mounting continues, for the next request.
        """
        image = await self.mount(uri, nursery, is_later=is_later)
        await image.served.wait()
        if not image.is_served:
            raise UnknownImage(image.why) if image.is_new else Unavailable(image.why)
        return image.file

    async def mount(self, uri: str, nursery: trio.Nursery, *, is_later: bool = True) -> ServedImage:
        """Mount an image unless mounted, without waiting until it can be read.

        Args:
            uri, nursery, is_later: as for `serve`.

        Raises:
            BootseerError: the image cannot be mounted.
        """
        name = reference(uri)
        with self._context.images_first.hold():
            async with self._mounting:
                return self._by_name.get(name) or await self._mount(name, nursery, is_later)

    def number(self, uri: str) -> int:
        """Return the mount number of a served image.

        Raises:
            Unavailable: the image is no longer served.
        """
        image = self._by_name.get(reference(uri))
        if image is None:
            raise Unavailable("the image server has ended")
        return image.number

    def note_used(self, uri: str) -> None:
        """Record that the job itself uses an image, not only its plan."""
        image = self._by_name.get(reference(uri))
        if image is not None:
            image.is_used = True

    async def _mount(self, name: str, nursery: trio.Nursery, is_later: bool) -> ServedImage:
        if self._ending:
            raise Unavailable("the job is ending")
        if "://" not in name:
            raise ConfigError(f"{name[:100]!a} is not the URI of an image")
        if len(self._by_name) >= MAX_SERVED:
            raise Unavailable(f"cannot serve another image: this job uses {MAX_SERVED} already")
        if len(self._mounts) >= MAX_MOUNTS:
            raise Unavailable(
                f"cannot serve another image: this job has reached the limit of {MAX_MOUNTS} mounts"
            )
        used = {image.number for image in self._mounts}
        number = next(number for number in self._numbers if number not in used)
        job = self._job._replace(
            image=name,
            checkpoint="",
            environment="",
            started_ns=time.time_ns(),
            is_later=is_later,
        )
        worker = await start(self._broker, StartImageServer(number, name.startswith(ENVIRONMENT)))
        mount = self._folder.image_mount(number)
        image = ServedImage(self._broker, self._context.lender, number, mount, worker, name)
        self._keep(image)
        self._context.start("image.serve", nursery, self._follow, image, job)
        held = ExitStack()
        held.enter_context(self._context.images_first.hold())
        self._context.start("image.prefetch", nursery, self._warm, image, job, held)
        return image

    def _keep(self, image: ServedImage) -> None:
        self._mounts.append(image)
        self._by_name[reference(image.path)] = image

    async def _follow(self, image: ServedImage, job: Job) -> None:
        """Follow an image's server until it ends; later requests get a new mount."""
        try:
            await image.follow(job, self._context.config, self._events)
        except BootseerError as error:
            if not self._ending and image.is_served:
                self._events.fall_back(
                    "image.serve", f"reads fail: the image server has ended: {error}"
                )
        self._by_name.pop(reference(image.path), None)
        if not image.is_served and job is not self._job:
            # No process knows of this mount yet.
            await image.end(0)
            self._mounts.remove(image)  # only now: its number is in use until then

    async def _warm(self, image: ServedImage, job: Job, held: ExitStack) -> None:
        """Prefetch and record an image in its own window, like the job's first image.

        Args:
            image: to be prefetched.
            job: with that image.
            held: holds the checkpoint's prefetch; closed here.
        """
        with held:
            window = RecordingWindow(job, self._context, image)
            worker = await start(self._broker, Role.WARM_UP)
            self.windows.append(window)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(window.run, worker)
                await image.served.wait()
                if not image.is_served:
                    window.close()
                await window.prefetched.wait()
                held.close()
        if not window.images:
            self.windows.remove(window)

    async def end(self, timeout_s: float) -> None:
        """End all servers within so many seconds; readers then get errors."""
        self._ending = True
        async with trio.open_nursery() as nursery:
            for image in self._mounts:
                if not image.served.is_set():
                    self._events.fall_back("image.mount", "the job ended before it could be read")
                nursery.start_soon(image.end, timeout_s)
