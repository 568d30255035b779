"""How fast a store is, as its reads show."""

import pytest

from bootseer.core.speed import UNKNOWN, Speed, SpeedMeter
from bootseer.units import MIB


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def all_at_once(meter, clock, count, took_s, size_bytes=MIB):
    reads = [meter.read(size_bytes) for _ in range(count)]
    for read in reads:
        read.__enter__()
    clock.now += took_s
    for read in reads:
        read.__exit__(None, None, None)


def test_one_read_shows_the_latency_and_many_show_the_rate():
    meter = SpeedMeter(clock := Clock())
    assert meter.speed(nodes=1) == UNKNOWN
    for took_s in (0.003, 0.002, 0.009):
        all_at_once(meter, clock, 1, took_s)
    assert meter.speed(nodes=3) == Speed(2_000, 0, 3)
    clock.now += 50  # nobody reads
    all_at_once(meter, clock, 23, 0.2)
    found = meter.speed(nodes=3)
    assert found.latency_us == 2_000
    # Of 23 that end together, the last 7 are no crowd any more.
    assert found.bytes_per_s == pytest.approx(16 * MIB / 0.2, rel=0.01)


def test_little_says_nothing_of_the_rate():
    meter = SpeedMeter(clock := Clock())
    all_at_once(meter, clock, 20, 0.001, size_bytes=65536)
    assert meter.speed(nodes=1).bytes_per_s == 0


def test_a_read_that_fails_is_none():
    meter = SpeedMeter(clock := Clock())
    with pytest.raises(OSError, match="lost"), meter.read(MIB):
        clock.now += 1e-9
        raise OSError("lost")
    assert meter.speed(nodes=1) == UNKNOWN
    all_at_once(meter, clock, 1, 0.004)
    assert meter.speed(nodes=1).latency_us == 4_000


def test_what_is_not_known_is_taken_from_before():
    before = Speed(5_000, 10**9, 8)
    assert UNKNOWN.or_else(before) == before
    assert Speed(7_000, 0, 2).or_else(before) == Speed(7_000, 10**9, 8)
    assert Speed(0, 10**8, 2).or_else(before) == Speed(5_000, 10**8, 2)
