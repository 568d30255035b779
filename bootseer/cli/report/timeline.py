"""Show reports on a terminal: a table of stages, and a timeline of each node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from bootseer.cli.terminal.console import plain, printable
from bootseer.core.event import FALLBACK
from bootseer.startup.report import NodeStages, Report, Stage
from bootseer.units import format_duration, format_size

MAX_TABLE_NODES = 16
_AFTER_START = ("step", "epilog")
"""Stages that last as long as the job does."""
_LABEL_CHARS = 20
_STYLES = {
    "prolog": "blue",
    "image": "green",
    "checkpoint": "cyan",
    "step": "magenta",
    "epilog": "blue",
}


def show(console: Console, reports: Iterable[Report]) -> None:
    """Print reports with timelines on one scale, and how cold and warm starts compare."""
    shown = list(reports)
    scale_s = max((_last_s(report) for report in shown), default=0.0)
    for report in shown:
        nodes = _slowest(report.nodes)
        console.print(_title(report))
        console.print(_table(nodes), no_wrap=True, overflow="ellipsis")
        if len(nodes) < len(report.nodes):
            faster = len(report.nodes) - len(nodes)
            console.print(f"the {len(nodes)} slowest nodes; {faster} faster ones: see --json")
        _timeline(console, nodes, scale_s)
        _tell_unexplained(console, report.nodes)
        for node, stage in report.fallbacks:
            said = plain(f" {node} {stage.stage}: {stage.detail}")
            console.print(Text("fallback", "yellow").append_text(said))
        console.print()
    times = {r.kind: r.ready_s for r in shown if r.ready_s}
    if "cold" in times and "warm" in times:
        cold, warm = times["cold"], times["warm"]
        console.print(
            f"time to ready: cold {format_duration(cold)}, warm {format_duration(warm)}: "
            f"[bold]{cold / warm:.2f}x[/]"
        )


def _slowest(nodes: Sequence[NodeStages]) -> Sequence[NodeStages]:
    """Return all nodes if they are few, else the slowest of them, and these by slowness."""
    if len(nodes) <= MAX_TABLE_NODES:
        return nodes
    return sorted(nodes, key=_slowness, reverse=True)[:MAX_TABLE_NODES]


def _slowness(node: NodeStages) -> tuple[bool, float]:
    if node.ready_s is not None:
        return True, node.ready_s
    ends = (s.end_s for s in node.stages if s.stage.partition(".")[0] not in _AFTER_START)
    return False, max(ends, default=0.0)


def _title(report: Report) -> Text:
    ready = f", ready after {format_duration(report.ready_s)}" if report.ready_s else ""
    straggler = f" (slowest/median {report.straggler:.2f})" if report.straggler else ""
    nodes = f"{len(report.nodes)} node{'s' if len(report.nodes) != 1 else ''}"
    return plain(
        f"job {report.job} · key {report.key} · {report.kind} start · {nodes}{ready}{straggler}",
        "bold",
    )


def _table(nodes: Sequence[NodeStages]) -> Text:
    """Return a line for each stage, of which the details may be cut off at the terminal's edge.

    rich's own table takes as long as all the rest of a report of a few nodes.
    """
    rows = [("node", "stage", "at", "took", "bytes", "")]
    styles = [""]
    for node in nodes:
        for index, stage in enumerate(node.stages):
            name = printable(node.node) if index == 0 else ""
            took = format_duration(stage.seconds) if stage.end_s > stage.start_s else ""
            size = format_size(stage.bytes) if stage.bytes else ""
            start = f"{stage.start_s:.2f} s"
            detail = printable(stage.detail)
            rows.append((name, printable(stage.stage), start, took, size, detail))
            styles.append("yellow" if stage.status == FALLBACK else "")
    width = [max(map(cell_len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    lines = []
    for (name, stage_name, start, took, size, detail), style in zip(rows, styles, strict=True):
        line = Text(set_cell_size(name, width[0]) + "  ")
        line.append(set_cell_size(stage_name, width[1]), style)
        line.append(f"  {start:>{width[2]}}  {took:>{width[3]}}  {size:>{width[4]}}")
        lines.append(line.append(f"  {detail}" if detail else "", "dim"))
    lines[0].stylize("dim")
    return Text("\n").join(lines)


def _tell_unexplained(console: Console, nodes: Sequence[NodeStages]) -> None:
    slowest = max(nodes, key=lambda node: node.ready_s or 0.0)
    if slowest.ready_s and slowest.unexplained_s:
        took, whole = format_duration(slowest.unexplained_s), format_duration(slowest.ready_s)
        said = f"{slowest.node}: {took} of {whole} in no stage that the job waits for"
        console.print(plain(f"{said}; bootseer mark adds some"))


def _timeline(console: Console, nodes: Sequence[NodeStages], scale_s: float) -> None:
    width = max(20, min(console.width, 120) - _LABEL_CHARS - 12)
    if scale_s <= 0:
        return
    lines = []
    for node in nodes:
        for stage in node.stages:
            is_of_start = node.ready_s is None or stage.start_s <= node.ready_s
            if stage.end_s > stage.start_s and is_of_start:
                lines.append(_bar(node.node, stage, width, scale_s))
        if node.ready_s is not None:
            at = min(width - 1, round(node.ready_s / scale_s * width))
            lines.append(
                Text.assemble(
                    plain(f"{node.node:<6}{'ready':<{_LABEL_CHARS}}"),
                    " " * at,
                    ("▲", "bold"),
                    f" {node.ready_s:.2f} s",
                )
            )
    if lines:
        console.print(Text("\n").join(lines), no_wrap=True)


def _bar(node: str, stage: Stage, width: int, scale_s: float) -> Text:
    start = min(width - 1, int(max(0.0, stage.start_s) / scale_s * width))
    length = max(1, min(width - start, round(stage.seconds / scale_s * width)))
    style = _STYLES.get(stage.stage.split(".")[0], "white")
    return Text.assemble(
        plain(f"{node:<6}{stage.stage[: _LABEL_CHARS - 1]:<{_LABEL_CHARS}}"),
        " " * start,
        ("█" * length, "yellow" if stage.status == FALLBACK else style),
    )


def _last_s(report: Report) -> float:
    """Return when a start-up ended; stages after the first step do not count."""
    ready = [node.ready_s for node in report.nodes if node.ready_s is not None]
    if ready:
        return max(ready) * 1.05
    return max((s.end_s for n in report.nodes for s in n.stages), default=0.0)
