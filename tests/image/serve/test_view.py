"""A served image on a real mount: read back byte for byte, and recorded as it was read."""

import os
import random
import sys

import pytest
import trio
from bootseer_dev.material.stored_image import (
    cache_in,
    keeper_link,
    manifest_of,
    open_entry,
    readable,
    store_image,
)

from bootseer.core.ranges import ByteRange, coalesce
from bootseer.fuse.root_mounts import MountOptions
from bootseer.fuse.serve_view import serve
from bootseer.image.serve.backfill import copy
from bootseer.image.serve.node_cache import NodeCache
from bootseer.image.serve.view import ImageView, MissingImage
from bootseer.store.memory import MemoryStore
from bootseer.units import MIB

pytestmark = [pytest.mark.fuse, pytest.mark.root]
CONTENT = random.Random(5).randbytes(9 * MIB + 12_345)
READ = """
import mmap, os, random, sys
MAP_LOCKED = 0x2000
path, how = sys.argv[1:]
size = os.stat(path).st_size
if how == "in memory":  # read ahead, and held: the kernel can have no other use for its pages
    ahead = os.open(path, os.O_RDONLY | os.O_NOATIME)
    held = mmap.mmap(ahead, size, mmap.MAP_SHARED | MAP_LOCKED, mmap.PROT_READ)
fd = os.open(path, os.O_RDONLY | (os.O_NOATIME if how == "ahead" else 0))
if how == "random":
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    picked = random.Random(3)
    places = [picked.randrange(0, size // 8192) * 8192 for _ in range(50)]
else:
    places = range(0, size, 1 << 20)
for place in places:
    data = os.pread(fd, 8192 if how == "random" else 1 << 20, place)
    sys.stdout.buffer.write(data)
"""


async def run(mountpoint, how):
    argv = [sys.executable, "-P", "-c", READ, str(mountpoint / "image.sqsh"), how]
    done = await trio.run_process(argv, capture_stdout=True)
    return done.stdout


@pytest.fixture
def mountpoint(tmp_path):
    (tmp_path / "mnt").mkdir()
    return tmp_path / "mnt"


@pytest.mark.parametrize("cached", ["nothing", "none of it", "all of it"])
async def test_what_is_read_is_the_image_and_is_recorded(tmp_path, mountpoint, cached):
    store = MemoryStore()
    digest = await store_image(store, CONTENT, "test", 65536)
    manifest = manifest_of(CONTENT, 65536)
    entry = open_entry(cache_in(tmp_path), manifest)
    async with keeper_link(entry) as link:
        here = None if cached == "nothing" else entry.blocks()
        node = NodeCache(here, link)
        async with readable(store, digest, manifest, node) as blocks:
            if cached == "all of it":
                await copy(blocks, node)
            view = ImageView(blocks, len(CONTENT), 10**18, os.getuid(), os.getgid())
            async with trio.open_nursery() as nursery:
                await nursery.start(serve, view, mountpoint, MountOptions(read_only=True), 0, here)
                found = await trio.run_process(
                    ["stat", "-c", "%s %a %Y", str(mountpoint / "image.sqsh")], capture_stdout=True
                )
                assert found.stdout.split() == [str(len(CONTENT)).encode(), b"444", b"1000000000"]
                picked = random.Random(3)
                places = [picked.randrange(0, len(CONTENT) // 8192) * 8192 for _ in range(50)]
                wanted = b"".join(CONTENT[at : at + 8192] for at in places)
                assert await run(mountpoint, "random") == wanted
                ranges = coalesce(ByteRange(at, at + 8192) for at in places)
                touched = coalesce(ByteRange(t.start, t.stop) for t in view.touched.touches())
                assert touched == ranges  # exactly: nothing is read ahead here
                before = list(view.touched.touches())
                assert await run(mountpoint, "ahead") == CONTENT
                assert view.touched.touches() == before
                assert await run(mountpoint, "in memory") == CONTENT
                assert view.touched.touches() == before  # each open keeps the page cache
                assert await run(mountpoint, "sequential") == CONTENT
                nursery.cancel_scope.cancel()
    if here is not None:
        here.close()
    entry.close()


async def test_an_image_that_cannot_be_served_is_not_there(mountpoint):
    async with trio.open_nursery() as nursery:
        view = MissingImage(os.getuid(), os.getgid())
        await nursery.start(serve, view, mountpoint, MountOptions(read_only=True))
        done = await trio.run_process(
            ["cat", str(mountpoint / "image.sqsh")], check=False, capture_stderr=True
        )
        assert done.returncode == 1 and b"No such file" in done.stderr
        listed = await trio.run_process(["ls", str(mountpoint)], capture_stdout=True)
        assert listed.stdout == b""
        nursery.cancel_scope.cancel()
