"""Mount a view, and serve it until the mount or the process is told to end.

Mounting is root's, serving is not. In one process: `serve`. In two: root does `attach` and hands
the descriptor to a process of the user's, which does `serve_fd` and tells root that it has started;
root then does `set_read_ahead`, and at the end `detach`.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyfuse3
import trio

from bootseer._io import lib
from bootseer.errors import Unavailable
from bootseer.fuse.kernel import KernelLink
from bootseer.fuse.mountinfo import find_mount
from bootseer.fuse.operations import ViewOperations
from bootseer.fuse.view import View, WritableView
from bootseer.fuse.writable import WritableOperations

# The mount's type in /proc/mounts is "fuse." and this.
SUBTYPE = "bootseer"
# More requests at once than the kernel sends: readers in need, and 12 for its read-ahead.
_MAX_TASKS = 99
_UNSTICK_S = 0.5
# For what a view is telling the kernel when the mount ends, see `KernelLink.close`.
_DRAIN_S = 5


@dataclass(frozen=True, slots=True)
class MountOptions:
    """How a view is mounted.

    Attributes:
        name: what /proc/mounts shows as the source.
        read_only: the kernel refuses changes by itself.
        for_all: all users may look, as modes and owners allow. Otherwise only processes whose uids
            and gids (real, effective and saved) are all the mount's: not root, and not the user
            after newgrp(1) either.
    """

    name: str = "bootseer"
    read_only: bool = False
    for_all: bool = False


def attach(mountpoint: Path | int, uid: int, gid: int, options: MountOptions) -> int:
    """Mount, as root, what somebody else is going to serve.

    Until it is served, whoever touches the mount waits. When the last copy of the descriptor is
    closed, by the end of its process for example, they get errors: hand it on and close it.

    Args:
        mountpoint: a folder whose path only root can change; for any other, a descriptor that is
            open on it (O_PATH will do).
        uid, gid: whose mount it is.
        options: how to mount.

    Returns:
        The connection to the kernel, close-on-exec.

    Raises:
        Unavailable: it cannot be mounted.
    """
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            with _opened(mountpoint) as target:
                _mount(target, device, uid, gid, options)
        except BaseException:
            os.close(device)
            raise
    except OSError as error:
        raise Unavailable(
            f"cannot mount at {mountpoint}: {error}; it takes root, /dev/fuse and a folder there"
        ) from error
    return device


def set_read_ahead(mountpoint: Path, kib: int) -> None:
    """Set, as root, how far the kernel reads ahead of a mount's readers; its default is 128 KiB.

    The answer to the kernel's first request would set it back: do it after serving has started.

    Raises:
        OSError: it cannot be set.
    """
    mount = find_mount(str(mountpoint))
    if mount is not None:
        Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb").write_text(str(kib))


def detach(mountpoint: Path) -> None:
    """Take a mount of ours away, as root, whatever its users and its server are doing.

    Requests in progress and files that are open give errors from then on, so that no process is
    left waiting; the server finds the connection closed and ends. Where nothing, or somebody else's
    file system, is mounted, nothing happens.

    Raises:
        OSError: it cannot be unmounted.
    """
    mount = find_mount(str(mountpoint))
    if mount is not None and mount.kind == f"fuse.{SUBTYPE}":
        _check(lib.bs_unmount(os.fsencode(mountpoint)))


async def serve_fd(
    view: View, connection: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve a view on the descriptor that `attach` returned, until it is unmounted from outside.

    Needs no rights, and the process's main thread. Reports itself started when the mount can be
    used. pyfuse3 keeps its state in globals, so a process serves one mount; and nothing in that
    process may touch the mount's files, not even by stat, for it would wait for itself.

    Args:
        view: what to show.
        connection: the descriptor; closed at the end.
        task_status: told of the start.

    Raises:
        Unavailable: libfuse does not take the descriptor, or the mount went before it was served.

    Cancellation: what the view is telling the kernel is let through, for 5 s at most; then it ends
    at once. Requests in progress, and files that are still open, give their users errors. The mount
    stays, and gives errors, until it is detached.
    """
    spoke = trio.Event()
    operations: ViewOperations
    if isinstance(view, WritableView):
        operations = WritableOperations(view, on_start=spoke.set)
    else:
        operations = ViewOperations(view, on_start=spoke.set)
    try:
        pyfuse3.init(operations, f"/dev/fd/{connection}", set())
    except RuntimeError as error:
        os.close(connection)
        raise Unavailable(f"cannot serve a mount on descriptor {connection}: {error}") from error
    kernel = KernelLink()
    view.attach(kernel)
    answering = trio.CancelScope(shield=True)

    async def loop() -> None:
        with answering:
            await pyfuse3.main(max_tasks=_MAX_TASKS)
        nursery.cancel_scope.cancel()

    async def until_cut_off() -> None:
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
    if not spoke.is_set():
        raise Unavailable("the mount was taken away before it was served; mount it again")


