"""How an image is read ahead: at which pace, how much at once, and what of it is pinned."""

import errno
import os
from types import SimpleNamespace

import pytest
import trio
from bootseer_dev.files.slow_share import FolderView

from bootseer._io import lib
from bootseer.core.ranges import ByteRange
from bootseer.fuse.root_mounts import MountOptions
from bootseer.fuse.serve_view import serve
from bootseer.image.hot import prefetch as image_prefetch
from bootseer.image.hot.prefetch import (
    PIECE_BYTES,
    Prefetch,
    UnderWay,
    available_bytes,
    may_pin,
    pinnable_bytes,
)
from bootseer.rate_limit import RateLimit
from bootseer.units import KIB, MIB

SIZE = 5 * MIB + 100


class Kernel:
    """The system's calls as they are, but for some; notes all of them with their numbers.

    Attributes:
        calls: name and numbers of each call.
    """

    def __init__(self, **answers):
        self._answers = answers
        self.calls = []

    def __getattr__(self, name):
        call = self._answers.get(name, getattr(lib, name))

        def noting(*arguments):
            self.calls.append((name, *(a for a in arguments if isinstance(a, int))))
            return call(*arguments)

        return noting

    def ranges(self, name):
        return [call[1:3] for call in self.calls if call[0] == name]


