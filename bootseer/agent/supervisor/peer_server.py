"""The supervisor's side of the worker that gives the other nodes what this node has read."""

from __future__ import annotations

from contextlib import suppress

import trio

from bootseer.agent.messages.worker import EndPeers, StageEnded
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import Worker
from bootseer.errors import Closed
from bootseer.ipc.channel import unexpected

_END_S = 0.5


class PeerServerProcess:
    """The worker, from its start to its end. Nothing of the job depends on it."""

    def __init__(self, context: JobContext, worker: Worker) -> None:
        self._context = context
        self._worker = worker
        self._ended = trio.Event()

    async def run(self) -> None:
        """Note the worker's events until it ends.

        Raises:
            BootseerError: it sends something else.
        """
        try:
            await self._worker.send_task(self._context.job, self._context.config)
            while True:
                message = await self._worker.channel.receive_only()
                if not isinstance(message, StageEnded):
                    raise unexpected(message)
                self._context.events.note(message.event)
        except Closed:
            return  # it has told why
        finally:
            self._ended.set()
            with trio.CancelScope(shield=True):
                await self._worker.end()

    async def end(self) -> None:
        """Have the worker report what it has done, and exit."""
        with trio.move_on_after(_END_S), suppress(Closed):
            await self._worker.channel.send(EndPeers())
            await self._ended.wait()
