"""What a supervisor and its workers tell each other, on a `bootseer.ipc.channel.Channel`.

Workers run as the job's user, so all that they say is checked: types and sizes on receipt, and what
it may be by whoever uses it.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from bootseer.agent.node.job import Job
from bootseer.cache.token import TOKEN_BYTES
from bootseer.core.access_log import MAX_RANGES as MAX_FILE_RANGES
from bootseer.core.access_log import AccessedFile
from bootseer.core.event import Event
from bootseer.core.ranges import ByteRange, check_ranges
from bootseer.core.speed import Speed
from bootseer.env.snapshot.manifest import MAX_TARGETS
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.image.hot.holdout import HeldOutPiece, check_pieces
from bootseer.image.hot.trace import Touch
from bootseer.ipc.channel import Channel
from bootseer.ipc.typed_json import Messages, check_not_negative

VERSION = 1
"""Of these messages: a worker is started from what is installed by then."""
MAX_TO_WORKER_BYTES = 32 * 1024 * 1024
"""Events that have waited for a store are among them."""
MAX_FROM_WORKER_BYTES = 16 * 1024 * 1024
"""200,000 touches and more. Decoded, hostile JSON takes 20 times as much memory."""
MAX_RANGES = 300_000


# From the supervisor to a worker.


class StartTask(NamedTuple):
    """The first message: for which job; with a descriptor of a pipe for what the worker prints.

    Attributes:
        job: the job; its image is the one that this worker is about.
        config: effective settings, see `bootseer.config.Config.values`.
        version: of the messages.
    """

    job: Job
    config: dict[str, Any]
    version: int = VERSION

    def check(self, name: str) -> None:
        """Check the version.

        Raises:
            UnknownVersion: the agent is of another one.
        """
        if self.version != VERSION:
            raise UnknownVersion(f"{name}: of version {self.version}, and not {VERSION}")


class ImageReadable(NamedTuple):
    """To `warm_up`: the served image can be read.

    Attributes:
        path: under which.
        tree: folder in which the kernel or a worker shows the image's own files, "" if none does.
        identity: that hot sets are named after.
        size_bytes: of the image.
        leading: what every start reads.
        copies: all of it comes to the node at once; `ImageCopied` tells the end of that.
    """

    path: str
    tree: str
    identity: str
    size_bytes: int
    leading: list[ByteRange]
    copies: bool


class ImageUnreadable(NamedTuple):
    """To `warm_up`: the served image will never be there."""


class CheckpointReadable(NamedTuple):
    """To `warm_up`: the checkpoint can be read; or never will be.

    Attributes:
        ok: which.
    """

    ok: bool


class EnvironmentMounted(NamedTuple):
    """To `warm_up`, in answer to `MountEnvironment`.

    Attributes:
        why: it could not be mounted; "" if it is.
    """

    why: str


class HoldPrefetch(NamedTuple):
    """To `warm_up`: stop reading ahead for now, or go on."""

    is_held: bool


class YieldToJob(NamedTuple):
    """To `warm_up`: the job starts, so it goes first from now on."""


class CloseWindow(NamedTuple):
    """To whoever serves a mount: the start is over; tell what was read."""


class ReportImage(NamedTuple):
    """To `serve_image`: tell what was done in all. Answer: `ImageReported`."""


class StopCheckpoint(NamedTuple):
    """To `serve_checkpoint`: publish what is closed, in so many seconds, and end."""

    timeout_s: float


class BlocksLent(NamedTuple):
    """To `serve_image`: what the node has of the image.

    With descriptors of manifest, data and map, and two sockets on which the keeper of blocks
    answers: see `bootseer.cache.keeper_link`.
    """


class BlocksRefused(NamedTuple):
    """To `serve_image`: the node lends nothing.

    Attributes:
        wants_manifest: it may, once it is given the manifest.
    """

    wants_manifest: bool


class ServeConnection(NamedTuple):
    """To `run_environment`: the descriptor of a connection to `bootseer env run`.

    Attributes:
        image: digest of the image that the client runs in, "" for none.
    """

    image: str


class SnapshotMounted(NamedTuple):
    """To `run_environment`, in answer to `MountSnapshot`.

    Attributes:
        why: it could not be mounted; "" if it is.
    """

    why: str


class UploadImport(NamedTuple):
    """To `upload_import`: put a file into the store, under the name of its source.

    Attributes:
        image: URI that it was imported from.
        path: of the file.
    """

    image: str
    path: str


class RecordedImage(NamedTuple):
    """What a start has read of an image.

    Attributes:
        path: as the job names it.
        digest: identity that traces are named after.
        size_bytes: of the image.
        kind: one of `bootseer.image.hot.trace.KINDS`.
        touches: in first-touch order.
        holdout: what was not read ahead, to see whether the start reads it.
        content: digest of the image in the store, "" if it is not from there.
        store, file: how fast the store was, and the file that the image was added from.
    """

    path: str
    digest: str
    size_bytes: int
    kind: str
    touches: list[Touch]
    holdout: list[ByteRange]
    content: str = ""
    store: Speed | None = None
    file: Speed | None = None


class PublishRecording(NamedTuple):
    """To `publish`: what a start was seen to read.

    Attributes:
        kind: of the run, "cold" or "warm".
        images: recorded ones.
        files: what was read of the checkpoint.
        ahead: what was read ahead of it.
    """

    kind: str
    images: list[RecordedImage]
    files: list[AccessedFile]
    ahead: list[CheckpointFileAhead]


class PublishEvents(NamedTuple):
    """To `publish`, in answer to `EventsWanted`.

    Attributes:
        run: this one's events.
        waiting: those of runs that have waited on the node; other versions may have written them.
    """

    run: dict[str, Any]
    waiting: list[dict[str, Any]]


# From a worker to the supervisor, which trusts none of it.


class StageEnded(NamedTuple):
    """From any: a stage of the start is over."""

    event: Event


class Ready(NamedTuple):
    """From `warm_up`: the job may start. Attributes: detail: a line for people."""

    detail: str


class MountImage(NamedTuple):
    """From `warm_up`: the last run used this image later on; have it there. Attributes: image."""

    image: str


class MountEnvironment(NamedTuple):
    """From `warm_up`: mount the environment that the job names. Answer: `EnvironmentMounted`.

    Attributes:
        key: of the snapshot.
        targets: paths of its targets.
    """

    key: str
    targets: list[str]

    def check(self, name: str) -> None:
        """Check all of it."""
        _check_text(self.key, 64, name)
        if len(self.targets) > MAX_TARGETS:
            raise Corrupt(f"{name}: more than {MAX_TARGETS} targets")
        for target in self.targets:
            _check_text(target, 4096, name)


class EnvironmentSettled(NamedTuple):
    """From `warm_up`: nothing more becomes of the environment that the job names."""


class ImageFound(NamedTuple):
    """From `warm_up`: an image file is open, with its descriptor; what is read of it is recorded.

    Attributes:
        path: of the file.
        digest: identity of the image.
        leading: what every start reads.
    """

    path: str
    digest: str
    leading: list[ByteRange]

    def check(self, name: str) -> None:
        """Check all of it."""
        _check_text(self.path, 4096, name)
        _check_text(self.digest, 200, name)
        check_ranges(self.leading, MAX_RANGES, name)


class PrefetchBegun(NamedTuple):
    """From `warm_up`: these ranges of the last image are read ahead.

    Attributes:
        ranges: in the order of reading.
        holdout: pieces of them that are left out.
        doubts: starts in a row that have not read what was hot.
    """

    ranges: list[ByteRange]
    holdout: list[HeldOutPiece]
    doubts: int

    def check(self, name: str) -> None:
        """Check all of it."""
        check_ranges(self.ranges, MAX_RANGES, name)
        check_pieces(self.holdout, name)
        check_not_negative(self, name)


class PrefetchProgress(NamedTuple):
    """From `warm_up`: how much of the last image has been read ahead, and will be, in bytes."""

    done_bytes: int
    want_bytes: int

    def check(self, name: str) -> None:
        """Check the numbers."""
        check_not_negative(self, name)


class ServedImageOpened(NamedTuple):
    """From `warm_up`: the served image is open; whoever opens it next is the job."""


class CheckpointFileAhead(NamedTuple):
    """From `warm_up`: a file of the checkpoint is read ahead; that is not the job's doing."""

    path: str
    ranges: list[ByteRange]

    def check(self, name: str) -> None:
        """Check both."""
        _check_text(self.path, 4096, name)
        check_ranges(self.ranges, MAX_FILE_RANGES, name)


