"""The bootseer command. Each noun lives in a module of its own, imported when it is named."""

from __future__ import annotations

import importlib
import importlib.util

import click

from bootseer import __version__
from bootseer.agent.node.spawn import leave
from bootseer.cli import standard_output
from bootseer.errors import BootseerError

COMMANDS = {
    "report": "bootseer.cli.report.report:report",
    "status": "bootseer.cli.status:status",
    "mark": "bootseer.cli.mark:mark",
    "image": "bootseer.cli.image.image:image",
    "env": "bootseer.cli.env.env:env",
    "importer": "bootseer.cli.image.importer:importer",
    "hot": "bootseer.cli.image.hot:hot",
    "ckpt": "bootseer.cli.ckpt.ckpt:ckpt",
    "node": "bootseer.cli.node:node",
    "doctor": "bootseer.cli.doctor:doctor",
    "plugin": "bootseer.cli.plugin:plugin",
    "dev": "bootseer_dev.cli.dev:dev",  # where developers have installed that
}


class LazyGroup(click.Group):
    """A group that imports a command only when it is called or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order a newcomer meets them."""
        return [name for name in COMMANDS if _is_installed(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS or not _is_installed(cmd_name):
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


def _is_installed(command: str) -> bool:
    package = COMMANDS[command].partition(".")[0]
    return importlib.util.find_spec(package) is not None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Warm starts for jobs on Slurm.

    Add --bootseer to srun, salloc, sbatch or an #SBATCH line, then read the report:

    \b
      srun --bootseer --bootseer-image=/images/train.sqsh ./train.sh
      bootseer report 1234
    """


def main() -> None:
    """Run the command line; errors of ours end as one line and an exit code."""
    standard_output.guard()
    try:
        cli.main(prog_name="bootseer", standalone_mode=True)
    except BootseerError as error:
        # Names in it may be another's choice: nothing of them reaches the terminal as a command.
        text = "".join(c if c.isprintable() else "?" for c in str(error))
        click.echo(f"bootseer: {text}", err=True)
        leave(error.exit_code)
    except SystemExit as end:
        if isinstance(end.code, int):
            leave(end.code)
        raise
