"""An image of a job: its prefetched ranges, and what its start read beyond them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import compress

from bootseer.agent.messages.worker import PrefetchBegun, PrefetchProgress, RecordedImage
from bootseer.core.event import Event
from bootseer.core.ranges import ByteRange, subtract, total_bytes
from bootseer.image.hot.holdout import IDLE_BYTES, MOSTLY, HeldOutPiece, count_read, touching
from bootseer.image.hot.trace import Touch, touched_beyond


class JobImage(ABC):
    """One image of the job, from when it can be read to the end of the window.

    Attributes:
        path: path or URI, as the job names it.
        digest: identity, in the names of traces and hot sets.
        size_bytes: its length.
        prefetched: prefetched ranges.
        holdout: pieces of the hot set not prefetched, to test whether the start reads them.
        is_prefetched: whether any ranges are prefetched.
        done_bytes, want_bytes: bytes prefetched, and bytes planned.
        is_used: the job itself uses it, not only its plan.
        is_cut_short: the job has ended within the window, perhaps during its start.
    """

    def __init__(self, path: str, digest: str, size_bytes: int) -> None:
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

    @property
    def file(self) -> str:
        """Return the path at which tasks see it."""
        return self.path

    def note_prefetch(self, begun: PrefetchBegun) -> None:
        """Record the ranges being prefetched, which do not count as touched when they arrive."""
        self.holdout = begun.holdout
        self._doubts = begun.doubts
        self.prefetched = subtract(begun.ranges, (piece.range for piece in self.holdout))
        self.is_prefetched = True

    def note_progress(self, progress: PrefetchProgress) -> None:
        self.done_bytes, self.want_bytes = progress

    def sample(self) -> None:
        """Sample the image's resident pages, where reads are found by polling."""
        return

    def is_worth(self) -> bool:
        """Return whether the prefetch still seems useful."""
        return True

    @abstractmethod
    async def close(self, deadline: float) -> Event:
        """End the recording by a time on trio's clock; returns its event.

        Raises:
            BootseerError: the recording could not be completed.
        """

    @abstractmethod
    def recorded(self) -> RecordedImage:
        """Describe the recording for the worker `publish`."""

    @abstractmethod
    def touched_bytes(self) -> int:
        """Return the bytes known to have been read so far."""

    def status(self) -> dict[str, object]:
        """Describe the image for `bootseer status`."""
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
        """Return what was touched beyond the prefetched ranges, in first-touch order."""
        return touched_beyond(touches, self.prefetched)

    def to_record(
        self, new_touches: list[Touch], known: Iterable[ByteRange] = ()
    ) -> tuple[list[Touch], list[ByteRange]]:
        """Return what to record of a start: its touches, and the holdout if conclusive.

        Args:
            new_touches: touches beyond the prefetched ranges.
            known: ranges that were in memory before.
        """
        held = [piece.range for piece in self.holdout]
        held = [r for r, is_known in zip(held, touching(held, known), strict=True) if not is_known]
        touched = [touch.range for touch in new_touches]
        are_read = list(touching(held, touched))
        read = sum(are_read)
        asked = len(held)
        if self.is_cut_short:  # the start may not have reached what follows its last read
            asked = max(compress(range(1, asked + 1), are_read), default=asked)
        beyond_bytes = total_bytes(subtract(touched, held))
        hot_bytes = total_bytes(self.prefetched) * read / len(held) if held else 0.0
        doubts = self._doubts or read < MOSTLY * asked
        if held and doubts and hot_bytes + beyond_bytes >= IDLE_BYTES:
            return new_touches, held
        rest = [
            t
            for t, is_held in zip(new_touches, touching(touched, held), strict=True)
            if not is_held
        ]
        return rest, []

    def summary(self, new_touches: list[Touch]) -> str:
        """Describe new touches for people."""
        what = "read beyond what was prefetched" if self.is_prefetched else "touched"
        text = f"{len(new_touches)} ranges {what}"
        if self.holdout:
            pieces = (piece.range for piece in self.holdout)
            read = count_read(pieces, (touch.range for touch in new_touches))
            text += f"; {read} of {len(self.holdout)} held-out pieces were read"
        return text
