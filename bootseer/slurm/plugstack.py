"""Add a line to Slurm's plugstack.conf that includes a file, and remove it."""

from __future__ import annotations

from pathlib import Path

MARK = (
    "# The next line was added by `bootseer plugin install --include`, and goes with `uninstall`."
)
_HAD_NO_END = " The line before it had no end."
"""Follows the mark where it is so."""


def with_include(text: str, conf: Path) -> str:
    """Add a line that includes ``conf`` to the text of plugstack.conf, with a mark before it."""
    before = "" if text.endswith("\n") or not text else "\n"
    return f"{text}{before}{MARK}{_HAD_NO_END if before else ''}\ninclude {conf}\n"


def without_include(text: str, conf: Path) -> str:
    """Remove what `with_include` added, if it is there as it was."""
    for added in (f"\n{MARK}{_HAD_NO_END}\n", f"{MARK}\n"):
        text = text.replace(f"{added}include {conf}\n", "")
    return text
