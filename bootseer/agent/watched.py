"""An image that the agent watches: its recorder, and how far its prefetch is."""

from __future__ import annotations

import os
import time
from typing import Any

import trio

from bootseer.core.event import FALLBACK, OK, Event
from bootseer.core.fields import Fields
from bootseer.core.ranges import ByteRange, subtract
from bootseer.core.trace import COMPLETE, MISSED, PARTIAL, Touch
from bootseer.image.record import Recorder
from bootseer.units import NS_PER_S

SETTLE_S = 2.0
"""For looking at some 100,000 pages, a matter of 0.1 s while all of them are in memory."""
MAX_RANGES = 300_000


class WatchedImage:
    """One image of the job, from the worker's word that it is open to the end of the window."""

    def __init__(self, message: dict[str, Any], fd: int) -> None:
        """Begin to watch; takes over ``fd``.

        Raises:
            Corrupt: the worker's message is not acceptable.
            Unavailable: the descriptor cannot be watched.
        """
        try:
            fields = Fields(message, "message from the worker")
            self.path = fields.text("path")
            self.digest = fields.text("digest", 200)
            leading = fields.ranges("leading", MAX_RANGES)
        except BaseException:
            os.close(fd)
            raise
        self._recorder = Recorder(fd, leading)
        self._began_ns = time.monotonic_ns()
        self._began_wall_ns = time.time_ns()
        self.prefetched: list[ByteRange] = []
        self.is_prefetched = False
        self.done_bytes = 0
        self.want_bytes = 0
        self._touched_bytes = 0

    def note_prefetch(self, message: dict[str, Any]) -> None:
        """Remember which ranges the worker reads ahead: they are no news when they arrive."""
        self.prefetched = Fields(message, "message from the worker").ranges("ranges", MAX_RANGES)
        self.is_prefetched = True

    def note_progress(self, message: dict[str, Any]) -> None:
        """Remember how far the prefetch is."""
        fields = Fields(message, "message from the worker")
        self.done_bytes = fields.count("done_bytes")
        self.want_bytes = fields.count("want_bytes")

    def sample(self) -> int:
        """Take a sample; returns the bytes that are new in the page cache."""
        now_ms = (time.monotonic_ns() - self._began_ns) * 1000 // NS_PER_S
        fresh_bytes = self._recorder.sample(now_ms)
        self._touched_bytes += fresh_bytes
        return fresh_bytes

    async def close(self, deadline: float) -> Event:
        """End the recording; returns the stage that it was.

        Kept is what was asked for beyond the prefetch, and not what the kernel read ahead of it.
        Should telling them apart not be done in time, both are kept, and the recorder is left to
        the thread that is in it.

        Args:
            deadline: for that, on trio's clock.
        """
        self._recorder.touches = self.touched()
        with trio.move_on_at(deadline) as scope:
            await trio.to_thread.run_sync(self._recorder.settle, abandon_on_cancel=True)
        if scope.cancelled_caught:
            self._recorder.stop_settling()
        else:
            self._recorder.close()
        touched = self.touched()
        what = "read beyond what was prefetched" if self.is_prefetched else "touched"
        detail = f"{len(touched)} ranges {what}"
        if not self._recorder.found_cold:
            detail += "; part of the image was in memory before"
        if scope.cancelled_caught:
            detail += f"; telling read-ahead apart was not done within {SETTLE_S:g} s"
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
        touches = self._recorder.touches
        news: list[Touch] = []
        index = 0
        # One pass, for there may be 100,000 of both: what is left keeps the order of the touches.
        for start, stop in subtract((ByteRange(t.start, t.stop) for t in touches), self.prefetched):
            while not touches[index].start <= start < touches[index].stop:
                index += 1
            news.append(Touch(start, stop, touches[index].first_ms))
        return news

    def status(self) -> dict[str, Any]:
        """Describe it for `bootseer status`."""
        return {
            "path": self.path,
            "digest": self.digest,
            "size_bytes": self._recorder.size_bytes,
            "prefetched": self.is_prefetched,
            "done_bytes": self.done_bytes,
            "want_bytes": self.want_bytes,
            "touched_bytes": self._touched_bytes,
        }

    def recorded(self) -> dict[str, Any]:
        """Describe it for the worker that publishes."""
        resident = [Touch(r.start, r.stop, 0) for r in self._recorder.resident_before]
        touches = self.touched()
        unaided = COMPLETE if self._recorder.found_cold else PARTIAL
        kind = MISSED if self.is_prefetched else unaided
        return {
            "path": self.path,
            "digest": self.digest,
            "size_bytes": self._recorder.size_bytes,
            "kind": kind,
            # What was in the page cache beforehand may have been read as well.
            "touches": touches if self.is_prefetched else [*resident, *touches],
        }