@pytest.fixture
def opened(tmp_path):
    """A file to read ahead."""
    with (tmp_path / "image").open("wb") as file:
        file.truncate(SIZE)
    fd = os.open(tmp_path / "image", os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def kernel(monkeypatch):
    def use(**answers):
        kernel = Kernel(**answers)
        monkeypatch.setattr(image_prefetch, "lib", kernel)
        return kernel

    return use


PIECES = [ByteRange(10, 300_000), ByteRange(MIB, 2 * MIB), ByteRange(3 * MIB, 5 * MIB)]


async def test_the_first_failure_is_told_and_others_go_on(opened, kernel):
    failing = {MIB: -errno.EIO, 3 * MIB: -errno.ESTALE}

    def read(window, start, *more):
        return failing.get(start) or lib.bs_window_read(window, start, *more)

    system = kernel(bs_window_read=read)
    prefetch = Prefetch(opened, SIZE, streams=1)
    await prefetch.run(iter([*PIECES, ByteRange(5 * MIB, SIZE)]))
    assert prefetch.error == f"Input/output error at byte {MIB}"
    assert prefetch.read_bytes == 300_000 - 10 + 100
    assert system.ranges("bs_window_pin") == [(10, 300_000), (5 * MIB, SIZE)]


async def test_pieces_are_read_in_large_reads_unless_others_wait_behind_them(opened, kernel):
    for others_wait, at_once in ((False, MIB), (True, 256 * KIB)):
        system = kernel()
        prefetch = Prefetch(opened, SIZE, streams=1, others_wait=others_wait)
        await prefetch.run(iter(PIECES[:1] + PIECES[2:]))
        assert prefetch.read_bytes == 300_000 - 10 + 2 * MIB
        first_reads = [(10, min(300_000, 10 + at_once)), (3 * MIB, 3 * MIB + at_once)]
        reads = system.ranges("bs_window_read")
        assert reads[0] == first_reads[0] and (others_wait or reads[1] == first_reads[1])
        assert all(stop - start <= PIECE_BYTES for start, stop in reads)
        assert sum(stop - start for start, stop in reads) == prefetch.read_bytes


async def test_a_file_that_gives_less_than_is_asked_for_is_read_on(opened, kernel):
    def read(window, start, stop, *more):
        return min(stop - start, 70_000)

    system = kernel(bs_window_read=read)
    prefetch = Prefetch(opened, SIZE, streams=1)
    await prefetch.run(iter(PIECES[:1]))
    starts = [start for start, _ in system.ranges("bs_window_read")]
    assert starts == [10, 70_010, 140_010, 210_010, 280_010]
    assert prefetch.read_bytes == 300_000 - 10


async def test_a_file_that_ends_early_is_pinned_up_to_there(opened, kernel):
    os.truncate(f"/proc/self/fd/{opened}", MIB + 5)
    system = kernel()
    prefetch = Prefetch(opened, SIZE, streams=1)
    await prefetch.run(iter([PIECES[1], PIECES[2], PIECES[0]]))
    assert prefetch.read_bytes == 5 + 300_000 - 10
    assert system.ranges("bs_window_pin") == [(MIB, MIB + 5), (10, 300_000)]
    assert not prefetch.error


async def test_what_is_pinned_is_counted_until_it_is_not_wanted(opened, kernel):
    system = kernel(bs_window_pin=lambda window, start, stop: stop - start + 7)
    prefetch = Prefetch(opened, SIZE, streams=1)

    def pieces():
        yield PIECES[0]
        yield PIECES[1]
        prefetch.stop_pinning()
        yield PIECES[2]

    await prefetch.run(pieces())
    assert prefetch.pinned_bytes == 300_000 - 10 + MIB + 2 * 7
    assert prefetch.read_bytes == 300_000 - 10 + 3 * MIB
    assert len(system.ranges("bs_window_pin")) == 2


async def test_a_pin_of_nothing_is_not_the_last(opened, kernel):
    system = kernel(bs_window_pin=lambda window, start, stop: 0)
    prefetch = Prefetch(opened, SIZE, streams=1)
    await prefetch.run(iter(PIECES))
    assert prefetch.pinned_bytes == 0 and len(system.ranges("bs_window_pin")) == 3


async def test_each_stream_gives_way_once_when_nobody_waits_any_more(opened, kernel):
    system = kernel(bs_io_idle=lambda: 0)
    prefetch = Prefetch(opened, SIZE, streams=1)

    def pieces():
        yield PIECES[0]
        assert not system.ranges("bs_io_idle")
        prefetch.yield_to_others()
        yield from PIECES[1:]

    await prefetch.run(pieces())
    assert len(system.ranges("bs_io_idle")) == 1
    names = [name for name, *_ in system.calls]
    assert names.index("bs_io_idle") < names.index("bs_window_read", 2)


@pytest.mark.fuse
@pytest.mark.root
@pytest.mark.leaves_open  # the folder is its process's
async def test_it_is_known_which_reads_waited_for_the_store(tmp_path, kernel):
    """Reads from memory looked like a store so near that two reads kept it busy."""
    waits = []

    def read(*arguments):
        found = lib.bs_window_read(*arguments)
        waits.append(arguments[-1][0])
        return found

    kernel(bs_window_read=read)
    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    (source / "image").write_bytes(bytes(SIZE))
    async with trio.open_nursery() as nursery:
        view = FolderView(source, latency_s=0.005)
        await nursery.start(serve, view, mountpoint, MountOptions(read_only=True))
        fd = await trio.to_thread.run_sync(os.open, mountpoint / "image", os.O_RDONLY)
        for expected in (1, 0):  # the first holds in memory what it has read
            prefetch = Prefetch(fd, SIZE, streams=2, others_wait=True)
            before = prefetch._under_way.limit_bytes
            await prefetch.run(iter(PIECES))
            assert prefetch.pinned_bytes and set(waits) == {expected}
            waits.clear()
        assert prefetch._under_way.limit_bytes == before
        await trio.to_thread.run_sync(os.close, fd)
        nursery.cancel_scope.cancel()


async def test_a_budget_is_kept_to(opened, monkeypatch):
    waited = []
    clock = SimpleNamespace(sleep=waited.append, monotonic=lambda: 10.0)
    monkeypatch.setattr(image_prefetch, "time", clock)
    prefetch = Prefetch(opened, SIZE, streams=1, budget=RateLimit(MIB))
    await prefetch.run(iter(PIECES[1:]))
    assert waited == [0.0, 1.0]
    waited.clear()
    prefetch = Prefetch(opened, SIZE, streams=1)
    await prefetch.run(iter(PIECES[1:]))
    assert waited == [0.0, 0.0], "without one it is as fast as it comes"


async def test_a_prefetch_that_has_ended_reads_nothing_more(opened):
    prefetch = Prefetch(opened, SIZE, streams=2)
    pieces = iter(PIECES)
    prefetch.hold(is_held=True)
    assert prefetch.held_s >= 0
    with trio.move_on_after(0.01) as scope:
        await prefetch.run(pieces)
    assert scope.cancelled_caught and prefetch.held_s == 0.0
    assert prefetch.read_bytes == 0 and next(pieces) == PIECES[0]


def test_how_long_it_is_held_is_known(opened, monkeypatch):
    clock = SimpleNamespace(now_s=100.0)
    clock.monotonic = lambda: clock.now_s
    prefetch = Prefetch(opened, SIZE, streams=2)
    monkeypatch.setattr(image_prefetch, "time", clock)
    assert prefetch.held_s == 0.0
    prefetch.hold(is_held=True)
    clock.now_s += 2.5
    assert prefetch.held_s == 2.5
    prefetch.hold(is_held=False)
    assert prefetch.held_s == 0.0


class Reads:
    """Reads one after another, all within one that goes on, by a clock of their own."""

    def __init__(self, streams, *, is_limited=True):
        self.now_s = 0.0
        self.under_way = UnderWay(streams, is_limited=is_limited, now=lambda: self.now_s)

    def read(self, size_bytes, took_s, count=1):
        with self.under_way.piece(1):
            for _ in range(count):
                with self.under_way.piece(size_bytes):
                    self.now_s += took_s
            return self.limits

    @property
    def limits(self):
        return self.under_way.read_bytes, self.under_way.limit_bytes


FIRST = (256 * KIB, 512 * KIB)


def test_what_is_read_at_first_depends_on_who_else_reads():
    assert Reads(5).limits == FIRST
    assert Reads(5, is_limited=False).limits == (MIB, 5 * MIB)


def test_where_nobody_else_reads_all_streams_read_large_pieces():
    assert Reads(5, is_limited=False).read(MIB, 0.25, 10) == (MIB, 5 * MIB)


@pytest.mark.parametrize(
    ("streams", "took_s", "count", "found"),
    [
        (1, 1 / 16, 7, FIRST),  # seven reads say little of the rate
        (1, 1 / 16, 8, (768 * KIB, 1536 * KIB)),  # 4 MiB/s, and three times what 1/16 s brings
        (2, 1 / 16, 8, (512 * KIB, MIB)),
        (16, 2**-11, 10, FIRST),
        (16, 2**-11, 11, (MIB, 2 * MIB)),  # more than 5 ms, in which 512 MiB/s bring much
    ],
)
def test_what_is_under_way_follows_what_reads_take(streams, took_s, count, found):
    assert Reads(streams).read(256 * KIB, took_s, count) == found


def test_a_rate_is_the_highest_of_the_last_while():
    """After ten windows the good one is forgotten."""
    reads = Reads(1)
    with reads.under_way.piece(1):
        assert reads.read(256 * KIB, 1 / 512, 8) == (768 * KIB, 1536 * KIB)
        assert reads.read(256 * KIB - 1, 1 / 256, 9 * 8) == (768 * KIB, 1536 * KIB)
        assert reads.read(256 * KIB - 1, 1 / 256, 8) == (512 * KIB, MIB)


def test_only_of_reads_that_are_long_enough_it_is_known_what_one_takes():
    """As long as it is not, all streams read."""
    assert Reads(4).read(256 * KIB - 1, 1 / 256, 8) == (MIB, 4 * MIB)
    assert Reads(4).read(256 * KIB - 1, 1 / 256, 7) == FIRST
    assert Reads(4).read(256 * KIB, 1 / 256, 8) == (256 * KIB, 768 * KIB)


def test_where_the_kernel_does_not_say_what_is_locked_nothing_is(monkeypatch):
    monkeypatch.setattr(image_prefetch, "_meminfo", lambda: {"MemAvailable": 100 * MIB})
    monkeypatch.setattr(image_prefetch, "locked_by", lambda uid: MIB)
    assert pinnable_bytes(1.0) == 50 * MIB
    assert may_pin(1.0)


def test_what_is_available_is_what_the_kernel_says(monkeypatch):
    monkeypatch.setattr(image_prefetch, "_meminfo", lambda: {"MemAvailable": 5, "MemFree": 3})
    assert available_bytes() == 5
    monkeypatch.setattr(image_prefetch, "_meminfo", lambda: {"MemFree": 3})
    assert available_bytes() == 0
