from contextlib import ExitStack

import pytest

from bootseer.core.meter import Meter


def test_overlaps_count_once_and_pauses_do_not_count():
    now = [1_000_000_000]
    meter = Meter(lambda: now[0])
    assert (meter.size_bytes, meter.bytes_per_s) == (0, 0)
    assert (meter.began_ns, meter.ended_ns) == (0, 0)
    with ExitStack() as second:
        with meter.transfer():
            now[0] += 1_000_000_000
            second.enter_context(meter.transfer())
            now[0] += 1_000_000_000
        now[0] += 1_000_000_000
    now[0] += 60_000_000_000
    with pytest.raises(OSError), meter.transfer():
        now[0] += 1_000_000_000
        raise OSError
    meter.size_bytes = 8_000
    assert meter.bytes_per_s == 2_000
    assert (meter.began_ns, meter.ended_ns) == (1_000_000_000, 65_000_000_000)


def test_a_clock_that_is_set_back_takes_no_time_away():
    now = [5_000_000_000]
    meter = Meter(lambda: now[0])
    meter.size_bytes = 8_000
    with meter.transfer():
        now[0] = 1_000_000_000
    assert meter.bytes_per_s == 0
    with meter.transfer():
        now[0] = 3_000_000_000
    assert meter.bytes_per_s == 4_000
    assert (meter.began_ns, meter.ended_ns) == (5_000_000_000, 3_000_000_000)
