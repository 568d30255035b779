"""The race's result: figures, ratios, a table for the documentation and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

from bootseer.units import NS_PER_S, format_duration, format_size
from bootseer_dev.bench import figures
from bootseer_dev.bench.figures import Figure
from bootseer_dev.race.contestants import FLOOR
from bootseer_dev.race.job import PHASES

BY_HAND = "by_hand_"
TODAY, COLD, WARM = "today", "bootseer_cold", "bootseer_warm"


@dataclass(frozen=True, slots=True)
class Start:
    """What one start took and moved.

    Attributes:
        phases_s: seconds of each part of the start on the node that was ready last, in order.
        store_bytes: that left the storage by then.
        processor_share: of the machine's processor time, how much was used by then.
    """

    phases_s: Mapping[str, float]
    store_bytes: int
    processor_share: float

    @property
    def ready_s(self) -> float:
        """From srun to the end of the first step on the slowest node."""
        return sum(self.phases_s.values())


Starts = Mapping[str, Sequence[Start]]
"""Of each contestant, by its name, a start in each round."""


def phases(marks: Mapping[str, Mapping[str, int]], began_ns: int) -> dict[str, float]:
    """Return the seconds of each part of the start on the node that was ready last.

    Args:
        marks: by node, when each part was over, in nanoseconds.
        began_ns: when srun started.
    """
    slowest = max(marks.values(), key=lambda of_node: of_node[PHASES[-1]])
    found, before_ns = {}, began_ns
    for name in PHASES:
        found[name] = (slowest[name] - before_ns) / NS_PER_S
        before_ns = slowest[name]
    return found


def line(what: str, start: Start) -> str:
    """Return what is printed of a start while the race goes on."""
    parts = ", ".join(f"{name} {took_s:.1f}" for name, took_s in start.phases_s.items())
    return (
        f"{what}: ready after [bold]{format_duration(start.ready_s)}[/], "
        f"{format_size(start.store_bytes)} from the store, processors "
        f"{start.processor_share:.0%} busy\n  {parts}"
    )


def measured(starts: Starts) -> list[Figure]:
    """Return the figures of all contestants."""
    found = []
    for name, of_it in starts.items():
        found.append(Figure(f"{name}_ready_s", "s", tuple(s.ready_s for s in of_it)))
        if name != FLOOR:
            found.append(Figure(f"{name}_overhead_s", "s", tuple(overheads(starts, name))))
        sent = tuple(s.store_bytes / 1e6 for s in of_it)
        found.append(Figure(f"{name}_store_mb", "MB", sent))
        busy = tuple(s.processor_share for s in of_it)
        found.append(Figure(f"{name}_processors", "of 1", busy))
        for phase in PHASES:
            took_s = tuple(s.phases_s[phase] for s in of_it)
            found.append(Figure(f"{name}_{phase}_s", "s", took_s))
    return found


def overheads(starts: Starts, name: str) -> list[float]:
    """Return what each start took longer than the floor of the same round, in seconds."""
    pairs = zip(starts[name], starts[FLOOR], strict=True)
    return [start.ready_s - floor.ready_s for start, floor in pairs]


def best_by_hand(starts: Starts) -> str:
    """Name the combination of today's tools that was ready first, by its median."""
    names = (name for name in starts if name.startswith(BY_HAND))
    return min(names, key=lambda name: median(s.ready_s for s in starts[name]))


def ratios(starts: Starts) -> dict[str, float]:
    """Return the race's ratios: medians of those of each round."""
    warm = overheads(starts, WARM)
    today = overheads(starts, TODAY)
    by_hand = overheads(starts, best_by_hand(starts))
    floors = starts[FLOOR]
    found = {
        "overhead_removed": median(1 - w / t for w, t in zip(warm, today, strict=True)),
        "overhead_over_best_by_hand": median(w / b for w, b in zip(warm, by_hand, strict=True)),
        "warm_over_floor": median(
            w.ready_s / f.ready_s for w, f in zip(starts[WARM], floors, strict=True)
        ),
    }
    for name in starts:
        if name.startswith("only_"):
            alone = zip(overheads(starts, name), today, strict=True)
            found[f"overhead_removed_{name}"] = median(1 - a / t for a, t in alone)
    return found


def table(whats: Mapping[str, str], starts: Starts, store_bytes_per_s: float) -> str:
    """Return a table in Markdown: of each contestant medians, and what bounds them.

    Args:
        whats: what each contestant is, by name.
        starts: of them.
        store_bytes_per_s: what the storage sends at most.
    """
    lines = [
        "| start | ready after | overhead | from the store | the store needs for that at least "
        "| processors busy |",
        "|---|---|---|---|---|---|",
    ]
    best = best_by_hand(starts)
    for name, what in whats.items():
        ready = median(s.ready_s for s in starts[name])
        over = f"{median(overheads(starts, name)):.1f} s" if name != FLOOR else "the floor"
        sent = median(s.store_bytes for s in starts[name])
        busy = median(s.processor_share for s in starts[name])
        text = f"**{what}**" if name in (best, WARM) else what
        lines.append(
            f"| {text} | {ready:.1f} s | {over} | {format_size(sent)} | "
            f"{sent / store_bytes_per_s:.1f} s | {busy:.0%} |"
        )
    lines += ["", "Where the time goes, on the node that is ready last:", ""]
    lines += [f"| start | {' | '.join(PHASES)} |", "|---" * (len(PHASES) + 1) + "|"]
    for name, what in whats.items():
        medians = (median(s.phases_s[phase] for s in starts[name]) for phase in PHASES)
        lines.append(f"| {what} | {' | '.join(f'{m:.1f} s' for m in medians)} |")
    lines.append("")
    lines += [f"- `{name}`: {value:.2f}" for name, value in ratios(starts).items()]
    return "\n".join(lines) + "\n"


def write(
    folder: Path,
    whats: Mapping[str, str],
    starts: Starts,
    store_bytes_per_s: float,
    console: Console,
) -> None:
    """Print the result, and write race.json, race.md and race.svg into a folder."""
    found, over = measured(starts), ratios(starts)
    shown = [f for f in found if f.name.endswith(("ready_s", "overhead_s", "store_mb"))]
    figures.show(console, shown, over)
    console.print(f"best by hand: {best_by_hand(starts)}")
    figures.write(folder / "race.json", found, over)
    (folder / "race.md").write_text(table(whats, starts, store_bytes_per_s))
    plot(folder / "race.svg", whats, starts)
    console.print(f"written: {folder}/race.json, race.md and race.svg")


def plot(path: Path, whats: Mapping[str, str], starts: Starts) -> None:
    """Draw the median time of each part of each contestant's start as a bar."""
    from matplotlib.figure import Figure as Picture  # takes a second to import

    picture = Picture(figsize=(10, 0.45 * len(whats) + 1.4), layout="constrained")
    axes = picture.add_subplot()
    left = [0.0] * len(whats)
    for phase in PHASES:
        widths = [median(s.phases_s[phase] for s in starts[name]) for name in whats]
        axes.barh(list(whats.values()), widths, left=left, label=phase, height=0.7)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for number, end in enumerate(left):
        axes.text(end, number, f" {end:.1f} s", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, max(left) * 1.1)
    axes.set_xlabel("seconds from srun to the end of the first step on the slowest node")
    picture.legend(ncols=len(PHASES), fontsize="small", loc="outside lower center", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    picture.savefig(path, metadata={"Date": None})
