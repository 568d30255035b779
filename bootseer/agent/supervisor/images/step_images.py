"""Image files that a job's steps bring, beside the image that the job itself names."""

from __future__ import annotations

import time

import trio

from bootseer.agent.messages.broker import Role
from bootseer.agent.supervisor.images.recording_window import RecordingWindow
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import start
from bootseer.errors import BootseerError

MAX_FILES = 8
"""Per job on a node: each has a worker while its window is open."""
OWN_IMAGE_S = 5.0
"""Longest that a step's file waits until it is known which image is the job's own."""


class StepImages:
    """A job's image files with windows of their own, by path.

    A file that the plan names is prefetched at once, but recorded only for the step that uses it:
    that may begin after the window of the job's own image has closed.

    Attributes:
        windows: the recording windows.
    """

    def __init__(self, context: JobContext, own: RecordingWindow) -> None:
        """Create without images; `own` is the window of the image that the job names."""
        self._context = context
        self._own = own
        self._by_path: dict[str, RecordingWindow] = {}
        self._has_ended = False

    @property
    def windows(self) -> list[RecordingWindow]:
        return list(self._by_path.values())

    def prefetch(self, path: str, nursery: trio.Nursery) -> None:
        """Prefetch a file that the last run used."""
        if not self._is_own(path) and path not in self._by_path:
            self._open(path, nursery, is_used=False)

    def use(self, path: str, nursery: trio.Nursery) -> None:
        """Prefetch and record a file that a step begins to use, once per job.

        A job that names no image has that of its last run. A script's first step begins before that
        is known, and brings the same one: a second worker would read all of it again.
        """
        if self._context.job.image or self._own.settled.is_set():
            self._use(path, nursery)
        else:
            nursery.start_soon(self._use_once_settled, path, nursery)

    def end(self) -> None:
        """Begin with no file any more: the job has ended."""
        self._has_ended = True

    async def _use_once_settled(self, path: str, nursery: trio.Nursery) -> None:
        with trio.move_on_after(OWN_IMAGE_S):
            await self._own.settled.wait()
        if not self._has_ended:
            self._use(path, nursery)

    def _use(self, path: str, nursery: trio.Nursery) -> None:
        if self._is_own(path):
            return
        window = self._by_path.get(path)
        if window is None or (window.recorded.is_set() and not window.is_used):
            self._open(path, nursery, is_used=True)
        elif not window.is_used:
            window.use()

    def _is_own(self, path: str) -> bool:
        own = (self._context.job.image, *(image.path for image in self._own.images))
        return path in own

    def _open(self, path: str, nursery: trio.Nursery, *, is_used: bool) -> None:
        if path not in self._by_path and len(self._by_path) >= MAX_FILES:
            return
        job = self._context.job._replace(
            image=path,
            checkpoint="",
            environment="",
            wait_s=0.0,
            started_ns=time.time_ns(),
            is_later=is_used,
        )
        window = RecordingWindow(job, self._context, is_used=is_used)
        self._by_path[path] = window
        self._context.start("image.prefetch", nursery, self._follow, window)

    async def _follow(self, window: RecordingWindow) -> None:
        try:
            worker = await start(self._context.broker, Role.WARM_UP)
        except BootseerError:
            window.recorded.set()  # the epilog waits for it
            raise
        await window.run(worker)
