"""Upload images that a job had to import to the store, each in a worker.

A node that announces its import first gets a worker at once, which tells the job's other nodes.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack

import trio

from bootseer.agent.messages.broker import Role
from bootseer.agent.messages.worker import (
    CancelImport,
    ImportOpened,
    LeaseImport,
    StageEnded,
    UploadImport,
)
from bootseer.agent.supervisor.control_server import until_closed
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import Worker, start
from bootseer.core.reference import DOCKER, reference
from bootseer.errors import BootseerError, Closed, ConfigError, Unavailable
from bootseer.ipc.channel import unexpected

MAX_KEPT = 4
"""Concurrent uploads of a job, with announced imports; each reads and hashes an image."""
_GIVE_UP_S = 10.0
"""Time for the worker to give up its lease."""


class _Upload:
    """An upload, from the announcement of the import if there was one.

    Attributes:
        path: of the file, "" while it is being imported.
        imported: set with `path`.
        opened: set once the worker has opened the file, or never will.
        scope: of the task that follows the worker.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.imported = trio.Event()
        self.opened = trio.Event()
        self.scope = trio.CancelScope()


class ImportUploads:
    """The uploads of a job, which run in the background."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._under_way: dict[str, _Upload] = {}

    def announce(self, uri: str, connection: socket.socket, nursery: trio.Nursery) -> None:
        """Tell the job's other nodes that this node imports an image, unless uploads are disabled.

        Args:
            uri: of the image.
            connection: to the importer, whose import has ended when this is closed.
            nursery: for the upload.

        Raises:
            ConfigError, Unavailable: as for `keep`.
        """
        with ExitStack() as opened:
            opened.enter_context(connection)
            name = registry_name(uri)
            if self._context.config.image.keep_imports and name not in self._under_way:
                self._begin(name, _Upload(), nursery, connection)
                opened.pop_all()

    async def keep(self, uri: str, path: str, nursery: trio.Nursery) -> bool:
        """Start uploading a file to the store under the name of its source.

        Returns:
            Whether the upload has opened the file, so that its name may be removed. False if
                another node of the job uploads it, or the settings disable uploads.

        Raises:
            ConfigError: ``uri`` does not name an image of a registry.
            Unavailable: too many uploads are in progress.
        """
        name = registry_name(uri)
        upload = self._under_way.get(name)
        if upload is None:
            job, config = self._context.job, self._context.config
            if not job.is_first_node or not config.image.keep_imports:
                return False
            upload = _Upload(path)
            self._begin(name, upload, nursery)
        elif not upload.path:
            upload.path = path
            upload.imported.set()
        await upload.opened.wait()
        return True

    def end(self) -> None:
        """Cancel the unfinished uploads."""
        for name, upload in self._under_way.items():
            self._context.events.fall_back(
                "image.keep", f"the job ended before {name} was in the store"
            )
            upload.scope.cancel()

    def _begin(
        self,
        name: str,
        upload: _Upload,
        nursery: trio.Nursery,
        connection: socket.socket | None = None,
    ) -> None:
        if len(self._under_way) >= MAX_KEPT:
            raise Unavailable(
                f"cannot store the image: {MAX_KEPT} images are already being uploaded"
            )
        self._under_way[name] = upload
        self._context.start("image.keep", nursery, self._keep, name, upload, connection)

    async def _keep(self, name: str, upload: _Upload, connection: socket.socket | None) -> None:
        worker = None
        job, config = self._context.job, self._context.config
        try:
            with upload.scope:
                worker = await start(self._context.broker, Role.UPLOAD_IMPORT)
                await worker.send_task(job, config)
                if connection is not None:
                    await worker.channel.send(LeaseImport(name))
                    await _until_imported(upload, connection)
                if upload.path:
                    await worker.channel.send(UploadImport(name, upload.path))
                    await self._follow(worker, upload)
                else:
                    with trio.move_on_after(_GIVE_UP_S):
                        await worker.channel.send(CancelImport())
                        await self._follow(worker, upload)
        except BootseerError as error:
            self._context.events.fall_back("image.keep", f"the upload process was killed: {error}")
        finally:
            if connection is not None:
                connection.close()
            upload.opened.set()
            del self._under_way[name]
            with trio.CancelScope(shield=True):
                if worker is not None:
                    await worker.end()

    async def _follow(self, worker: Worker, upload: _Upload) -> None:
        """Follow a worker until it ends by itself.

        Raises:
            BootseerError: it was killed, or sent an invalid message.
        """
        is_done = not upload.path
        while True:
            try:
                message = await worker.channel.receive_only()
            except Closed:
                if is_done:
                    return
                raise
            if isinstance(message, ImportOpened):
                upload.opened.set()
            elif isinstance(message, StageEnded):
                self._context.events.note(message.event)
                is_done = is_done or message.event.stage == "image.keep"
            else:
                raise unexpected(message)


async def _until_imported(upload: _Upload, connection: socket.socket) -> None:
    """Wait until the file is there, or the importer has ended without."""
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await until_closed(connection)
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        await upload.imported.wait()
        nursery.cancel_scope.cancel()


def registry_name(uri: str) -> str:
    """Return the name under which the store has an image of a registry.

    Raises:
        ConfigError: ``uri`` does not name an image of a registry.
    """
    name = reference(uri)
    if not name.startswith(DOCKER):
        raise ConfigError("cannot store the image: it was not imported from a registry")
    return name
