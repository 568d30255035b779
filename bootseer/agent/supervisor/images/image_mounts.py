"""The images that an agent serves: the one that the prolog knew of, and those asked for later."""

from __future__ import annotations

import time
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
from bootseer.errors import BootseerError, ConfigError, Unavailable

MAX_SERVED = 8
"""For a job, on a node: each has a process, and descriptors of the agent's."""
MAX_MOUNTS = MAX_IMAGES
"""The same with those whose server has ended: who killed it has the mount still."""


class ServedImages:
    """A job's mounts of images, by the name that each has.

    Attributes:
        windows: of the images that were asked for later; the first is in the job's own.
    """

    def __init__(self, context: JobContext) -> None:
        """Begin with none."""
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
        """Have the image served that was mounted before the agent ran."""
        self._keep(image)
        self._context.start("image.serve", nursery, self._follow, image, self._job)

    async def serve(self, uri: str, nursery: trio.Nursery) -> str:
        """Have an image served, unless it is already; returns its path once it can be read.

        Args:
            uri: of the image, as a container runtime or a user names it.
            nursery: for what serves it, until the end of the job.

        Raises:
            ConfigError: this is no URI.
            Unavailable: it cannot be served, and why.

        Cancellation: it goes on being mounted, for who asks next.
        """
        image = await self.mount(uri, nursery)
        await image.served.wait()
        if not image.is_served:
            raise Unavailable(image.why)
        return image.file

    async def mount(self, uri: str, nursery: trio.Nursery) -> ServedImage:
        """Have an image mounted, unless it is already; whether it can be read, its server tells.

        Args:
            uri, nursery: as for `serve`.

        Raises:
            BootseerError: it cannot be mounted, and why.
        """
        name = reference(uri)
        async with self._mounting:
            return self._by_name.get(name) or await self._mount(name, nursery)

    def number(self, uri: str) -> int:
        """Return the number of the mount of an image that is served.

        Raises:
            Unavailable: it is not any more.
        """
        image = self._by_name.get(reference(uri))
        if image is None:
            raise Unavailable("its server has ended")
        return image.number

    def note_used(self, uri: str) -> None:
        """Note that the job uses an image, and not only the plan names it."""
        image = self._by_name.get(reference(uri))
        if image is not None:
            image.is_used = True

    async def _mount(self, name: str, nursery: trio.Nursery) -> ServedImage:
        if self._ending:
            raise Unavailable("the job is ending")
        if "://" not in name:
            raise ConfigError(f"{name[:100]!a} is not the URI of an image")
        if len(self._by_name) >= MAX_SERVED:
            raise Unavailable(f"{MAX_SERVED} images of this job are served already")
        if len(self._mounts) >= MAX_MOUNTS:
            raise Unavailable(f"{MAX_MOUNTS} mounts of this job were made already")
        used = {image.number for image in self._mounts}
        number = next(number for number in self._numbers if number not in used)
        job = self._job._replace(
            image=name, checkpoint="", environment="", started_ns=time.time_ns()
        )
        worker = await start(self._broker, StartImageServer(number, name.startswith(ENVIRONMENT)))
        mount = self._folder.image_mount(number)
        image = ServedImage(self._broker, self._context.lender, number, mount, worker, name)
        self._keep(image)
        self._context.start("image.serve", nursery, self._follow, image, job)
        self._context.start("image.prefetch", nursery, self._warm, image, job)
        return image

    def _keep(self, image: ServedImage) -> None:
        self._mounts.append(image)
        self._by_name[reference(image.path)] = image

    async def _follow(self, image: ServedImage, job: Job) -> None:
        """Have an image served until that ends; then whoever asks for it gets another mount."""
        try:
            await image.follow(job, self._context.config, self._events)
        except BootseerError as error:
            if not self._ending and image.is_served:
                self._events.fall_back(
                    "image.serve", f"reads fail: the image server has ended: {error}"
                )
        self._by_name.pop(reference(image.path), None)
        if not image.is_served and job is not self._job:
            # Nobody has been told of this mount.
            await image.end(0)
            self._mounts.remove(image)  # only now: its number is in use until then

    async def _warm(self, image: ServedImage, job: Job) -> None:
        """Read an image ahead and record it, as the job's first, in a window of its own."""
        window = RecordingWindow(job, self._context, image)
        worker = await start(self._broker, Role.WARM_UP)
        self.windows.append(window)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(window.run, worker)
            await image.served.wait()
            if not image.is_served:
                window.close()
        if not window.images:
            self.windows.remove(window)

    async def end(self, timeout_s: float) -> None:
        """End all of them in so many seconds; whoever still reads gets errors."""
        self._ending = True
        async with trio.open_nursery() as nursery:
            for image in self._mounts:
                if not image.served.is_set():
                    self._events.fall_back("image.mount", "the job ended before it could be read")
                nursery.start_soon(image.end, timeout_s)
