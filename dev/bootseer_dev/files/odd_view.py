"""A view whose files are odd; it tells on its standard output what is read.

python -m bootseer_dev.files.odd_view DESCRIPTOR --user NAME

pushed  is put into the page cache when it is opened
never   is never read to an end
late    is put into the page cache while a read of it waits for somebody to look for "now"
stuck   the same, but nobody can help
"""

from __future__ import annotations

import argparse
import errno
import pwd
import stat
from collections.abc import Sequence

import trio

from bootseer.agent.node.privileges import drop_privileges
from bootseer.fuse.serve_view import run, serve_fd
from bootseer.fuse.view import ROOT_INODE, Attributes, Kernel, OpenedFile
from bootseer.units import MIB

MODULE = "bootseer_dev.files.odd_view"
READY = "the odd view is served"
SIZE_BYTES = 2 * MIB + 100
CONTENT = (bytes(range(250)) * (SIZE_BYTES // 250 + 1))[:SIZE_BYTES]
PUSHED, NEVER, LATE, STUCK = range(ROOT_INODE + 1, ROOT_INODE + 5)
_NAMES = {b"pushed": PUSHED, b"never": NEVER, b"late": LATE, b"stuck": STUCK}
_UNKNOWN = 99


class OddView:
    """Four files and a directory."""

    valid_s = 3600.0
    kernel: Kernel

    def __init__(self, nursery: trio.Nursery) -> None:
        """Make the view; the nursery is for what is told to the kernel while a read waits."""
        self._nursery = nursery
        self._now = trio.Event()

    def attach(self, kernel: Kernel) -> None:
        """Learn the way to the kernel."""
        self.kernel = kernel

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return an entry's attributes."""
        if name == b"now":
            self._now.set()
        if name not in _NAMES:
            raise FileNotFoundError(errno.ENOENT, "none")
        return await self.attributes(_NAMES[name])

    async def attributes(self, inode: int) -> Attributes:
        """Return a file's attributes."""
        if inode == ROOT_INODE:
            return Attributes(ROOT_INODE, stat.S_IFDIR | 0o755)
        return Attributes(inode, stat.S_IFREG | 0o644, SIZE_BYTES)

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        """Show nothing."""
        return []

    async def link_target(self, inode: int) -> bytes:
        """There are no links."""
        raise OSError(errno.EINVAL, "not a link")

    async def open(self, inode: int, flags: int) -> OpenedFile:
        """Open a file, and put it into the page cache if that is what it is there for."""
        if inode == PUSHED:
            data = memoryview(CONTENT)
            for start in range(0, SIZE_BYTES, MIB):
                known = await self.kernel.store(inode, start, data[start : start + MIB])
                print(f"stored {known}", flush=True)
            print(f"stored {await self.kernel.store(_UNKNOWN, 0, b'x')}", flush=True)
        return OpenedFile(handle=inode, keep_cache=True)

    async def read(self, handle: int, offset: int, size_bytes: int) -> memoryview:
        """Return bytes, or do what is odd about the file."""
        print(f"read {handle}", flush=True)
        if handle == NEVER:
            await trio.sleep_forever()
        if handle in (LATE, STUCK) and offset == 0:
            self._nursery.start_soon(self._push, handle)
            await self._now.wait() if handle == LATE else await trio.sleep_forever()
        return memoryview(CONTENT)[offset : offset + size_bytes]

    async def _push(self, handle: int) -> None:
        with trio.CancelScope(shield=True):
            print(f"pushes {handle}", flush=True)  # nothing comes between this and the call
            await self.kernel.store(handle, 0, CONTENT[:4096])

    async def close(self, handle: int) -> None:
        """There is nothing to close."""

    def forget(self, inode: int) -> None:
        """There is nothing to forget."""


def main() -> None:
    """Take on a user's rights and serve until SIGTERM or an unmount."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("connection", type=int)
    parser.add_argument("--user", required=True)
    options = parser.parse_args()
    user = pwd.getpwnam(options.user)
    drop_privileges(user.pw_name, user.pw_uid, user.pw_gid, keep_lock=False)

    async def serving(task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await serve_fd(OddView(nursery), options.connection, task_status=task_status)

    run(serving, ready=READY)


if __name__ == "__main__":
    main()
