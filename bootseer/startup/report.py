"""What a run's events say: stages per node, time to ready, stragglers, cold against warm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from bootseer.core.event import FALLBACK
from bootseer.startup.run_events import NodeRun
from bootseer.units import NS_PER_S

_BESIDE = {
    *("batch", "interactive", "step"),
    *("agent.ready", "plan.read", "hotset.read", "image.identify", "image.prefetch", "image.copy"),
    *("image.record", "image.serve", "image.pack", "image.pack.write"),
    *("image.announce", "image.keep"),
    *("checkpoint.plan", "checkpoint.prefetch"),
}
"""Stages that the job does not wait for, or that last as long as a step whatever it waits for."""
READY_STAGE = "mark.first-step"
"""Said by `bootseer mark first-step`: from here on the job does what it was started for."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage on one node; times in seconds from the run's start."""

    stage: str
    start_s: float
    end_s: float
    bytes: int
    source: str
    status: str
    detail: str

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class NodeStages:
    """One node's stages.

    Attributes:
        node: its name.
        ready_s: when it was ready, None if no mark says so.
        stages: by start.
        unexplained_s: part of the time to ready in no stage that the job waits for; None if no mark
            says when it was ready.
    """

    node: str
    ready_s: float | None
    stages: tuple[Stage, ...]
    unexplained_s: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A run.

    Attributes:
        run, job, key, kind: as in `NodeRun`; "warm" when any node was prefetched for.
        started_ns: when the first node's prolog began.
        ready_s: time to ready of the slowest node, seconds; None if no mark says so.
        straggler: time to ready of the slowest node over the median node's.
        nodes: sorted by name.
    """

    run: str
    job: int
    key: str
    kind: str
    started_ns: int
    ready_s: float | None
    straggler: float | None
    nodes: tuple[NodeStages, ...]

    def document(self) -> dict[str, object]:
        return asdict(self)

    @property
    def fallbacks(self) -> list[tuple[str, Stage]]:
        """Every fallback with the node it happened on."""
        return [(n.node, s) for n in self.nodes for s in n.stages if s.status == FALLBACK]


def build(node_runs: Sequence[NodeRun]) -> Report:
    """Build the report of one run from the events of its nodes (at least one)."""
    started_ns = min(node_run.started_ns for node_run in node_runs)
    nodes = tuple(_node(node_run, started_ns) for node_run in node_runs)
    ready = [node.ready_s for node in nodes if node.ready_s is not None]
    return Report(
        run=node_runs[0].run,
        job=node_runs[0].job,
        key=node_runs[0].key,
        kind="warm" if any(r.kind == "warm" for r in node_runs) else "cold",
        started_ns=started_ns,
        ready_s=max(ready) if ready else None,
        straggler=max(ready) / median(ready) if ready and median(ready) > 0 else None,
        nodes=nodes,
    )


def _node(node_run: NodeRun, started_ns: int) -> NodeStages:
    stages = sorted(
        (
            Stage(
                e.stage,
                (e.start_ns - started_ns) / NS_PER_S,
                (e.end_ns - started_ns) / NS_PER_S,
                e.bytes,
                e.source,
                e.status,
                e.detail,
            )
            for e in node_run.events
        ),
        key=lambda s: (s.start_s, s.end_s),
    )
    marks = [s.end_s for s in stages if s.stage == READY_STAGE]
    ready_s = min(marks) if marks else None
    unexplained_s = _unexplained(stages, ready_s) if ready_s is not None else None
    return NodeStages(node_run.node, ready_s, tuple(stages), unexplained_s)


def _unexplained(stages: Sequence[Stage], ready_s: float) -> float:
    """Return the time until `ready_s` in no stage that the job waits for.

    Args:
        stages: by start.
        ready_s: seconds from the run's start.
    """
    total_s = reached_s = 0.0
    for stage in stages:
        if stage.stage not in _BESIDE and stage.start_s < ready_s:
            total_s += max(0.0, stage.start_s - reached_s)
            reached_s = max(reached_s, stage.end_s)
    return total_s + max(0.0, ready_s - reached_s)
