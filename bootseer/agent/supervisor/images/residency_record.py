"""An image file recorded by watching its resident pages."""

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
from bootseer.image.hot.trace import COMPLETE, MISSED, PARTIAL, UNPACKED, Touch, usage_of
from bootseer.units import NS_PER_S

SETTLE_S = 2.0
"""Time to check some 100,000 pages, which takes 0.1 s if all are in memory."""


class WatchedImage(JobImage):
    """An image file whose pages are watched, from when the worker has opened it."""

    def __init__(self, found: ImageFound, pages: ResidentPages) -> None:
        """Start watching; takes over ``pages``.

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
        super().note_prefetch(begun)
        if self.holdout:
            self._judge = HoldoutJudge(self.holdout, self.prefetched)

    def sample(self) -> None:
        noted, now_ms = len(self._recorder.touches), self._now_ms()
        self._touched_bytes += self._recorder.sample(now_ms)
        if self._judge is not None:
            fresh = [touch.range for touch in self._recorder.touches[noted:]]
            # The tables are read first, and are not part of the hot set.
            self._judge.note(fresh, max(0, self.done_bytes - self._leading_bytes), now_ms)

    def is_worth(self) -> bool:
        """Return whether the prefetch still seems useful."""
        return self._judge is None or self._judge.is_worth(self._now_ms())

    def _now_ms(self) -> int:
        return (time.monotonic_ns() - self._began_ns) * 1000 // NS_PER_S

    def touched_bytes(self) -> int:
        """Return the bytes that have come into the page cache."""
        return self._touched_bytes

    async def close(self, deadline: float) -> Event:
        """End the recording; returns its event.

        The kernel's own read-ahead is excluded from the touches. If it cannot be separated in time,
        it is included, and the recorder is left to its thread.

        Args:
            deadline: for the separation, on trio's clock.

        Raises:
            Unavailable: the pages are no longer watched; earlier touches are kept.
        """
        if usage_of(COMPLETE, self._recorder.touches) == UNPACKED:
            # Of a start that reads all of it the kernel has read nothing in vain.
            self._recorder.close()
            return self._event(OK)
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
        return self._event(FALLBACK if scope.cancelled_caught else OK)

    def _event(self, status: str) -> Event:
        touched = self.touched()
        detail = self.summary(touched)
        if not self._recorder.found_cold:
            detail += "; part of the image was in memory before"
        if status == FALLBACK:
            detail += f"; the kernel's read-ahead was not separated within {SETTLE_S:g} s"
        return Event(
            "image.record",
            self._began_wall_ns,
            time.time_ns(),
            "agent",
            status,
            bytes=sum(t.stop - t.start for t in touched),
            detail=detail,
        )

    def touched(self) -> list[Touch]:
        """Return what the start touched beyond the prefetched ranges, in first-touch order."""
        return self.new_touches(self._recorder.touches)

    def recorded(self) -> RecordedImage:
        resident = [Touch(r.start, r.stop, 0) for r in self._recorder.resident_before]
        touches, holdout = self.to_record(self.touched(), self._recorder.resident_before)
        unaided = COMPLETE if self._recorder.found_cold else PARTIAL
        kind = MISSED if self.is_prefetched else unaided
        if not self.is_prefetched:
            # The start may also have read what was in the page cache before.
            touches = [*resident, *touches]
        return RecordedImage(self.path, self.digest, self.size_bytes, kind, touches, holdout)
