"""The bootseer command. Each noun lives in a module of its own, imported when it is named."""

from __future__ import annotations

import importlib
import importlib.util

import click

from bootseer import __version__
from bootseer.cli.terminal import standard_output
from bootseer.errors import BootseerError

_PROGRAM = "bootseer"
_SHELLS = ("bash", "zsh", "fish")
COMMANDS = {
    "report": (
        "bootseer.cli.report.report:report",
        "Show the stages of JOB's start-up on each node.",
    ),
    "status": (
        "bootseer.cli.status:status",
        "Show the jobs of BootSeer on this node and their progress.",
    ),
    "mark": ("bootseer.cli.mark:mark", "Mark a point of the job's start-up, such as first-step."),
    "image": ("bootseer.cli.image.image:image", "Store container images and serve them to jobs."),
    "env": ("bootseer.cli.env.env:env", "Capture and restore installed environments."),
    "importer": ("bootseer.cli.image.importer:importer", "Get the image of a container for Pyxis."),
    "hot": ("bootseer.cli.image.hot:hot", "Inspect and rebuild hot sets."),
    "ckpt": (
        "bootseer.cli.ckpt.ckpt:ckpt",
        "Inspect, check and move checkpoints in HDFS and other stores.",
    ),
    "node": ("bootseer.cli.node:node", "Care for this compute node."),
    "config": ("bootseer.cli.config:config", "Show the administrator's settings."),
    "doctor": ("bootseer.cli.doctor:doctor", "Check that this machine is ready for BootSeer."),
    "plugin": ("bootseer.cli.plugin:plugin", "Build and install the Slurm plugin."),
    "completion": ("bootseer.cli.main:completion", "Print a script for shell completion."),
    # where developers have installed that
    "dev": ("bootseer_dev.cli.dev:dev", "Develop, try and measure BootSeer."),
}
"""Where each command is, and what the list of commands says of it, so that none is imported."""


class LazyGroup(click.Group):
    """A group that imports a command only when it is called or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order a newcomer meets them."""
        return [name for name in COMMANDS if _is_installed(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS or not _is_installed(cmd_name):
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _is_installed(command: str) -> bool:
    package = COMMANDS[command][0].partition(".")[0]
    return importlib.util.find_spec(package) is not None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Warm starts for jobs on Slurm.

    Add --bootseer to srun, salloc, sbatch or an #SBATCH line, then read the report.

    \b
    Example:
      srun --bootseer --bootseer-image=/images/train.sqsh ./train.sh
      bootseer report 1234
    """


@click.command(
    epilog="\b\nExamples, for one user or, as root, for all:\n"
    "  echo 'eval \"$(bootseer completion bash)\"' >> ~/.bashrc\n"
    "  echo 'eval \"$(bootseer completion zsh)\"' >> ~/.zshrc\n"
    "  bootseer completion fish > ~/.config/fish/completions/bootseer.fish\n"
    "  bootseer completion bash > /usr/share/bash-completion/completions/bootseer"
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a script for shell completion.

    With it, the TAB key completes commands, options, and names of images and environments.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None  # click has all of _SHELLS
    click.echo(found(cli, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE").source())


def main() -> None:
    """Run the command line; errors of ours end as one line and an exit code."""
    from bootseer.agent.node.spawn import leave

    standard_output.guard()
    try:
        cli.main(prog_name=_PROGRAM, standalone_mode=True)
    except BootseerError as error:
        # Names in it may be another's choice: nothing of them reaches the terminal as a command.
        text = "".join(c if c.isprintable() else "?" for c in str(error))
        click.echo(f"bootseer: {text}", err=True)
        leave(error.exit_code)
    except SystemExit as end:
        if isinstance(end.code, int):
            leave(end.code)
        raise
