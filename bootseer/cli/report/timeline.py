"""Write reports for a terminal: a table of stages, and a timeline of each node.

With click's styles: to import rich's console and print by it takes a sixth of a report's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from click import style
from rich.cells import cell_len, set_cell_size

from bootseer.cli.terminal.console import printable
from bootseer.core.event import FALLBACK
from bootseer.startup.report import NodeStages, Report
from bootseer.units import format_duration, format_size

MAX_TABLE_NODES = 16
_AFTER_START = ("step", "epilog")
"""Stages that last as long as the job does."""
_LABEL_CHARS = 20
_MAX_CHARS = 120
"""Width of a timeline at most."""
_PLAIN = str
_BOLD = partial(style, bold=True)
_DIM = partial(style, dim=True)
_YELLOW = partial(style, fg="yellow")
_STYLES = {
    "prolog": partial(style, fg="blue"),
    "image": partial(style, fg="green"),
    "checkpoint": partial(style, fg="cyan"),
    "step": partial(style, fg="magenta"),
    "epilog": partial(style, fg="blue"),
}


def write(reports: Iterable[Report], width: int) -> Iterator[str]:
    """Yield the lines of reports with timelines on one scale, and how cold and warm compare.

    Args:
        reports: in the order to show them.
        width: characters of a line of a table or timeline; more are cut off.
    """
    shown = list(reports)
    scale_s = max((_last_s(report) for report in shown), default=0.0)
    for report in shown:
        nodes = _slowest(report.nodes)
        yield _BOLD(_title(report))
        yield from _table(nodes, width)
        if len(nodes) < len(report.nodes):
            faster = len(report.nodes) - len(nodes)
            yield f"the {len(nodes)} slowest nodes; {faster} faster ones: see --json"
        if scale_s > 0:
            yield from _timeline(nodes, width, scale_s)
        yield from _unexplained(report.nodes)
        for node, stage in report.fallbacks:
            yield _YELLOW("fallback") + printable(f" {node} {stage.stage}: {stage.detail}")
        yield ""
    times = {r.kind: r.ready_s for r in shown if r.ready_s}
    if "cold" in times and "warm" in times:
        cold, warm = times["cold"], times["warm"]
        both = f"cold {format_duration(cold)}, warm {format_duration(warm)}"
        yield f"time to ready: {both}: " + _BOLD(f"{cold / warm:.2f}x")


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


def _title(report: Report) -> str:
    ready = f", ready after {format_duration(report.ready_s)}" if report.ready_s else ""
    straggler = f" (slowest/median {report.straggler:.2f})" if report.straggler else ""
    nodes = f"{len(report.nodes)} node{'s' if len(report.nodes) != 1 else ''}"
    start = f"key {report.key} · {report.kind} start"
    return printable(f"job {report.job} · {start} · {nodes}{ready}{straggler}")


def _table(nodes: Sequence[NodeStages], width: int) -> Iterator[str]:
    rows = [("node", "stage", "at", "took", "bytes", "")]
    styles: list[Callable[[str], str]] = [_DIM]
    for node in nodes:
        for index, stage in enumerate(node.stages):
            name = printable(node.node) if index == 0 else ""
            took = format_duration(stage.seconds) if stage.end_s > stage.start_s else ""
            size = format_size(stage.bytes) if stage.bytes else ""
            start = f"{stage.start_s:.2f} s"
            detail = printable(stage.detail)
            rows.append((name, printable(stage.stage), start, took, size, detail))
            styles.append(_YELLOW if stage.status == FALLBACK else _PLAIN)
    wide = [max(map(cell_len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    for (name, stage_name, start, took, size, detail), colour in zip(rows, styles, strict=True):
        other = _DIM if colour is _DIM else _PLAIN
        yield _line(
            width,
            (set_cell_size(name, wide[0]) + "  ", other),
            (set_cell_size(stage_name, wide[1]), colour),
            (f"  {start:>{wide[2]}}  {took:>{wide[3]}}  {size:>{wide[4]}}", other),
            (f"  {detail}" if detail else "", _DIM),
        )


def _line(width: int, *parts: tuple[str, Callable[[str], str]]) -> str:
    """Return a line of texts in their styles, with an ellipsis for what is over its width."""
    over = sum(cell_len(text) for text, _ in parts) - width
    if over <= 0:
        return "".join(colour(text) for text, colour in parts)
    left = width - 1
    line = ""
    for text, colour in parts:
        kept = text if cell_len(text) <= left else set_cell_size(text, left)
        left -= cell_len(kept)
        line += colour(kept)
    return line + "…"


def _unexplained(nodes: Sequence[NodeStages]) -> Iterator[str]:
    slowest = max(nodes, key=lambda node: node.ready_s or 0.0)
    if slowest.ready_s and slowest.unexplained_s:
        took, whole = format_duration(slowest.unexplained_s), format_duration(slowest.ready_s)
        said = f"{slowest.node}: {took} of {whole} in no stage that the job waits for"
        yield printable(f"{said}; bootseer mark adds some")


def _timeline(nodes: Sequence[NodeStages], width: int, scale_s: float) -> Iterator[str]:
    """Yield a bar for each stage of a start, and a mark where each node was ready."""
    chars = max(20, min(width, _MAX_CHARS) - _LABEL_CHARS - 12)
    for node in nodes:
        for stage in node.stages:
            is_of_start = node.ready_s is None or stage.start_s <= node.ready_s
            if stage.end_s > stage.start_s and is_of_start:
                start = min(chars - 1, int(max(0.0, stage.start_s) / scale_s * chars))
                length = max(1, min(chars - start, round(stage.seconds / scale_s * chars)))
                colour = _STYLES.get(stage.stage.split(".")[0], _PLAIN)
                bar = "█" * length, _YELLOW if stage.status == FALLBACK else colour
                yield _line(width, (_label(node, stage.stage) + " " * start, _PLAIN), bar)
        if node.ready_s is not None:
            at = min(chars - 1, round(node.ready_s / scale_s * chars))
            label = _label(node, "ready") + " " * at, _PLAIN
            yield _line(width, label, ("▲", _BOLD), (f" {node.ready_s:.2f} s", _PLAIN))


def _label(node: NodeStages, text: str) -> str:
    return printable(f"{node.node:<6}{text[: _LABEL_CHARS - 1]:<{_LABEL_CHARS}}")


def _last_s(report: Report) -> float:
    """Return when a start-up ended; stages after the first step do not count."""
    ready = [node.ready_s for node in report.nodes if node.ready_s is not None]
    if ready:
        return max(ready) * 1.05
    return max((s.end_s for n in report.nodes for s in n.stages), default=0.0)
