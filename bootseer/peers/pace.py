"""How many pieces a node asks others for at once."""

from __future__ import annotations

from dataclasses import dataclass

_MOST = 16
_FEWEST = 2
_QUICK_S = 0.3
_LATE_S = 1.0


@dataclass(slots=True)
class Pace:
    """Requests become more while pieces are sent quickly, and fewer when that takes long.

    More would only wait for each other on links that are full, and nobody could tell who is slow.
    How long its sender waited for the store does not count: more requests hide that.

    Attributes:
        requests: that may be under way at once.
    """

    requests: int = 2 * _FEWEST

    def note(self, sent_s: float) -> None:
        """Note how long it took to send a whole piece."""
        more = 1 if sent_s < _QUICK_S else -1 if sent_s > _LATE_S else 0
        self.requests = min(max(self.requests + more, _FEWEST), _MOST)
