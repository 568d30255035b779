"""Serve a checkpoint tree on a mount that root has made."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import trio

from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.owners import OwnerNames
from bootseer.checkpoint.mount.publisher import LostFile
from bootseer.checkpoint.mount.view import CheckpointView, ViewOptions
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.checkpoint.read.recorder import ReadRecorder
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteContext, WriteOptions
from bootseer.fuse.mount import serve_fd
from bootseer.store.api.base import Store
from bootseer.units import MIB

_LAST_SHARE = 0.25
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """How a tree is read, written and shown."""

    fetch: FetchLimits = field(default_factory=FetchLimits)
    write: WriteOptions = field(default_factory=WriteOptions)
    view: ViewOptions = field(default_factory=ViewOptions)


@dataclass(slots=True)
class CheckpointService:
    """A mount that is being served, or was.

    Attributes:
        reads: what is read of it while a job starts.
        fetcher: what was fetched for readers.
        writes: what writers have written.
        lost: files that were written and are not in the store, as soon as that is certain; all of
            them when serving has ended.
        settle_s: how long the end may take, in seconds: most of it for files that were closed to
            be published, the rest for a last attempt at those that could not be.
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
    *,
    task_status: trio.TaskStatus[CheckpointService] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the tree of a store until it is unmounted or cancelled; see `fuse.mount.serve_fd`.

    Cancellation: files that their writers have closed are published first, as long as that takes
    no more than `CheckpointService.settle_s`; what is still being written is lost. After an unmount
    the kernel no longer tells who has closed what: cancel first.
    """
    keep_large_buffers()
    stop, ended = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, store, connection, owners, options, task_status, stop, ended)
        try:
            await ended.wait()
        finally:
            stop.set()


async def _serve(
    store: Store,
    connection: int,
    owners: OwnerNames,
    options: CheckpointOptions,
    task_status: trio.TaskStatus[CheckpointService],
    stop: trio.Event,
    ended: trio.Event,
) -> None:
    """Serve until it is unmounted or told to stop, whatever is cancelled around it."""
    tree = CheckpointTree(store)
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            fetcher = Fetcher(nursery, options.fetch)
            drafts = Drafts(tree, nursery, options.write)
            service = CheckpointService(ReadRecorder(store), fetcher, drafts.context)
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

            nursery.start_soon(until_stopped)
            with trio.CancelScope() as serving:
                await serve_fd(view, connection, task_status=_Telling(task_status, service))
            await view.publisher.end(service.settle_s * _LAST_SHARE / 2)
            nursery.cancel_scope.cancel()
    ended.set()


@dataclass(frozen=True, slots=True)
class _Telling:
    """The status of a task that others know by what they get when it has started."""

    status: trio.TaskStatus[CheckpointService]
    service: CheckpointService

    def started(self, value: None = None) -> None:
        """Hand it over."""
        self.status.started(self.service)


def keep_large_buffers() -> None:
    """Have freed memory used again for what is read next, instead of mapped anew each time.

    Every read of a store returns a new buffer of some megabytes, and to map and clear its pages
    costs as much as the read: 1 MiB reads of HDFS went from 511 to 1,458 MB/s.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_THRESHOLD, 64 * MIB)
    libc.mallopt(_M_TRIM_THRESHOLD, 256 * MIB)
