"""The lines of Slurm's plugstack.conf that include a file: find them, add one, remove it."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = (
    "# The next line was added by `bootseer plugin install --include`, and goes with `uninstall`."
)
_HAD_NO_END = " The line before it had no end."
"""Follows the mark where it is so."""
_DEPTH = 8
"""Files that include each other: Slurm follows them without end."""


@dataclass(frozen=True, slots=True)
class IncludeLine:
    """A line that includes a file.

    Attributes:
        file: the file that has the line.
        number: of the line, from 1.
        text: the line without blanks around it.
    """

    file: Path
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.text}"


def lines_that_include(plugstack: Path, conf: Path) -> list[IncludeLine]:
    """List the lines by which Slurm reads ``conf``; it reads that once for each of them.

    Args:
        plugstack: the file that Slurm begins with; it may be missing.
        conf: an existing file.
    """
    return list(_including(plugstack, conf, _DEPTH))


def _including(plugstack: Path, conf: Path, depth: int) -> Iterator[IncludeLine]:
    lines = plugstack.read_text(errors="replace").splitlines() if plugstack.is_file() else []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if words[:1] != ["include"] or len(words) < 2:
            continue
        for path in map(Path, glob.glob(str(plugstack.parent / words[1]))):
            if path.exists() and os.path.samefile(path, conf):
                yield IncludeLine(plugstack, number, line.strip())
            elif depth:
                yield from _including(path, conf, depth - 1)


def with_include(text: str, conf: Path) -> str:
    """Add a line that includes ``conf`` to the text of plugstack.conf, with a mark before it."""
    before = "" if text.endswith("\n") or not text else "\n"
    return f"{text}{before}{MARK}{_HAD_NO_END if before else ''}\ninclude {conf}\n"


def without_include(text: str, conf: Path) -> str:
    """Remove what `with_include` added, if it is there as it was."""
    for added in (f"\n{MARK}{_HAD_NO_END}\n", f"{MARK}\n"):
        text = text.replace(f"{added}include {conf}\n", "")
    return text
