"""Prefetch a job's checkpoint, as this node's recorded reads predict."""

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
    """Prefetch this node's recorded checkpoint reads; returns a summary.

    Args:
        task: its channel gets a message for each file before it is opened.
        store: the store with the warm plan.
        is_served: waits until the mount can be read; returns False if it never will be.
        budget: limits the reading speed.

    Raises:
        BootseerError: the recorded reads cannot be read; reported as a fallback.

    Cancellation: returns immediately; threads finish their current read.
    """
    job = task.job
    if job.record_only or not job.nodes:
        return "the checkpoint's reads are recorded"
    async with task.stage("checkpoint.plan") as report:
        reads = await read_reads(store, job.user, job.key, job.nodes, job.node_index)
        report.detail = f"{len(reads.files)} files" if reads else "none yet"
    if reads is None:
        return "the checkpoint's reads are recorded"
    if not await is_served():
        return "the checkpoint is not mounted"
    limit_bytes = int(task.config.checkpoint.memory_share * available_bytes())

    async def tell(path: str, ranges: tuple[ByteRange, ...]) -> None:
        await task.channel.send(CheckpointFileAhead(path, list(ranges)))

    async with task.stage("checkpoint.prefetch") as report:
        mount = JobFolder.of(task.config.node.run_dir, job.job_id).mount
        ahead = CheckpointPrefetch(mount, budget, limit_bytes, tell)
        await ahead.run(reads.files)
        report.bytes = ahead.read_bytes
        report.detail = f"{ahead.files} files"
        if ahead.error:
            report.fall_back(f"some reads failed: {ahead.error}")
        elif ahead.want_bytes > limit_bytes:
            report.fall_back(
                f"stopped after {format_size(ahead.read_bytes)} of "
                f"{format_size(ahead.want_bytes)}: checkpoint.memory_share of the free memory"
            )
    return "the checkpoint is in memory"
