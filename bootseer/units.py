"""Sizes, rates and durations as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

_FACTORS = {
    "": 1,
    "B": 1,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "KI": KIB,
    "MI": MIB,
    "GI": GIB,
    "TI": 1024 * GIB,
}
_AGES_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Parse a size such as ``200MB``, ``1.5GiB`` or ``4096`` into bytes.

    Raises:
        ValueError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() == "I":
        raise ValueError(f"not a size: {text!r}; write for example 200MB or 1.5GiB")
    return int(float(match[1]) * _FACTORS[match[2].upper()])


def parse_age(text: str) -> float:
    """Parse an age such as ``90s``, ``30m``, ``12h`` or ``2d`` into seconds.

    Raises:
        ValueError: the text is not an age.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip(), re.ASCII)
    if match is None:
        raise ValueError(f"not an age: {text!r}; write for example 12h or 2d")
    return float(match[1]) * _AGES_S[match[2]]


def format_size(size_bytes: float) -> str:
    """Format bytes with three significant figures and a decimal unit: ``250 MB``."""
    value, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, larger
    if unit == "B" or abs(value) >= 99.5:
        return f"{value:.0f} {unit}"
    return f"{value:.3g} {unit}"


def format_duration(seconds: float) -> str:
    """Format a duration: ``12 ms``, ``3.42 s``, ``2 min 05 s``."""
    if abs(seconds) < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < 99.5:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def format_age(seconds: float) -> str:
    """Format how long ago something was: ``40 s``, ``5 min``, ``3 h``, ``2 days``."""
    for unit, length_s in (("day", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            count = int(seconds // length_s)
            return f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}"
    return f"{max(0, int(seconds))} s"


def format_numbers(numbers: Iterable[int]) -> str:
    """Format a set of numbers, sorted: ``3, 7, 11-13``."""
    runs = []
    for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    return ", ".join(runs)
