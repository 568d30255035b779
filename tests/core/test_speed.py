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
    all_at_once(meter, clock, 23, 0.25)
    # Of 23 that end together, the last 7 are no crowd any more.
    assert meter.speed(nodes=3) == Speed(2_000, 64 * MIB, 3)


def test_few_reads_give_no_rate():
    meter = SpeedMeter(clock := Clock())
    all_at_once(meter, clock, 20, 0.001, size_bytes=65536)
    assert meter.speed(nodes=1).bytes_per_s == 0


def test_reads_that_take_no_time_give_no_rate():
    meter = SpeedMeter(clock := Clock())
    all_at_once(meter, clock, 30, 0.0)
    assert meter.speed(nodes=0) == Speed(0, 0, 1)


def test_the_time_of_a_crowd_counts_until_one_of_its_reads_fails():
    meter = SpeedMeter(clock := Clock())
    reads = [meter.read(16 * MIB) for _ in range(8)]
    for read in reads:
        read.__enter__()
    clock.now += 0.25
    assert not reads[0].__exit__(OSError, OSError("lost"), None)
    clock.now += 50  # seven are none
    with meter.read(16 * MIB):
        clock.now += 0.25
    for read in reads[1:]:
        read.__exit__(None, None, None)
    assert meter.speed(nodes=1).bytes_per_s == 32 * MIB


def test_a_read_that_fails_is_none():
    meter = SpeedMeter(clock := Clock())
    with pytest.raises(OSError, match="lost"), meter.read(MIB):
        clock.now += 1e-9
        raise OSError("lost")
    assert meter.speed(nodes=1) == UNKNOWN
    all_at_once(meter, clock, 1, 0.004)
    assert meter.speed(nodes=1).latency_us == 4_000


def test_unknown_values_are_taken_from_the_other_speed():
    before = Speed(5_000, 10**9, 8)
    assert UNKNOWN.or_else(before) == before
    assert Speed(7_000, 0, 2).or_else(before) == Speed(7_000, 10**9, 8)
    assert Speed(0, 10**8, 2).or_else(before) == Speed(5_000, 10**8, 2)
