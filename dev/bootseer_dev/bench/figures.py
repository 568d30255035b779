"""Figures of a measurement: a table for people, a JSON file for whoever compares them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity, measured once or several times."""

    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the values."""
        return median(self.values)

    def document(self) -> dict[str, Any]:
        """Return what JSON can carry."""
        return {
            "name": self.name,
            "unit": self.unit,
            "n": len(self.values),
            "min": min(self.values),
            "median": self.median,
            "max": max(self.values),
        }


def machine() -> dict[str, Any]:
    """Describe this machine as far as figures depend on it."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processors": os.cpu_count(),
        "memory_bytes": pages,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def write(path: Path, figures: Iterable[Figure], ratios: dict[str, float]) -> None:
    """Write figures and ratios as a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": machine(),
        "figures": [figure.document() for figure in figures],
        "ratios": [{"name": name, "value": value} for name, value in ratios.items()],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def show(console: Console, figures: Iterable[Figure], ratios: dict[str, float]) -> None:
    """Print figures and ratios as a table."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("figure")
    for name in ("n", "min", "median", "max"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    for f in figures:
        values = (f"{value:.4g}" for value in (min(f.values), f.median, max(f.values)))
        table.add_row(f.name, str(len(f.values)), *values, f.unit)
    for name, value in ratios.items():
        table.add_row(f"[bold]{name}[/]", "", "", f"[bold]{value:.2f}[/]", "", "x")
    console.print(table)
