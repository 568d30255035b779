"""Wait until another node of the job has imported an image and added it to the store."""

from __future__ import annotations

from bootseer.agent.messages.worker import ImportWatched, WatchImport
from bootseer.agent.workers.base import Task, owner_of
from bootseer.core.event import one_line
from bootseer.image.library.import_lease import JobImport, wait_for_import
from bootseer.ipc.channel import unexpected
from bootseer.store.from_settings import connect_images


async def run(task: Task) -> None:
    """Wait, and report whether this node can have the image served."""
    wanted = await task.channel.receive_only()
    if not isinstance(wanted, WatchImport):
        raise unexpected(wanted)
    job, config = task.job, task.config
    images = connect_images(config, owner_of(job))
    shared = JobImport(job.run, wanted.image, task.store(), images)
    async with task.stage("image.wait") as report:
        result = await wait_for_import(shared, job.nodes, config.image.import_wait_s)
        if result.why:
            report.fall_back(f"{wanted.image} is imported on this node too: {result.why}")
        else:
            report.detail = f"{result.holder or 'another node'} has imported {wanted.image}"
    await task.channel.send(ImportWatched(one_line(result.why)))
