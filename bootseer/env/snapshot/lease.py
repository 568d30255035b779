"""The claim on a key: of all who miss a snapshot, one makes it.

env/claims/KEY/NNNN.json holds who has it and until when. It is created where none is, and then
kept up to date by who has it. One that has run out is followed by the next number; of several who
write that, one succeeds. Should two get it all the same, in a store that cannot tell, both capture
and the first to publish is believed: a claim saves work, and nothing depends on it.
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
from bootseer.store.api.base import Store, publish, read_all
from bootseer.units import NS_PER_S

VERSION = 1
LASTS_S = 60.0
"""Without being kept up; clocks of nodes may differ by less."""
_KEEP_S = 15.0
_LET_GO_S = 5.0
_FORMAT = "bootseer env claim"
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class KeyLease:
    """A claim as it is found.

    Attributes:
        number: of the claims on this key.
        who: has it, for people.
        token: that nobody else's claim has.
        until_ns: it runs out, nanoseconds since 1970.
    """

    number: int
    who: str
    token: str
    until_ns: int

    @property
    def is_live(self) -> bool:
        """Whether it holds."""
        return time.time_ns() < self.until_ns


async def read_claim(store: Store, key: str) -> KeyLease | None:
    """Return the latest claim on a key, None without one."""
    numbers = []
    for info in await store.list(f"env/claims/{key}"):
        number = info.name.rpartition("/")[2].removesuffix(".json")
        if number.isdecimal():
            numbers.append(int(number))
    if not numbers:
        return None
    name = _object(key, max(numbers))
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


async def try_claim(store: Store, key: str, who: str) -> KeyLease | None:
    """Claim a key; None if somebody else has it.

    Args:
        store: that is to have the snapshot.
        key: of it.
        who: claims it, for people.
    """
    before = await read_claim(store, key)
    if before is not None and before.is_live:
        return None
    number = before.number + 1 if before is not None else 1
    mine = KeyLease(number, who, secrets.token_hex(8), _until())
    try:
        await publish(store, _object(key, number), _encoded(mine), overwrite=False)
    except Conflict:
        return None
    return mine


@asynccontextmanager
async def kept(
    store: Store, key: str, claim: KeyLease, nursery: trio.Nursery
) -> AsyncIterator[None]:
    """Keep a claim up for the length of a block; then it is let go.

    Args:
        store, key, claim: what `try_claim` returned, and for what.
        nursery: for who keeps it up.
    """
    scope, ended = trio.CancelScope(), trio.Event()

    async def keep_up() -> None:
        try:
            with scope:
                while True:
                    await trio.sleep(_KEEP_S)
                    # Given up on its way, it could arrive after the claim was let go.
                    with trio.move_on_after(_LET_GO_S, shield=True), suppress(BootseerError):
                        await publish(store, _object(key, claim.number), _encoded(claim))
        finally:
            ended.set()

    nursery.start_soon(keep_up)
    try:
        yield
    finally:
        scope.cancel()
        with trio.move_on_after(_LET_GO_S, shield=True), suppress(BootseerError):
            await ended.wait()
            await store.delete(_object(key, claim.number))
            await store.delete(f"env/claims/{key}")


def _object(key: str, number: int) -> str:
    return f"env/claims/{key}/{number:04}.json"


def _until() -> int:
    return time.time_ns() + int(LASTS_S * NS_PER_S)


def _encoded(claim: KeyLease) -> bytes:
    document = {"who": claim.who, "token": claim.token, "until_ns": _until()}
    return json.dumps({"format": _FORMAT, "version": VERSION, **document}).encode() + b"\n"
