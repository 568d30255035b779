"""Residency and read-ahead on a real page cache."""

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from collections import deque
from contextlib import ExitStack

import pytest
import trio
from bootseer_dev.cluster.poll import wait_until

from bootseer._io import lib
from bootseer.core.ranges import ByteRange, total_bytes
from bootseer.errors import Unavailable
from bootseer.image.hot import prefetch as image_prefetch
from bootseer.image.hot.prefetch import Prefetch, UnderWay, locked_by, may_pin, pinnable_bytes
from bootseer.image.hot.recorder import ResidencyRecorder
from bootseer.image.hot.residency import KernelResidency
from bootseer.image.hot.trace import Touch
from bootseer.units import KIB, MIB

PAGE = mmap.PAGESIZE
SIZE = 24 * 1024 * 1024 + 100
POSIX_FADV_DONTNEED = 4
POSIX_FADV_RANDOM = 1
MADV_PAGEOUT = 21


@pytest.fixture
def image(tmp_path):
    """A file that is not in the page cache."""
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.write(os.urandom(SIZE))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, POSIX_FADV_DONTNEED)
    if resident_pages(path):
        pytest.skip("this file system keeps written pages in memory")
    return path


def resident_pages(path):
    """The set of resident pages, told by mincore itself."""
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    # Python's mmap has no mincore: ask the C library, by the mapping's address.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size = len(view)
    fd = os.open(path, os.O_RDONLY)
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    vector = (ctypes.c_ubyte * (-(-size // PAGE)))()
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector) == 0
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    os.close(fd)
    view.close()
    return {page for page, state in enumerate(vector) if state & 1}


def read_exactly(path, start, stop):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM)
    os.pread(fd, stop - start, start)
    os.close(fd)


def evict(path, page):
    """Have the kernel give up a page as it does when memory is short."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        view.madvise(mmap.MADV_RANDOM)
        _ = view[page * PAGE]  # only what is mapped can be given up

        def gone():
            view.madvise(MADV_PAGEOUT, page * PAGE, PAGE)
            return page not in resident_pages(path)

        wait_until(gone, "the page's eviction")


def pages_of(ranges):
    return {page for r in ranges for page in range(r.start // PAGE, -(-r.stop // PAGE))}


def test_the_recorder_tells_what_came_and_when(image):
    recorder = ResidencyRecorder(KernelResidency(os.open(image, os.O_RDONLY)))
    assert recorder.found_cold
    read_exactly(image, 8 * PAGE, 12 * PAGE)
    assert recorder.sample(100) == 4 * PAGE
    assert recorder.sample(200) == 0
    read_exactly(image, 0, PAGE)
    read_exactly(image, SIZE - 50, SIZE)
    recorder.sample(300)
    recorder.close()
    assert recorder.touches[0] == (8 * PAGE, 12 * PAGE, 100)
    assert {t.first_ms for t in recorder.touches[1:]} == {300}
    assert recorder.touches[-1].stop == SIZE, "the last page ends where the file does"
    assert pages_of(ByteRange(t.start, t.stop) for t in recorder.touches) == resident_pages(image)


RECORD_FOUR_PAGES = """
import os, sys
from bootseer.image.hot.recorder import ResidencyRecorder
from bootseer.image.hot.residency import PAGE_BYTES, KernelResidency
fd = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
recorder = ResidencyRecorder(KernelResidency(os.dup(fd)))
os.pread(fd, 4 * PAGE_BYTES, 8 * PAGE_BYTES)
recorder.sample(1)
print([tuple(touch[:2]) for touch in recorder.touches])
"""


def test_a_file_on_an_overlay_has_its_pages_in_the_file_below(image, tmp_path):
    for name in ("below", "above", "work", "overlay"):
        (tmp_path / name).mkdir()
    image.rename(tmp_path / "below" / "image")
    mount = (
        'cd "$1"; mount -t overlay -o lowerdir=below,upperdir=above,workdir=work none overlay'
        '; exec "$2" -Ic "$3" overlay/image'
    )
    mounting = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", mount, "sh"]
    recorded = subprocess.run(
        [*mounting, tmp_path, sys.executable, RECORD_FOUR_PAGES],
        capture_output=True,
        text=True,
        check=True,
    )
    assert recorded.stdout == f"[({8 * PAGE}, {12 * PAGE})]\n"


def test_a_page_in_the_place_of_one_that_went_is_seen(image):
    recorder = ResidencyRecorder(KernelResidency(os.open(image, os.O_RDONLY)))
    read_exactly(image, 8 * PAGE, 12 * PAGE)
    recorder.sample(100)
    evict(image, 8)
    read_exactly(image, 40 * PAGE, 41 * PAGE)
    assert recorder.sample(200) == PAGE
    recorder.close()
    assert recorder.touches[-1] == (40 * PAGE, 41 * PAGE, 200)


def test_what_was_there_before_is_told_apart(image):
    read_exactly(image, 0, SIZE // 2)
    recorder = ResidencyRecorder(KernelResidency(os.open(image, os.O_RDONLY)), [ByteRange(0, PAGE)])
    assert not recorder.found_cold
    assert pages_of(recorder.resident_before) == resident_pages(image) - {0}
    assert recorder.sample(1) == 0
    recorder.close()


def test_superblock_and_tables_are_not_recorded(image):
    recorder = ResidencyRecorder(
        KernelResidency(os.open(image, os.O_RDONLY)), [ByteRange(0, 96), ByteRange(PAGE, 3 * PAGE)]
    )
    read_exactly(image, 0, 4 * PAGE)
    recorder.sample(1)
    recorder.close()
    assert [t[:2] for t in recorder.touches] == [(96, PAGE), (3 * PAGE, 4 * PAGE)]


def test_more_ranges_than_one_sample_holds_are_not_lost(image, monkeypatch):
    monkeypatch.setattr("bootseer.image.hot.recorder._SAMPLE_RANGES", 4)
    recorder = ResidencyRecorder(KernelResidency(os.open(image, os.O_RDONLY)))
    for page in range(0, 40, 2):
        read_exactly(image, page * PAGE, (page + 1) * PAGE)
    recorder.sample(1)
    recorder.close()
    assert len(recorder.touches) == 20


def partly_used(image):
    """Record 64 pages that were read ahead, of which those from 8 to 40 are in use."""
    recorder = ResidencyRecorder(KernelResidency(os.open(image, os.O_RDONLY)))
    fd = os.open(image, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 64 * PAGE, os.POSIX_FADV_WILLNEED)
    wait_until(lambda: len(resident_pages(image)) >= 64, "the pages read ahead")
    for _ in range(3):  # in use, as the kernel sees it
        for page in range(8, 40):
            os.pread(fd, 100, page * PAGE)
    recorder.sample(100)
    os.close(fd)
    return recorder


@pytest.mark.root
def test_what_was_only_read_ahead_is_forgotten(image):
    recorder = partly_used(image)
    recorder.settle()
    recorder.close()
    assert recorder.touches == [(8 * PAGE, 40 * PAGE, 100)]


@pytest.mark.root
def test_what_has_gone_may_have_been_used_and_is_kept(image):
    recorder = partly_used(image)
    for page in (20, 21, 60):
        evict(image, page)
    recorder.settle()
    recorder.close()
    pages = pages_of(ByteRange(t.start, t.stop) for t in recorder.touches)
    assert pages == {*range(8, 40), 60}
    assert not resident_pages(image) & {20, 21, 60}, "nothing is read to be looked at"


class Used:
    """Pages of a file that are used as is said."""

    def __init__(self, pages):
        self.size_bytes = len(pages) * PAGE
        self._pages = pages

    def newly_resident(self, most):
        return []

    def active(self, start, stop):
        return self._pages[start // PAGE : stop // PAGE]

    def close(self):
        pass


def test_what_has_gone_does_not_speak_for_what_is_there():
    """Of what is left, too little is in use to say anything of the rest."""
    recorder = ResidencyRecorder(Used(bytes([2] * 50 + [0] * 40 + [1] * 10)))
    recorder.touches = [Touch(0, 100 * PAGE, 1)]
    recorder.settle()
    assert recorder.touches == [(0, 100 * PAGE, 1)]


def test_where_the_kernel_calls_nothing_used_nothing_is_forgotten(image):
    recorder = ResidencyRecorder(KernelResidency(os.open(image, os.O_RDONLY)))
    with image.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 64 * PAGE, os.POSIX_FADV_WILLNEED)
        wait_until(lambda: len(resident_pages(image)) >= 64, "the pages read ahead")
    recorder.sample(100)
    recorder.settle()
    recorder.close()
    assert recorder.touches == [(0, 64 * PAGE, 100)]


def test_what_is_no_file_cannot_be_recorded(tmp_path):
    with pytest.raises(Unavailable, match="not a regular file"):
        ResidencyRecorder(KernelResidency(os.open(tmp_path, os.O_RDONLY)))


HOT = [ByteRange(5 * PAGE, 9 * PAGE), ByteRange(2_000_000, 3_500_000), ByteRange(SIZE - 10, SIZE)]


async def test_the_prefetch_brings_exactly_what_it_is_asked_for(image):
    fd = os.open(image, os.O_RDONLY)
    prefetch = Prefetch(fd, SIZE, streams=4)
    await prefetch.run(iter(HOT))
    assert resident_pages(image) == pages_of(HOT)
    assert prefetch.read_bytes == total_bytes(HOT)
    assert prefetch.pinned_bytes >= prefetch.read_bytes
    assert prefetch.error == ""
    os.close(fd)


async def test_what_is_pinned_stays(image):
    fd = os.open(image, os.O_RDONLY)
    prefetch = Prefetch(fd, SIZE, streams=2)
    await prefetch.run(iter(HOT))
    os.posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)
    assert resident_pages(image) == pages_of(HOT)
    os.close(fd)


async def test_memory_that_cannot_be_locked_is_asked_for_once(image, monkeypatch):
    asked = []

    class CannotPin:
        def bs_window_pin(self, *arguments):
            asked.append(arguments)
            return -errno.ENOMEM

        def __getattr__(self, name):
            return getattr(lib, name)

    monkeypatch.setattr("bootseer.image.hot.prefetch.lib", CannotPin())
    fd = os.open(image, os.O_RDONLY)
    prefetch = Prefetch(fd, SIZE, streams=1)
    await prefetch.run(iter(HOT))
    assert prefetch.read_bytes == total_bytes(HOT)
    assert prefetch.pinned_bytes == 0 and len(asked) == 1
    os.close(fd)


async def test_a_file_that_shrinks_is_no_accident(image):
    fd = os.open(image, os.O_RDONLY)
    prefetch = Prefetch(fd, SIZE, streams=2)
    os.truncate(image, PAGE)
    await prefetch.run(iter([ByteRange(0, PAGE), ByteRange(PAGE, 8 * PAGE)]))
    assert prefetch.read_bytes == PAGE
    assert prefetch.error == ""
    os.close(fd)


async def test_a_failed_read_is_told_and_others_go_on(tmp_path, image):
    fd = os.open(image, os.O_WRONLY)  # cannot be read from, and cannot be mapped
    with pytest.raises(Unavailable, match="cannot map"):
        Prefetch(fd, SIZE, streams=1)
    os.close(fd)


async def test_a_prefetch_is_held_and_goes_on(image):
    fd = os.open(image, os.O_RDONLY)
    prefetch = Prefetch(fd, SIZE, streams=2)
    prefetch.hold(is_held=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prefetch.run, iter(HOT))
        await trio.sleep(0.2)
        assert prefetch.read_bytes == 0
        assert prefetch.held_s >= 0.2
        prefetch.hold(is_held=False)
    assert prefetch.read_bytes == total_bytes(HOT)
    assert prefetch.held_s == 0
    os.close(fd)


async def test_a_prefetch_that_is_held_can_be_stopped(image):
    fd = os.open(image, os.O_RDONLY)
    prefetch = Prefetch(fd, SIZE, streams=2)
    prefetch.hold(is_held=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prefetch.run, iter(HOT))
        await trio.sleep(0.05)
        prefetch.stop()
    assert prefetch.read_bytes == 0
    os.close(fd)


class Store:
    """One that gives so much in a second, after so long."""

    def __init__(self, mib_per_s, latency_s):
        self.rate, self.latency_s = mib_per_s * MIB, latency_s
        self.now_s = 0.0

    def settle(self, streams=16, first_s=0.0, seconds=2):
        """Have it read from for some seconds; the first read waits ``first_s`` behind others'.

        Returns what is under way, and the limit and the size of a read that it has come to.
        """
        self.read_bytes = 0
        under_way = UnderWay(streams, is_limited=True, now=lambda: self.now_s)
        reads = deque()
        free_s = first_s
        while self.now_s < seconds or reads:
            size_bytes = under_way.read_bytes
            may_begin = self.now_s < seconds and len(reads) < streams
            if may_begin and under_way.has_room(size_bytes):
                free_s = max(free_s, self.now_s + self.latency_s) + size_bytes / self.rate
                read = ExitStack()
                read.enter_context(under_way.piece(size_bytes))
                reads.append((free_s, size_bytes, read))
            else:
                if self.now_s < seconds:
                    settled = under_way.limit_bytes, under_way.read_bytes
                self.now_s, size_bytes, read = reads.popleft()
                read.close()
                self.read_bytes += size_bytes
        return under_way, *settled


@pytest.mark.parametrize(
    ("mib_per_s", "latency_s", "read_kib"),
    [(100, 0.0002, 256), (100, 0.005, 256), (500, 0.0002, 1024), (5000, 0.0002, 1024)],
)
def test_what_is_under_way_keeps_a_store_busy_and_little_waits_there(
    mib_per_s, latency_s, read_kib
):
    store = Store(mib_per_s, latency_s)
    _, limit_bytes, read_bytes = store.settle()
    assert read_bytes == read_kib * KIB
    alone_bytes = latency_s * store.rate + read_bytes
    assert 0.9 * alone_bytes <= limit_bytes <= 3 * alone_bytes


@pytest.mark.parametrize("first_s", [0.0, 0.5])
def test_what_is_under_way_is_right_after_first_reads_behind_others(first_s):
    store = Store(mib_per_s=5, latency_s=0.0002)
    _, limit_bytes, _ = store.settle(first_s=first_s, seconds=10)
    assert limit_bytes <= 4 * 256 * KIB
    assert store.read_bytes >= 0.98 * (10 - first_s) * store.rate


def test_a_read_that_is_alone_now_and_then_costs_little():
    store = Store(mib_per_s=200, latency_s=0.02)
    store.settle(seconds=10)
    assert store.read_bytes >= 0.93 * 10 * store.rate


def test_of_a_store_that_is_far_much_is_read_at_once():
    _, limit_bytes, read_bytes = Store(mib_per_s=2000, latency_s=0.02).settle()
    assert limit_bytes == 16 * MIB and read_bytes == MIB


def test_what_comes_out_of_memory_says_nothing_of_the_store():
    store = Store(mib_per_s=100, latency_s=0.0002)
    under_way, _, _ = store.settle()
    for _ in range(100):
        with under_way.piece(MIB) as read:
            store.now_s += 0.0002
            read.waited = False
    for _ in range(2):
        with under_way.piece(MIB):
            store.now_s += 0.01
    assert under_way.limit_bytes >= 512 * KIB


async def test_a_piece_waits_until_there_is_room():
    under_way = UnderWay(4, is_limited=False)
    begun = trio.Event()

    def read():
        with under_way.piece(2 * MIB):
            trio.from_thread.run_sync(begun.set)

    async with trio.open_nursery() as nursery:
        with under_way.piece(3 * MIB):
            nursery.start_soon(trio.to_thread.run_sync, read)
            await trio.sleep(0.1)
            assert not begun.is_set()
        with trio.fail_after(5):
            await begun.wait()
    with under_way.piece(100 * MIB):  # one that is larger than the limit is read alone
        pass


def test_without_others_behind_it_all_is_under_way_at_once():
    under_way = UnderWay(4, is_limited=False)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(under_way.piece(MIB))


async def test_a_cancelled_prefetch_stops_reading(image):
    fd = os.open(image, os.O_RDONLY)
    prefetch = Prefetch(fd, SIZE, streams=1)

    def pieces():
        for page in range(SIZE // PAGE):
            if page == 3:
                trio.from_thread.run_sync(scope.cancel)
            yield ByteRange(page * PAGE, (page + 1) * PAGE)

    with trio.CancelScope() as scope:
        await prefetch.run(pieces())
    assert scope.cancelled_caught
    with trio.fail_after(5):
        before = -1
        while before != prefetch.read_bytes:  # the read that was under way ends
            before = prefetch.read_bytes
            await trio.sleep(0.02)
    assert prefetch.read_bytes < 100 * PAGE
    os.close(fd)


def test_available_memory_is_a_share_of_the_machine():
    whole = os.sysconf("SC_PHYS_PAGES") * PAGE
    assert 0 < pinnable_bytes(1.0) <= whole


LOCK = """
import ctypes, mmap, os, sys
os.setresuid(*[int(sys.argv[1])] * 3)
memory = mmap.mmap(-1, 8 << 20)
libc = ctypes.CDLL(None)
if sys.argv[2] == "undumpable":
    libc.prctl(4, 0, 0, 0, 0)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(memory))) == 0
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.root
@pytest.mark.parametrize("kind", ["dumpable", "undumpable"])
def test_what_a_user_has_pinned_counts_for_all_of_the_users_jobs(kind):
    uid, most = 65533, 8 << 20
    assert locked_by(uid) == 0
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-P", "-c", LOCK, str(uid), kind], **pipes) as child:
        assert child.stdout.readline() == b"locked\n"
        assert locked_by(uid) == most
        assert locked_by(uid + 1) == 0
        child.stdin.close()