class BorrowBlocks(NamedTuple):
    """From `serve_image`: lend what the node has of an image. Answer: `BlocksLent` or refused.

    With a descriptor of the image's manifest in sealed memory, where that was wanted.

    Attributes:
        digest: of the image.
        token: of its manifest, in hexadecimal digits; "" for none.
    """

    digest: str
    token: str

    def check(self, name: str) -> None:
        """Check both."""
        _check_text(self.digest, 64, name)
        if len(self.token) not in (0, 2 * TOKEN_BYTES) or not _is_hex(self.token):
            raise Corrupt(f"{name}: its token is none")


class ImageServed(NamedTuple):
    """From `serve_image`: the image can be read.

    Attributes:
        identity: that hot sets are named after.
        content: its digest in the store.
        size_bytes: its length.
        leading: what every start reads.
        is_cached: all of it is on this node.
        copies: all of it comes to the node at once; `ImageCopied` tells the end of that.
    """

    identity: str
    content: str
    size_bytes: int
    leading: list[ByteRange]
    is_cached: bool
    copies: bool

    def check(self, name: str) -> None:
        """Check all of it."""
        _check_text(self.identity, 200, name)
        _check_text(self.content, 64, name)
        check_not_negative(self, name)
        check_ranges(self.leading, 8, name)


