"""Read a job's checkpoint ahead, as the warm plan says that this node is going to read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bootseer.agent.messages.worker import CheckpointFileAhead
from bootseer.agent.node.job import JobFolder
from bootseer.agent.workers.base import Task
from bootseer.checkpoint.read.prefetch import CheckpointPrefetch
from bootseer.checkpoint.read.repository import read_reads
from bootseer.core.ranges import ByteRange
from bootseer.image.hot.prefetch import available_bytes
from bootseer.rate_limit import RateLimit
from bootseer.store.api.base import Store
from bootseer.units import format_size


async def read_checkpoint_ahead(
    task: Task, store: Store, is_served: Callable[[], Awaitable[bool]], budget: RateLimit
) -> str:
    """Bring into memory what is known of this node's reads; returns what was done.

    Args:
        task: whose channel is told of each file before it is opened.
        store: that has the warm plan.
        is_served: returns when the mount can be read, or never will be.
        budget: how fast.

    Raises:
        BootseerError: what is known cannot be read; it has been told.

    Cancellation: returns at once; threads stop after the read that they are in.
    """
    job = task.job
    if job.record_only or not job.nodes:
        return "the checkpoint's reads are recorded"
    async with task.stage("checkpoint.plan") as said:
        reads = await read_reads(store, job.user, job.key, job.nodes, job.node_index)
        said.detail = f"{len(reads.files)} files" if reads else "none yet"
    if reads is None:
        return "the checkpoint's reads are recorded"
    if not await is_served():
        return "the checkpoint is not mounted"
    limit_bytes = int(task.config.checkpoint.memory_share * available_bytes())

    async def tell(path: str, ranges: tuple[ByteRange, ...]) -> None:
        await task.channel.send(CheckpointFileAhead(path, list(ranges)))

    async with task.stage("checkpoint.prefetch") as said:
        mount = JobFolder.of(task.config.node.run_dir, job.job_id).mount
        ahead = CheckpointPrefetch(mount, budget, limit_bytes, tell)
        await ahead.run(reads.files)
        said.bytes = ahead.read_bytes
        said.detail = f"{ahead.files} files"
        if ahead.error:
            said.fall_back(f"some reads failed: {ahead.error}")
        elif ahead.want_bytes > limit_bytes:
            said.fall_back(
                f"stopped after {format_size(ahead.read_bytes)} of "
                f"{format_size(ahead.want_bytes)}: checkpoint.memory_share of the free memory"
            )
    return "the checkpoint is in memory"
