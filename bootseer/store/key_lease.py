"""A lease in a store: of all nodes that lack something, one makes it.

FOLDER/NNNN.json names the holder and the time at which the lease ends. A node that finds none
creates it, and then renews it. After a lease that has run out, a node creates the next number; of
several nodes, one succeeds. In a store that cannot tell, two may hold it: then both do the work. A
lease saves work, and nothing else depends on it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from bootseer.core.fields import open_document
from bootseer.errors import BootseerError, Conflict, Corrupt, NotFound
from bootseer.store.api.base import ObjectInfo, Store, publish, read_all
from bootseer.store.wrappers.backoff import Backoff
from bootseer.units import NS_PER_S

VERSION = 1
LASTS_S = 60.0
"""Without being renewed; clocks of nodes may differ by less."""
_RENEW_S = 15.0
_RELEASE_S = 5.0
_NODES_PER_S = 1000
"""Nodes that may ask a store within the same second."""
_LONGEST_PAUSE_S = 30.0
"""Whatever the number of nodes."""
_FORMAT = "bootseer lease"
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class KeyLease:
    """A lease as it is stored.

    Attributes:
        number: its number among the leases in this folder.
        holder: its name, for the user.
        token: unique to this lease.
        until_ns: its end, nanoseconds since 1970.
    """

    number: int
    holder: str
    token: str
    until_ns: int

    @property
    def is_live(self) -> bool:
        return time.time_ns() < self.until_ns


async def read_lease(store: Store, folder: str) -> KeyLease | None:
    """Return the latest lease in a folder, None without one."""
    numbers = []
    for info in await store.list(folder):
        number = info.name.rpartition("/")[2].removesuffix(".json")
        if number.isdecimal():
            numbers.append(int(number))
    if not numbers:
        return None
    name = lease_object(folder, max(numbers))
    try:
        fields = open_document(await read_all(store, name, _MAX_BYTES), name, _FORMAT, VERSION)
        return KeyLease(
            max(numbers),
            fields.text("who", 300),
            fields.text("token", 64),
            fields.count("until_ns"),
        )
    except (NotFound, Corrupt):
        return KeyLease(max(numbers), "", "", 0)


async def acquire(store: Store, folder: str, holder: str) -> KeyLease | None:
    """Get the lease; None if another holds it.

    Args:
        store: where the lease is.
        folder: of this lease alone.
        holder: its name, for the user.
    """
    before = await read_lease(store, folder)
    if before is not None and before.is_live:
        return None
    number = before.number + 1 if before is not None else 1
    mine = KeyLease(number, holder, secrets.token_hex(8), _until())
    try:
        await publish(store, lease_object(folder, number), _encoded(mine), overwrite=False)
    except Conflict:
        return None
    return mine


@asynccontextmanager
async def held(
    store: Store, folder: str, lease: KeyLease, nursery: trio.Nursery
) -> AsyncIterator[None]:
    """Renew a lease for the length of a block; then it is given up.

    Args:
        store, folder, lease: result of `acquire`, and its arguments.
        nursery: for the task that renews it.
    """
    scope, ended = trio.CancelScope(), trio.Event()

    async def renew() -> None:
        try:
            with scope:
                while True:
                    await trio.sleep(_RENEW_S)
                    # After a cancellation it could arrive when the lease is given up already.
                    with trio.move_on_after(_RELEASE_S, shield=True), suppress(BootseerError):
                        await publish(store, lease_object(folder, lease.number), _encoded(lease))
        finally:
            ended.set()

    nursery.start_soon(renew)
    try:
        yield
    finally:
        scope.cancel()
        with trio.move_on_after(_RELEASE_S, shield=True), suppress(BootseerError):
            await ended.wait()
            await store.delete(lease_object(folder, lease.number))
            await store.delete(folder)


def pauses(nodes: int, first_s: float, longest_s: float) -> Backoff:
    """Return the pauses between polls: the more nodes wait, the longer.

    On 16,384 nodes, the first looks are spread over 8 s; after them each node asks every 22 s.

    Args:
        nodes: number of nodes that may be waiting.
        first_s, longest_s: first and longest pause of a few nodes.
    """
    first_s = max(first_s, nodes / _NODES_PER_S)
    longest_s = min(_LONGEST_PAUSE_S, max(longest_s, nodes / (_NODES_PER_S / 2)))
    return Backoff(first_s=min(first_s, longest_s), longest_s=longest_s)


async def wait_for_end(store: Store, folder: str, lease: KeyLease, pauses: Backoff) -> bool:
    """Wait for the end of another's lease; each poll is one stat.

    Returns:
        Whether it was given up; if not, its holder has stopped renewing it.

    Raises:
        BootseerError: the store does not answer.
    """
    name = lease_object(folder, lease.number)
    seen: ObjectInfo | None = None
    renewed, attempt = trio.current_time(), 0
    while True:
        attempt += 1
        await trio.sleep(pauses.pause_s(attempt))
        try:
            info = await store.stat(name)
        except NotFound:
            return True
        if seen is None or not info.is_version(seen):
            # By this node's clock: the clocks of store and nodes may differ.
            seen, renewed = info, trio.current_time()
        elif trio.current_time() - renewed > LASTS_S:
            return False


def lease_object(folder: str, number: int) -> str:
    """Return the name of a lease's object."""
    return f"{folder}/{number:04}.json"


def _until() -> int:
    return time.time_ns() + int(LASTS_S * NS_PER_S)


def _encoded(lease: KeyLease) -> bytes:
    document = {"who": lease.holder, "token": lease.token, "until_ns": _until()}
    return json.dumps({"format": _FORMAT, "version": VERSION, **document}).encode() + b"\n"
