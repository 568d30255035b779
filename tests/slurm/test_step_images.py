"""The images that the steps of a batch script bring, each with an srun of its own."""

import shutil

import pytest
from bootseer_dev.jobs.lab import IMAGE, SHARE
from bootseer_dev.material.images import TinyImage, write_image

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

OTHER = f"{SHARE}/other.sqsh"


@pytest.fixture
def two_images(lab, pyxis_option):
    other = lab.images / "other.sqsh"
    write_image(TinyImage(seed=7), other)
    yield
    other.unlink()


def run(lab, script, *options):
    job = lab.sbatch(f"#!/bin/sh\n{script}", "-N2", *options)
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    lab.assert_clean()
    return job


def prefetches(lab, job):
    """Return how often each node of a job prefetched, and what it prefetched in all."""
    report = lab.report(job)
    every = [[s for s in n["stages"] if s["stage"] == "image.prefetch"] for n in report["nodes"]]
    return [len(stages) for stages in every], [sum(s["bytes"] for s in stages) for stages in every]


def step(lab, image):
    """A step, and time for a busy machine's agent to see what it has read."""
    start = "/usr/bin/env USER=alice " + lab.start(image).replace("ch-run", shutil.which("ch-run"))
    return f"/usr/bin/srun --ntasks-per-node=1 --container-image={image} {start}\n/bin/sleep 3\n"


@pytest.mark.parametrize("export", ["ALL", "NONE"])
def test_the_images_of_two_steps_are_warm_at_the_second_run(lab, two_images, export):
    script = step(lab, IMAGE) + step(lab, OTHER)
    options = ("--bootseer=two", f"--export={export}")
    lab.drop_caches()
    first = run(lab, script, *options)
    assert lab.report(first)["kind"] == "cold"
    assert prefetches(lab, first)[0] == [0, 0]
    lab.drop_caches()
    second = run(lab, script, *options)
    assert lab.report(second)["kind"] == "warm"
    counts, sizes = prefetches(lab, second)
    assert counts == [2, 2] and min(sizes) > 2 * 30 * 96 * 1024
    assert lab.fallbacks(first) == lab.fallbacks(second) == set()


def test_a_step_of_its_own_brings_its_image(lab, two_images):
    """Its job's batch script did not ask for BootSeer."""
    script = step(lab, OTHER).replace("srun", "srun --bootseer=own", 1)
    run(lab, script)
    lab.drop_caches()
    assert prefetches(lab, run(lab, script))[0] == [1, 1]


def test_a_step_that_declines_brings_nothing(lab, two_images):
    script = step(lab, OTHER).replace("srun", "srun --bootseer=off", 1)
    job = run(lab, script, "--bootseer=declined")
    assert "image.identify" not in lab.stages(job)


def test_what_a_step_waits_for_covers_a_container_that_another_plugin_makes(lab, pyxis_option):
    job = lab.srun("--bootseer=waits", "--container-image=slow", command="sleep 1")
    for node in lab.cluster.node_names:
        stages = lab.stages(job, node)
        took = {name: stages[name]["end_s"] - stages[name]["start_s"] for name in stages}
        assert 3 <= took["step.start"] < took["step"]
