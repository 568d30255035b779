"""The agent's side of environments: a worker for each `env run`, and what takes root's rights.

A mounted snapshot is served like an image, and recorded and read ahead as one. Over it lies a file
system that takes what is written, on the node's disk, and that is what is shown at its target: to
whoever asked, in the mount namespace that they are in, and to all tasks that start later, by the
plugin. Nobody's namespace but those of the job's own processes is touched, and so nothing is left
when they have ended.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

import trio

from bootseer.agent.messages.broker import (
    ClearOverlays,
    CreateOverlay,
    LocateProcess,
    Role,
    ShowOverlay,
)
from bootseer.agent.messages.worker import (
    MountSnapshot,
    ServeConnection,
    SnapshotMounted,
    StageEnded,
)
from bootseer.agent.supervisor.images.image_mounts import ServedImages
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import Worker, start
from bootseer.core.reference import ENVIRONMENT
from bootseer.env.snapshot.manifest import MAX_TARGETS
from bootseer.errors import BootseerError, Closed, ConfigError, Corrupt, NoSpace, Unavailable
from bootseer.ipc.channel import unexpected
from bootseer.ipc.descriptors import close_all

MAX_RUNS = 64
"""At once, for a job on a node."""
MAX_WORKERS = 16
"""Of those, at work: each has a process of the user's, whose memory is no job's. Others wait."""
_IMAGE_S = 10.0
_POLL_S = 0.05
_CLEAR_S = 1.0
"""For mounts to be taken away, at least."""


class _Asker(NamedTuple):
    """Who asks for an environment.

    Attributes:
        namespace: descriptor of the mount namespace that they are in; None if that is not the job's
            own.
        in_container: their paths mean nothing outside of it.
    """

    namespace: int | None
    in_container: bool


class EnvironmentOverlays:
    """What a job has of environments on this node."""

    def __init__(self, context: JobContext, served: ServedImages, image: Callable[[], str]) -> None:
        """Begin with none.

        Args:
            context: of the job.
            served: mounts snapshots, as it does images.
            image: tells the identity of the job's image, "" while it is not known.
        """
        self._folder = context.folder
        self._job = context.job
        self._config = context.config
        self._broker = context.broker
        self._events = context.events
        self._served = served
        self._image = image
        self._mounted: dict[tuple[int, bool], list[int]] = {}
        self._mounting = trio.Lock()
        self._workers = trio.CapacityLimiter(MAX_WORKERS)
        self._running: set[trio.CancelScope] = set()
        self._idle = trio.Event()
        self._idle.set()
        self._ending = False

    async def converse(self, connection: socket.socket, pid: int, nursery: trio.Nursery) -> None:
        """Have a worker carry one `env run` through; returns when it has ended.

        Args:
            connection: to who asks; closed by then.
            pid: process id of who asks.
            nursery: for what serves a mount, until the end of the job.

        Raises:
            Unavailable: there are too many.
        """
        if self._ending or len(self._running) >= MAX_RUNS:
            raise Unavailable("the job is ending, or has too many `bootseer env run` at once")
        with ExitStack() as opened, trio.CancelScope() as scope:
            opened.enter_context(connection)
            reply, fds = await self._broker.ask(LocateProcess(pid))
            opened.callback(close_all, fds)
            asker = _Asker(fds[0] if fds else None, bool(reply.value))
            self._running.add(scope)
            self._idle = trio.Event()
            try:
                async with self._workers:
                    await self._carry_out(connection, asker, nursery)
            finally:
                self._running.discard(scope)
                if not self._running:
                    self._idle.set()

    async def _carry_out(
        self, connection: socket.socket, asker: _Asker, nursery: trio.Nursery
    ) -> None:
        worker = await start(self._broker, Role.RUN_ENVIRONMENT)
        try:
            image = await self._known_image() if asker.in_container else ""
            await worker.send_task(self._job, self._config)
            await worker.channel.send(ServeConnection(image), [connection.fileno()])
            connection.close()
            await self._handle_messages(worker, asker, nursery)
        except Closed:
            pass  # it has ended
        finally:
            with trio.CancelScope(shield=True):
                await worker.end()

    async def name(self, key: str, targets: Sequence[str], nursery: trio.Nursery) -> None:
        """Mount a snapshot for all tasks that start from now on.

        Args:
            key: of it.
            targets: paths of its targets, which the plugin opens as the job's user.
            nursery: as for `converse`.

        Raises:
            BootseerError, OSError: it cannot be done.
        """
        mounts = await self._mount(key, False, len(targets), nursery)
        for mount, target in zip(mounts, targets, strict=True):
            self._folder.write_mounted(self._folder.shown(mount), "owned", target)

    async def _known_image(self) -> str:
        """Wait until the job's image is known, if it was given one.

        Raises:
            Unavailable: it does not become known.
        """
        with trio.move_on_after(_IMAGE_S):
            while self._job.image and not self._image():
                await trio.sleep(_POLL_S)
            return self._image()
        raise Unavailable(
            "the container image of the process has not been identified, so its key is unknown"
        )

    async def _handle_messages(self, worker: Worker, asker: _Asker, nursery: trio.Nursery) -> None:
        while True:
            message, folders = await worker.channel.receive()
            with ExitStack() as opened:
                opened.callback(close_all, folders)
                match message:
                    case StageEnded():
                        self._events.note(message.event)
                    case MountSnapshot():
                        why = await self._mount_for(asker, message, folders, nursery)
                        await worker.channel.send(SnapshotMounted(why))
                    case _:
                        raise unexpected(message)

    async def _mount_for(
        self, asker: _Asker, wanted: MountSnapshot, folders: list[int], nursery: trio.Nursery
    ) -> str:
        """Mount a snapshot and show it at folders; returns why it could not, "" if it has."""
        try:
            if len(folders) > MAX_TARGETS:
                raise Corrupt(f"an environment has at most {MAX_TARGETS} targets")
            mounts = await self._mount(wanted.key, wanted.read_only, len(folders), nursery)
            for mount, folder in zip(mounts, folders, strict=True):
                await self._show(mount, folder, asker)
        except (BootseerError, OSError) as error:
            return str(error)
        return ""

    async def _mount(
        self, key: str, read_only: bool, count: int, nursery: trio.Nursery
    ) -> list[int]:
        """Have a snapshot mounted where only root sees it, unless it is; numbers its targets.

        Raises:
            BootseerError: it cannot be done.
        """
        async with self._mounting:
            await self._served.serve(f"{ENVIRONMENT}{key}", nursery)
            tree = self._served.number(f"{ENVIRONMENT}{key}")
            mounts = self._mounted.get((tree, read_only))
            if mounts is None:
                if not read_only:
                    _check_room(self._config.node.cache_dir, self._config.cache.free_share)
                first = (await self._broker.do(CreateOverlay(tree, count, read_only))).value
                mounts = list(range(first, first + count))
                self._mounted[tree, read_only] = mounts
        if len(mounts) != count:
            raise Corrupt(f"the snapshot has {len(mounts)} targets, and not {count}")
        self._served.note_used(f"{ENVIRONMENT}{key}")
        return mounts

    async def _show(self, mount: int, folder: int, asker: _Asker) -> None:
        """Show a mount to who asks, and to tasks that start later.

        Raises:
            ConfigError: the target's path cannot be told.
            Unavailable, OSError: it cannot be done.
        """
        if asker.namespace is None:
            raise Unavailable("the requesting process is not in one of the job's mount namespaces")
        path = "" if asker.in_container else os.readlink(f"/proc/self/fd/{folder}")
        if "\n" in path:
            raise ConfigError("a target path with a newline is not supported")
        await self._broker.do(ShowOverlay(mount), [folder, asker.namespace])
        if path:
            self._folder.write_mounted(self._folder.shown(mount), "owned", path)

    async def end(self, timeout_s: float) -> None:
        """Let what is being stored arrive, for so many seconds; then take all mounts away."""
        self._ending = True
        deadline = trio.current_time() + timeout_s
        with trio.move_on_at(deadline):
            await self._idle.wait()
        if not self._idle.is_set():
            self._events.fall_back("env.capture", "the job ended before the environment was stored")
        for scope in self._running:
            scope.cancel()
        # What takes longer, the epilog does not wait for.
        until = max(deadline, trio.current_time() + _CLEAR_S)
        with suppress(BootseerError), trio.move_on_at(until):
            await self._broker.do(ClearOverlays())


def _check_room(folder: str, free_share: float) -> None:
    """Check that there is room for what a job may write over an environment.

    Args:
        folder: of the node's, on the file system that takes it.
        free_share: of that file system, to be left free.

    Raises:
        NoSpace: there is none.
    """
    space = os.statvfs(folder)
    if space.f_bavail < free_share * space.f_blocks:
        raise NoSpace(
            f"less than {free_share:.0%} of the node's {folder} is free: no space for files "
            "written over a mounted environment"
        )
