"""How many requests are under way at once, by how long they take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Requests become more while their answers come quickly, and fewer when that takes long.

    On a full link more requests only wait for each other, so that nobody can tell who is slow, and
    the more do so, the more of them pass their deadlines and are sent once more.

    Attributes:
        requests: that may be under way at once.
        most: of them; there are at least 2, if `most` is not less.
        quick_s: an answer that takes less lets there be more, in seconds.
        late_s: one that takes longer lets there be fewer.
    """

    requests: int
    most: int
    quick_s: float
    late_s: float

    def note(self, took_s: float) -> None:
        """Note how long an answer took."""
        more = 1 if took_s < self.quick_s else -1 if took_s > self.late_s else 0
        self.requests = min(max(self.requests + more, 2), self.most)
