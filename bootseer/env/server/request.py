"""What `env run` asks for, and where that happens."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from bootseer.config import Config, User
from bootseer.core.event import StageReport
from bootseer.core.fields import Fields
from bootseer.env.client import key as env_key
from bootseer.env.client.key import KeyPart
from bootseer.env.client.run import VARIABLES
from bootseer.env.restore.atomic import RestoreTarget
from bootseer.env.snapshot.group_store import shared_stores
from bootseer.env.snapshot.manifest import MAX_TARGETS
from bootseer.errors import Corrupt
from bootseer.squashfs.mksquashfs import Start, start_plainly
from bootseer.store.api.base import Store
from bootseer.store.connect import connect
from bootseer.units import GIB

MODES = ("auto", "mount", "unpack")
NAME = "what env run asks for"

Stage = Callable[[str], AbstractAsyncContextManager[StageReport]]
"""Times a block and tells of it, see `bootseer.agent.workers.base.Task.stage`."""


class PrivilegedOperations(Protocol):
    """What takes root's rights."""

    async def mount(self, key: str, folders: Sequence[int], read_only: bool) -> None:
        """Mount a snapshot for who asks, and for all that the job starts later.

        Args:
            key: of the snapshot.
            folders: a descriptor of each target.
            read_only: nothing may be written there.

        Raises:
            Unavailable: it cannot be done, and why.
        """


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Where this happens.

    Attributes:
        store: of the user.
        shared: stores of groups, in which to look as well.
        user: their name.
        home: their home folder.
        node: this one's name.
        nodes: how many the job has, 0 where that is not known.
        scratch: folder for a squashfs while it is made.
        stage: tells what is done.
        hands: of root, None without.
        keep_days: how long to keep what is not used; 0 for ever.
        quota_bytes: that all environments of the user may take up in the store; 0 for any.
        mksquashfs: starts it.
    """

    store: Store
    shared: Sequence[Store]
    user: str
    home: str
    node: str
    nodes: int
    scratch: str
    stage: Stage
    hands: PrivilegedOperations | None
    keep_days: float
    quota_bytes: int
    mksquashfs: Start = start_plainly


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is asked for.

    Attributes:
        parts: of the key.
        as_empty: of the key that it would have if the targets held nothing; the same if they do.
        targets: their paths, for people.
        places: where they are.
        folders: descriptors of them.
        mode: one of `MODES`.
        read_only: nothing needs to be written there.
        refresh: the command is to run, whatever there is.
        captures: what it makes is to be stored.
        waits: the command's side goes on only when all is stored.
        wait_s: longest to wait for somebody else who captures.
        stays: the caller is in a target, and is to see what is restored there.
        environ: variables of the command that decide what may go wrong with what it makes.
    """

    parts: tuple[KeyPart, ...]
    as_empty: tuple[KeyPart, ...]
    targets: tuple[str, ...]
    places: tuple[RestoreTarget, ...]
    folders: tuple[int, ...]
    mode: str
    read_only: bool
    refresh: bool
    captures: bool
    waits: bool
    wait_s: float
    stays: bool
    environ: Mapping[str, str]

    @property
    def key(self) -> str:
        """What the snapshot is stored under."""
        return env_key.key_of(self.parts)


def read_request(message: dict[str, Any], fds: Sequence[int]) -> RunRequest:
    """Check what is asked for; two descriptors for each target: the folder above, and itself.

    Raises:
        Corrupt: it is not what `bootseer.env.client.run` asks for.
    """
    fields = Fields(message, NAME)
    targets = tuple(fields.texts("targets", MAX_TARGETS))
    names = fields.texts("names", MAX_TARGETS, 255)
    mode, environ = fields.text("mode", 10), fields.part("environ")
    if not targets or len(names) != len(targets) or len(fds) != 2 * len(targets):
        raise Corrupt(f"{NAME}: its targets do not come with their descriptors")
    if mode not in MODES or any(name in ("", ".", "..") or "/" in name for name in names):
        raise Corrupt(f"{NAME}: its mode, or the name of a target, is not acceptable")
    if any(not stat.S_ISDIR(os.fstat(fd).st_mode) for fd in fds):
        raise Corrupt(f"{NAME}: a target is no folder")
    stays = fields.has("stays") and fields.flag("stays")  # older ones do not say
    return RunRequest(
        parts=env_key.from_document(fields.unread("key"), NAME),
        as_empty=env_key.from_document(fields.unread("as_empty"), NAME),
        targets=targets,
        places=tuple(
            RestoreTarget(fd, name, stays) for fd, name in zip(fds[::2], names, strict=True)
        ),
        folders=tuple(fds[1::2]),
        mode=mode,
        read_only=fields.flag("read_only"),
        refresh=fields.flag("refresh"),
        captures=fields.flag("captures"),
        waits=fields.flag("waits"),
        wait_s=fields.count("wait_s", 86_400),
        stays=stays,
        environ={name: environ.text(name) for name in VARIABLES if environ.has(name)},
    )


def make_context(
    config: Config,
    user: User,
    node: str,
    nodes: int,
    stage: Stage,
    hands: PrivilegedOperations | None,
    mksquashfs: Start = start_plainly,
) -> SessionContext:
    """Describe where this happens, by the settings.

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
        hands=hands,
        keep_days=config.env.keep_days,
        quota_bytes=int(config.env.quota_gib * GIB),
        mksquashfs=mksquashfs,
    )
