"""Where a session happens: its user, node and stores, and what the agent does for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from bootseer.config import Config, User
from bootseer.core.event import StageReport
from bootseer.env.snapshot.group_store import shared_stores
from bootseer.squashfs.mksquashfs import Start, start_plainly
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect
from bootseer.units import GIB

Stage = Callable[[str], AbstractAsyncContextManager[StageReport]]
"""Times a block and reports it, see `bootseer.agent.workers.base.Task.stage`."""


class SnapshotMounter(Protocol):
    """Mounts snapshots, which takes root's rights."""

    async def mount(self, key: str, folders: Sequence[int], read_only: bool) -> None:
        """Mount a snapshot for the client, and for all processes that the job starts later.

        Args:
            key: of the snapshot.
            folders: a descriptor of each target.
            read_only: nothing may be written there.

        Raises:
            Unavailable: it cannot be done, and why.
        """


@dataclass(frozen=True, slots=True)
class SessionContext:
    """User, node and stores of a session.

    Attributes:
        store: the user's.
        shared: stores of groups, in which to look for snapshots as well.
        user: name of the user.
        home: the user's home folder.
        node: name of the node.
        nodes: number of the job's nodes, 0 if it is not known.
        scratch: folder for a squashfs while it is made.
        stage: reports stages of the start.
        mounter: mounts snapshots, None if nobody can.
        keep_days: how long to keep snapshots that are not used; 0 for ever.
        quota_bytes: most that all environments of the user may take up in the store; 0 for any.
        mksquashfs: starts it.
        through_peers: returns another way to the objects of a store that are never replaced.
    """

    store: Store
    shared: Sequence[Store]
    user: str
    home: str
    node: str
    nodes: int
    scratch: str
    stage: Stage
    mounter: SnapshotMounter | None
    keep_days: float
    quota_bytes: int
    mksquashfs: Start = start_plainly
    through_peers: Callable[[Store], Store] = lambda store: store


def make_context(
    config: Config,
    user: User,
    node: str,
    nodes: int,
    stage: Stage,
    mounter: SnapshotMounter | None,
    mksquashfs: Start = start_plainly,
    through_peers: Callable[[Store], Store] = lambda store: store,
) -> SessionContext:
    """Make a context from the settings.

    Raises:
        BootseerError: a store cannot be named.
    """
    return SessionContext(
        store=connect(config, user),
        shared=shared_stores(config, user),
        user=user.name,
        home=user.home,
        node=node,
        nodes=nodes,
        scratch=config.env.scratch_dir,
        stage=stage,
        mounter=mounter,
        keep_days=config.env.keep_days,
        quota_bytes=int(config.env.quota_gib * GIB),
        mksquashfs=mksquashfs,
        through_peers=through_peers,
    )
