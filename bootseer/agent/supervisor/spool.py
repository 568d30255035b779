"""Event files on the node: this job's, in case its agent dies, and unpublished runs.

Unpublished runs wait for the user's next job on the node, in

CACHE_DIR/unpublished/UID/RUN-NODE-STARTED.json; all but CACHE_DIR is the service account's. Beside
them are the outages of the user's store, see `bootseer.store.outages`.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from bootseer.agent.node.broker_settings import UNPUBLISHED
from bootseer.errors import Corrupt
from bootseer.folder_ownership import check_alone
from bootseer.ipc.typed_json import read_object

MAX_FILES = 32
MAX_BYTES = 4 * 1024 * 1024
MAX_TAKEN_BYTES = 16 * 1024 * 1024
"""Limit of events published by one epilog, in one message. The rest waits for the next epilog."""


Waiting = tuple[Path, dict[str, object]]
"""A waiting run: its file and content, which another version may have written."""


def append_event(path: str, line: str) -> None:
    """Append one encoded event to a job's log.

    The newline comes first, so that a line cut short by a full disk damages no other.

    Raises:
        OSError: the disk is full.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, b"\n" + line.encode())
    finally:
        os.close(descriptor)


def folder_of(cache_dir: str, uid: int) -> str:
    """Return the path of the folder of a user's waiting runs."""
    return f"{cache_dir}/{UNPUBLISHED}/{uid}"


def make_folder(cache_dir: str, uid: int) -> str:
    """Create the folder of a user's waiting runs, unless it exists; returns its path.

    Raises:
        OSError: the disk is full or read-only.
        Denied: other users can change the folder.
    """
    folder = Path(folder_of(cache_dir, uid))
    folder.mkdir(mode=0o700, exist_ok=True)
    check_alone(str(folder.parent), str(folder), uid=os.geteuid())
    return str(folder)


def put(cache_dir: str, uid: int, run: dict[str, object]) -> None:
    """Store a run's events; beyond MAX_FILES the oldest are removed.

    Raises:
        OSError: the disk is full or read-only; the events are lost.
        Denied: other users can change the folder.
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
    """Read a user's waiting runs; the caller deletes each file once published.

    Raises:
        Denied: other users can change the folder.
    """
    waiting: list[Waiting] = []
    folder = Path(folder_of(cache_dir, uid))
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
            continue  # another epilog was first, or a later one can read it
        except Corrupt:
            # A file cut short by a crash: nothing in it can be saved.
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return waiting
