"""Wait for images that another node of the job imports, each in a worker."""

from __future__ import annotations

import socket

import trio

from bootseer.agent.messages.broker import Role
from bootseer.agent.messages.control import ImportAwaited
from bootseer.agent.messages.worker import ImportWatched, StageEnded, WatchImport
from bootseer.agent.supervisor.control_server import until_closed
from bootseer.agent.supervisor.images.image_mounts import MAX_SERVED
from bootseer.agent.supervisor.import_uploads import registry_name
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import start
from bootseer.errors import BootseerError, Unavailable
from bootseer.ipc.channel import unexpected


class ImportWaits:
    """The waits of a job on this node: no more than images that it may have."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._count = 0

    async def wait(self, uri: str, connection: socket.socket) -> ImportAwaited:
        """Wait until another node has imported an image; returns whether it has.

        Args:
            uri: of the image.
            connection: to the waiting importer; the wait ends when that closes it.

        Raises:
            ConfigError: ``uri`` does not name an image of a registry.
            Unavailable: the settings disable waiting, or too many waits are in progress.
        """
        with connection:
            name = registry_name(uri)
            config = self._context.config.image
            if not config.keep_imports or not config.import_wait_s:
                raise Unavailable("the settings disable waiting for another node's import")
            if self._count >= MAX_SERVED:
                raise Unavailable(f"cannot wait for another image: {MAX_SERVED} waits are running")
            self._count += 1
            try:
                return await self._wait(name, connection)
            finally:
                self._count -= 1

    async def _wait(self, name: str, connection: socket.socket) -> ImportAwaited:
        why = "the importer has ended"
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await until_closed(connection)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                why = await self._follow(name)
            except BootseerError as error:
                why = str(error)
            nursery.cancel_scope.cancel()
        return ImportAwaited(not why, why)

    async def _follow(self, name: str) -> str:
        """Run the worker; returns why the image is not in the store, "" if it is.

        Raises:
            BootseerError: the worker was killed, or sent an invalid message.
        """
        worker = await start(self._context.broker, Role.AWAIT_IMPORT)
        try:
            await worker.send_task(self._context.job, self._context.config)
            await worker.channel.send(WatchImport(name))
            while True:
                message = await worker.channel.receive_only()
                if isinstance(message, ImportWatched):
                    return message.why
                if not isinstance(message, StageEnded):
                    raise unexpected(message)
                self._context.events.note(message.event)
        finally:
            with trio.CancelScope(shield=True):
                await worker.end()
