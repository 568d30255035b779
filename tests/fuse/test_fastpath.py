"""Reads of blocks that are there are answered without the view, and are what the view would say."""

import errno
import os
import random
import subprocess
import sys

import pytest
import trio
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.material.stored_image import cache_in, manifest_of, open_entry

from bootseer.core.ranges import ByteRange, coalesce
from bootseer.fuse.root_mounts import MountOptions, detach
from bootseer.fuse.serve_view import serve
from bootseer.image.serve.view import ImageView
from bootseer.units import MIB

pytestmark = [pytest.mark.fuse, pytest.mark.root]
BLOCK = 65536
CONTENT = random.Random(8).randbytes(12 * MIB + 4321)
MANIFEST = manifest_of(CONTENT, BLOCK)


class Asked(ImageView):
    """A view that has the content in memory, and remembers what it was asked for."""

    def __init__(self):
        super().__init__(None, len(CONTENT), 10**18, os.getuid(), os.getgid())
        self.asked = []
        self.error = None

    def join(self, handle, offset, size_bytes, answer):
        return False

    async def read(self, handle, offset, size_bytes):
        self.asked.append(ByteRange(offset, offset + size_bytes))
        if self.error is not None:
            raise self.error
        return memoryview(CONTENT)[offset : offset + size_bytes]


@pytest.fixture
def entry(tmp_path):
    entry = open_entry(cache_in(tmp_path), MANIFEST)
    yield entry
    entry.close()


def put(entry, blocks):
    keeper = entry.keeper(lambda size_bytes: True)
    for index in blocks:
        block = MANIFEST.block_range(index)
        keeper.keep(index, memoryview(CONTENT)[block.start : block.stop])
    keeper.close()


class Mounted:
    def __init__(self, view, path):
        self.view = view
        self.path = path

    async def read(self, *places, flags=0, threads=1):
        """Read (offset, size) pairs, with nothing read ahead; returns what was found of each."""
        argv = [sys.executable, "-P", "-c", READ, str(self.path), str(flags), str(threads)]
        for place in places:
            argv.append(",".join(map(str, place)))
        done = await trio.run_process(argv, capture_stdout=True, check=False)
        return done.stdout if done.returncode == 0 else done.returncode


READ = """
import os, sys, mmap, concurrent.futures
path, flags, threads, *places = sys.argv[1:]
def read(place):
    fd = os.open(path, os.O_RDONLY | int(flags))
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    offset, size = map(int, place.split(","))
    buffer = mmap.mmap(-1, max(size, 4096))
    try:
        got = os.preadv(fd, [memoryview(buffer)[:size]], offset)
    except OSError as error:
        os._exit(error.errno)
    return buffer[:got]
with concurrent.futures.ThreadPoolExecutor(int(threads)) as pool:
    for data in pool.map(read, places):
        sys.stdout.buffer.write(data)
"""


@pytest.fixture
async def mounted(entry, tmp_path):
    put(entry, range(MANIFEST.blocks))
    folder = tmp_path / "mnt"
    folder.mkdir()
    view = Asked()
    blocks = entry.blocks()
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, view, folder, MountOptions(read_only=True), 0, blocks)
        yield Mounted(view, folder / "image.sqsh")
        nursery.cancel_scope.cancel()
    blocks.close()


PLACES = [
    (0, 1),
    (0, 4096),
    (BLOCK - 1, 2),
    (5 * BLOCK, BLOCK),
    (5 * BLOCK + 4096, 3 * BLOCK),
    (3, 4 * MIB),
    (len(CONTENT) - 10, 100),
    (len(CONTENT), 10),
]


@pytest.mark.parametrize("flags", [0, os.O_DIRECT, os.O_NOATIME])
async def test_cached_blocks_are_read_without_the_view(mounted, flags):
    places = [(0, 4096), (BLOCK, 2 * MIB), (5 * MIB, 4096)] if flags == os.O_DIRECT else PLACES
    wanted = b"".join(CONTENT[at : at + size] for at, size in places)
    assert await mounted.read(*places, flags=flags) == wanted
    assert mounted.view.asked == []


