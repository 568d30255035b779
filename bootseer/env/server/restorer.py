"""Restore a snapshot for an `env run`: mounted or unpacked."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from bootseer.env.client.messages import Restored
from bootseer.env.restore.download import unpack
from bootseer.env.server.connection import ServerConnection
from bootseer.env.server.lookup import FoundSnapshot
from bootseer.env.server.progress import UnpackProgress
from bootseer.env.server.run_request import RunRequest
from bootseer.env.server.session_context import SessionContext
from bootseer.env.server.shared_folder import is_of_this_node
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.restore_stats import MOUNT, RestoreStats, choose
from bootseer.errors import Unavailable
from bootseer.parallel import background
from bootseer.units import format_size


@dataclass(eq=False)
class Restorer:
    """Restores one snapshot to the targets of a client.

    Attributes:
        connection: connection to the client.
        context: the session's context.
        request: the client's request.
        found: the snapshot to restore.
    """

    connection: ServerConnection
    context: SessionContext
    request: RunRequest
    found: FoundSnapshot

    async def run(self, release_targets: Callable[[], None]) -> None:
        """Restore the snapshot, and tell the client that the command need not run.

        Args:
            release_targets: called when it is restored, before the answer is sent.

        Raises:
            BootseerError: it cannot be restored.
        """
        began = trio.current_time()
        snapshot = self.found.snapshot
        how, stats = "there", None
        if snapshot.key == self.request.key:
            stats = await repository.read_stats(self.context.store)
            how, stats = await self._put(stats)
        release_targets()
        await self.connection.send(
            Restored(
                how=how,
                key=snapshot.key,
                files=snapshot.files,
                bytes=snapshot.content_bytes,
                captured_ns=snapshot.captured_ns,
                took_s=trio.current_time() - began,
            )
        )
        await repository.note_use(self.found.store, snapshot.key)
        if stats is not None:
            await repository.write_stats(self.context.store, stats)

    async def _put(self, stats: RestoreStats) -> tuple[str, RestoreStats]:
        """Mount or unpack the snapshot; returns which, and the restore times with this one.

        Raises:
            BootseerError: neither can be done.
        """
        began = trio.current_time()
        if await self._mount(stats):
            return "mounted", stats.with_mount(trio.current_time() - began)
        began = trio.current_time()
        await self._unpack()
        content_bytes, files = self.found.snapshot.content_bytes, self.found.snapshot.files
        return "unpacked", stats.with_unpack(content_bytes, files, trio.current_time() - began)

    async def _mount(self, stats: RestoreStats) -> bool:
        """Mount the snapshot, if that is possible, and faster or asked for; returns whether."""
        mounter, request, snapshot = self.context.mounter, self.request, self.found.snapshot
        if mounter is None or request.message.mode == "unpack":
            return False
        with suppress(Unavailable):  # the stage reports it
            async with self.context.stage("env.mount") as report:
                report.bytes = snapshot.content_bytes
                if why := self._why_not(stats):
                    report.detail = f"unpacked: {why}"
                    return False
                await mounter.mount(snapshot.key, request.folders, request.message.read_only)
                report.detail = ", ".join(request.message.targets)
                return True
        return False

    def _why_not(self, stats: RestoreStats) -> str:
        """Return why the snapshot is not to be mounted, "" if it is."""
        request, snapshot = self.request, self.found.snapshot
        if not snapshot.is_whole:
            return "its targets were not empty before the command ran"
        if request.message.stays:
            return "the client's working folder is a target, where it would not see a mount"
        if request.message.mode == "mount":
            return ""
        if self.context.nodes != 1 and not all(map(is_of_this_node, request.folders)):
            return "other nodes share the target's file system, and would not see a mount"
        if any(os.fstatvfs(folder).f_flag & os.ST_RDONLY for folder in request.folders):
            return ""  # as of most containers
        how, why = choose(stats, snapshot.content_bytes, snapshot.files)
        return "" if how == MOUNT else why

    async def _unpack(self) -> None:
        """Unpack the snapshot.

        Raises:
            Corrupt: it is damaged.
            BootseerError: it cannot be read or written.
        """
        snapshot = self.found.snapshot
        async with self.context.stage("env.unpack") as report:
            progress = UnpackProgress(snapshot.content_bytes)
            async with background() as nursery:
                nursery.start_soon(progress.send, self.connection)
                store = self.found.store
                parts = self.context.through_peers(store)
                places = self.request.places
                read_bytes = await unpack(store, snapshot, places, progress.count, parts)
            report.bytes = snapshot.content_bytes
            report.detail = f"{snapshot.files} files, {format_size(read_bytes)} read"
