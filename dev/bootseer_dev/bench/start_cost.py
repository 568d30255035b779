"""What a start with image and checkpoint costs a node: processor time, and the epilog's time."""

from __future__ import annotations

import os
from pathlib import Path

from bootseer_dev.bench.figures import Figure
from bootseer_dev.jobs.lab import IMAGE, Lab

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
        before = _busy_s()
        lab.cluster.run(plain, user="alice")
        lab.assert_clean()
        between = _busy_s()
        job = lab.srun(*options, command=f"sleep {_JOB_S}")
        lab.assert_clean()
        added_s = (_busy_s() - between) - (between - before)
        cpu_s.append(added_s / len(lab.cluster.node_names))
        for node in lab.cluster.node_names:
            epilog = lab.stages(job, node)["epilog"]
            epilog_ms.append((epilog["end_s"] - epilog["start_s"]) * 1000)
    return [
        Figure("start_cpu_s", "s", tuple(cpu_s)),
        Figure("epilog_ms", "ms", tuple(epilog_ms)),
    ]


def _busy_s() -> float:
    """Return the seconds that all processors have worked since the machine's start."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, *_ = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
