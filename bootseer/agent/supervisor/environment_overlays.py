"""The supervisor's side of environments: mounts, and a worker for each `env run`.

A mounted snapshot is served, recorded and prefetched like an image. An overlay on the node's disk
takes changes, and is shown at the target: in the mount namespace of the requesting process, and, by
the plugin, in those of all tasks that start later. Only mount namespaces of the job's processes are
changed, so nothing is left when they have ended.
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
"""Concurrent `env run` of a job on a node."""
MAX_WORKERS = 16
"""Of those, the number that run; others wait. Their processes' memory is charged to no job."""
_IMAGE_S = 10.0
_POLL_S = 0.05
_CLEAR_S = 1.0
"""Minimum time for unmounting."""


class _Requester(NamedTuple):
    """The process that requests an environment.

    Attributes:
        namespace: descriptor of its mount namespace; None if that is not the job's own.
        in_container: its paths have no meaning outside its container.
    """

    namespace: int | None
    in_container: bool


class EnvironmentOverlays:
    """The environments of a job on this node."""

    def __init__(self, context: JobContext, served: ServedImages, image: Callable[[], str]) -> None:
        """Create an object without environments.

        Args:
            context: of the job.
            served: mounts images and snapshots.
            image: returns the identity of the job's image, "" while unknown.
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
        """Run a worker for one `env run` until it has ended.

        Args:
            connection: to the requesting process; closed at the end.
            pid: id of the requesting process.
            nursery: for the tasks of mounts, which last until the end of the job.

        Raises:
            Unavailable: too many requests are in progress.
        """
        if self._ending or len(self._running) >= MAX_RUNS:
            raise Unavailable("the job is ending, or has too many `bootseer env run` at once")
        with ExitStack() as opened, trio.CancelScope() as scope:
            opened.enter_context(connection)
            reply, fds = await self._broker.ask(LocateProcess(pid))
            opened.callback(close_all, fds)
            requester = _Requester(fds[0] if fds else None, bool(reply.value))
            self._running.add(scope)
            self._idle = trio.Event()
            try:
                async with self._workers:
                    await self._carry_out(connection, requester, nursery)
            finally:
                self._running.discard(scope)
                if not self._running:
                    self._idle.set()

    async def _carry_out(
        self, connection: socket.socket, requester: _Requester, nursery: trio.Nursery
    ) -> None:
        worker = await start(self._broker, Role.RUN_ENVIRONMENT)
        try:
            image = await self._known_image() if requester.in_container else ""
            await worker.send_task(self._job, self._config)
            await worker.channel.send(ServeConnection(image), [connection.fileno()])
            connection.close()
            await self._handle_messages(worker, requester, nursery)
        except Closed:
            pass  # it has ended
        finally:
            with trio.CancelScope(shield=True):
                await worker.end()

    async def name(self, key: str, targets: Sequence[str], nursery: trio.Nursery) -> None:
        """Mount a snapshot for all tasks that start later.

        Args:
            key: key of the snapshot.
            targets: paths of its targets, which the plugin opens as the job's user.
            nursery: as for `converse`.

        Raises:
            BootseerError, OSError: the snapshot cannot be mounted.
        """
        mounts = await self._mount(key, False, len(targets), nursery, is_later=False)
        for mount, target in zip(mounts, targets, strict=True):
            self._folder.write_mounted(self._folder.shown(mount), "owned", target)

    async def _known_image(self) -> str:
        """Wait for the identity of the job's image; returns "" without an image.

        Raises:
            Unavailable: the image was not identified in time.
        """
        with trio.move_on_after(_IMAGE_S):
            while self._job.image and not self._image():
                await trio.sleep(_POLL_S)
            return self._image()
        raise Unavailable(
            "the container image of the process has not been identified, so its key is unknown"
        )

    async def _handle_messages(
        self, worker: Worker, requester: _Requester, nursery: trio.Nursery
    ) -> None:
        while True:
            message, folders = await worker.channel.receive()
            with ExitStack() as opened:
                opened.callback(close_all, folders)
                match message:
                    case StageEnded():
                        self._events.note(message.event)
                    case MountSnapshot():
                        why = await self._mount_for(requester, message, folders, nursery)
                        await worker.channel.send(SnapshotMounted(why))
                    case _:
                        raise unexpected(message)

    async def _mount_for(
        self,
        requester: _Requester,
        wanted: MountSnapshot,
        folders: list[int],
        nursery: trio.Nursery,
    ) -> str:
        """Mount a snapshot and show it at folders; returns the error, "" for success."""
        try:
            if len(folders) > MAX_TARGETS:
                raise Corrupt(f"an environment has at most {MAX_TARGETS} targets")
            mounts = await self._mount(wanted.key, wanted.read_only, len(folders), nursery)
            for mount, folder in zip(mounts, folders, strict=True):
                await self._show(mount, folder, requester)
        except (BootseerError, OSError) as error:
            return str(error)
        return ""

    async def _mount(
        self,
        key: str,
        read_only: bool,
        count: int,
        nursery: trio.Nursery,
        *,
        is_later: bool = True,
    ) -> list[int]:
        """Mount a snapshot where only root sees it, unless mounted; returns its targets' numbers.

        Raises:
            BootseerError: the snapshot cannot be mounted.
        """
        async with self._mounting:
            await self._served.serve(f"{ENVIRONMENT}{key}", nursery, is_later=is_later)
            tree = self._served.number(f"{ENVIRONMENT}{key}")
            mounts = self._mounted.get((tree, read_only))
            if mounts is None:
                if not read_only:
                    _check_room(self._config.node.cache_dir, self._config.cache.free_share)
                first = (await self._broker.do(CreateOverlay(tree, count, read_only))).value
                mounts = list(range(first, first + count))
                self._mounted[tree, read_only] = mounts
        if len(mounts) != count:
            raise Corrupt(f"the snapshot has {len(mounts)} targets, not {count}")
        self._served.note_used(f"{ENVIRONMENT}{key}")
        return mounts

    async def _show(self, mount: int, folder: int, requester: _Requester) -> None:
        """Show a mount to the requesting process, and to tasks that start later.

        Raises:
            ConfigError: the target's path contains a newline.
            Unavailable, OSError: the mount cannot be shown.
        """
        if requester.namespace is None:
            raise Unavailable("the requesting process is not in one of the job's mount namespaces")
        path = "" if requester.in_container else os.readlink(f"/proc/self/fd/{folder}")
        if "\n" in path:
            raise ConfigError("a target path with a newline is not supported")
        await self._broker.do(ShowOverlay(mount), [folder, requester.namespace])
        if path:
            self._folder.write_mounted(self._folder.shown(mount), "owned", path)

    async def end(self, timeout_s: float) -> None:
        """Wait up to so many seconds for captures to be stored; then unmount everything."""
        self._ending = True
        deadline = trio.current_time() + timeout_s
        with trio.move_on_at(deadline):
            await self._idle.wait()
        if not self._idle.is_set():
            self._events.fall_back("env.capture", "the job ended before the environment was stored")
        for scope in self._running:
            scope.cancel()
        # The epilog does not wait longer.
        until = max(deadline, trio.current_time() + _CLEAR_S)
        with suppress(BootseerError), trio.move_on_at(until):
            await self._broker.do(ClearOverlays())


def _check_room(folder: str, free_share: float) -> None:
    """Check that the node has space for files written over an environment.

    Args:
        folder: a folder on the file system that takes those files.
        free_share: share of that file system to be left free.

    Raises:
        NoSpace: there is too little.
    """
    space = os.statvfs(folder)
    if space.f_bavail < free_share * space.f_blocks:
        raise NoSpace(
            f"less than {free_share:.0%} of the node's {folder} is free: no space for files "
            "written over a mounted environment"
        )
