"""Provide the environment that a job names with --bootseer-env, before its first step.

The agent mounts it. If that is not possible, this worker unpacks it with the user's rights.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from bootseer.agent.workers.base import Task, owner_of
from bootseer.agent.workers.job_peers import JobPeers
from bootseer.env.restore.download import opened_places, unpack
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.group_store import find_snapshot, shared_stores
from bootseer.env.snapshot.manifest import Snapshot
from bootseer.errors import BootseerError, ConfigError
from bootseer.peers.start_store import store_itself
from bootseer.store.api.base import Store
from bootseer.units import format_size


async def provide(
    task: Task, store: Store, peers: JobPeers, mount: Callable[[Snapshot], Awaitable[str]]
) -> str:
    """Mount or unpack the job's environment; returns a summary.

    Args:
        task: the worker's task.
        store: the user's store.
        peers: the job's nodes.
        mount: asks the agent to mount a snapshot; returns the error, "" for success.

    Raises:
        BootseerError: there is no such environment, or it cannot be restored.
    """
    async with task.stage("env.find") as report:
        stores = [store, *shared_stores(task.config, owner_of(task.job))]
        own, *others = map(peers.start_reads, stores)
        key = await repository.resolve(own, task.job.environment)
        found, snapshot = await find_snapshot([own, *others], key)
        report.detail = f"key {key[:12]}"
        report.bytes = snapshot.content_bytes
    why = "its targets were not empty"
    if snapshot.is_whole:
        # Folders of a container may have no place on the node.
        with suppress(BootseerError), opened_places(snapshot.targets) as places:
            for place in places:
                _make(place.name, place.parent)
        why = await mount(snapshot)
    if why:
        async with task.stage("env.unpack") as report:
            with opened_places(snapshot.targets) as places:
                parts = peers.through(found)
                read_bytes = await unpack(found, snapshot, places, parts=parts)
            report.bytes = snapshot.content_bytes
            report.detail = f"{snapshot.files} files, {format_size(read_bytes)} read; {why}"
    await repository.note_use(store_itself(found), key)
    return f"the environment {key[:12]} is {'unpacked' if why else 'mounted'}"


def _make(name: str, parent: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return
    except OSError as error:
        raise ConfigError(f"cannot create folder {name!a}: {error.strerror}") from error
