"""Have the client run its command, and capture what that changes in the targets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import trio

from bootseer.env.capture import capture
from bootseer.env.capture.capture import Baseline, CaptureResult
from bootseer.env.capture.lint import examine
from bootseer.env.capture.upload import Provenance, publish_snapshot
from bootseer.env.client.inputs.recorder import MOST
from bootseer.env.client.messages import CaptureDone, CommandEnded, RunCommand
from bootseer.env.server.connection import ServerConnection
from bootseer.env.server.progress import keep_client_waiting
from bootseer.env.server.run_request import RunRequest, check_lines
from bootseer.env.server.session_context import SessionContext
from bootseer.env.snapshot.manifest import Finding, Snapshot
from bootseer.errors import BootseerError, Corrupt, Unavailable
from bootseer.units import format_size

_NAME_CHARS = 250
"""Of a name that a command has read; longer ones are left out."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(eq=False)
class Capturer:
    """One command, and the capture of its result.

    Attributes:
        connection: connection to the client.
        context: the session's context.
        request: the client's request.
        nursery: for messages that keep the client waiting.
    """

    connection: ServerConnection
    context: SessionContext
    request: RunRequest
    nursery: trio.Nursery

    async def run(self, release_targets: Callable[[], None], *, replace: bool) -> None:
        """Have the command run, and store what it makes.

        Args:
            release_targets: called before the command begins.
            replace: replace what is stored under the key.

        Raises:
            Closed: the client has gone before the command had ended.
            BootseerError: the targets cannot be read; the command has not run yet.
        """
        with keep_client_waiting(self.connection, self.nursery):
            befores = await self._scan_before()
        release_targets()
        await self.connection.send(RunCommand(why="", key=self.request.key))
        ended = await self._wait_for_command()
        if ended.status:
            await self._report_failure(f"the command failed with {ended.status}")
            return
        began_ns = time.time_ns()
        with keep_client_waiting(self.connection, self.nursery), ExitStack() as opened:
            try:
                made = await self._scan_after(befores, opened)
            except OSError as error:
                await self._report_failure(f"a target cannot be read: {error}")
                return
            waits = self.request.message.waits
            if not waits:
                await self.connection.send(CaptureDone())
            try:
                snapshot = await self._publish(made, befores, ended, replace, began_ns)
            except BootseerError as error:
                done = CaptureDone(why=str(error))
            else:
                done = CaptureDone(
                    key=snapshot.key,
                    files=snapshot.files,
                    bytes=snapshot.content_bytes,
                    findings=len(snapshot.findings),
                )
            if waits:
                await self.connection.send(done)

    async def _wait_for_command(self) -> CommandEnded:
        """Wait until the command has ended.

        Raises:
            Closed: the client has gone.
            Corrupt: it says something else.
        """
        ended, fds = await self.connection.receive()
        for fd in fds:
            os.close(fd)
        if not isinstance(ended, CommandEnded):
            raise Corrupt("the client of `env run` does not say how its command ended")
        if ended.status > 255:
            raise Corrupt(f"{ended.status} is no exit status")
        check_lines("message 'ran': field 'variables'", ended.variables, MOST)
        check_lines("message 'ran': field 'files'", ended.files, MOST)
        return ended

    async def _scan_before(self) -> list[Baseline]:
        paths = [f"/proc/self/fd/{folder}" for folder in self.request.folders]
        try:
            return [
                await trio.to_thread.run_sync(capture.scan_before, path, abandon_on_cancel=True)
                for path in paths
            ]
        except OSError as error:
            raise Unavailable(f"a target cannot be read: {error}") from error

    async def _scan_after(self, befores: Sequence[Baseline], opened: ExitStack) -> CaptureResult:
        """Scan the targets, which the command may have replaced, and keep them open.

        Raises:
            OSError: one cannot be read.
        """
        paths = []
        for place in self.request.places:
            fd = os.open(place.name, _FOLDER, dir_fd=place.parent)
            opened.callback(os.close, fd)
            paths.append(f"/proc/self/fd/{fd}")
        scan = partial(capture.scan_after, paths, befores, os.geteuid())
        return await trio.to_thread.run_sync(scan, abandon_on_cancel=True)

    async def _publish(
        self,
        made: CaptureResult,
        befores: Sequence[Baseline],
        ended: CommandEnded,
        replace: bool,
        began_ns: int,
    ) -> Snapshot:
        """Store what the command has made.

        Raises:
            BootseerError: it is not stored; the stage reports that.
        """
        asked, context = self.request.message, self.context
        provenance = Provenance(
            parts=asked.key,
            targets=asked.targets,
            bases=tuple(before.base for before in befores),
            user=context.user,
            node=context.node,
            command_ms=ended.took_ms,
        )

        def read(path: bytes, most_bytes: int) -> bytes:
            return bytes(next(made.read(path), b""))[:most_bytes]

        async with context.stage("env.capture") as report:
            report.start_ns = began_ns
            find = partial(examine, made.tree, read, asked.targets, context.home, asked.environ)
            findings = await trio.to_thread.run_sync(find, abandon_on_cancel=True)
            snapshot = await publish_snapshot(
                self.context.store,
                made,
                provenance,
                [*_inputs_not_in_key(ended), *findings],
                context.scratch,
                replace=replace,
                mksquashfs=context.mksquashfs,
            )
            report.bytes = snapshot.content_bytes
            stored = format_size(snapshot.image_bytes)
            report.detail = f"{snapshot.files} files, {stored} stored"
            return snapshot

    async def _report_failure(self, why: str) -> None:
        async with self.context.stage("env.capture") as report:
            report.fall_back(why)
        await self.connection.send(CaptureDone(why=why))


def _inputs_not_in_key(ended: CommandEnded) -> Iterator[Finding]:
    """Yield findings about what a command has read and its key does not tell."""
    for names, kind, how in (
        (ended.variables, "variable not in the key", '--key-extra "${}"'),
        (ended.files, "file not in the key", "--key-file {}"),
    ):
        for name in names:
            if 0 < len(name) < _NAME_CHARS and name.isprintable():
                detail = (
                    "read by the command: the snapshot is stale if it changes; add "
                    f"{how.format(name)}"
                )
                yield Finding(kind, name, detail)
