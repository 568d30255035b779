"""bootseer config: the settings in force, and where each comes from."""

from __future__ import annotations

import os

import click

from bootseer import config as settings
from bootseer.cli.terminal.console import console, new_table, plain, print_json
from bootseer.config import Config, setting_line
from bootseer.errors import NotFound

_VARIABLES = {
    "hdfs.conf_dir": "HADOOP_CONF_DIR",
    "hdfs.kerberos_cache": "KRB5CCNAME",
    "aws.profile": "AWS_PROFILE",
}
"""Variables that commands at the prompt obey if the setting is empty; jobs do not."""


@click.group()
def config() -> None:
    """Show the administrator's settings.

    \b
    Example:
      bootseer config show
    """


@config.command(
    epilog="\b\nExamples:\n"
    "  bootseer config show\n"
    "  bootseer config show store.url\n"
    "  bootseer config show image --json"
)
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
@click.argument("name", required=False)
def show(name: str | None, as_json: bool) -> None:
    """Print settings, their values and where these come from.

    NAME is a setting (store.url) or a section (store); without it, all are printed.
    """
    found = settings.load()
    names = [n for n in settings.SETTINGS if name is None or name in (n, n.partition(".")[0])]
    if not names:
        raise NotFound(f"there is no setting {name}; `bootseer config show` lists all")
    rows = {n: _origin(found, n) for n in names}
    if as_json:
        print_json(
            {
                n: {"value": value, "from": origin, "purpose": settings.SETTINGS[n].purpose}
                for n, (value, origin) in rows.items()
            }
        )
        return
    table = new_table("setting", "value", "from", "what it is for", overflow="ellipsis")
    for n, (value, origin) in rows.items():
        purpose = plain(settings.SETTINGS[n].purpose, "dim")
        table.add_row(n, plain(str(value)), plain(origin), purpose)
    console().print(table)


def _origin(found: Config, name: str) -> tuple[object, str]:
    """Return a setting's value in this process, and where it comes from."""
    value = found.values[name]
    variable = _VARIABLES.get(name, "")
    if not value and variable and os.environ.get(variable):
        return os.environ[variable], f"environment, {variable} (not for jobs)"
    if name not in found.from_file:
        return value, "default"
    line = setting_line(found.path, name)
    return value, f"{found.path}:{line}" if line else found.path
