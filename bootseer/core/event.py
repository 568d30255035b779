"""An event: one stage of a start-up on one node, or a point in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bootseer.core.fields import Fields

OK = "ok"
FALLBACK = "fallback"
"""The stage failed or did only part of its work; the job continued. `detail` has the reason."""

MAX_DETAIL_CHARS = 500
"""Limit for BootSeer's own details; other processes may send twice as much."""


@dataclass(frozen=True, slots=True)
class Event:
    """One stage.

    Attributes:
        stage: dotted name, such as ``image.prefetch``.
        start_ns, end_ns: nanoseconds since the epoch; equal for a point in time.
        source: prolog, agent, worker, plugin, step (the job itself) or epilog.
        status: ``ok`` or ``fallback``.
        bytes: bytes moved or inspected, 0 if not applicable.
        rank: rank of the process in the job, -1 for the whole node.
        detail: one line for people.
    """

    stage: str
    start_ns: int
    end_ns: int
    source: str
    status: str = OK
    bytes: int = 0
    rank: int = -1
    detail: str = ""

    def document(self) -> dict[str, object]:
        return asdict(self)

    def check(self, name: str) -> None:
        """Check the values of an event from another process.

        Raises:
            Corrupt: a value is invalid.
        """
        from_json(self.document(), name)


@dataclass(slots=True)
class StageReport:
    """The report of a stage in progress, from which its event is made.

    Attributes:
        start_ns: nanoseconds since the epoch.
        end_ns: likewise; 0 for the time when the stage ends.
        bytes, status, detail: see `Event`.
    """

    start_ns: int
    end_ns: int = 0
    bytes: int = 0
    status: str = OK
    detail: str = ""

    def fall_back(self, detail: str) -> None:
        """Mark the stage as a fallback, with the reason."""
        self.status, self.detail = FALLBACK, detail

    def event(self, stage: str, now_ns: int) -> Event:
        """Return the worker's event of a stage that ends at ``now_ns`` since the epoch."""
        detail = one_line(self.detail)
        end_ns = self.end_ns or now_ns
        return Event(stage, self.start_ns, end_ns, "worker", self.status, self.bytes, detail=detail)


def one_line(text: str) -> str:
    """Return a text as a detail that `from_json` accepts: on one line and cut to the limit."""
    return " ".join(text.replace("\0", " ").split())[:MAX_DETAIL_CHARS]


def from_json(value: object, name: str) -> Event:
    """Return the event of a decoded JSON object.

    Raises:
        Corrupt: a field is missing or invalid.
    """
    fields = Fields(value, name)
    return Event(
        stage=fields.text("stage", 64),
        start_ns=fields.count("start_ns"),
        end_ns=fields.count("end_ns"),
        source=fields.text("source", 32),
        status=FALLBACK if fields.text("status", 16) == FALLBACK else OK,
        bytes=fields.count("bytes"),
        rank=fields.rank("rank"),
        detail=fields.text("detail", 1000),
    )
