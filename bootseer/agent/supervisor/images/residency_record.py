"""An image that the agent watches: its recorder, and how far its prefetch is."""

from __future__ import annotations

import time

import trio

from bootseer.agent.messages.worker import ImageFound, PrefetchBegun, RecordedImage
from bootseer.agent.supervisor.images.image_record import JobImage
from bootseer.core.event import FALLBACK, OK, Event
from bootseer.core.ranges import coalesce, total_bytes
from bootseer.errors import BootseerError
from bootseer.image.hot.holdout import HoldoutJudge
from bootseer.image.hot.recorder import ResidencyRecorder, ResidentPages
from bootseer.image.hot.trace import COMPLETE, MISSED, PARTIAL, Touch
from bootseer.units import NS_PER_S

SETTLE_S = 2.0
"""For looking at some 100,000 pages, a matter of 0.1 s while all of them are in memory."""


class WatchedImage(JobImage):
    """An image file whose pages are watched, from the worker's word that it is open."""

    def __init__(self, found: ImageFound, pages: ResidentPages) -> None:
        """Begin to watch; takes over ``pages``.

        Raises:
            Unavailable: the file cannot be watched.
        """
        self._recorder = ResidencyRecorder(pages, found.leading)
        self._leading_bytes = total_bytes(coalesce(found.leading))
        super().__init__(found.path, found.digest, self._recorder.size_bytes)
        self._began_ns = time.monotonic_ns()
        self._began_wall_ns = time.time_ns()
        self._touched_bytes = 0
        self._judge: HoldoutJudge | None = None

    def note_prefetch(self, begun: PrefetchBegun) -> None:
        """See `JobImage`."""
        super().note_prefetch(begun)
        if self.holdout:
            self._judge = HoldoutJudge(self.holdout, self.prefetched)

    def sample(self) -> None:
        """Take a sample."""
        noted, now_ms = len(self._recorder.touches), self._now_ms()
        self._touched_bytes += self._recorder.sample(now_ms)
        if self._judge is not None:
            fresh = [touch.range for touch in self._recorder.touches[noted:]]
            # The tables come first, and are not hot.
            self._judge.note(fresh, max(0, self.done_bytes - self._leading_bytes), now_ms)

    def is_worth(self) -> bool:
        """Whether it is worth while to read on ahead."""
        return self._judge is None or self._judge.is_worth(self._now_ms())

    def _now_ms(self) -> int:
        return (time.monotonic_ns() - self._began_ns) * 1000 // NS_PER_S

    def touched_bytes(self) -> int:
        """Say how much has come into the page cache."""
        return self._touched_bytes

    async def close(self, deadline: float) -> Event:
        """End the recording; returns the stage that it was.

        Kept is what was asked for beyond the prefetch, and not what the kernel read ahead of it.
        Should telling them apart not be done in time, both are kept, and the recorder is left to
        the thread that is in it.

        Args:
            deadline: for that, on trio's clock.

        Raises:
            Unavailable: nobody looks at its pages any more; what was touched is known all the same.
        """
        self._recorder.touches = self.touched()
        try:
            with trio.move_on_at(deadline) as scope:
                await trio.to_thread.run_sync(self._recorder.settle, abandon_on_cancel=True)
        except BootseerError:
            self._recorder.close()
            raise
        if scope.cancelled_caught:
            self._recorder.stop_settling()
        else:
            self._recorder.close()
        touched = self.touched()
        detail = self.summary(touched)
        if not self._recorder.found_cold:
            detail += "; part of the image was in memory before"
        if scope.cancelled_caught:
            detail += f"; the kernel's read-ahead was not separated within {SETTLE_S:g} s"
        return Event(
            "image.record",
            self._began_wall_ns,
            time.time_ns(),
            "agent",
            FALLBACK if scope.cancelled_caught else OK,
            bytes=sum(t.stop - t.start for t in touched),
            detail=detail,
        )

    def touched(self) -> list[Touch]:
        """Return what the start touched beyond what was read ahead, in first-touch order."""
        return self.new_touches(self._recorder.touches)

    def recorded(self) -> RecordedImage:
        """Describe it for the worker that publishes."""
        resident = [Touch(r.start, r.stop, 0) for r in self._recorder.resident_before]
        touches, holdout = self.judged(self.touched(), self._recorder.resident_before)
        unaided = COMPLETE if self._recorder.found_cold else PARTIAL
        kind = MISSED if self.is_prefetched else unaided
        if not self.is_prefetched:
            # What was in the page cache beforehand may have been read as well.
            touches = [*resident, *touches]
        return RecordedImage(self.path, self.digest, self.size_bytes, kind, touches, holdout)
