"""An event: one stage of a start-up on one node, or a point in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bootseer.core.fields import Fields

VERSION = 1

OK = "ok"
FALLBACK = "fallback"
"""The stage did less than it was there for; the job went on without it, and `detail` says why."""

MAX_DETAIL_CHARS = 500
"""Of what we tell ourselves; others may tell twice as much."""


@dataclass(frozen=True, slots=True)
class Event:
    """One stage.

    Attributes:
        stage: dotted name, what it belongs to first: ``image.prefetch``.
        start_ns, end_ns: nanoseconds since the epoch; equal for a point in time.
        source: who says so: prolog, agent, worker, plugin, step (the job itself), epilog.
        status: ``ok`` or ``fallback``.
        bytes: moved or looked at, 0 where that has no meaning.
        rank: of the process in the job, -1 for the node as a whole.
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
        """Return the fields as what JSON can carry."""
        return asdict(self)

    def check(self, name: str) -> None:
        """Check the values of an event that another process has made.

        Raises:
            Corrupt: one is not acceptable.
        """
        from_json(self.document(), name)


@dataclass(slots=True)
class StageReport:
    """What a stage says of itself while it is under way; its event is made of that at its end.

    Attributes:
        start_ns: nanoseconds since the epoch.
        end_ns: the same; 0 for when the stage ends.
        bytes, status, detail: see `Event`.
    """

    start_ns: int
    end_ns: int = 0
    bytes: int = 0
    status: str = OK
    detail: str = ""

    def fall_back(self, detail: str) -> None:
        """Say that the stage did less than it was there for, and why."""
        self.status, self.detail = FALLBACK, detail

    def event(self, stage: str, now_ns: int) -> Event:
        """Return the worker's event of a stage that ends now, in nanoseconds since the epoch."""
        detail = one_line(self.detail)
        end_ns = self.end_ns or now_ns
        return Event(stage, self.start_ns, end_ns, "worker", self.status, self.bytes, detail=detail)


def one_line(text: str) -> str:
    """Make a detail of any text, whatever a path in it looks like: `from_json` takes that."""
    return " ".join(text.replace("\0", " ").split())[:MAX_DETAIL_CHARS]


def from_json(value: object, name: str) -> Event:
    """Check and take over a decoded JSON object.

    Raises:
        Corrupt: a field is missing or not acceptable.
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