def test_a_user_gets_a_part_of_what_may_be_pinned(monkeypatch):
    """And nobody more than others have left."""
    for locked, own, may in ((10, 0, 50), (10, 10, 40), (60, 50, 0), (70, 60, 0), (80, 0, 20)):
        memory = {"MemAvailable": (100 - locked) * MIB, "Mlocked": locked * MIB}
        monkeypatch.setattr(image_prefetch, "_meminfo", lambda memory=memory: memory)
        monkeypatch.setattr(image_prefetch, "locked_by", lambda uid, own=own: own * MIB)
        assert pinnable_bytes(1.0) == may * MIB, (locked, own)
        assert may_pin(1.0) == bool(may), (locked, own)


def test_processes_are_looked_at_only_where_a_user_can_have_too_much(monkeypatch):
    """A worker asks again and again, while the job starts beside it."""
    looked = []
    monkeypatch.setattr(image_prefetch, "locked_by", lambda uid: looked.append(uid) or 0)
    for locked, may, looks in ((0, True, 0), (49, True, 0), (50, True, 1), (100, False, 0)):
        memory = {"MemAvailable": (100 - locked) * MIB, "Mlocked": locked * MIB}
        monkeypatch.setattr(image_prefetch, "_meminfo", lambda memory=memory: memory)
        looked.clear()
        assert (may_pin(1.0), len(looked)) == (may, looks), locked
