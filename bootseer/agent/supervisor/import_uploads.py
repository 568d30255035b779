"""The agent's side of images that a job had to import: a worker puts each into the store."""

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
"""At once, for a job; each reads and hashes an image."""


class _Upload:
    """One that is on its way: whether its file is open, and what ends it."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.scope = trio.CancelScope()


class ImportUploads:
    """What is on its way into the store while the job runs; nobody waits for it."""

    def __init__(self, context: JobContext) -> None:
        """Begin with nothing."""
        self._context = context
        self._under_way: dict[str, _Upload] = {}

    async def keep(self, uri: str, path: str, nursery: trio.Nursery) -> bool:
        """Begin to put a file into the store under the name of what it was imported from.

        Returns:
            Whether it is on its way, and has been opened: its name is not needed any more.
            Otherwise another node of the job does it, or the settings say not to.

        Raises:
            ConfigError: it is not what registries have.
            Unavailable: there are too many.
        """
        name = reference(uri)
        if not name.startswith(DOCKER):
            raise ConfigError("only images that were imported from a registry are kept")
        if not self._context.job.is_first_node or not self._context.config.image.keep_imports:
            return False
        if name not in self._under_way:
            if len(self._under_way) >= MAX_KEPT:
                raise Unavailable(f"{MAX_KEPT} images are already being uploaded")
            self._under_way[name] = _Upload()
            self._context.start("image.keep", nursery, self._keep, name, path)
        await self._under_way[name].opened.wait()
        return True

    def end(self) -> None:
        """Give up what is not there yet."""
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
