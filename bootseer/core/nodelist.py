"""Slurm's short form of a list of nodes: ``gpu[01-03,7],login1``.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod

MAX_NODES = 100_000
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def expand(nodelist: str) -> list[str]:
    """List the names that a node list stands for, in its order; none if it is not a node list."""
    names: list[str] = []
    for item in _ITEM.findall(nodelist):
        choices: list[list[str]] = []
        for spans, text in _PIECE.findall(item):
            choices.append([text] if text else _numbers(spans))
        if len(names) + prod(map(len, choices)) > MAX_NODES:
            return []
        names += map("".join, product(*choices))
    return names


def _numbers(spans: str) -> list[str]:
    found: list[str] = []
    for span in spans.split(","):
        match = _SPAN.fullmatch(span)
        if match is None:
            return []
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) > MAX_NODES:
            return []
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found
