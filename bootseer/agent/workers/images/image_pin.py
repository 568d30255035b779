"""Report or refuse an image whose name led to another image in the job's last run."""

from __future__ import annotations

from contextlib import suppress

from bootseer.agent.workers.base import Task
from bootseer.core.reference import SCHEME
from bootseer.errors import BootseerError, Closed, Denied
from bootseer.startup.plans import read_plan
from bootseer.store.api.base import Store


async def check_pin(task: Task, plans: Store, digest: str) -> None:
    """Compare the image that the job's name leads to with that of its warm plan.

    The plan is in the user's own store, which image publishers cannot write to.

    Args:
        task: the task that serves the image.
        plans: the user's own store.
        digest: digest of the image that its name leads to.

    Raises:
        Denied: the image has changed, names are pinned, and the job is not recorded again.
        BootseerError: names are pinned, and the plan cannot be read.
    """
    job, is_pinned = task.job, task.config.image.pin and not task.job.record_only
    try:
        plan = await read_plan(plans, job.user, job.key)
    except BootseerError:
        if is_pinned:
            raise
        return  # other readers of the plan report it
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
        async with task.stage("image.retagged") as report:
            report.fall_back(f"{text}: the job gets the new one")
