"""An image of a job's: what is read ahead of it, and what of its start is news."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import compress
from typing import Any

from bootseer.agent.messages.worker import PrefetchBegun, PrefetchProgress, RecordedImage
from bootseer.core.event import Event
from bootseer.core.ranges import ByteRange, subtract, total_bytes
from bootseer.image.hot.holdout import IDLE_BYTES, MOSTLY, HeldOutPiece, count_read, touching
from bootseer.image.hot.trace import Touch, touched_beyond


class JobImage(ABC):
    """One image of the job, from when it can be read to the end of the window.

    Attributes:
        path: as the job names it.
        digest: identity, which traces and hot sets are named after.
        size_bytes: its length.
        prefetched: ranges that are read ahead.
        holdout: pieces of the hot set that are not, to see whether the start reads them.
        is_prefetched: whether any are.
        done_bytes, want_bytes: how far that is.
        is_used: the job has asked for it, and not only its plan.
        is_cut_short: the job has ended in the window, perhaps amid its start.
    """

    def __init__(self, path: str, digest: str, size_bytes: int) -> None:
        """Begin with nothing read ahead."""
        self.path = path
        self.digest = digest
        self.size_bytes = size_bytes
        self.prefetched: list[ByteRange] = []
        self.holdout: list[HeldOutPiece] = []
        self._doubts = 0
        self.is_prefetched = False
        self.done_bytes = 0
        self.want_bytes = 0
        self.is_used = True
        self.is_cut_short = False

    def note_prefetch(self, begun: PrefetchBegun) -> None:
        """Remember which ranges the worker reads ahead: they are no news when they arrive."""
        self.holdout = begun.holdout
        self._doubts = begun.doubts
        self.prefetched = subtract(begun.ranges, (piece.range for piece in self.holdout))
        self.is_prefetched = True

    def note_progress(self, progress: PrefetchProgress) -> None:
        """Remember how far the prefetch is."""
        self.done_bytes, self.want_bytes = progress

    def sample(self) -> None:
        """Look at what has been read, where that has to be looked at again and again."""
        return

    def is_worth(self) -> bool:
        """Whether it is worth while to read on ahead, as far as is known."""
        return True

    @abstractmethod
    async def close(self, deadline: float) -> Event:
        """End the recording by a time on trio's clock; returns the stage that it was.

        Raises:
            BootseerError: it could not be recorded to its end.
        """

    @abstractmethod
    def recorded(self) -> RecordedImage:
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

    def new_touches(self, touches: list[Touch]) -> list[Touch]:
        """Return what was touched beyond what was read ahead, in first-touch order."""
        return touched_beyond(touches, self.prefetched)

    def judged(
        self, news: list[Touch], known: Iterable[ByteRange] = ()
    ) -> tuple[list[Touch], list[ByteRange]]:
        """Say what is to be remembered of a start: touches, and the holdout if it tells something.

        Args:
            news: what was touched beyond what was read ahead.
            known: was in memory before.
        """
        held = [piece.range for piece in self.holdout]
        held = [r for r, is_known in zip(held, touching(held, known), strict=True) if not is_known]
        touched = [touch.range for touch in news]
        are_read = list(touching(held, touched))
        read = sum(are_read)
        asked = len(held)
        if self.is_cut_short:  # perhaps it had not come to what follows the last that it read
            asked = max(compress(range(1, asked + 1), are_read), default=asked)
        beyond_bytes = total_bytes(subtract(touched, held))
        hot_bytes = total_bytes(self.prefetched) * read / len(held) if held else 0.0
        doubts = self._doubts or read < MOSTLY * asked
        if held and doubts and hot_bytes + beyond_bytes >= IDLE_BYTES:
            return news, held
        rest = [t for t, is_held in zip(news, touching(touched, held), strict=True) if not is_held]
        return rest, []

    def summary(self, news: list[Touch]) -> str:
        """Say for people what was news."""
        what = "read beyond what was prefetched" if self.is_prefetched else "touched"
        said = f"{len(news)} ranges {what}"
        if self.holdout:
            pieces = (piece.range for piece in self.holdout)
            read = count_read(pieces, (touch.range for touch in news))
            said += f"; {read} of {len(self.holdout)} held-out pieces were read"
        return said
