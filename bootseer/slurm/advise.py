"""What srun, sbatch and salloc say at submit: what is known of this job's start.

Runs in the interpreter that the plugin embeds, in a child of the command and with a deadline; no
answer is as good as any.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

import trio

from bootseer import config as settings
from bootseer.core.plan import WarmPlan
from bootseer.errors import BootseerError
from bootseer.slurm import options
from bootseer.startup.plans import read_plan
from bootseer.store.connect import connect
from bootseer.units import format_size


def advise(values: Mapping[str, str]) -> list[str]:
    """Return the lines to print.

    Args:
        values: what the plugin sends to the node, BOOTSEER_KEY and so on, after its own checks.
    """
    asked = options.parse({f"SPANK_{name}": value for name, value in values.items()})
    if asked is None:
        return []
    key = asked.key or options.key_of_name(values.get("BOOTSEER_JOB_NAME", ""))
    entry = pwd.getpwuid(os.getuid())
    user = settings.User(entry.pw_name, entry.pw_uid, entry.pw_dir)
    try:
        config = settings.load()

        async def read() -> WarmPlan | None:
            return await read_plan(connect(config, user), user.name, key)

        plan = trio.run(read)
    except BootseerError as error:
        return [f"key {key}: nothing known: {error}"]
    return [f"key {key}: {_known(plan, asked)}", *(line for line in asked.ignored)]


def _known(plan: WarmPlan | None, asked: options.Options) -> str:
    if asked.record_only:
        return "this start is recorded, as if it were the first"
    if plan is None:
        return "first start under this key: it is recorded, unless the image is known already"
    image = next((i for i in plan.images if not asked.image or i.path == asked.image), None)
    if image is None:
        return f"{len(plan.runs)} earlier starts, none with this image: it is recorded"
    if not image.hot_bytes:
        return f"{image.path}: no hot set yet, this start is recorded"
    return (
        f"hot set known: {format_size(image.hot_bytes)} of {format_size(image.size_bytes)} "
        f"({image.path})"
    )
