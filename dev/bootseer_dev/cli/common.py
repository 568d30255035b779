"""What the commands of ``bootseer dev`` have in common."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bootseer_dev.cluster.machines import Machines


def build_dir(use: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --build-dir; `use` says what the folder is for."""
    return click.option(
        "--build-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("build"),
        show_default=True,
        help=use,
    )


def call(
    cluster: Machines,
    argv: list[str],
    user: str,
    node: str | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a command inside a cluster, with this terminal, and exit with its code."""
    sys.exit(subprocess.call(cluster.command(argv, user=user, node=node, env=env)))
