"""Upload an image that a job had to import to the store, for the next job."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import trio

from bootseer._io import lib
from bootseer.agent.messages.worker import ImportOpened, UploadImport
from bootseer.agent.workers.base import Task, owner_of
from bootseer.errors import BootseerError, NotFound
from bootseer.image.identity import open_image
from bootseer.image.library import catalog, upload
from bootseer.ipc.channel import unexpected
from bootseer.store.from_settings import connect_images

_NICE = 19


async def run(task: Task) -> None:
    """Add the file to the store under the name of its source."""
    os.nice(_NICE)
    lib.bs_io_idle()
    wanted = await task.channel.receive_only()
    if not isinstance(wanted, UploadImport):
        raise unexpected(wanted)
    name = wanted.image
    with suppress(BootseerError):  # reported as a fallback
        async with task.stage("image.keep") as report:
            store = connect_images(task.config, owner_of(task.job))
            with suppress(NotFound):
                digest = await catalog.resolve(store, name)
                report.detail = f"{name} is in the store by now, as {digest[:12]}"
                return
            opened = await trio.to_thread.run_sync(open_image, wanted.path, abandon_on_cancel=True)
            # From now on the job may remove the file.
            await task.channel.send(ImportOpened())
            about = upload.about_now(name, task.job.user)
            added = await upload.add(store, Path(f"/proc/self/fd/{opened.fd}"), name, about)
            report.bytes, report.detail = added.sent_bytes, f"{name} is {added.digest[:12]}"
