"""What srun, sbatch and salloc say at submit: what is known of this job's start.

Runs in the interpreter that the plugin embeds, in a child of the command and with a deadline; no
answer is as good as any.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Mapping

import trio

from bootseer import config as settings
from bootseer.core.reference import ENVIRONMENT, SCHEME
from bootseer.core.warm_plan import PlannedImage, WarmPlan
from bootseer.env.snapshot.repository import read_snapshot, resolve
from bootseer.errors import BootseerError
from bootseer.image.library.catalog import resolve as resolve_image
from bootseer.slurm import options
from bootseer.startup.plans import read_plan
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect, connect_images
from bootseer.units import NS_PER_S, format_age, format_size


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
    lines = list(asked.ignored)
    try:
        config = settings.load()

        async def read() -> list[str]:
            store = connect(config, user)
            plan = await read_plan(store, user.name, key)
            moved = await _moved(config, user, plan, asked)
            return [_known(plan, asked), *moved, *await _environments(store, plan, asked)]

        lines = [*trio.run(read), *lines]
    except BootseerError as error:
        lines.insert(0, f"nothing known: {error}")
    return [f"key {key}: {lines[0]}", *lines[1:]]


async def _moved(
    config: settings.Config, user: settings.User, plan: WarmPlan | None, asked: options.JobOptions
) -> list[str]:
    """Say if the name of the image leads to another one than in the last run."""
    image = _image(plan, asked)
    if plan is None or image is None or "://" not in image.path:
        return []
    try:
        digest = await resolve_image(connect_images(config, user), image.path)
    except BootseerError:
        return []  # said at the start
    if not plan.retagged(image.path, digest):
        return []
    will = "the job gets that one"
    if config.image.pin and not asked.record_only:
        will = f"it is refused: give --bootseer-image={SCHEME}{digest}, or --bootseer=record"
    return [f"{image.path} is another image than in the last run, and {will}"]


async def _environments(
    store: Store, plan: WarmPlan | None, asked: options.JobOptions
) -> list[str]:
    """Say what is known of the environment that the job names, or that its last run used."""
    references = [asked.environment] if asked.environment else []
    if plan is not None and not asked.record_only:
        paths = [image.path for image in plan.images if image.path.startswith(ENVIRONMENT)]
        references += [path.removeprefix(ENVIRONMENT) for path in paths]
    lines = {}
    for reference in references:
        try:
            key = await resolve(store, reference)
            snapshot = await read_snapshot(store, key)
        except BootseerError as error:
            lines[reference] = f"environment {reference}: {error}"
            continue
        age = format_age((time.time_ns() - snapshot.captured_ns) / NS_PER_S)
        will = "will be mounted" if snapshot.is_whole else "will be unpacked"
        if reference != asked.environment:  # `env run` finds out what is sooner
            will = "will be ready when `bootseer env run` asks for it"
        size = format_size(snapshot.content_bytes)
        text = f"environment snapshot {key[:12]}: {size}, captured {age} ago, {will}"
        lines.setdefault(key, text)
    return list(lines.values())


def _image(plan: WarmPlan | None, asked: options.JobOptions) -> PlannedImage | None:
    """Find the image of this start in the plan."""
    images = [i for i in plan.images if not i.path.startswith(ENVIRONMENT)] if plan else []
    return next((i for i in images if not asked.image or i.path == asked.image), None)


def _known(plan: WarmPlan | None, asked: options.JobOptions) -> str:
    if asked.record_only:
        return "this start is recorded, as if it were the first"
    if plan is None:
        return "first start under this key: it is recorded, unless the image is known already"
    image = _image(plan, asked)
    if image is None and not asked.image:
        return f"{len(plan.runs)} earlier starts, without an image"
    if image is None:
        return f"{len(plan.runs)} earlier starts, none with this image: it is recorded"
    if not image.hot_bytes:
        return f"{image.path}: no hot set yet, this start is recorded"
    return (
        f"hot set known: {format_size(image.hot_bytes)} of {format_size(image.size_bytes)} "
        f"({image.path})"
    )
