"""The supervisor's side of a checkpoint mount; a worker with the user's rights serves it."""

from __future__ import annotations

from contextlib import suppress

import trio

from bootseer.agent.messages.broker import MountKind, SetReadAhead, Unmount
from bootseer.agent.messages.worker import (
    CheckpointEnded,
    CheckpointFileAhead,
    CheckpointReads,
    CheckpointServed,
    CloseWindow,
    StageEnded,
    StopCheckpoint,
)
from bootseer.agent.node.job import Job
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.agent.supervisor.worker_process import Worker
from bootseer.config import Config
from bootseer.core.access_log import MAX_FILES, AccessedFile
from bootseer.errors import BootseerError, Closed
from bootseer.ipc.channel import unexpected
from bootseer.ipc.request_client import RequestClient

_READ_AHEAD_KIB = 4096
"""The kernel's read-ahead: four requests of the largest size."""
_KILL_S = 1.0
"""Part of the time for the end, kept for killing a worker that is late."""


class MountedCheckpoint:
    """One mount of a checkpoint, from its worker's start to its end.

    Attributes:
        served: set once files can be read.
        reads: reads in the start-up window, as the worker reports them.
        ahead: prefetched files, as the worker `warm_up` reports them.
    """

    def __init__(self, broker: RequestClient, worker: Worker) -> None:
        self.served = trio.Event()
        self.reads: list[AccessedFile] = []
        self.ahead: list[CheckpointFileAhead] = []
        self._broker = broker
        self._worker = worker
        self._ended = trio.Event()
        self._window_is_open = True
        self._said_window = trio.Event()
        self._in_order = False

    async def follow(self, job: Job, config: Config, events: EventLog) -> None:
        """Follow the worker until it ends; then reads give errors.

        Args:
            job: the checkpoint's job.
            config: effective settings.
            events: log for the worker's events.

        Raises:
            BootseerError: the worker ended unasked, or sent an invalid message.
        """
        try:
            await self._worker.send_task(job, config)
            ended = await self._handle_messages(events)
        finally:
            self._ended.set()
            self._said_window.set()
        if ended is not None:
            raise ended

    async def _handle_messages(self, events: EventLog) -> BootseerError | None:
        """Handle messages until the worker ends; returns the error if it ended unasked."""
        try:
            while True:
                match message := await self._worker.channel.receive_only():
                    case CheckpointServed():
                        with suppress(BootseerError):
                            await self._broker.do(
                                SetReadAhead(MountKind.CHECKPOINT, 0, _READ_AHEAD_KIB)
                            )
                        self.served.set()
                    case CheckpointReads():
                        self.reads = message.files
                        self._said_window.set()
                    case CheckpointEnded():
                        self._in_order = True
                        return None
                    case StageEnded():
                        events.note(message.event)
                    case _:
                        raise unexpected(message)
        except BootseerError as error:
            return error

    async def is_served(self) -> bool:
        """Wait until files can be read; returns False if they never will be."""
        async with trio.open_nursery() as nursery:

            async def until(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, self.served)
            nursery.start_soon(until, self._ended)
        return self.served.is_set()

    def note_ahead(self, file: CheckpointFileAhead) -> None:
        """Record that a file is being prefetched, so that its reads do not count as the job's."""
        if len(self.ahead) < MAX_FILES:
            self.ahead.append(file)

    async def close_window(self) -> None:
        """Request the reads so far; later ones are not part of the start."""
        if self._window_is_open and self.served.is_set():
            self._window_is_open = False
            with suppress(Closed):
                await self._worker.channel.send(CloseWindow())
            await self._said_window.wait()

    async def end(self, timeout_s: float) -> bool:
        """End the worker within so many seconds; returns whether all closed files are published.

        Closed files are published first. Processes that still use the mount get errors.
        """
        with trio.move_on_after(max(0.0, timeout_s)) as limit:
            await self.close_window()
            left_s = max(0.0, limit.deadline - trio.current_time() - _KILL_S)
            with suppress(Closed):
                await self._worker.channel.send(StopCheckpoint(left_s))
            await self._ended.wait()
        with suppress(BootseerError):
            await self._broker.do(Unmount(MountKind.CHECKPOINT, 0))
        await self._worker.end()
        return self._in_order
