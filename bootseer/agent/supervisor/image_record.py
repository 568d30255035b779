"""An image of a job's: what is read ahead of it, and what of its start is news."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from bootseer.core.event import Event
from bootseer.core.fields import Fields
from bootseer.core.ranges import ByteRange, subtract
from bootseer.core.trace import Touch

MAX_RANGES = 300_000


class JobImage(ABC):
    """One image of the job, from when it can be read to the end of the window.

    Attributes:
        path: as the job names it.
        digest: identity, which traces and hot sets are named after.
        size_bytes: its length.
        prefetched: ranges that are read ahead.
        is_prefetched: whether any are.
        done_bytes, want_bytes: how far that is.
        is_used: the job has asked for it, and not only its plan.
    """

    def __init__(self, path: str, digest: str, size_bytes: int) -> None:
        """Begin with nothing read ahead."""
        self.path = path
        self.digest = digest
        self.size_bytes = size_bytes
        self.prefetched: list[ByteRange] = []
        self.is_prefetched = False
        self.done_bytes = 0
        self.want_bytes = 0
        self.is_used = True

    def note_prefetch(self, message: dict[str, Any]) -> None:
        """Remember which ranges the worker reads ahead: they are no news when they arrive."""
        self.prefetched = Fields(message, "message from the worker").ranges("ranges", MAX_RANGES)
        self.is_prefetched = True

    def note_progress(self, message: dict[str, Any]) -> None:
        """Remember how far the prefetch is."""
        fields = Fields(message, "message from the worker")
        self.done_bytes = fields.count("done_bytes")
        self.want_bytes = fields.count("want_bytes")

    def sample(self) -> None:
        """Look at what has been read, where that has to be looked at again and again."""
        return

    @abstractmethod
    async def close(self, deadline: float) -> Event:
        """End the recording by a time on trio's clock; returns the stage that it was."""

    @abstractmethod
    def recorded(self) -> dict[str, Any]:
        """Describe it for the worker that publishes."""

    @abstractmethod
    def touched_bytes(self) -> int:
        """Say how much of it has been read so far, as far as is known."""

    def status(self) -> dict[str, Any]:
        """Describe it for `bootseer status`."""
        return {
            "path": self.path,
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "prefetched": self.is_prefetched,
            "done_bytes": self.done_bytes,
            "want_bytes": self.want_bytes,
            "touched_bytes": self.touched_bytes(),
        }

    def news(self, touches: list[Touch]) -> list[Touch]:
        """Return what was touched beyond what was read ahead, in first-touch order."""
        news: list[Touch] = []
        index = 0
        # One pass, for there may be 100,000 of both: what is left keeps the order of the touches.
        for start, stop in subtract((ByteRange(t.start, t.stop) for t in touches), self.prefetched):
            while not touches[index].start <= start < touches[index].stop:
                index += 1
            news.append(Touch(start, stop, touches[index].first_ms))
        return news

    def said(self, news: Iterable[Touch]) -> str:
        """Say for people what was news."""
        what = "read beyond what was prefetched" if self.is_prefetched else "touched"
        return f"{len(list(news))} ranges {what}"
