"""The supervisor's side of the worker that gives the other nodes what this node has read."""

from __future__ import annotations

from contextlib import suppress

import trio

from bootseer.agent.messages.worker import ReportPeers, StageEnded
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import Worker
from bootseer.errors import Closed
from bootseer.ipc.channel import unexpected

_REPORT_S = 0.5
_SERVE = "peers.serve"


class PeerServerProcess:
    """The worker, from its start to its end. Nothing of the job depends on it."""

    def __init__(self, context: JobContext, worker: Worker) -> None:
        self._context = context
        self._worker = worker
        self._reported = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Note the worker's events until it ends.

        Raises:
            BootseerError: it sends something else.
        """
        try:
            with self._scope:
                await self._follow()
        except Closed:
            return  # it has told why
        finally:
            self._reported.set()
            with trio.CancelScope(shield=True):
                await self._worker.end()

    async def _follow(self) -> None:
        await self._worker.send_task(self._context.job, self._context.config)
        while True:
            message = await self._worker.channel.receive_only()
            if not isinstance(message, StageEnded):
                raise unexpected(message)
            self._context.events.note(message.event)
            if message.event.stage == _SERVE:
                self._reported.set()

    async def report(self) -> None:
        """Have the worker report what it has done; it goes on serving."""
        with trio.move_on_after(_REPORT_S), suppress(Closed):
            await self._worker.channel.send(ReportPeers())
            await self._reported.wait()

    def end(self) -> None:
        """End the worker: this node's events are stored, and those that others gave it."""
        self._scope.cancel()