class ImageMissing(NamedTuple):
    """From `serve_image`: an empty folder is all that its mount shows, until its end."""


class ImageCopied(NamedTuple):
    """From `serve_image`, and on to `warm_up`: no more of the image comes by itself."""


class ImageRecorded(NamedTuple):
    """From `serve_image`, in answer to `CloseWindow`: what the start has read."""

    touches: list[Touch]


class ImageReported(NamedTuple):
    """From `serve_image`, in answer to `ReportImage`: how fast the image came from where."""

    store: Speed
    file: Speed


class CheckpointServed(NamedTuple):
    """From `serve_checkpoint`: files can be read."""


class CheckpointReads(NamedTuple):
    """From `serve_checkpoint`, in answer to `CloseWindow`: what the start has read."""

    files: list[AccessedFile]


class CheckpointEnded(NamedTuple):
    """From `serve_checkpoint`: it ends as it was told to; all that was closed is published."""


class MountSnapshot(NamedTuple):
    """From `run_environment`: show a snapshot, with a descriptor of each folder. `SnapshotMounted`.

    Attributes:
        key: of the snapshot.
        read_only: it takes no changes.
    """

    key: str
    read_only: bool

    def check(self, name: str) -> None:
        """Check the key."""
        _check_text(self.key, 64, name)


class ImportOpened(NamedTuple):
    """From `upload_import`: the file is open, and its name not needed any more."""


class EventsWanted(NamedTuple):
    """From `publish`: all else is done. Answer: `PublishEvents`."""


class Published(NamedTuple):
    """From `publish`: the end.

    Attributes:
        ok: whether this run's events are in the store.
        detail: a line for people.
        left: indexes of those runs that have to wait on.
    """

    ok: bool
    detail: str
    left: list[int]


ToWorker = (
    StartTask
    | ImageReadable
    | ImageUnreadable
    | ImageCopied
    | CheckpointReadable
    | EnvironmentMounted
    | HoldPrefetch
    | YieldToJob
    | CloseWindow
    | ReportImage
    | StopCheckpoint
    | BlocksLent
    | BlocksRefused
    | ServeConnection
    | SnapshotMounted
    | UploadImport
    | PublishRecording
    | PublishEvents
)
FromWorker = (
    StageEnded
    | Ready
    | MountImage
    | MountEnvironment
    | EnvironmentSettled
    | ImageFound
    | PrefetchBegun
    | PrefetchProgress
    | ServedImageOpened
    | CheckpointFileAhead
    | BorrowBlocks
    | ImageServed
    | ImageMissing
    | ImageCopied
    | ImageRecorded
    | ImageReported
    | CheckpointServed
    | CheckpointReads
    | CheckpointEnded
    | MountSnapshot
    | ImportOpened
    | EventsWanted
    | Published
)
TO_WORKER: Messages[ToWorker] = Messages.by_union("message from the agent", ToWorker)
FROM_WORKER: Messages[FromWorker] = Messages.by_union("message from the worker", FromWorker)

WorkerEnd = Channel[FromWorker, ToWorker]
"""The channel as a worker has it."""
SupervisorEnd = Channel[ToWorker, FromWorker]
"""The channel as the supervisor has it."""


def worker_end(end: socket.socket) -> WorkerEnd:
    """Take over a worker's end of its channel."""
    return Channel(end, FROM_WORKER, TO_WORKER, MAX_TO_WORKER_BYTES)


def supervisor_end(end: socket.socket) -> SupervisorEnd:
    """Take over the supervisor's end of a worker's channel."""
    return Channel(end, TO_WORKER, FROM_WORKER, MAX_FROM_WORKER_BYTES)


def _check_text(value: str, maximum: int, name: str) -> None:
    if len(value) > maximum or any(c in value for c in "\0\n\r"):
        raise Corrupt(f"{name}: a text in it is not acceptable")


def _is_hex(text: str) -> bool:
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False
