"""One `env run`, from the side that has the store: find the snapshot and restore it, or capture.

The side of the command is `bootseer.env.client.run`, and may be in a container. They talk over a
socket, a line of JSON each; the targets come as descriptors, which are as good in any mount
namespace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import trio

from bootseer.core.fields import Fields
from bootseer.env.admin.diff import numbered
from bootseer.env.admin.gc import collect
from bootseer.env.capture import capture
from bootseer.env.capture.capture import Baseline, CaptureResult
from bootseer.env.capture.lint import examine
from bootseer.env.capture.upload import Provenance, publish_snapshot
from bootseer.env.client import key as env_key
from bootseer.env.client.recorder import MOST
from bootseer.env.client.scan import TreeNode, scan_folder
from bootseer.env.server.connection import Connection
from bootseer.env.server.request import NAME, RunRequest, SessionContext, read_request
from bootseer.env.server.restorer import Restorer
from bootseer.env.snapshot import lease, repository
from bootseer.env.snapshot.group_store import find_snapshot
from bootseer.env.snapshot.lease import KeyLease
from bootseer.env.snapshot.manifest import Finding, Snapshot
from bootseer.errors import (
    BootseerError,
    Closed,
    Corrupt,
    NotFound,
    Unavailable,
    UnknownVersion,
)
from bootseer.store.api.base import Store
from bootseer.units import format_size

_POLL_S = 0.5
_WAIT_S = 15.0
"""The command's side gives up after six times as long without a word."""
_NAME_CHARS = 250
"""Of what a command has read; longer ones are left out."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


async def serve(connection: Connection, context: SessionContext) -> None:
    """Carry one `env run` through, until all is stored or its command's side has gone.

    What goes wrong is told, and the command runs as it would without.
    """
    async with trio.open_nursery() as nursery:  # for what keeps a claim up
        with suppress(Closed), ExitStack() as opened, ExitStack() as locks:
            try:
                message, fds = await connection.receive()
                if message.get("op") == "locks":
                    for fd in fds:
                        locks.callback(os.close, fd)
                    message, fds = await connection.receive()
                for fd in fds:
                    opened.callback(os.close, fd)
                request = read_request(message, fds)
                with _while_asked(connection, locks, nursery) as let_go:
                    await _Session(connection, context, request, nursery, let_go).run()
            except Closed:
                raise
            except BootseerError as error:
                await connection.send({"op": "run", "why": str(error)})


@contextmanager
def _while_asked(
    connection: Connection, locks: ExitStack, nursery: trio.Nursery
) -> Iterator[Callable[[], None]]:
    """Give the block up when the command's side goes, and keep its targets locked until then.

    Nobody else is to begin there before nothing is done there any more. That ends with the block,
    or when the function that this yields is called, for the command's side is going to go on.

    Raises:
        Closed: it has gone.
    """
    watching, working = trio.CancelScope(), trio.CancelScope()

    async def watch() -> None:
        with watching:
            await connection.gone()
            working.cancel()

    def let_go() -> None:
        watching.cancel()
        locks.close()

    nursery.start_soon(watch)
    try:
        with working:
            yield let_go
    finally:
        let_go()
    if working.cancelled_caught:
        nursery.cancel_scope.cancel()  # what is done beside may hang
        raise Closed("who asked for an environment has gone")


class _Session:
    def __init__(
        self,
        connection: Connection,
        context: SessionContext,
        request: RunRequest,
        nursery: trio.Nursery,
        let_go: Callable[[], None],
    ) -> None:
        self._let_go = let_go
        self._nursery = nursery
        self._connection = connection
        self._context = context
        self._request = request
        self._store = context.store
        self._stage = context.stage
        self._found_in = context.store

    async def run(self) -> None:
        self._nursery.start_soon(self._note_run)
        found, is_damaged = None, False
        try:
            found = await self._find()
            if found is not None and not self._request.refresh:
                await self._restore(found)
                return
        except UnknownVersion:
            raise  # who wrote that can use it
        except (Corrupt, NotFound):
            is_damaged = True  # told by the stage
        if not self._request.captures:
            raise Unavailable("what the command makes is not kept")
        before = found.capture if found is not None else ""
        with self._patience():
            held = await self._claim(before)
        if isinstance(held, Snapshot):
            await self._restore(held)
            return
        async with lease.kept(self._store, self._request.key, held, self._nursery):
            found = await self._captured(before)  # by who had the claim until now
            if found is None:
                await self._capture(replace=is_damaged or bool(before))
        if found is not None:
            await self._restore(found)
        else:
            await self._collect()

    async def _collect(self) -> None:
        """Make room in the store, now that there is more in it."""
        context = self._context
        with suppress(BootseerError):  # another time
            await collect(
                self._store, context.keep_days, context.quota_bytes, time.time_ns(), dry_run=False
            )

    async def _restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot; raises BootseerError if that cannot be."""
        store = self._found_in
        await Restorer(self._connection, self._context, self._request, store, snapshot).run(
            self._let_go
        )

    async def _note_run(self) -> None:
        with suppress(BootseerError):  # nothing depends on it
            await repository.note_run(self._store, self._request.targets, self._request.parts)

    # What there is.

    async def _find(self) -> Snapshot | None:
        """Find what is to be restored, or is there already.

        Raises:
            Corrupt: it is damaged.
            BootseerError: the store does not say.
        """
        request = self._request
        async with self._stage("env.find") as said:
            said.detail = f"key {request.key[:12]}: none yet"
            for parts in dict.fromkeys((request.parts, request.as_empty)):
                key = env_key.key_of(parts)
                try:
                    self._found_in, snapshot = await self._read(key)
                except NotFound:
                    continue
                if parts == request.parts or await self._is_there(snapshot):
                    said.bytes = snapshot.content_bytes
                    said.detail = f"key {key[:12]}"
                    return snapshot
        return None

    async def _read(self, key: str) -> tuple[Store, Snapshot]:
        """Read the manifest of a snapshot, and tell which store has it.

        Raises:
            NotFound: there is none.
            Corrupt: it is damaged.
        """
        store, snapshot = await find_snapshot([self._store, *self._context.shared], key)
        if snapshot.targets != self._request.targets:
            raise Corrupt(f"the snapshot {key[:12]} is of other targets")
        return store, snapshot

    async def _captured(self, before: str) -> Snapshot | None:
        """Return what has been captured since; None if that is nothing, or damaged."""
        with suppress(NotFound, Corrupt):
            self._found_in, snapshot = await self._read(self._request.key)
            if snapshot.capture != before:
                return snapshot
        return None

    async def _is_there(self, snapshot: Snapshot) -> bool:
        """Whether the targets hold a snapshot already, as far as can be seen without reading."""
        index = await repository.read_index(self._found_in, snapshot)

        def compare() -> bool:
            there: dict[bytes, TreeNode] = {}
            for number, folder in enumerate(self._request.folders):
                there |= numbered(number, scan_folder(f"/proc/self/fd/{folder}").tree)
            return _visible(there) == _visible({p: n for p, n in index.tree.items() if p})

        return await trio.to_thread.run_sync(compare, abandon_on_cancel=True)

    async def _claim(self, before: str) -> KeyLease | Snapshot:
        """Become the one who captures, or wait for what somebody else does.

        Args:
            before: the capture that is there and not good enough, "" for none.

        Raises:
            Unavailable: it takes too long.
            BootseerError: the store does not say.
        """
        key, who = self._request.key, f"{self._context.user} on {self._context.node}"
        async with self._stage("env.claim") as said:
            said.detail = f"key {key[:12]}: {who} captures"
            deadline = trio.current_time() + self._request.wait_s
            is_said = False
            while True:
                snapshot = await self._captured(before)
                if snapshot is not None:
                    said.detail = f"key {key[:12]}: {snapshot.node} has captured it"
                    return snapshot
                held = await lease.try_claim(self._store, key, who)
                if held is not None:
                    return held
                other = await lease.read_claim(self._store, key)
                name = other.who if other is not None else "somebody"
                if trio.current_time() > deadline:
                    raise Unavailable(
                        f"{name} has not captured it within {self._request.wait_s:g} s"
                    )
                if not is_said:
                    await self._say(f"waiting for {name}, where the same command is running")
                    is_said = True
                await trio.sleep(_POLL_S)

    # Capturing.

    async def _capture(self, replace: bool) -> None:
        """Let the command run, and store what it makes.

        Args:
            replace: what is stored is not good.

        Raises:
            Closed: the command's side has gone before the command had ended.
            BootseerError: the targets cannot be looked at; the command has not run yet.
        """
        request = self._request
        with self._patience():
            befores = await self._look_before()
        self._let_go()
        await self._connection.send({"op": "run", "why": "", "key": request.key})
        message, fds = await self._connection.receive()
        for fd in fds:
            os.close(fd)
        fields = Fields({"variables": [], "files": [], **message}, NAME)
        if fields.count("status", 255):
            await self._tell_nothing_kept(f"the command failed with {fields.count('status')}")
            return
        provenance = Provenance(
            parts=request.parts,
            targets=request.targets,
            bases=tuple(before.base for before in befores),
            user=self._context.user,
            node=self._context.node,
            command_ms=fields.count("took_ms"),
        )
        untold = list(_untold(fields))
        began = time.time_ns()
        with self._patience(), ExitStack() as opened:
            try:
                made = await self._look_after(befores, opened)
            except OSError as error:
                await self._tell_nothing_kept(f"a target cannot be looked at: {error}")
                return
            if not request.waits:
                await self._connection.send({"op": "seen"})
            try:
                answer = _described(await self._publish(made, provenance, untold, replace, began))
            except BootseerError as error:
                answer = {"op": "seen", "why": str(error)}
            if request.waits:
                await self._connection.send(answer)

    async def _look_before(self) -> list[Baseline]:
        request = self._request
        paths = [f"/proc/self/fd/{folder}" for folder in request.folders]
        try:
            return [
                await trio.to_thread.run_sync(capture.look_before, path, abandon_on_cancel=True)
                for path in paths
            ]
        except OSError as error:
            raise Unavailable(f"a target cannot be looked at: {error}") from error

    async def _look_after(self, befores: Sequence[Baseline], opened: ExitStack) -> CaptureResult:
        """Look at the targets, which the command may have made anew, and have them open.

        Raises:
            OSError: that cannot be done.
        """
        paths = []
        for place in self._request.places:
            fd = os.open(place.name, _FOLDER, dir_fd=place.parent)
            opened.callback(os.close, fd)
            paths.append(f"/proc/self/fd/{fd}")
        scan_folder = partial(capture.look_after, paths, befores, os.geteuid())
        return await trio.to_thread.run_sync(scan_folder, abandon_on_cancel=True)

    async def _publish(
        self,
        made: CaptureResult,
        provenance: Provenance,
        untold: Sequence[Finding],
        replace: bool,
        began_ns: int,
    ) -> Snapshot:
        """Store what the command has made; `untold` is what it read besides.

        Raises:
            BootseerError: it is not stored, and that has been told.
        """
        context = self._context
        async with self._stage("env.capture") as said:
            said.start_ns = began_ns

            def read(path: bytes, most_bytes: int) -> bytes:
                return bytes(next(made.read(path), b""))[:most_bytes]

            findings = await trio.to_thread.run_sync(
                partial(
                    examine,
                    made.tree,
                    read,
                    provenance.targets,
                    context.home,
                    self._request.environ,
                ),
                abandon_on_cancel=True,
            )
            snapshot = await publish_snapshot(
                *(self._store, made, provenance, [*untold, *findings], context.scratch),
                replace=replace,
                mksquashfs=context.mksquashfs,
            )
            said.bytes = snapshot.content_bytes
            stored_bytes = snapshot.image_bytes + snapshot.frames_bytes
            said.detail = f"{snapshot.files} files, {format_size(stored_bytes)} stored"
            return snapshot

    async def _tell_nothing_kept(self, why: str) -> None:
        async with self._stage("env.capture") as said:
            said.fall_back(why)
        await self._connection.send({"op": "seen", "why": why})

    async def _say(self, text: str) -> None:
        await self._connection.send({"op": "say", "text": text})

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Have the command's side wait for the length of a block, however long that takes."""
        scope = trio.CancelScope()

        async def ask() -> None:
            with scope, suppress(Closed):
                while True:
                    await trio.sleep(_WAIT_S)
                    await self._connection.send({"op": "wait"})

        self._nursery.start_soon(ask)
        try:
            yield
        finally:
            scope.cancel()


def _visible(tree: Mapping[bytes, TreeNode]) -> dict[bytes, TreeNode]:
    """Return what tells trees apart without reading; times of folders change with each look."""
    return {
        path: node._replace(
            uid=0,
            gid=0,
            digest=b"",
            xattrs=(),
            mode=node.mode & 0o1777,
            mtime_ns=0 if node.kind == "folder" else node.mtime_ns,
        )
        for path, node in tree.items()
    }


def _untold(fields: Fields) -> Iterator[Finding]:
    """Read what a command has read that its key does not tell."""
    for field, kind, how in (
        ("variables", "variable not in the key", '--key-extra "${}"'),
        ("files", "file not in the key", "--key-file {}"),
    ):
        for name in fields.texts(field, MOST):
            if 0 < len(name) < _NAME_CHARS and name.isprintable():
                detail = (
                    f"read by the command: if it changes, this is stale; add {how.format(name)}"
                )
                yield Finding(kind, name, detail)


def _described(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "op": "seen",
        "key": snapshot.key,
        "files": snapshot.files,
        "bytes": snapshot.content_bytes,
        "findings": len(snapshot.findings),
    }
