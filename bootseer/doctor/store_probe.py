"""Try a store out with a user's rights, in a process of its own.

A store that hangs is killed with the process, and root never reads a user's store with its own
rights.
"""

from __future__ import annotations

import os
import pwd
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import trio

from bootseer import config as settings
from bootseer.agent.node.privileges import drop_privileges
from bootseer.agent.node.spawn import leave
from bootseer.config import Config, User
from bootseer.env.snapshot.group_store import shared_urls
from bootseer.errors import BootseerError, ConfigError, Denied, NotFound
from bootseer.ipc.typed_json import Messages
from bootseer.store.api.base import Store, publish, read_all
from bootseer.store.from_settings import connect, connect_images, connect_shared
from bootseer.store.wrappers.backoff import Backoff
from bootseer.units import MIB, NS_PER_S

OWN, IMAGES, SHARED = "store.url", "image.store_url", "env.shared"
"""The settings that name stores."""

_ONCE = Backoff(attempts=1)
_SIZE_BYTES = MIB


class StoreProbe(NamedTuple):
    """What a store did.

    Attributes:
        url: of the store; "" if it could not be opened.
        problem: why it cannot be used; "" if it can.
        write_problem: why the user cannot write there; "" if the user can, or it was not tried.
        answer_s: seconds until it answered.
        write_bytes_per_s, read_bytes_per_s: rates of 1 MiB; 0 if not tried.
        skew_s: how far its clock is ahead of this machine's, at least; 0 if unknown.
        is_refused: the problem is one of rights or credentials.
    """

    url: str = ""
    problem: str = ""
    write_problem: str = ""
    answer_s: float = 0.0
    write_bytes_per_s: float = 0.0
    read_bytes_per_s: float = 0.0
    skew_s: float = 0.0
    is_refused: bool = False


PROBES: Messages[StoreProbe] = Messages("result of trying a store", {None: StoreProbe})


def main() -> None:
    """Try a store; arguments: settings file, setting, group, user or "", limit in seconds."""
    path, setting, group, user, limit_s = sys.argv[1:]
    try:
        entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
        if user:
            drop_privileges(entry.pw_name, entry.pw_uid, entry.pw_gid, keep_lock=False)
        owner = User(entry.pw_name, entry.pw_uid, entry.pw_dir)
        config = settings.load(path)
        found = trio.run(_probe, config, setting, group, owner, float(limit_s))
    except BootseerError as error:
        found = StoreProbe(problem=str(error))
    sys.stdout.buffer.write(PROBES.encode(found))
    leave(0)


async def _probe(
    config: Config, setting: str, group: str, user: User, limit_s: float
) -> StoreProbe:
    if setting == OWN:
        store = connect(config, user, backoff=_ONCE)
    elif setting == IMAGES:
        store = connect_images(config, user, backoff=_ONCE)
    else:
        store = connect_shared(shared_urls(config)[group], group, config, user)
    found = StoreProbe(store.url, f"{store.url} does not answer within {limit_s:g} s")
    with trio.move_on_after(limit_s):
        found = await _answer(store)
        # Root writes in no user's store: what it left there would not be the user's.
        if not found.problem and setting == OWN and user.uid:
            found = await _write(store, found)
    return found


async def _answer(store: Store) -> StoreProbe:
    began = time.monotonic()
    problem, is_refused = "", False
    try:
        await store.list()
    except NotFound:
        pass  # the first job makes it
    except BootseerError as error:
        problem, is_refused = str(error), isinstance(error, Denied | ConfigError)
    answer_s = time.monotonic() - began
    return StoreProbe(store.url, problem, answer_s=answer_s, is_refused=is_refused)


async def _write(store: Store, found: StoreProbe) -> StoreProbe:
    """Write a small object, read it and delete it; a folder that is not there is not made."""
    folder = Path(store.url.removeprefix("file://"))
    if store.url.startswith("file://") and not folder.exists():
        parent = next(path for path in folder.parents if path.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            return found
        return found._replace(write_problem=f"{folder} is not there, and {parent} is not writable")
    name = f"doctor-{secrets.token_hex(8)}"
    began, began_ns = time.monotonic(), time.time_ns()
    try:
        await publish(store, name, bytes(_SIZE_BYTES))
        written, written_ns = time.monotonic(), time.time_ns()
        try:
            made_ns = (await store.stat(name)).mtime_ns
            reading = time.monotonic()
            await read_all(store, name, _SIZE_BYTES)
            read_s = time.monotonic() - reading
        finally:
            with trio.move_on_after(1, shield=True), suppress(BootseerError):
                await store.delete(name)
    except BootseerError as error:
        return found._replace(write_problem=str(error))
    ahead_ns = max(0, made_ns - written_ns) or min(0, made_ns - began_ns)
    return found._replace(
        write_bytes_per_s=_SIZE_BYTES / max(written - began, 1e-6),
        read_bytes_per_s=_SIZE_BYTES / max(read_s, 1e-6),
        skew_s=ahead_ns / NS_PER_S,
    )