async def test_many_at_once(mounted):
    picked = random.Random(1)
    places = [(picked.randrange(len(CONTENT)), picked.randrange(1, 200_000)) for _ in range(300)]
    wanted = b"".join(CONTENT[at : at + size] for at, size in places)
    assert await mounted.read(*places, threads=16) == wanted
    assert mounted.view.asked == []


async def test_the_record_excludes_prefetches(mounted):
    places = [(8192, 4096), (9 * MIB, 12288), (8192, 4096), (BLOCK, 4096)]
    await mounted.read((4 * MIB, MIB), flags=os.O_NOATIME)
    await mounted.read(*places)
    touches = mounted.view.touched.touches()  # a page each, or more: as the kernel asks
    pages = [at for t in touches for at in range(t.start, t.stop, 4096)]
    assert pages == [8192, *range(9 * MIB, 9 * MIB + 12288, 4096), BLOCK]
    assert [t.first_ms for t in touches] == sorted(t.first_ms for t in touches)
    await mounted.read((6 * MIB, 4096))
    mounted.view.touched.stop()
    await mounted.read((7 * MIB, 4096))
    found = coalesce(ByteRange(t.start, t.stop) for t in mounted.view.touched.touches())
    assert ByteRange(6 * MIB, 6 * MIB + 4096) in found
    assert not any(r.start <= 7 * MIB < r.stop for r in found)


async def test_damaged_or_truncated_blocks_are_requested(mounted, entry):
    with open(entry.path / "data", "r+b") as file:
        file.seek(7 * BLOCK + 100)
        file.write(bytes([CONTENT[7 * BLOCK + 100] ^ 1]))
    assert await mounted.read((7 * BLOCK, 4096)) == CONTENT[7 * BLOCK : 7 * BLOCK + 4096]
    assert mounted.view.asked == [ByteRange(7 * BLOCK, 7 * BLOCK + 4096)]
    os.truncate(entry.path / "data", 9 * MIB)
    assert await mounted.read((9 * MIB, 4096)) == CONTENT[9 * MIB : 9 * MIB + 4096]
    assert len(mounted.view.asked) == 2
    mounted.view.error = OSError(errno.EIO, "")
    assert await mounted.read((10 * MIB, 4096)) == errno.EIO
    assert await mounted.read((0, 4096)) == CONTENT[:4096]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.EACCES, "no"), errno.EACCES),
        (OSError(512, "no number that the kernel takes"), errno.EIO),
        (OSError(-1, "the same"), errno.EIO),
        (OSError("none at all"), errno.EIO),
        (MemoryError("no OSError"), errno.EIO),
    ],
)
async def test_an_error_is_logged_and_fails_one_read(mounted, entry, error, code):
    with open(entry.path / "data", "r+b") as file:
        file.truncate(9 * MIB)
    mounted.view.error = error
    with trio.fail_after(60):
        assert await mounted.read((10 * MIB, 4096)) == code
    assert await mounted.read((0, 4096)) == CONTENT[:4096]


