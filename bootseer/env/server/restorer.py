"""Restore a snapshot for an `env run`: mounted or unpacked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock

import trio

from bootseer.env.restore.download import unpack
from bootseer.env.server.connection import Connection
from bootseer.env.server.request import RunRequest, SessionContext
from bootseer.env.server.shared_folder import is_of_this_node
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.manifest import Snapshot
from bootseer.env.snapshot.restore_stats import MOUNT, RestoreStats, choose
from bootseer.errors import BootseerError, Closed, Unavailable
from bootseer.store.api.base import Store
from bootseer.units import format_size

_SAY_S = 0.5


class Restorer:
    """One snapshot on its way to its targets."""

    def __init__(
        self,
        connection: Connection,
        context: SessionContext,
        request: RunRequest,
        store: Store,
        snapshot: Snapshot,
    ) -> None:
        """Take what it is about.

        Args:
            connection: to the command's side.
            context: where this happens.
            request: what is asked for.
            store: that has the snapshot.
            snapshot: to restore.
        """
        self._connection = connection
        self._context = context
        self._request = request
        self._store = store
        self._snapshot = snapshot

    async def run(self, let_go: Callable[[], None]) -> None:
        """Restore it, and tell the command's side that there is no need to run.

        Args:
            let_go: called when it is restored, before that is told.

        Raises:
            BootseerError: it cannot be restored.
        """
        began = trio.current_time()
        snapshot = self._snapshot
        how, figures = "there", None
        if snapshot.key == self._request.key:
            figures = await repository.read_figures(self._context.store)
            how, figures = await self._put(figures)
        let_go()
        await self._connection.send(
            {
                "op": "restored",
                "how": how,
                "key": snapshot.key,
                "files": snapshot.files,
                "bytes": snapshot.content_bytes,
                "captured_ns": snapshot.captured_ns,
                "took_s": trio.current_time() - began,
            }
        )
        await repository.note_use(self._store, snapshot.key)
        if figures is not None:
            await repository.write_figures(self._context.store, figures)

    async def _put(self, figures: RestoreStats) -> tuple[str, RestoreStats]:
        """Mount or unpack it; returns which, and what is known of how long they take now.

        Raises:
            BootseerError: neither can be done.
        """
        began = trio.current_time()
        if await self._mount(figures):
            return "mounted", figures.with_mount(trio.current_time() - began)
        began = trio.current_time()
        await self._unpack()
        content_bytes, files = self._snapshot.content_bytes, self._snapshot.files
        return "unpacked", figures.with_unpack(content_bytes, files, trio.current_time() - began)

    async def _mount(self, figures: RestoreStats) -> bool:
        """Mount it, if that can be and is sooner, or asked for."""
        hands, request, snapshot = self._context.hands, self._request, self._snapshot
        if hands is None or request.mode == "unpack":
            return False
        with suppress(Unavailable):  # told by the stage
            async with self._context.stage("env.mount") as said:
                said.bytes = snapshot.content_bytes
                if why := self._why_not(figures):
                    said.detail = f"unpacked: {why}"
                    return False
                await hands.mount(snapshot.key, request.folders, request.read_only)
                said.detail = ", ".join(request.targets)
                return True
        return False

    def _why_not(self, figures: RestoreStats) -> str:
        """Say why it is not to be mounted, "" if it is."""
        request, snapshot = self._request, self._snapshot
        if not snapshot.is_whole:
            return "its targets held something before"
        if request.stays:
            return "it is asked for from within a target, where a mount would not be seen"
        if request.mode == "mount":
            return ""
        if self._context.nodes != 1 and not all(map(is_of_this_node, request.folders)):
            return "other nodes see the same target, and would not see what is mounted there"
        how, why = choose(figures, snapshot.content_bytes, snapshot.files)
        return "" if how == MOUNT else why

    async def _unpack(self) -> None:
        """Unpack it.

        Raises:
            Corrupt: it is damaged.
            BootseerError: the store does not give it, or it cannot be written.
        """
        snapshot = self._snapshot
        async with self._context.stage("env.unpack") as said:
            progress = _Progress(snapshot.content_bytes)
            read_bytes = 0
            errors: list[BootseerError] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(progress.tell, self._connection)
                try:
                    read_bytes = await unpack(
                        self._store, snapshot, self._request.places, progress.count
                    )
                except BootseerError as error:
                    errors.append(error)
                nursery.cancel_scope.cancel()
            if errors:
                raise errors[0]
            said.bytes = snapshot.content_bytes
            said.detail = f"{snapshot.files} files, {format_size(read_bytes)} read"


class _Progress:
    """How far something is, told by threads and sent to who waits."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = Lock()

    def count(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes

    async def tell(self, connection: Connection) -> None:
        """Send it, until cancelled, or for as long as somebody is there."""
        with suppress(Closed):
            while True:
                await trio.sleep(_SAY_S)
                done, total = self._done_bytes, self._total_bytes
                await connection.send({"op": "progress", "done_bytes": done, "total_bytes": total})
