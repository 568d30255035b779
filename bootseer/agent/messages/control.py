"""Requests and answers on the agent's control socket: one line of JSON each way.

The plugin writes some of these lines itself (spank/step.c). Prolog, epilog and importer may be
newer or older than the agent: an operation never changes its meaning, new fields have defaults, and
unknown fields are ignored.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bootseer.errors import BootseerError, ConfigError, Corrupt, Denied, Unavailable, UnknownImage
from bootseer.ipc.typed_json import Messages

MAX_LINE_BYTES = 256 * 1024
MAX_URI_CHARS = 1024
MAX_PATH_CHARS = 4096
MAX_HOT_RANGES = 8192
"""In one answer, which is a line."""
_MAX_WAIT_S = 3600.0
_MAX_FINISH_S = 600.0


class GetStatus(NamedTuple):
    """Describe the job. Answer: `AgentStatus`."""


class TellEvent(NamedTuple):
    """Record an event; the fields are those of `bootseer.core.event.Event`. Answer: `Done`.

    Attributes:
        source: accepted from root only; for the job's own processes it is "step".
    """

    stage: str
    start_ns: int
    end_ns: int
    source: str = "plugin"
    status: str = "ok"
    bytes: int = 0
    rank: int = -1
    detail: str = ""


class BeginStage(NamedTuple):
    """Record an event that ends when the peer closes this connection. No answer.

    Attributes:
        end_ns: the end, if it is closed already: an agent that is only starting sees that late.
    """

    stage: str
    start_ns: int
    end_ns: int


class WaitReady(NamedTuple):
    """Wait until the job may start. Answer: `Readiness`."""

    timeout_s: float

    def check(self, name: str) -> None:
        _check_seconds(self.timeout_s, _MAX_WAIT_S, name)


class Finish(NamedTuple):
    """End the agent, and publish what was recorded; only root may. Answer: `Finished`."""

    timeout_s: float

    def check(self, name: str) -> None:
        _check_seconds(self.timeout_s, _MAX_FINISH_S, name)


class RunEnvironment(NamedTuple):
    """Start a worker for one `env run`, which takes over this connection. No answer."""


class ServeImage(NamedTuple):
    """Serve an image from the store. Answer: `ImagePath`."""

    image: str

    def check(self, name: str) -> None:
        _check_text(self.image, MAX_URI_CHARS, f"{name}: image")


class UseImage(NamedTuple):
    """Prefetch and record an image file that a step uses, without waiting. Answer: `Done`."""

    path: str

    def check(self, name: str) -> None:
        _check_text(self.path, MAX_PATH_CHARS, f"{name}: path")


class GetHotRanges(NamedTuple):
    """List what is prefetched of an image, once that is known. Answer: `HotRanges`.

    Attributes:
        path: of the image file, as tasks see it.
        timeout_s: how long to wait for it.
    """

    path: str
    timeout_s: float

    def check(self, name: str) -> None:
        _check_text(self.path, MAX_PATH_CHARS, f"{name}: path")
        _check_seconds(self.timeout_s, _MAX_WAIT_S, name)


class AnnounceImport(NamedTuple):
    """Announce to the job's other nodes that this node imports an image. Answer: `Done`.

    The import has ended when the connection closes; `KeepImport` before that uploads it at once.
    """

    image: str

    def check(self, name: str) -> None:
        _check_text(self.image, MAX_URI_CHARS, f"{name}: image")


class AwaitImport(NamedTuple):
    """Wait until another node of the job has imported an image. Answer: `ImportAwaited`."""

    image: str

    def check(self, name: str) -> None:
        _check_text(self.image, MAX_URI_CHARS, f"{name}: image")


class KeepImport(NamedTuple):
    """Upload an imported image to the store from its file. Answer: `Kept`."""

    image: str
    path: str

    def check(self, name: str) -> None:
        _check_text(self.image, MAX_URI_CHARS, f"{name}: image")
        _check_text(self.path, MAX_PATH_CHARS, f"{name}: path")


Request = (
    GetStatus
    | TellEvent
    | BeginStage
    | WaitReady
    | Finish
    | RunEnvironment
    | ServeImage
    | UseImage
    | GetHotRanges
    | AnnounceImport
    | AwaitImport
    | KeepImport
)
REQUESTS: Messages[Request] = Messages(
    "request",
    {
        "status": GetStatus,
        "event": TellEvent,
        "begin": BeginStage,
        "wait": WaitReady,
        "finish": Finish,
        "env": RunEnvironment,
        "serve": ServeImage,
        "image": UseImage,
        "hot": GetHotRanges,
        "announce": AnnounceImport,
        "await": AwaitImport,
        "keep": KeepImport,
    },
)


class Done(NamedTuple):
    """The request was carried out."""

    ok: bool = True


class Readiness(NamedTuple):
    """Whether the job may start, with a line for people."""

    ready: bool
    detail: str = ""


class Finished(NamedTuple):
    """Whether the recording is in the store, with a line for people."""

    published: bool
    detail: str = ""


class ImagePath(NamedTuple):
    """The path at which an image can be read."""

    path: str


class Kept(NamedTuple):
    """Whether an upload has opened the image's file, so that its name may be removed."""

    kept: bool


class ImportAwaited(NamedTuple):
    """Whether an image that another node imported is in the store, with a line for people."""

    stored: bool
    detail: str = ""


class HotRanges(NamedTuple):
    """What is prefetched of an image.

    Attributes:
        bounds: start and end of each range in turn, in the order of first touch: the first
            `MAX_HOT_RANGES` of them. Empty if nothing is prefetched.
    """

    bounds: list[int]


class AgentStatus(NamedTuple):
    """A job on this node, as `bootseer status --json` prints it.

    Attributes:
        job: the fields of `bootseer.agent.node.job.Job`; an older agent has others.
        state: "warming", "ready" or "finishing".
        detail: a line for people.
        window_open: whether the start is being recorded.
        images: the images that are prefetched or recorded.
        checkpoint: whether the checkpoint can be read.
        events: number of events so far.
        errors: number of unexpected errors.
    """

    job: dict[str, object]
    state: str
    detail: str
    window_open: bool
    images: list[dict[str, Any]]
    checkpoint: bool
    events: int
    errors: int


Answer = Done | Readiness | Finished | ImagePath | Kept | ImportAwaited | HotRanges | AgentStatus


class Refusal(NamedTuple):
    """Why a request was not carried out.

    Attributes:
        error: message for people.
        kind: name of the error's class.
    """

    error: str
    kind: str = ""

    def exception(self) -> BootseerError:
        """Return the error to raise: Unavailable for classes that the client does not handle."""
        return _KINDS.get(self.kind, Unavailable)(f"the agent refused: {self.error}")


_KINDS: dict[str, type[BootseerError]] = {
    kind.__name__: kind for kind in (ConfigError, Corrupt, Denied, UnknownImage)
}


def _check_seconds(value: float, maximum: float, name: str) -> None:
    if not 0 <= value <= maximum:
        raise Corrupt(f"{name}: timeout_s is not a number from 0 to {maximum:g}")


def _check_text(value: str, maximum: int, name: str) -> None:
    if not 0 < len(value) <= maximum or not value.isprintable():
        raise Corrupt(f"{name} must be a text of up to {maximum} printable characters")
