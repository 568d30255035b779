"""A FUSE file system of a user's with one file, `image`, that leaves some requests unanswered.

python hanging_fuse.py MOUNTPOINT getattr|lookup|read|flush [MOUNT-OPTION...]
"""

import os
import stat
import sys

import pyfuse3
import trio

SIZE_BYTES = 1 << 20
INODE = pyfuse3.ROOT_INODE + 1


class Hanging(pyfuse3.Operations):
    def __init__(self, request):
        super().__init__()
        self._request = request

    async def _perhaps(self, request):
        if request == self._request:
            await trio.sleep_forever()

    def _attributes(self, inode):
        entry = pyfuse3.EntryAttributes()
        is_root = inode == pyfuse3.ROOT_INODE
        entry.st_ino = inode
        entry.st_mode = stat.S_IFDIR | 0o755 if is_root else stat.S_IFREG | 0o644
        entry.st_size = 0 if is_root else SIZE_BYTES
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        entry.attr_timeout = entry.entry_timeout = 0
        return entry

    async def getattr(self, inode, ctx=None):
        await self._perhaps("getattr")
        return self._attributes(inode)

    async def lookup(self, parent, name, ctx=None):
        await self._perhaps("lookup")
        if name != b"image":
            raise pyfuse3.FUSEError(2)
        return self._attributes(INODE)

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh, off, size):
        await self._perhaps("read")
        return bytes(min(size, SIZE_BYTES - off))

    async def flush(self, fh):
        await self._perhaps("flush")


pyfuse3.init(Hanging(sys.argv[2]), sys.argv[1], {"fsname=hanging", *sys.argv[3:]})
trio.run(pyfuse3.main)
