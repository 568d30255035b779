"""The events of a job on this node, from the agent, workers, hooks and the job itself."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress

from bootseer.agent.supervisor import spool
from bootseer.core.event import FALLBACK, Event, from_json, one_line
from bootseer.errors import Corrupt, Unavailable
from bootseer.units import NS_PER_S, format_size

MAX_EVENTS = 5000
MAX_TOLD_BYTES = 1024 * 1024
"""Limit of the events sent by the job's own processes, which take up memory here and in /run."""
_LEAST_TOLD_BYTES = 300
"""Minimum charge per event, which leaves room in MAX_EVENTS for the agent's own."""
_WARMING = ("hotset.read", "checkpoint.prefetch")


_log = logging.getLogger("event")


class EventLog:
    """Events in memory, and in a file of the job's folder in case the agent dies."""

    def __init__(self, path: str) -> None:
        """Create an empty log.

        Args:
            path: path of the file.
        """
        self._path = path
        self._events: list[Event] = []
        self._told_bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def recover(self) -> None:
        """Load the events that a dead agent has left in the file."""
        with suppress(OSError), open(self._path, "rb") as file:
            for line in file:
                with suppress(ValueError, RecursionError, Corrupt):  # cut short by a full disk
                    self._events.append(from_json(json.loads(line), "events.jsonl"))

    def note(self, event: Event) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
            _log_event(event)
            with suppress(OSError):  # /run is full: it is in memory
                spool.append_event(self._path, json.dumps(event.document()))

    def note_from_job(self, event: Event) -> None:
        """Record an event sent by a process of the job.

        Raises:
            Unavailable: the job has reached its limit.
        """
        self._told_bytes += max(len(json.dumps(event.document())), _LEAST_TOLD_BYTES)
        if self._told_bytes > MAX_TOLD_BYTES:
            raise Unavailable("cannot record the event: this job has reached its limit of events")
        self.note(event)

    def fall_back(self, stage: str, detail: str) -> None:
        """Record that a stage failed, and why."""
        now = time.time_ns()
        self.note(Event(stage, now, now, "agent", FALLBACK, detail=one_line(detail)))

    def kind(self) -> str:
        """Return "warm" if something was prefetched, otherwise "cold"."""
        known = any(e.stage in _WARMING and e.bytes for e in self._events)
        return "warm" if known else "cold"

    def documents(self) -> list[dict[str, object]]:
        return [event.document() for event in self._events]


def _log_event(event: Event) -> None:
    level = logging.WARNING if event.status == FALLBACK else logging.INFO
    took_s = (event.end_ns - event.start_ns) / NS_PER_S
    size = f" {format_size(event.bytes)}" if event.bytes else ""
    _log.log(level, "%s %.3f s%s: %s", event.stage, took_s, size, event.detail)
