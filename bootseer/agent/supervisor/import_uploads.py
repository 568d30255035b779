"""Upload images that a job had to import to the store, each in a worker."""

from __future__ import annotations

import trio

from bootseer.agent.messages.broker import Role
from bootseer.agent.messages.worker import ImportOpened, StageEnded, UploadImport
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import start
from bootseer.core.reference import DOCKER, reference
from bootseer.errors import BootseerError, ConfigError, Unavailable
from bootseer.ipc.channel import unexpected

MAX_KEPT = 4
"""Concurrent uploads of a job; each reads and hashes an image."""


class _Upload:
    """An upload in progress: whether its file is open, and its cancel scope."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.scope = trio.CancelScope()


class ImportUploads:
    """The uploads of a job, which run in the background."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._under_way: dict[str, _Upload] = {}

    async def keep(self, uri: str, path: str, nursery: trio.Nursery) -> bool:
        """Start uploading a file to the store under the name of its source.

        Returns:
            Whether the upload has opened the file, so that its name may be removed. False if
                another node of the job uploads it, or the settings disable uploads.

        Raises:
            ConfigError: ``uri`` does not name an image of a registry.
            Unavailable: too many uploads are in progress.
        """
        name = reference(uri)
        if not name.startswith(DOCKER):
            raise ConfigError("cannot store the image: it was not imported from a registry")
        if not self._context.job.is_first_node or not self._context.config.image.keep_imports:
            return False
        if name not in self._under_way:
            if len(self._under_way) >= MAX_KEPT:
                raise Unavailable(
                    f"cannot store the image: {MAX_KEPT} images are already being uploaded"
                )
            self._under_way[name] = _Upload()
            self._context.start("image.keep", nursery, self._keep, name, path)
        await self._under_way[name].opened.wait()
        return True

    def end(self) -> None:
        """Cancel the unfinished uploads."""
        for name, kept in self._under_way.items():
            self._context.events.fall_back(
                "image.keep", f"the job ended before {name} was in the store"
            )
            kept.scope.cancel()

    async def _keep(self, name: str, path: str) -> None:
        kept = self._under_way[name]
        worker = None
        job, config = self._context.job, self._context.config
        why = "the upload process was killed"
        try:
            with kept.scope:
                worker = await start(self._context.broker, Role.UPLOAD_IMPORT)
                await worker.send_task(job, config)
                await worker.channel.send(UploadImport(name, path))
                while True:
                    message = await worker.channel.receive_only()
                    if isinstance(message, ImportOpened):
                        kept.opened.set()
                    elif isinstance(message, StageEnded):
                        self._context.events.note(message.event)
                        why = ""
                    else:
                        raise unexpected(message)
        except BootseerError as error:
            if why:
                self._context.events.fall_back("image.keep", f"{why}: {error}")
        finally:
            kept.opened.set()
            del self._under_way[name]
            with trio.CancelScope(shield=True):
                if worker is not None:
                    await worker.end()
