"""Mount or unpack: whichever was faster before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.env.snapshot.restore_stats import MOUNT, UNPACK, RestoreStats, choose

LARGE = (1_600_000_000, 33_000)
SMALL = (2_000_000, 50)


def test_without_figures_large_ones_are_mounted_and_small_ones_unpacked():
    assert choose(RestoreStats(), *LARGE)[0] == MOUNT
    assert choose(RestoreStats(), *SMALL)[0] == UNPACK
    assert choose(RestoreStats(), *LARGE)[1].startswith("mount 400 ms, unpack 1.93 s")


def test_what_was_measured_decides():
    slow_mount = slow_unpack = RestoreStats()
    for _ in range(20):
        slow_mount = slow_mount.with_mount(5.0).with_unpack(*LARGE, 2.0)
        slow_unpack = slow_unpack.with_mount(0.01).with_unpack(*LARGE, 60.0)
    assert choose(slow_mount, *LARGE)[0] == UNPACK
    assert choose(slow_unpack, *SMALL)[0] == MOUNT


def test_a_slow_mount_says_nothing_of_an_unpack_that_was_never_measured():
    stats = RestoreStats().with_mount(100.0)
    assert choose(stats, *LARGE) == (MOUNT, "mount 400 ms, unpack 1.93 s, by default")
    assert choose(stats.with_unpack(*LARGE, 9.0), *LARGE)[0] == UNPACK
    assert choose(RestoreStats().with_unpack(*LARGE, 0.001), *LARGE)[0] == MOUNT


@given(st.floats(1e-3, 1e3), st.integers(8 << 20, 1 << 40), st.integers(1, 10**6))
def test_figures_come_to_what_is_measured_all_the_time(took_s, content_bytes, files):
    stats = RestoreStats()
    for _ in range(60):
        stats = stats.with_mount(took_s).with_unpack(content_bytes, files, took_s)
    assert stats.mount_s == pytest.approx(took_s)
    assert stats.unpack_s(content_bytes, files) == pytest.approx(took_s)


def test_very_little_says_nothing_of_the_rate():
    assert RestoreStats().with_unpack(1000, 1, 9.0) == RestoreStats()


def test_what_takes_as_long_is_mounted():
    stats = RestoreStats(mount_s=1.0, unpack_s_per_gb=1.0, unpack_s_per_1000_files=0.0)
    assert choose(stats, 10**9, 0)[0] == MOUNT
    assert choose(stats, 10**9 - 1, 0)[0] == UNPACK


def test_half_of_what_is_known_stays():
    stats = RestoreStats(mount_s=4.0, unpack_s_per_gb=2.0, unpack_s_per_1000_files=1.0)
    assert stats.with_mount(2.0).mount_s == 3.0
    # Expected were 3 s.
    assert stats.with_unpack(10**9, 1000, 6.0) == RestoreStats(4.0, 3.0, 1.5)
