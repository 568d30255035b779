"""Events on the node: of this job, should its agent die, and of those that could not be published.

The latter wait for the user's next job there, in

CACHE_DIR/unpublished/UID/RUN-NODE-STARTED.json; all but CACHE_DIR is the service account's.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from bootseer.agent.node.broker_settings import UNPUBLISHED
from bootseer.errors import Corrupt
from bootseer.folder_ownership import check_alone
from bootseer.ipc.typed_json import read_object

MAX_FILES = 32
MAX_BYTES = 4 * 1024 * 1024
MAX_TAKEN_BYTES = 16 * 1024 * 1024
"""Of one job's epilog: they go to its worker in one message. What is left waits for the next."""


Waiting = tuple[Path, dict[str, Any]]
"""A run whose events wait: its file, and what is in it, which another version may have written."""


def append_event(path: str, line: str) -> None:
    """Add one encoded event to a job's log.

    The newline comes first: a line that a full disk has cut short spoils no other.

    Raises:
        OSError: the disk is full.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, b"\n" + line.encode())
    finally:
        os.close(descriptor)


def make_folder(cache_dir: str, uid: int) -> str:
    """Make the folder of what waits for a user, unless it is there; returns its path.

    Raises:
        OSError: the disk is full or read-only.
        Denied: the folder is not ours alone.
    """
    folder = Path(cache_dir, UNPUBLISHED, str(uid))
    folder.mkdir(mode=0o700, exist_ok=True)
    check_alone(str(folder.parent), str(folder), uid=os.geteuid())
    return str(folder)


def put(cache_dir: str, uid: int, run: dict[str, Any]) -> None:
    """Keep a run's events; beyond MAX_FILES the oldest give way.

    Raises:
        OSError: the disk is full or read-only; the events are lost then.
        Denied: the folder is not ours alone.
    """
    folder = Path(make_folder(cache_dir, uid))
    path = folder / f"{run['run']}-{run['node']}-{run['started_ns']}.json"
    partial = path.with_suffix(".new")
    try:
        partial.write_text(json.dumps(run))
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    for old in sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime_ns)[:-MAX_FILES]:
        old.unlink(missing_ok=True)


def read_waiting(cache_dir: str, uid: int) -> list[Waiting]:
    """Read what waits for a user; the caller deletes each file once it has arrived.

    Raises:
        Denied: the folder is not ours alone.
    """
    waiting: list[Waiting] = []
    folder = Path(cache_dir, UNPUBLISHED, str(uid))
    if not folder.exists():
        return waiting
    check_alone(str(folder.parent), str(folder), uid=os.geteuid())
    room = MAX_TAKEN_BYTES
    for path in sorted(folder.glob("*.json")):
        try:
            room -= path.stat().st_size
            if room < 0:
                break
            if path.stat().st_size <= MAX_BYTES:
                waiting.append((path, read_object(path.read_bytes(), path.name)))
        except OSError:
            continue  # another epilog was first, or it may be read another time
        except Corrupt:
            # A file of ours, cut short by a crash: there is nothing in it to save.
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return waiting
