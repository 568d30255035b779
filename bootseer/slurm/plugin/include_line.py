"""Add a line to Slurm's plugstack.conf that includes a file, and remove it."""

from __future__ import annotations

import stat
from pathlib import Path

from bootseer.slurm.configuration import PlugStack
from bootseer.slurm.plugin.files import put

MARK = (
    "# The next line was added by `bootseer plugin install --include`, and goes with `uninstall`."
)
_HAD_NO_END = " The line before it had no end."
"""Follows the mark where it is so."""


def ensure_include(conf: Path, *, add: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Add the include line if that is wanted and needed; returns notes, and what is left to do."""
    including = _plugstack_of(conf)
    found = PlugStack(str(including)).lines_that_include(conf)
    if len(found) > 1:
        lines = ";  ".join(map(str, found))
        return (), (
            f"keep one of these lines, or srun warns of each option of the plugin:  {lines}",
        )
    if found:
        return (f"{including} includes it already, nothing is to be added:  {found[0]}",), ()
    if add:
        text = _text_of(including)
        _rewrite(including, _with_include(text, conf))
        return (f"added to {including}:  include {conf}",), ()
    return (), (f"add this line to {including}, or repeat with --include:  include {conf}",)


def remove_include(conf: Path) -> list[Path]:
    """Remove what `ensure_include` has added; returns the file that had it, if one had."""
    including = _plugstack_of(conf)
    text = _text_of(including)
    left = _without_include(text, conf)
    if left == text:
        return []
    _rewrite(including, left) if left else including.unlink()
    return [including]


def _plugstack_of(conf: Path) -> Path:
    """Return the path of the plugstack.conf whose folder of includes has ``conf``."""
    return conf.parent.parent / "plugstack.conf"


def _with_include(text: str, conf: Path) -> str:
    """Add a line that includes ``conf`` to the text of plugstack.conf, with a mark before it."""
    before = "" if text.endswith("\n") or not text else "\n"
    return f"{text}{before}{MARK}{_HAD_NO_END if before else ''}\ninclude {conf}\n"


def _without_include(text: str, conf: Path) -> str:
    """Remove what `_with_include` added, if it is there as it was."""
    for added in (f"\n{MARK}{_HAD_NO_END}\n", f"{MARK}\n"):
        text = text.replace(f"{added}include {conf}\n", "")
    return text


def _text_of(plugstack_conf: Path) -> str:
    return (
        plugstack_conf.read_bytes().decode(errors="surrogateescape")
        if plugstack_conf.is_file()
        else ""
    )


def _rewrite(plugstack_conf: Path, text: str) -> None:
    path = plugstack_conf.resolve()  # sites link it to a folder that all nodes mount
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
    put(path, text.encode(errors="surrogateescape"), mode=mode)
