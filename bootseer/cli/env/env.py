"""bootseer env: installed environments, captured once and restored everywhere."""

from __future__ import annotations

import os
import socket

import click

from bootseer.cli.env import key, manage, show
from bootseer.cli.env.options import install_command
from bootseer.env.client.options import RunOptions


@click.group()
def env() -> None:
    """Capture and restore installed environments.

    The result of an install command is captured once, and restored on every node without running
    the command again. ENV is a name, a key, or the beginning of a key: eight digits at least.

    \b
    Examples:
      bootseer env run --target /tmp/env -- \\
        pip install --target /tmp/env -r requirements.txt
      bootseer env ls
    """


@env.command(
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  bootseer env run --target /tmp/env -- \\
    pip install --target /tmp/env -r requirements.txt
  bootseer env run --target /tmp/venv -- \\
    sh -c 'uv venv /tmp/venv && uv pip sync lock.txt'
""",
)
@install_command(runs=True)
@click.option(
    "--check-drift",
    is_flag=True,
    help="Run the command aside, and compare with the snapshot: `bootseer env drift`.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no messages.")
def run(run_options: RunOptions, check_drift: bool, quiet: bool) -> None:
    """Restore the result of an install command, or run it.

    The first run captures what the command changes in its targets. Whenever the same command would
    give the same result, on any node, that is restored instead. If anything goes wrong, the command
    runs as it would without `bootseer env run`.
    """
    if check_drift:
        key.show_drift(run_options, is_long=False, quiet=quiet, as_json=False)
        return
    from bootseer.env.client.connection import connect_agent
    from bootseer.env.client.run import run as restore_or_run
    from bootseer.env.client.terminal import tell

    path = os.environ.get("BOOTSEER_SOCKET", "")
    if not path:
        run_options = run_options._replace(waits=True)  # its server ends with the step

    def connect() -> socket.socket:
        if path:
            return connect_agent(path)
        # Not needed in a job, where what this imports would delay the start.
        from bootseer.env.server import standalone

        return standalone.start()

    def say(text: str) -> None:
        if not quiet:
            tell(text)

    raise SystemExit(restore_or_run(run_options, connect, os.environ, say))


for _command in (*key.COMMANDS, *show.COMMANDS, *manage.COMMANDS):
    env.add_command(_command)
