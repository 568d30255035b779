"""Messages between the supervisor and its workers, on a `bootseer.ipc.channel.Channel`.

Workers run as the job's user, so the supervisor trusts none of their messages. Types and sizes are
checked on receipt, values where they are used.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from bootseer.agent.node.job import Job
from bootseer.cache.token import TOKEN_BYTES
from bootseer.core.access_log import MAX_RANGES as MAX_FILE_RANGES
from bootseer.core.access_log import AccessedFile
from bootseer.core.event import MAX_DETAIL_CHARS, Event
from bootseer.core.ranges import ByteRange, check_ranges
from bootseer.core.speed import Speed
from bootseer.env.snapshot.manifest import MAX_TARGETS
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.image.hot.holdout import HeldOutPiece, check_pieces
from bootseer.image.hot.trace import Touch
from bootseer.ipc.channel import Channel
from bootseer.ipc.typed_json import Messages, check_not_negative

VERSION = 1
"""Version of these messages: a worker may run a newer installation than the supervisor."""
MAX_TO_WORKER_BYTES = 32 * 1024 * 1024
"""Includes events that have waited on the node for a store."""
MAX_FROM_WORKER_BYTES = 16 * 1024 * 1024
"""Room for 200,000 touches. Decoded, hostile JSON takes 20 times as much memory."""
MAX_RANGES = 300_000


# From the supervisor to a worker.


class StartTask(NamedTuple):
    """The first message: the worker's job; with a descriptor of a pipe for the worker's output.

    Attributes:
        job: the job; its image is the one that this worker handles.
        config: effective settings, see `bootseer.config.Config.values`.
        version: version of the messages.
        outage: why the user's store did not answer another job a moment ago; "" if nothing is
            known against it.
    """

    job: Job
    config: dict[str, Any]
    version: int = VERSION
    outage: str = ""

    def check(self, name: str) -> None:
        """Check the version.

        Raises:
            UnknownVersion: the agent has another version.
        """
        if self.version != VERSION:
            raise UnknownVersion(f"{name}: version {self.version} is not supported, only {VERSION}")


class ImageReadable(NamedTuple):
    """To `warm_up`: the served image can be read.

    Attributes:
        path: path of the image.
        tree: folder with the image's own files, mounted by the kernel or a worker; "" for none.
        identity: that hot sets are named after.
        size_bytes: of the image.
        leading: what every start reads.
        copies: the whole image is being copied to the node, until `ImageCopied`.
    """

    path: str
    tree: str
    identity: str
    size_bytes: int
    leading: list[ByteRange]
    copies: bool


class ImageUnreadable(NamedTuple):
    """To `warm_up`: the served image will never be readable."""


class CheckpointReadable(NamedTuple):
    """To `warm_up`: it is the checkpoint's turn to be prefetched, or it cannot be read.

    Attributes:
        ok: it can be read; otherwise it never will be.
    """

    ok: bool


class EnvironmentMounted(NamedTuple):
    """To `warm_up`, in answer to `MountEnvironment`.

    Attributes:
        why: it could not be mounted; "" if it is.
    """

    why: str


class HoldPrefetch(NamedTuple):
    """To `warm_up`: pause or resume the prefetch."""

    is_held: bool


class YieldToJob(NamedTuple):
    """To `warm_up`: the job starts; lower the prefetch's priority."""


class CloseWindow(NamedTuple):
    """To a mount's server: the start is over; report what was read."""


class FetchAhead(NamedTuple):
    """To `serve_image`: fetch these ranges to the node, for a prefetch that is about to read them.

    Attributes:
        ranges: of the image, in the order in which they are read.
    """

    ranges: list[ByteRange]


class ReportImage(NamedTuple):
    """To `serve_image`: report totals. Answer: `ImageReported`."""


class StopCheckpoint(NamedTuple):
    """To `serve_checkpoint`: publish closed files within so many seconds, then end."""

    timeout_s: float


class BlocksLent(NamedTuple):
    """To `serve_image`: the node's cached blocks of the image.

    With descriptors of manifest, data and map, two sockets to the block keeper, and the memory that
    is shared with it: see `bootseer.cache.keeper_link`.
    """


