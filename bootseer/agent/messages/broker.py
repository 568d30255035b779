"""What a supervisor asks the broker for.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from bootseer.ipc.request import Verbs


class Role(IntEnum):
    """Which worker of the user's is started; its module in `bootseer.agent.workers`."""

    WARM_UP = 0
    RUN_ENVIRONMENT = 1
    PUBLISH = 2
    UPLOAD_IMPORT = 3

    @property
    def module(self) -> str:
        """Name of its module."""
        return self.name.lower()


class MountKind(IntEnum):
    """What may be mounted for a job. spank/mounts.c has the same numbers."""

    CHECKPOINT = 0
    IMAGE = 1
    ROOT = 2
    ENVIRONMENT = 3


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker. Reply: its handle, and a descriptor of its channel."""

    role: int


@dataclass(frozen=True, slots=True)
class StartImageServer:
    """Mount an image, and start the worker that serves it. Reply: as for `StartWorker`.

    Attributes:
        number: of the mount, not in use in this job.
        is_tree: it is an environment, and shown in namespaces that its user may own.
    """

    number: int
    is_tree: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a worker, and wait for its end, a second at most."""

    handle: int


@dataclass(frozen=True, slots=True)
class Unmount:
    """Take a mount away, whoever uses it; a `MountKind` and its number."""

    mount: int
    number: int


@dataclass(frozen=True, slots=True)
class SetReadAhead:
    """Set how far the kernel reads ahead of a mount's readers; a `MountKind`, its number, KiB."""

    mount: int
    number: int
    kib: int


@dataclass(frozen=True, slots=True)
class CreateOverlay:
    """Lay writable file systems over the folders 0, 1, … of a served tree.

    Reply: the number of the first.

    Attributes:
        image: number of the tree's mount.
        count: of folders.
        read_only: they take no changes.
    """

    image: int
    count: int
    read_only: int


@dataclass(frozen=True, slots=True)
class LocateProcess:
    """Say where a process of the job's user is.

    Reply: whether it sees another root folder than the broker; with a descriptor of its mount
    namespace, unless that is the node's own.
    """

    pid: int


@dataclass(frozen=True, slots=True)
class ShowOverlay:
    """Show an overlay in another mount namespace; with descriptors of a folder there and of it."""

    number: int


@dataclass(frozen=True, slots=True)
class MountRoot:
    """Have the kernel mount an image that is in the block cache, if the administrator lists it.

    With descriptors of the entry's manifest, data and map; it has to be in use until the end.
    """


@dataclass(frozen=True, slots=True)
class WatchResidency:
    """Watch which pages of a file are in memory, with its descriptor.

    Reply: a socket for `bootseer.agent.broker.residency_server`, and the file's length.
    """


@dataclass(frozen=True, slots=True)
class ClearOverlays:
    """Take the overlays away."""


@dataclass(frozen=True, slots=True)
class FinishJob:
    """The job has ended: nothing is left to be done."""


VERBS = Verbs(
    *(StartWorker, StartImageServer, KillWorker, Unmount, SetReadAhead, CreateOverlay),
    *(LocateProcess, ShowOverlay, MountRoot, WatchResidency, ClearOverlays, FinishJob),
)
