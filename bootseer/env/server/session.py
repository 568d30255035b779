"""One `env run` on the server's side: find the snapshot and restore it, or capture the result.

The client is `bootseer.env.client.run`, and may be in a container. Client and server talk over a
socket (`bootseer.env.client.messages`). The targets come as descriptors, which are as good in any
mount namespace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import trio

from bootseer.env.admin.gc import collect
from bootseer.env.client.messages import Locks, Notice, Request, RunCommand
from bootseer.env.server.capturer import Capturer
from bootseer.env.server.connection import ServerConnection
from bootseer.env.server.lookup import FoundSnapshot, SnapshotLookup
from bootseer.env.server.progress import keep_client_waiting
from bootseer.env.server.restorer import Restorer
from bootseer.env.server.run_request import RunRequest, read_request
from bootseer.env.server.session_context import SessionContext
from bootseer.env.snapshot import repository
from bootseer.errors import (
    BootseerError,
    Closed,
    Corrupt,
    NotFound,
    Unavailable,
    UnknownVersion,
)
from bootseer.store import key_lease
from bootseer.store.key_lease import KeyLease

_PAUSES_S = (0.25, 1.0)
"""First and longest pause between two looks at the lease of another node, if nodes are few."""


async def serve(connection: ServerConnection, context: SessionContext) -> None:
    """Carry one `env run` through, until all is stored or the client has gone.

    What goes wrong is reported to the client, and the command runs as it would without.
    """
    async with trio.open_nursery() as nursery:  # for what renews a lease
        with suppress(Closed), ExitStack() as opened, ExitStack() as locks:
            try:
                message, fds = await connection.receive()
                if isinstance(message, Locks):
                    for fd in fds:
                        locks.callback(os.close, fd)
                    message, fds = await connection.receive()
                for fd in fds:
                    opened.callback(os.close, fd)
                if not isinstance(message, Request):
                    raise Corrupt("the client of `env run` asks for nothing")
                request = read_request(message, fds)
                with _while_connected(connection, locks, nursery) as release_targets:
                    lookup = SnapshotLookup(context, request)
                    session = _Session(
                        connection, context, request, lookup, nursery, release_targets
                    )
                    await session.run()
            except Closed:
                raise
            except BootseerError as error:
                await connection.send(RunCommand(why=str(error)))


@contextmanager
def _while_connected(
    connection: ServerConnection, locks: ExitStack, nursery: trio.Nursery
) -> Iterator[Callable[[], None]]:
    """Cancel the block when the client goes, and keep its targets locked until the block ends.

    No other `env run` is to begin there before all work there has stopped. Both end with the
    block, or when the function that this yields is called: the client continues then.

    Raises:
        Closed: the client has gone.
    """
    watching, working = trio.CancelScope(), trio.CancelScope()

    async def watch() -> None:
        with watching:
            await connection.gone()
            working.cancel()

    def release_targets() -> None:
        watching.cancel()
        locks.close()

    nursery.start_soon(watch)
    try:
        with working:
            yield release_targets
    finally:
        release_targets()
    if working.cancelled_caught:
        nursery.cancel_scope.cancel()  # what runs beside may hang
        raise Closed("lost the connection to `env run`")


@dataclass(eq=False)
class _Session:
    connection: ServerConnection
    context: SessionContext
    request: RunRequest
    lookup: SnapshotLookup
    nursery: trio.Nursery
    release_targets: Callable[[], None]

    async def run(self) -> None:
        self.nursery.start_soon(self._note_run)
        found, is_damaged = None, False
        try:
            found = await self.lookup.find()
            if found is not None and not self.request.message.force:
                await self._restore(found)
                return
        except UnknownVersion:
            raise  # the version that has written it can use it
        except (Corrupt, NotFound):
            is_damaged = True  # the stage reports it
        if not self.request.message.captures:
            raise Unavailable("--no-capture is given")
        before = found.snapshot.capture if found is not None else ""
        with keep_client_waiting(self.connection, self.nursery):
            lease = await self._await_turn(before)
        if isinstance(lease, FoundSnapshot):
            await self._restore(lease)
            return
        folder = repository.lease_folder(self.request.key)
        async with key_lease.held(self.context.store, folder, lease, self.nursery):
            found = await self.lookup.find_newer(before)  # by the last holder of the lease
            if found is None:
                capturer = Capturer(self.connection, self.context, self.request, self.nursery)
                await capturer.run(self.release_targets, replace=is_damaged or bool(before))
        if found is not None:
            await self._restore(found)
        else:
            await self._collect_garbage()

    async def _restore(self, found: FoundSnapshot) -> None:
        """Restore a snapshot; raises BootseerError if that cannot be."""
        restorer = Restorer(self.connection, self.context, self.request, found)
        await restorer.run(self.release_targets)

    async def _note_run(self) -> None:
        asked = self.request.message
        with suppress(BootseerError):  # nothing depends on it
            await repository.note_run(self.context.store, asked.targets, asked.key)

    async def _collect_garbage(self) -> None:
        """Make room in the store, now that there is more in it."""
        context = self.context
        with suppress(BootseerError):  # another time
            await collect(
                self.context.store,
                context.keep_days,
                context.quota_bytes,
                time.time_ns(),
                dry_run=False,
            )

    async def _await_turn(self, before: str) -> KeyLease | FoundSnapshot:
        """Get the lease for the capture, or wait for the snapshot that another node captures.

        Args:
            before: the capture that is there and not good enough, "" for none.

        Raises:
            Unavailable: it takes too long.
            BootseerError: the store does not say.
        """
        key, owner = self.request.key, f"{self.context.user} on {self.context.node}"
        folder = repository.lease_folder(key)
        wait_s = self.request.message.wait_s
        async with self.context.stage("env.claim") as report:
            report.detail = f"key {key[:12]}: {owner} captures"
            deadline = trio.current_time() + wait_s
            pauses = key_lease.pauses(self.context.nodes, *_PAUSES_S)
            is_told = False
            while True:
                found = await self.lookup.find_newer(before)
                if found is not None:
                    report.detail = f"key {key[:12]}: {found.snapshot.node} has captured it"
                    return found
                lease = await key_lease.acquire(self.context.store, folder, owner)
                if lease is not None:
                    return lease
                other = await key_lease.read_lease(self.context.store, folder)
                name = other.holder if other is not None else "somebody"
                if trio.current_time() > deadline:
                    raise Unavailable(f"{name} has not captured it within {wait_s} s")
                if not is_told:
                    text = f"waiting for {name}, where the same command is running"
                    await self.connection.send(Notice(text))
                    is_told = True
                if other is None:  # it was given up a moment ago, or this node does not see it yet
                    await trio.sleep(pauses.pause_s(1))
                    continue
                with trio.move_on_at(deadline):
                    await key_lease.wait_for_end(self.context.store, folder, other, pauses)
