"""Upload an image that a job had to import, for the job's other nodes and for later jobs."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import trio

from bootseer._io import lib
from bootseer.agent.messages.worker import CancelImport, ImportOpened, LeaseImport, UploadImport
from bootseer.agent.workers.base import Task, owner_of
from bootseer.errors import BootseerError, NotFound
from bootseer.image.identity import open_image
from bootseer.image.library import catalog, upload
from bootseer.image.library.import_lease import LEAST_UPLOAD_S, JobImport, announced, until_slow
from bootseer.image.library.upload import UploadProgress
from bootseer.ipc.channel import unexpected
from bootseer.parallel import background
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect_images

_NICE = 19


async def run(task: Task) -> None:
    """Add the file to the store under the name of its source.

    If the import was announced, other nodes wait: then the upload has normal priority, as long as
    it is not expected to take longer than the import did.
    """
    images = connect_images(task.config, owner_of(task.job))
    # Leaving the block gives up the lease.
    async with background() as nursery, AsyncExitStack() as lease:
        wanted = await task.channel.receive_only()
        limit_s = 0.0
        if isinstance(wanted, LeaseImport):
            began = trio.current_time()
            is_awaited = await _announce(task, images, wanted.image, lease, nursery)
            wanted = await task.channel.receive_only()
            if is_awaited:
                limit_s = max(LEAST_UPLOAD_S, trio.current_time() - began)
        if isinstance(wanted, UploadImport):
            await _upload(task, images, wanted, lease, limit_s)
        elif not isinstance(wanted, CancelImport):
            raise unexpected(wanted)


async def _announce(
    task: Task, images: Store, image: str, lease: AsyncExitStack, nursery: trio.Nursery
) -> bool:
    """Get the lease of an import; returns whether other nodes wait for it."""
    job = task.job
    holder = f"{job.user} on {job.node}"
    with suppress(BootseerError):  # reported as a fallback
        async with task.stage("image.announce") as report:
            shared = JobImport(job.run, image, task.store(), images)
            await lease.enter_async_context(announced(shared, holder, nursery))
            report.detail = f"{holder} imports {image}"
            return True
    return False


async def _upload(
    task: Task, images: Store, wanted: UploadImport, lease: AsyncExitStack, limit_s: float
) -> None:
    """Upload the file.

    Args:
        task: the worker's.
        images: the image store.
        wanted: the file, and the name of the image.
        lease: the lease of the import.
        limit_s: how long other nodes wait for the upload; 0 if none do.
    """
    progress, slow = UploadProgress(), trio.Event()

    async def watch() -> None:
        await until_slow(progress, limit_s)
        slow.set()
        _be_idle()
        await lease.aclose()

    with suppress(BootseerError):  # reported as a fallback
        async with task.stage("image.keep") as report, background() as nursery:
            if limit_s:
                nursery.start_soon(watch)
            else:
                _be_idle()
            with suppress(NotFound):
                digest = await catalog.resolve(images, wanted.image)
                report.detail = f"{wanted.image} is in the store by now, as {digest[:12]}"
                return
            report.bytes, digest = await _add(task, images, wanted, progress)
            report.detail = f"{wanted.image} is {digest[:12]}"
            if slow.is_set():
                report.detail += "; other nodes did not wait, because importing it is faster"


async def _add(
    task: Task, images: Store, wanted: UploadImport, progress: UploadProgress
) -> tuple[int, str]:
    """Add the file to the store; returns the bytes sent, and the image's digest."""
    opened = await trio.to_thread.run_sync(open_image, wanted.path, abandon_on_cancel=True)
    try:
        # From now on the job may remove the file.
        await task.channel.send(ImportOpened())
        about = upload.about_now(wanted.image, task.job.user)
        path = Path(f"/proc/self/fd/{opened.fd}")
        added = await upload.add(images, path, wanted.image, about, progress)
    finally:
        os.close(opened.fd)
    return added.sent_bytes, added.digest


def _be_idle() -> None:
    """Let the job's own processes go first from now on."""
    os.nice(_NICE)
    lib.bs_io_idle()
