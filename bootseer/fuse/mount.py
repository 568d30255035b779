"""Mount a view and serve it until the mount or the process is told to end."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import pyfuse3
import trio

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


@dataclass(frozen=True, slots=True)
class MountOptions:
    """How a view is mounted.

    Attributes:
        name: what /proc/mounts shows as the source.
        read_ahead_kib: how far the kernel reads ahead, in KiB; None leaves its default of 128.
    """

    name: str = "bootseer"
    read_ahead_kib: int | None = None


async def serve(
    view: View,
    mountpoint: Path,
    options: MountOptions,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mount a view, as root and for all users, and serve it until it is unmounted from outside.

    Reports itself started when the mount can be used. pyfuse3 keeps its state in globals, so a
    process serves one mount; and nothing in that process may touch the mount's files, not even by
    stat, for it would wait for itself.

    Raises:
        Unavailable: it cannot be mounted.

    Cancellation: unmounts at once. Requests in progress, and files that are still open, give their
    users errors.
    """
    spoke = trio.Event()
    fuse_options = {
        *pyfuse3.default_options,
        *("allow_other", f"fsname={options.name}", f"subtype={SUBTYPE}"),
    }
    operations: ViewOperations
    if isinstance(view, WritableView):
        operations = WritableOperations(view, on_start=spoke.set)
    else:
        operations = ViewOperations(view, on_start=spoke.set)
        fuse_options.add("ro")
    try:
        pyfuse3.init(operations, str(mountpoint), fuse_options)
    except RuntimeError as error:
        raise Unavailable(
            f"cannot mount at {mountpoint}: {error}; it takes root, /dev/fuse and a folder there"
        ) from error

    view.attach(KernelLink())

    async def loop() -> None:
        await pyfuse3.main(max_tasks=_MAX_TASKS)
        spoke.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop)
            await spoke.wait()
            # The answer to the kernel's first request limits the read-ahead: raise it after that.
            if options.read_ahead_kib is not None:
                _set_read_ahead(mountpoint, options.read_ahead_kib)
            task_status.started()
    finally:
        pyfuse3.close(unmount=True)


def run(view: View, mountpoint: Path, options: MountOptions, *, ready: str) -> None:
    """Serve a view, in a process that does nothing else, until SIGTERM, SIGINT or an unmount.

    Args:
        view: what to show.
        mountpoint: an existing folder.
        options: how to mount.
        ready: a line to print when the mount can be used.

    Raises:
        Unavailable: it cannot be mounted.
    """

    class Announce:
        def started(self, value: None = None) -> None:
            print(ready, flush=True)

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: token.run_sync_soon(scope.cancel))
            await serve(view, mountpoint, options, task_status=Announce())

    # The kernel withdraws a request whose process is killed. If that happens between pyfuse3's
    # poll and its blocking read, the read would hold up everything until the next request comes.
    # A signal ends it: pyfuse3 takes EINTR for a reason to look again.
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _UNSTICK_S, _UNSTICK_S)
    try:
        trio.run(main)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _set_read_ahead(mountpoint: Path, kib: int) -> None:
    mount = find_mount(str(mountpoint))
    if mount is not None:
        Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb").write_text(str(kib))
