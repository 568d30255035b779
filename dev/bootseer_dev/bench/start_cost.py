"""What a start with image and checkpoint costs a node: processor time, and the epilog's time."""

from __future__ import annotations

import os

from bootseer_dev.bench.figures import Figure
from bootseer_dev.jobs.lab import IMAGE, Lab
from bootseer_dev.race.processors import Ticks

_JOB_S = 1


def start_cost(lab: Lab, pairs: int) -> list[Figure]:
    """Run the same job with and without BootSeer in turn, so often; nothing else may run.

    The processor time is the whole machine's, so that what srun and Slurm do more counts too.
    """
    plain = ["srun", "-N2", "sleep", str(_JOB_S)]
    options = ("--bootseer=cost", f"--bootseer-image={IMAGE}", "--bootseer-ckpt=file:///shared/run")
    lab.cluster.run(["mkdir", "-p", "/shared/run"], user="alice")
    lab.srun(*options)
    cpu_s: list[float] = []
    epilog_ms: list[float] = []
    for _ in range(pairs):
        before = Ticks.now().busy
        lab.cluster.run(plain, user="alice")
        lab.assert_clean()
        between = Ticks.now().busy
        job = lab.srun(*options, command=f"sleep {_JOB_S}")
        lab.assert_clean()
        added = (Ticks.now().busy - between) - (between - before)
        cpu_s.append(added / os.sysconf("SC_CLK_TCK") / len(lab.cluster.node_names))
        for node in lab.cluster.node_names:
            epilog = lab.stages(job, node)["epilog"]
            epilog_ms.append((epilog["end_s"] - epilog["start_s"]) * 1000)
    return [Figure("start_cpu_s", "s", tuple(cpu_s)), Figure("epilog_ms", "ms", tuple(epilog_ms))]
