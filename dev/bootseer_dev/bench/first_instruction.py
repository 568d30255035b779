"""From the submission to a job's first instruction, with BootSeer and without, and with systemd."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bootseer_dev.bench.figures import Figure
from bootseer_dev.cluster import Cluster
from bootseer_dev.jobs.lab import Lab

_OPTIONS = {"off": "--bootseer=off", "on": "--bootseer=first-instruction"}


def first_instruction(
    systemd: Lab, own_session: Lab, rounds: int
) -> tuple[list[Figure], dict[str, float]]:
    """Time the same job on both clusters in turn, with BootSeer and without.

    Args:
        systemd: a cluster whose nodes systemd runs.
        own_session: one without systemd, where agents have a session of their own only.
        rounds: how often each is measured.

    Returns:
        Figures in milliseconds, and ratios.
    """
    labs = {"systemd": systemd, "own_session": own_session}
    taken: dict[str, list[float]] = {f"{lab}_{how}": [] for lab in labs for how in _OPTIONS}
    for number in range(-2, rounds):
        for name, lab in labs.items():
            for how, option in _OPTIONS.items():
                took_ms = _start_ms(lab.cluster, option)
                lab.assert_clean()  # an agent that ends takes processor time of the next start
                if number >= 0:  # the first ones load caches
                    taken[f"{name}_{how}"].append(took_ms)
    added = _differences(taken["systemd_on"], taken["systemd_off"])
    found = [
        *(Figure(f"first_instruction_{name}_ms", "ms", tuple(ms)) for name, ms in taken.items()),
        Figure("first_instruction_added_ms", "ms", added),
    ]
    medians = {name: figure.median for name, figure in zip(taken, found, strict=False)}
    ratios = {"systemd_over_own_session": medians["systemd_on"] / medians["own_session_on"]}
    return found, ratios


def _start_ms(cluster: Cluster, option: str) -> float:
    began_ns = time.time_ns()
    said = cluster.run(["srun", "-N1", option, "date", "+%s%N"], user="alice").stdout
    return (int(said.split()[-1]) - began_ns) / 1e6


def _differences(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    return tuple(a - b for a, b in zip(above, below, strict=True))
