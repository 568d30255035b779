"""Logging of the agent and its workers: one line per event, with time and level.

Logs go to standard error. For the agent that is agent.log in the job's folder; a worker's output is
copied there, up to a limit.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
_TIME = "%Y-%m-%dT%H:%M:%S"
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _OneLine(logging.Formatter):
    """Escapes all but printable ASCII: messages may quote paths or a store's errors."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the library's name)
        return _escaped(super().formatMessage(record)).translate(_ESCAPES)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 (the same)
        return _escaped(super().formatException(ei))


def _escaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def set_up(*, is_debugging: bool) -> None:
    """Log to standard error from now on.

    Args:
        is_debugging: log messages between processes, too.
    """
    logging.raiseExceptions = False  # /run is full
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(_FORMAT, _TIME))
    level = logging.DEBUG if is_debugging else logging.INFO
    logging.basicConfig(level=level, handlers=[handler], force=True)
