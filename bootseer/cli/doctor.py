"""bootseer doctor: is this node ready, and which settings are in force?"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bootseer import config as settings

PLUGSTACK = Path("/etc/slurm/plugstack.conf.d/bootseer.conf")


@click.command(epilog="Example:  bootseer doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print checks and settings as JSON.")
def doctor(as_json: bool) -> None:
    """Check this node, and print every setting with its effective value and where it comes from."""
    config = settings.load()
    checks = {name: check() for name, check in CHECKS.items()}
    if as_json:
        document = {
            "checks": {name: {"ok": ok, "detail": detail} for name, (ok, detail) in checks.items()},
            "settings": {
                name: {"value": config[name], "from": _origin(config, name)}
                for name in settings.SETTINGS
            },
        }
        click.echo(json.dumps(document, indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("setting", "value", "from", "what it is for"):
        table.add_column(heading)
    for name, setting in settings.SETTINGS.items():
        table.add_row(name, str(config[name]), _origin(config, name), f"[dim]{setting.help}[/]")
    console = Console()
    for name, (ok, detail) in checks.items():
        console.print(f"{'[green]ok  [/]' if ok else '[yellow]look[/]'} {name}: {detail}")
    console.print()
    console.print(table)


def _origin(config: settings.Config, name: str) -> str:
    return config.path if name in config.from_file else "default"


def _plugin() -> tuple[bool, str]:
    if PLUGSTACK.exists():
        return True, f"{PLUGSTACK} is there"
    return False, f"{PLUGSTACK} is missing: run `bootseer plugin install`"


def _fuse() -> tuple[bool, str]:
    if os.access("/dev/fuse", os.R_OK | os.W_OK):
        return True, "/dev/fuse can be opened"
    return False, "/dev/fuse cannot be opened by you: container runtimes need mode 0666"


def _residency() -> tuple[bool, str]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if found and (int(found[1]), int(found[2])) >= (6, 5):
        return True, "the kernel has cachestat"
    return True, "no cachestat before Linux 6.5: sampling a large image costs some ms each time"


CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "plugin": _plugin,
    "FUSE": _fuse,
    "residency": _residency,
}
