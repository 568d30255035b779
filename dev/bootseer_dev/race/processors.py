"""How busy this machine's processors are, which all nodes of the race share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

_QUIET_SHARE = 0.15
"""Of the processors: the daemons of the cluster need less."""
_WITHIN_S = 60.0


class Ticks(NamedTuple):
    """Clock ticks of all processors since the machine started: busy ones, and all."""

    busy: int
    all: int

    @classmethod
    def now(cls) -> Ticks:
        """Return how many there have been so far."""
        return cls.parse(Path("/proc/stat").read_text())

    @classmethod
    def parse(cls, text: str) -> Ticks:
        """Return the ticks that /proc/stat tells of."""
        user, nice, system, idle, waiting, *others = map(int, text.splitlines()[0].split()[1:9])
        busy = user + nice + system + sum(others)
        return cls(busy, busy + idle + waiting)

    def share_since(self) -> float:
        """Return the share of the processors' time since then that was used."""
        now = self.now()
        return (now.busy - self.busy) / max(1, now.all - self.all)


def wait_for_quiet() -> float:
    """Wait at most a minute for the end of what else the machine does.

    Returns:
        0, or the share of the processors that is still used then.
    """
    deadline = time.monotonic() + _WITHIN_S
    while True:
        before = Ticks.now()
        time.sleep(1)
        share = before.share_since()
        if share < _QUIET_SHARE:
            return 0
        if time.monotonic() > deadline:
            return share
