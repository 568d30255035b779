"""Serve a checkpoint tree on a mount that root has made."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.publisher import LostFile
from bootseer.checkpoint.mount.view import CheckpointView, ViewOptions
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.checkpoint.read.recorder import ReadRecorder
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteContext, WriteOptions
from bootseer.fuse.serve_view import CallWhenStarted, serve_fd
from bootseer.large_buffers import keep_large_buffers
from bootseer.peers.shared_files import SharedFiles
from bootseer.store.api.base import Store

_LAST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Options of reading, writing and showing a tree."""

    fetch: FetchLimits = field(default_factory=FetchLimits)
    write: WriteOptions = field(default_factory=WriteOptions)
    view: ViewOptions = field(default_factory=ViewOptions)


@dataclass(slots=True)
class CheckpointService:
    """A mount that is being served, or was.

    Attributes:
        reads: records what is read while a job starts.
        fetcher: has counters of what was fetched for readers.
        writes: has counters of what was written.
        lost: files that were written and are not in the store, each as soon as that is certain; all
            of them when serving has ended.
        settle_s: most seconds for the end: most of them to publish files that were closed, the rest
            for a last attempt at those that failed.
    """

    reads: ReadRecorder
    fetcher: Fetcher
    writes: WriteContext
    lost: list[LostFile] = field(default_factory=list)
    settle_s: float = 30.0


async def serve_checkpoint(
    store: Store,
    connection: int,
    owners: OwnerNames,
    options: CheckpointOptions,
    shared: SharedFiles | None = None,
    *,
    task_status: trio.TaskStatus[CheckpointService] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the tree of a store until it is unmounted or cancelled; see `fuse.serve_view.serve_fd`.

    Args:
        store: that has the tree.
        connection: of the mount.
        owners: of what is shown.
        options: see there.
        shared: files that other nodes of the job read, too.
        task_status: is told of the service once the mount is served.

    Cancellation: files that their writers have closed are published first, within
    `CheckpointService.settle_s`; files that are still being written are lost. Cancel before you
    unmount: afterwards the kernel no longer reports closes.
    """
    keep_large_buffers()
    stop, ended = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        tree = CheckpointTree(store, shared)
        nursery.start_soon(_serve, tree, connection, owners, options, task_status, stop, ended)
        try:
            await ended.wait()
        finally:
            stop.set()


async def _serve(
    tree: CheckpointTree,
    connection: int,
    owners: OwnerNames,
    options: CheckpointOptions,
    task_status: trio.TaskStatus[CheckpointService],
    stop: trio.Event,
    ended: trio.Event,
) -> None:
    """Serve until it is unmounted or `stop` is set, shielded from cancellation."""
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            fetcher = Fetcher(nursery, options.fetch)
            drafts = Drafts(tree, nursery, options.write)
            service = CheckpointService(ReadRecorder(tree.store), fetcher, drafts.context)
            view = CheckpointView(
                tree, fetcher, drafts, owners, options.view, service.reads, service.lost.append
            )

            async def until_stopped() -> None:
                await stop.wait()
                with trio.move_on_after(service.settle_s * (1 - _LAST_SHARE)):
                    await view.publisher.settled()
                serving.cancel()
                await trio.sleep(service.settle_s * _LAST_SHARE / 2)
                view.publisher.interrupt()

            def started() -> None:
                task_status.started(service)

            nursery.start_soon(until_stopped)
            with trio.CancelScope() as serving:
                await serve_fd(view, connection, task_status=CallWhenStarted(started))
            await view.publisher.end(service.settle_s * _LAST_SHARE / 2)
            nursery.cancel_scope.cancel()
    ended.set()