class BlocksRefused(NamedTuple):
    """To `serve_image`: no cached blocks are lent.

    Attributes:
        wants_manifest: ask again with the manifest.
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


class LeaseImport(NamedTuple):
    """To `upload_import`: announce to the job's other nodes that this node imports an image.

    `UploadImport` or `CancelImport` follows when the import has ended.

    Attributes:
        image: URI that it is imported from.
    """

    image: str


class CancelImport(NamedTuple):
    """To `upload_import`: the import has failed; give up the lease, and end."""


class WatchImport(NamedTuple):
    """To `await_import`: wait until another node has imported an image. Answer: `ImportWatched`.

    Attributes:
        image: URI that it is imported from.
    """

    image: str


class UploadImport(NamedTuple):
    """To `upload_import`: upload a file to the store, under the name of its source.

    Attributes:
        image: URI that it was imported from.
        path: of the file.
    """

    image: str
    path: str


class ReportPeers(NamedTuple):
    """To `serve_peers`: the job ends; report what the other nodes were given.

    It serves until its channel closes: publishers of other nodes may need it.
    """


class RecordedImage(NamedTuple):
    """What a job's start has read of an image.

    Attributes:
        path: as the job names it.
        digest: identity in the names of traces.
        size_bytes: of the image.
        kind: one of `bootseer.image.hot.trace.KINDS`.
        touches: in first-touch order.
        holdout: hot ranges excluded from the prefetch, to test whether the start reads them.
        content: digest of the image in the store, "" if it is not from the store.
        store, file: speed of the store, and of the file that the image was added from.
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
    """To `publish`: what a job's start has read.

    Attributes:
        kind: kind of the run, "cold" or "warm".
        images: the recorded images.
        files: reads of the checkpoint.
        ahead: checkpoint files that were prefetched.
    """

    kind: str
    images: list[RecordedImage]
    files: list[AccessedFile]
    ahead: list[CheckpointFileAhead]


class PublishEvents(NamedTuple):
    """To `publish`, in answer to `EventsWanted`.

    Attributes:
        run: the events of this run.
        waiting: events of earlier runs kept on the node; other versions may have written them.
    """

    run: dict[str, object]
    waiting: list[dict[str, object]]


# From a worker to the supervisor, which does not trust them.


class StageEnded(NamedTuple):
    """From any worker: a stage of the start is over."""

    event: Event


class Ready(NamedTuple):
    """From `warm_up`: the job may start. Attributes: detail: a line for people."""

    detail: str


class ImagesPrefetched(NamedTuple):
    """From `warm_up`: its image is prefetched, or will not be; so are the environments it named."""


class MountImage(NamedTuple):
    """From `warm_up`: mount an image that the last run requested later. Attributes: image."""

    image: str


class PrefetchFile(NamedTuple):
    """From `warm_up`: prefetch an image file that a step of the last run used. Attributes: path."""

    path: str


class MountEnvironment(NamedTuple):
    """From `warm_up`: mount the environment that the job names. Answer: `EnvironmentMounted`.

    Attributes:
        key: of the snapshot.
        targets: paths of its targets.
    """

    key: str
    targets: list[str]

    def check(self, name: str) -> None:
        _check_text(self.key, 64, name)
        if len(self.targets) > MAX_TARGETS:
            raise Corrupt(f"{name}: more than {MAX_TARGETS} targets")
        for target in self.targets:
            _check_text(target, 4096, name)


class EnvironmentSettled(NamedTuple):
    """From `warm_up`: the job's environment is provided, or will not be."""


class ImageFound(NamedTuple):
    """From `warm_up`: an image file is open; record its reads. With its descriptor.

    Attributes:
        path: path of the file.
        digest: identity of the image.
        leading: what every start reads.
    """

    path: str
    digest: str
    leading: list[ByteRange]

    def check(self, name: str) -> None:
        _check_text(self.path, 4096, name)
        _check_text(self.digest, 200, name)
        check_ranges(self.leading, MAX_RANGES, name)


class PrefetchBegun(NamedTuple):
    """From `warm_up`: these ranges of the last image are being prefetched.

    Attributes:
        ranges: in the order of reading.
        holdout: pieces that are left out.
        doubts: number of starts in a row that did not read the hot set.
    """

    ranges: list[ByteRange]
    holdout: list[HeldOutPiece]
    doubts: int

    def check(self, name: str) -> None:
        check_ranges(self.ranges, MAX_RANGES, name)
        check_pieces(self.holdout, name)
        check_not_negative(self, name)


class PrefetchProgress(NamedTuple):
    """From `warm_up`: progress in the last image: bytes prefetched, and bytes planned."""

    done_bytes: int
    want_bytes: int

    def check(self, name: str) -> None:
        check_not_negative(self, name)


class ServedImageOpened(NamedTuple):
    """From `warm_up`: the served image is open; the next process to open it is the job's."""


class CheckpointFileAhead(NamedTuple):
    """From `warm_up`: a checkpoint file is being prefetched, so its reads are not the job's."""

    path: str
    ranges: list[ByteRange]

    def check(self, name: str) -> None:
        _check_text(self.path, 4096, name)
        check_ranges(self.ranges, MAX_FILE_RANGES, name)


class BorrowBlocks(NamedTuple):
    """From `serve_image`: lend an image's cached blocks. Answer: `BlocksLent` or `BlocksRefused`.

    With a descriptor of the image's manifest in sealed memory, if it was requested.

    Attributes:
        digest: of the image.
        token: token of its manifest, in hexadecimal digits; "" for none.
    """

    digest: str
    token: str

    def check(self, name: str) -> None:
        _check_text(self.digest, 64, name)
        if len(self.token) not in (0, 2 * TOKEN_BYTES) or not _is_hex(self.token):
            raise Corrupt(f"{name}: the token is not 32 bytes in hexadecimal digits")