class Waiting(Asked):
    """Has reads joined, and answers them later."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers
        self.joined = 0

    def join(self, handle, offset, size_bytes, answer):
        self.joined += 1
        kind = self.answers[offset // BLOCK]
        wanted = memoryview(CONTENT)[offset : offset + size_bytes]
        trio.lowlevel.spawn_system_task(self._later, answer, wanted if kind == "data" else kind)
        return True

    async def _later(self, answer, data):
        await trio.sleep(0.05)
        answer(data)


async def test_joined_reads_are_answered_later(entry, tmp_path):
    (tmp_path / "mnt").mkdir()
    blocks, view = entry.blocks(), Waiting(["data", OSError(errno.ENXIO, "no"), None, "data"])
    async with trio.open_nursery() as nursery:
        options = MountOptions(read_only=True)
        await nursery.start(serve, view, tmp_path / "mnt", options, 0, blocks)
        mounted = Mounted(view, tmp_path / "mnt" / "image.sqsh")
        places = [(at, 4096) for at in range(0, BLOCK, 4096)]
        assert await mounted.read(*places, threads=16) == CONTENT[:BLOCK]
        assert view.joined == len(places) and view.asked == []
        assert await mounted.read((BLOCK, 4096)) == errno.ENXIO
        assert view.asked == []
        assert await mounted.read((2 * BLOCK, 4096)) == CONTENT[2 * BLOCK :][:4096]
        assert view.asked == [ByteRange(2 * BLOCK, 2 * BLOCK + 4096)], "read by itself"
        late = []
        view._later = lambda answer, data: trio.sleep(late.append((answer, data)) or 0)
        nursery.start_soon(mounted.read, (3 * BLOCK, 4096))
        while not late:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    for answer, data in late:
        answer(data)  # the mount is gone, and its descriptor may be another file's
    blocks.close()


async def test_blocks_cached_later_are_read_without_the_view(entry, tmp_path):
    (tmp_path / "mnt").mkdir()
    blocks, view = entry.blocks(), Asked()
    async with trio.open_nursery() as nursery:
        options = MountOptions(read_only=True)
        await nursery.start(serve, view, tmp_path / "mnt", options, 0, blocks)
        mounted = Mounted(view, tmp_path / "mnt" / "image.sqsh")
        assert await mounted.read((0, 4096)) == CONTENT[:4096]
        put(entry, [0, 1])
        blocks.refresh(range(2))
        assert await mounted.read((BLOCK - 4096, 8192)) == CONTENT[BLOCK - 4096 : BLOCK + 4096]
        assert await mounted.read((2 * BLOCK - 4096, 8192)) == CONTENT[2 * BLOCK - 4096 :][:8192]
        nursery.cancel_scope.cancel()
    assert view.asked == [ByteRange(0, 4096), ByteRange(2 * BLOCK, 2 * BLOCK + 4096)]
    blocks.close()


async def test_the_fast_path_ends_during_reads(entry, tmp_path, threads_left):
    """Readers get errors, nobody waits, and all descriptors are closed."""
    put(entry, range(MANIFEST.blocks))
    folder = tmp_path / "mnt"
    folder.mkdir()
    before = set(os.listdir("/proc/self/fd"))
    for how in ("cancelled", "unmounted"):
        blocks = entry.blocks()
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                options = MountOptions(read_only=True)
                await nursery.start(serve, Asked(), folder, options, 0, blocks)
                reader = Mounted(None, folder / "image.sqsh")
                places = [(at * 4096, 4096) for at in range(3000)]
                codes = []

                async def read(reader=reader, places=places, codes=codes):
                    codes.append(await reader.read(*places, threads=4))

                nursery.start_soon(read)
                await trio.sleep(0.3)
                if how == "unmounted":
                    detach(folder)
                    while not codes:
                        await trio.sleep(0.01)
                else:
                    with trio.CancelScope(shield=True):
                        nursery.cancel_scope.cancel()
        blocks.close()
    wait_until(
        lambda: set(os.listdir("/proc/self/fd")) <= before and not threads_left(),
        "no descriptor and no thread left",
        timeout_s=30,  # trio keeps idle threads for ten seconds
    )


ALONE = """
import array, os, resource, socket
from types import SimpleNamespace
from bootseer.fuse.fastpath import FastPath
manifest = SimpleNamespace(size_bytes=4096, block_bytes=4096)
blocks = SimpleNamespace(
    manifest=manifest, sums=array.array("Q", [1]), states=bytearray(1), data_fd=0
)
"""
WITHOUT_END = """
fast = FastPath(os.open("/dev/zero", os.O_RDWR), blocks)
fast.stop()
"""
FEW_THREADS = """
connection, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
kernel.send(bytes(100))
os.setresuid(20_777, 20_777, 20_777)
threads = len(os.listdir("/proc/self/task")) + 3
resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
try:
    FastPath(connection.fileno(), blocks)
except OSError as error:
    print(error.errno)
print(os.get_blocking(connection.fileno()), len(connection.recv(200, socket.MSG_DONTWAIT)))
"""


def alone(script):
    """Run a fast path in a process of its own, for it may never end."""
    argv = [sys.executable, "-P", "-c", ALONE + script]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_fast_path_ends_under_constant_requests():
    assert alone(WITHOUT_END) == ""


def test_without_threads_requests_are_left_to_the_fallback_server():
    assert alone(FEW_THREADS).split() == [str(errno.EAGAIN), "True", "100"]
