"""Warm plans in the store."""

from __future__ import annotations

from bootseer.core.warm_plan import (
    MAX_BYTES,
    PLANS,
    PlannedImage,
    PlannedName,
    PlannedRun,
    WarmPlan,
    decode,
    object_name,
)
from bootseer.errors import Corrupt, NotFound, UnknownVersion
from bootseer.store.api.base import Store, publish, read_all

_ATTEMPTS = 8


async def read_plan(store: Store, user: str, key: str) -> WarmPlan | None:
    """Read the plan of a user's key; None when there is none yet.

    Raises:
        Corrupt: it is damaged or not this user's and key's; the next epilog replaces it.
    """
    name = object_name(key)
    try:
        data = await read_all(store, name, MAX_BYTES)
    except NotFound:
        return None
    plan = decode(data, name)
    if (plan.user, plan.key) != (user, key):
        raise Corrupt(f"{name}: this is the plan of {plan.user}'s key {plan.key}, not {key}'s")
    return plan


async def image_names(store: Store) -> dict[str, list[str]]:
    """Return the names that images have in the store's plans, by digest; damaged plans have none.

    Raises:
        BootseerError: the store cannot be read.
    """
    found: dict[str, set[str]] = {}
    for info in await store.list(PLANS):
        try:
            plan = decode(await read_all(store, info.name, MAX_BYTES, info), info.name)
        except (Corrupt, NotFound, UnknownVersion):
            continue
        for image in plan.images:
            found.setdefault(image.digest, set()).add(image.path)
    return {digest: sorted(names) for digest, names in found.items()}


async def add_run(
    store: Store,
    user: str,
    key: str,
    run: PlannedRun,
    images: tuple[PlannedImage, ...],
    names: tuple[PlannedName, ...] = (),
) -> WarmPlan:
    """Add a run to the plan of a user's key; creates it if it is missing or damaged.

    Raises:
        UnknownVersion: another version has written it; it stays as it is.

    Concurrency: any number of nodes and jobs at once. Each reads the plan back after writing it
    and writes again while its run is not in it. One that has read the plan before that, and writes
    it after, removes the run again: a second call, a little later, adds it back.
    """
    for _ in range(_ATTEMPTS):
        try:
            before = await read_plan(store, user, key) or WarmPlan(user, key)
        except UnknownVersion:
            raise
        except Corrupt:
            before = WarmPlan(user, key)
        after = before.with_run(run, images, names)
        if after == before:
            return before
        await publish(store, object_name(key), after.encode())
    return after