async def serve(
    view: View,
    mountpoint: Path,
    options: MountOptions,
    read_ahead_kib: int | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mount a view, as root, and serve it from the same process, until it is unmounted.

    Args:
        view: what to show; all that `serve_fd` says of it holds.
        mountpoint: an existing folder whose path only root can change.
        options: how to mount.
        read_ahead_kib: how far the kernel reads ahead, in KiB; None leaves its default of 128.
        task_status: told of the start.

    Raises:
        Unavailable: it cannot be mounted.

    Cancellation: as for `serve_fd`; then it is detached.
    """

    def started() -> None:
        if read_ahead_kib is not None:
            set_read_ahead(mountpoint, read_ahead_kib)
        task_status.started()

    connection = attach(mountpoint, os.getuid(), os.getgid(), options)
    try:
        await serve_fd(view, connection, task_status=_Calling(started))
    except BaseException:
        detach(mountpoint)
        raise


def run(serving: Callable[..., Awaitable[None]], *, ready: str) -> None:
    """Serve, in a process that does nothing else, until SIGTERM, SIGINT or an unmount.

    Args:
        serving: `serve` or `serve_fd`, with its arguments.
        ready: a line to print when the mount can be used.

    Raises:
        Unavailable: it cannot be mounted, or served.
    """

    def announce() -> None:
        print(ready, flush=True)

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: token.run_sync_soon(scope.cancel))
            await serving(task_status=_Calling(announce))

    trio.run(main)


@dataclass(frozen=True, slots=True)
class _Calling:
    """A task's status whose start is told to a function."""

    function: Callable[[], None]

    def started(self, value: None = None) -> None:
        """Tell it."""
        self.function()


@contextmanager
def _opened(folder: Path | int) -> Iterator[int]:
    if isinstance(folder, int):
        yield folder
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mount(target: int, device: int, uid: int, gid: int, options: MountOptions) -> None:
    words = [f"fd={device}", "rootmode=40000", f"user_id={uid}", f"group_id={gid}"]
    words += ["default_permissions", *(["allow_other"] if options.for_all else [])]
    kind = f"fuse.{SUBTYPE}"
    _check(
        lib.bs_mount_fuse(
            target,
            os.fsencode(options.name),
            kind.encode(),
            options.read_only,
            ",".join(words).encode(),
        )
    )


async def _cut_off(connection: int) -> None:
    """Wait until the kernel has given a connection up: pyfuse3 first waits for requests to end."""
    with select.epoll() as errors:
        errors.register(connection, 0)
        await trio.lowlevel.wait_readable(errors.fileno())


@contextmanager
def _unstuck() -> Iterator[None]:
    """Keep pyfuse3's loop from waiting where trio cannot see it.

    The kernel withdraws a request whose process is killed. If that happens between pyfuse3's poll
    and its blocking read, the read would hold up everything until the next request comes. A signal
    ends it: pyfuse3 takes EINTR for a reason to look again.
    """
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _UNSTICK_S, _UNSTICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
