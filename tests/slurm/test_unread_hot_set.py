"""Starts that read something else than what was recorded.

How well the kernel tells what was read from what it has read ahead, and how soon, shows on a node
that nobody else keeps busy: so these are among the longer tests, which run alone.
"""

import json
import os
import re

import pytest
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import SHARE

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.faults]

IMAGE = f"{SHARE}/large.img"
SIZE_MB = 240
FIRST_MB = 40
RECORDED_MB = 80
BOOTSEER = ("--bootseer=train", f"--bootseer-image={IMAGE}")


@pytest.fixture
def large(lab):
    """The cluster, with an image of which the recorded start has read 80 MB in the middle."""
    path = lab.images / "large.img"
    path.write_bytes(os.urandom(SIZE_MB * 1_000_000))
    start(lab, FIRST_MB, RECORDED_MB)
    yield lab
    path.unlink()


def start(lab, first_mb, count_mb, *options, after="true", readers=1):
    """Run a job that reads one part of the image on both nodes; returns it."""
    lab.drop_caches()
    each = count_mb // readers
    read = "".join(
        f"dd if={IMAGE} of=/dev/null bs=1000000 skip={skip} count={each} status=none & "
        for skip in range(first_mb, first_mb + count_mb, each)
    )
    mark = f"{site.bootseer()} mark first-step"
    return lab.srun(*BOOTSEER, *options, command=f"{read} wait; {after}; {mark}")


def held_out(said):
    """How many pieces were read, and how many there were."""
    read, pieces = re.search(r"; (\d+) of (\d+) held-out pieces", said).groups()
    return int(read), int(pieces)


def test_what_three_starts_have_not_read_is_given_up(large):
    hot_bytes, doubts = [], []
    for number in range(4):
        job = start(large, FIRST_MB + RECORDED_MB + 5 + 25 * number, 20, "--bootseer-wait=10")
        hot_bytes.append(large.stages(job)["hotset.read"]["bytes"])
        show = [site.bootseer(), "hot", "ls", "--json"]
        (shown,) = json.loads(large.cluster.run(show, user="alice").stdout)
        doubts.append(shown["doubts"])
        said = large.stages(job)["image.record"]["detail"]
        # One node looks, while there is enough to look at; all others have all of it.
        assert ("pieces" in said) == (number < 3), said
        assert number == 3 or held_out(said)[0] <= 2, said
        assert "pieces" not in large.stages(job, "n2")["image.record"]["detail"]
    assert doubts == [1, 2, 3, 3]
    merged = large.stages(job)["hotset.merge"]
    assert [round(size / 20e6) for size in hot_bytes] == [4, 5, 6, 3]
    assert large.fallbacks(job) == set()
    assert merged["bytes"] == pytest.approx(80e6, rel=0.1)


def test_a_start_that_reads_it_publishes_nothing_for_having_been_looked_at(large):
    job = start(large, FIRST_MB, RECORDED_MB, "--bootseer-wait=10")
    stages = large.stages(job)
    read, pieces = held_out(stages["image.record"]["detail"])
    assert pieces > 16 and read > 0.5 * pieces  # but for what is forgotten
    # No more than the kernel has read ahead beyond the hot set.
    assert stages.get("trace.publish", {"bytes": 0})["bytes"] < 1e6
    assert stages["image.record"]["bytes"] > 1e6


def test_a_start_gets_the_store_to_itself_once_it_reads_other_things(large):
    large.cluster.unmount_share()
    # So slow that even on a busy node much is left to save once it has been seen.
    large.mount_share(bandwidth=5e6)
    try:
        # One reader, which waits for each of its reads, gets little of a store that is this slow.
        first_mb = FIRST_MB + RECORDED_MB + 5
        job = start(large, first_mb, 20, "-N1", after="sleep 10", readers=4)
    finally:
        large.cluster.unmount_share()
        large.mount_share()
    prefetch = large.stages(job)["image.prefetch"]
    assert prefetch["bytes"] < 0.9 * RECORDED_MB * 1e6
    assert "this start reads little of it" in prefetch["detail"]
