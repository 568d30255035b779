"""Tell when the name of an image leads to another one than in the job's last run, or refuse it."""

from __future__ import annotations

from contextlib import suppress

from bootseer.agent.workers.base import Task
from bootseer.core.reference import SCHEME
from bootseer.errors import BootseerError, Closed, Denied
from bootseer.startup.plans import read_plan


async def check_pin(task: Task, digest: str) -> None:
    """Compare what the job's image leads to with what its warm plan says.

    The plan is in the user's own store, where whoever gives names to images cannot write.

    Args:
        task: that serves the image.
        digest: of the image that its name leads to.

    Raises:
        Denied: it is another one, names are pinned, and the user has not asked for a recording.
        BootseerError: names are pinned, and the plan cannot be read.
    """
    job, is_pinned = task.job, task.config.image.pin and not task.job.record_only
    try:
        plan = await read_plan(task.store(), job.user, job.key)
    except BootseerError:
        if is_pinned:
            raise
        return  # who reads the plan for more than this tells
    before = plan.retagged(job.image, digest) if plan is not None else ""
    if not before:
        return
    text = f"{job.image} is image {digest[:12]}, and was {before[:12]} in the last run"
    if is_pinned:
        async with task.stage("image.retagged"):
            raise Denied(
                f"{text}: not served. Give --bootseer-image={SCHEME}{digest} if it is right, or "
                f"accept it with --bootseer=record --job-name={job.key}"
            )
    with suppress(Closed):
        async with task.stage("image.retagged") as said:
            said.fall_back(f"{text}: the job gets the new one")