class ImageServed(NamedTuple):
    """From `serve_image`: the image can be read.

    Attributes:
        identity: identity in the names of hot sets.
        content: its digest in the store.
        size_bytes: its length.
        leading: what every start reads.
        is_cached: all of it is on this node.
        copies: the whole image is being copied to the node, until `ImageCopied`.
    """

    identity: str
    content: str
    size_bytes: int
    leading: list[ByteRange]
    is_cached: bool
    copies: bool

    def check(self, name: str) -> None:
        _check_text(self.identity, 200, name)
        _check_text(self.content, 64, name)
        check_not_negative(self, name)
        check_ranges(self.leading, 8, name)


class ImageMissing(NamedTuple):
    """The job's tasks cannot open the image.

    From `serve_image`: its mount shows an empty folder. From `warm_up`: the file that the job names
    is not there, or closed to its user.

    Attributes:
        is_new: the store has no such image.
    """

    is_new: bool = False


class ImageCopied(NamedTuple):
    """From `serve_image`, forwarded to `warm_up`: the copy of the whole image has ended."""


class ImageRecorded(NamedTuple):
    """From `serve_image`, in answer to `CloseWindow`: what the start has read."""

    touches: list[Touch]


class ImageReported(NamedTuple):
    """From `serve_image`, in answer to `ReportImage`: the speeds of the image's sources."""

    store: Speed
    file: Speed


class CheckpointServed(NamedTuple):
    """From `serve_checkpoint`: files can be read."""


class CheckpointReads(NamedTuple):
    """From `serve_checkpoint`, in answer to `CloseWindow`: what the start has read."""

    files: list[AccessedFile]


class CheckpointEnded(NamedTuple):
    """From `serve_checkpoint`: it ends as requested; all closed files are published."""


class MountSnapshot(NamedTuple):
    """From `run_environment`: show a snapshot, with a descriptor of each folder. `SnapshotMounted`.

    Attributes:
        key: of the snapshot.
        read_only: the mount refuses changes.
    """

    key: str
    read_only: bool

    def check(self, name: str) -> None:
        _check_text(self.key, 64, name)


class ImportOpened(NamedTuple):
    """From `upload_import`: the file is open, so its name may be removed."""


class ImportWatched(NamedTuple):
    """From `await_import`: the wait has ended.

    Attributes:
        why: why the image is not in the store; "" if it is.
    """

    why: str

    def check(self, name: str) -> None:
        _check_text(self.why, MAX_DETAIL_CHARS, name)


class StoreAway(NamedTuple):
    """From `warm_up` and `publish`: the user's store does not answer, and is not asked again."""

    why: str


class EventsWanted(NamedTuple):
    """From `publish`: the recordings are published. Answer: `PublishEvents`."""


class Published(NamedTuple):
    """From `publish`: the result, as the last message; or what is done before hot sets are merged.

    Attributes:
        ok: whether this run's events are in the store.
        detail: a line for people.
        left: indexes of the waiting runs to keep on the node.
        is_last: nothing more will be published.
    """

    ok: bool
    detail: str
    left: list[int]
    is_last: bool = True


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
    | FetchAhead
    | ReportImage
    | StopCheckpoint
    | BlocksLent
    | BlocksRefused
    | ServeConnection
    | SnapshotMounted
    | LeaseImport
    | CancelImport
    | WatchImport
    | UploadImport
    | ReportPeers
    | PublishRecording
    | PublishEvents
)
FromWorker = (
    StageEnded
    | Ready
    | ImagesPrefetched
    | MountImage
    | PrefetchFile
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
    | ImportWatched
    | StoreAway
    | EventsWanted
    | Published
)
TO_WORKER: Messages[ToWorker] = Messages.by_union("message from the agent", ToWorker)
FROM_WORKER: Messages[FromWorker] = Messages.by_union("message from the worker", FromWorker)

WorkerEnd = Channel[FromWorker, ToWorker]
"""A worker's end of the channel."""
SupervisorEnd = Channel[ToWorker, FromWorker]
"""The supervisor's end of the channel."""


def worker_end(end: socket.socket) -> WorkerEnd:
    """Take over a worker's end of its channel."""
    return Channel(end, FROM_WORKER, TO_WORKER, MAX_TO_WORKER_BYTES)


def supervisor_end(end: socket.socket) -> SupervisorEnd:
    """Take over the supervisor's end of a worker's channel."""
    return Channel(end, TO_WORKER, FROM_WORKER, MAX_FROM_WORKER_BYTES)


def _check_text(value: str, maximum: int, name: str) -> None:
    if len(value) > maximum or any(c in value for c in "\0\n\r"):
        raise Corrupt(f"{name}: a text is longer than {maximum} characters or has unprintable ones")


def _is_hex(text: str) -> bool:
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False
