"""Serve a view on a mount, until it is unmounted or the process is stopped.

`serve` mounts and serves in one process. With two, root calls `bootseer.fuse.root_mounts.attach`,
and a process of the user's calls `serve_fd`.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyfuse3
import trio

from bootseer.cache.cached_blocks import CachedBlocks
from bootseer.errors import Unavailable
from bootseer.fuse.fastpath import FastPath, ReadRequest
from bootseer.fuse.kernel import KernelLink
from bootseer.fuse.operations import ViewOperations
from bootseer.fuse.root_mounts import MountOptions, attach, detach, set_read_ahead
from bootseer.fuse.view import JoinableView, JoinedAnswer, View, WritableView
from bootseer.fuse.writable import WritableOperations

# Limit of concurrent requests: each of the user's threads may wait in close(2) or open(2), which
# may need answers to other requests. A task lives only as long as its request.
_MAX_TASKS = 4096
_UNSTICK_S = 0.5
# Time for notifications in progress at the end of the mount, see `KernelLink.close`.
_DRAIN_S = 5


async def serve_fd(
    view: View,
    connection: int,
    blocks: CachedBlocks | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a view on the descriptor that `attach` returned, until it is unmounted from outside.

    Needs no rights, but the process's main thread. Reports started when the mount is usable.
    pyfuse3 keeps its state in globals, so a process serves one mount. Nothing in that process may
    access the mount's files, not even by stat: it would deadlock.

    Args:
        view: what to show.
        connection: the descriptor; closed at the end.
        blocks: cached blocks of the view's single file; reads of them bypass the view.
        task_status: notified of the start.

    Raises:
        Unavailable: libfuse refused the descriptor, or the mount was detached before serving.

    Cancellation: waits at most 5 s for the view's notifications, then ends. Requests in progress
    and open files give errors. The mount stays, and gives errors, until it is detached.
    """
    spoke = trio.Event()
    operations: ViewOperations
    if isinstance(view, WritableView):
        operations = WritableOperations(view, on_start=spoke.set)
    else:
        operations = ViewOperations(view, on_start=spoke.set)
    fast = _fast_path(connection, blocks)
    joinable = view if isinstance(view, JoinableView) else None
    asked = connection if fast is None else fast.session
    try:
        pyfuse3.init(operations, f"/dev/fd/{asked}", set())
    except RuntimeError as error:
        os.close(asked)
        _end(connection, fast)
        raise Unavailable(f"cannot serve a mount on descriptor {connection}: {error}") from error
    kernel = KernelLink(fast)
    view.attach(kernel)
    answering = trio.CancelScope(shield=True)

    async def loop() -> None:
        with answering:
            await pyfuse3.main(max_tasks=_MAX_TASKS)
        nursery.cancel_scope.cancel()

    def join(asked: ReadRequest, answer: JoinedAnswer) -> bool:
        return joinable is not None and joinable.join(
            asked.handle, asked.offset, asked.size_bytes, answer
        )

    async def until_cut_off() -> None:
        if fast is not None:
            await fast.answer_misses(lambda a: view.read(a.handle, a.offset, a.size_bytes), join)
        else:
            await _cut_off(connection)
        nursery.cancel_scope.cancel()

    try:
        with _unstuck():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(loop)
                nursery.start_soon(until_cut_off)
                try:
                    await spoke.wait()
                    task_status.started()
                    await trio.sleep_forever()
                finally:
                    with trio.move_on_after(_DRAIN_S, shield=True):
                        await kernel.close()
                    answering.cancel()
    finally:
        pyfuse3.close(unmount=False)
        _end(connection, fast)
    if not spoke.is_set():
        raise Unavailable("the mount was detached before it was served; mount it again")


async def serve(
    view: View,
    mountpoint: Path,
    options: MountOptions,
    read_ahead_kib: int | None = None,
    blocks: CachedBlocks | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mount a view, as root, and serve it from the same process, until it is unmounted.

    Args:
        view: what to show, as for `serve_fd`.
        mountpoint: an existing folder whose path only root can change.
        options: how to mount.
        read_ahead_kib: how far the kernel reads ahead, in KiB; None leaves its default of 128.
        blocks: as for `serve_fd`.
        task_status: notified of the start.

    Raises:
        Unavailable: it cannot be mounted.

    Cancellation: as for `serve_fd`; then the mount is detached.
    """

    def started() -> None:
        if read_ahead_kib is not None:
            set_read_ahead(mountpoint, read_ahead_kib)
        task_status.started()

    connection = attach(mountpoint, os.getuid(), os.getgid(), options)
    try:
        await serve_fd(view, connection, blocks, task_status=CallWhenStarted(started))
    except BaseException:
        detach(mountpoint)
        raise


def run(serving: Callable[..., Awaitable[None]], *, ready: str) -> None:
    """Serve until SIGTERM, SIGINT or an unmount; runs trio.

    Args:
        serving: `serve` or `serve_fd`, with its arguments.
        ready: a line to print when the mount is usable.

    Raises:
        Unavailable: mounting or serving failed.
    """

    def announce() -> None:
        print(ready, flush=True)

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: token.run_sync_soon(scope.cancel))
            await serving(task_status=CallWhenStarted(announce))

    trio.run(main)


@dataclass(frozen=True, slots=True)
class CallWhenStarted:
    """A task's status whose start is told to a function."""

    function: Callable[[], None]

    def started(self, value: object = None) -> None:
        """Call the function."""
        self.function()


def _fast_path(connection: int, blocks: CachedBlocks | None) -> FastPath | None:
    with suppress(OSError):  # works without it, but more slowly
        return FastPath(connection, blocks) if blocks is not None else None
    return None


def _end(connection: int, fast: FastPath | None) -> None:
    """Close the descriptors that libfuse does not close itself."""
    if fast is not None:
        fast.stop()
        os.close(connection)


async def _cut_off(connection: int) -> None:
    """Wait until the kernel has aborted a connection: pyfuse3 first waits for requests to end."""
    with select.epoll() as errors:
        errors.register(connection, 0)
        await trio.lowlevel.wait_readable(errors.fileno())


@contextmanager
def _unstuck() -> Iterator[None]:
    """Keep pyfuse3's loop from blocking the trio thread.

    The kernel withdraws a request whose process is killed. If that happens between pyfuse3's poll
    and its blocking read, the read would block everything until the next request. A signal
    interrupts it: pyfuse3 polls again after EINTR.
    """
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _UNSTICK_S, _UNSTICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
