"""Requests from the supervisor to the broker.

Imports the standard library only.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from bootseer.ipc.request import Verbs


class Role(IntEnum):
    """Role of a worker: a module in `bootseer.agent.workers`."""

    WARM_UP = 0
    RUN_ENVIRONMENT = 1
    PUBLISH = 2
    UPLOAD_IMPORT = 3
    AWAIT_IMPORT = 4
    SERVE_PEERS = 5
    SERVE_IMAGE = 6
    SERVE_CHECKPOINT = 7

    @property
    def module(self) -> str:
        return self.name.lower()


SERVERS = (Role.SERVE_IMAGE, Role.SERVE_CHECKPOINT)
"""Workers that serve a mount."""
FORKED = (*SERVERS, Role.WARM_UP, Role.SERVE_PEERS, Role.PUBLISH)
"""Workers that the supervisor forks as it starts, instead of asking for them."""


class MountKind(IntEnum):
    """Kinds of a job's mounts. spank/mounts.c has the same numbers."""

    CHECKPOINT = 0
    IMAGE = 1
    ROOT = 2
    ENVIRONMENT = 3


class StartWorker(NamedTuple):
    """Start a worker. Reply: its handle, and a descriptor of its channel."""

    role: int


class StartImageServer(NamedTuple):
    """Mount an image, and start the worker that serves it. Reply: as for `StartWorker`.

    Attributes:
        number: a mount number not in use in this job.
        is_tree: it is an environment, which may be shown in namespaces that its user owns.
    """

    number: int
    is_tree: int


class KillWorker(NamedTuple):
    """Kill a worker, and wait for its end, at most a second."""

    handle: int


class Unmount(NamedTuple):
    """Unmount, even while in use; a `MountKind` and its number."""

    mount: int
    number: int


class SetReadAhead(NamedTuple):
    """Set the kernel's read-ahead for a mount; a `MountKind`, its number, KiB."""

    mount: int
    number: int
    kib: int


class CreateOverlay(NamedTuple):
    """Create overlays over the folders 0, 1, … of a served tree.

    Reply: the number of the first overlay.

    Attributes:
        image: number of the tree's mount.
        folders: how many of them.
        read_only: the overlays refuse changes.
    """

    image: int
    folders: int
    read_only: int


class LocateProcess(NamedTuple):
    """Locate a process of the job's user.

    Reply: whether its root folder differs from the broker's; with a descriptor of its mount
    namespace, unless that is the node's own.
    """

    pid: int


class ShowOverlay(NamedTuple):
    """Show an overlay in another mount namespace.

    With descriptors of a folder there and of the namespace.
    """

    number: int


class MountRoot(NamedTuple):
    """Mount an image of the block cache with the kernel's squashfs, if the administrator lists it.

    With descriptors of the entry's manifest, data and map. The entry must stay in use until the
    unmount.
    """


class WatchResidency(NamedTuple):
    """Watch which pages of a file are in memory; with the file's descriptor.

    Reply: the file's length, and a socket that `bootseer.agent.broker.residency_server` serves.
    """


class ClearOverlays(NamedTuple):
    """Unmount the overlays."""


class FinishJob(NamedTuple):
    """Report that the job has ended, so that the broker exits."""


VERBS = Verbs(
    *(StartWorker, StartImageServer, KillWorker, Unmount, SetReadAhead, CreateOverlay),
    *(LocateProcess, ShowOverlay, MountRoot, WatchResidency, ClearOverlays, FinishJob),
)
