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

    What an install command makes is kept, and is on every node without running it again. ENV is a
    name, a key, or how a key begins: eight digits at least.

    \b
    Examples:
      bootseer env run --target /tmp/env -- pip install --target /tmp/env -r requirements.txt
      bootseer env ls
    """


@env.command(
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  bootseer env run --target /tmp/env -- pip install --target /tmp/env -r requirements.txt
  bootseer env run --target /tmp/venv -- sh -c 'uv venv /tmp/venv && uv pip sync lock.txt'
""",
)
@install_command(runs=True)
@click.option(
    "--check-drift",
    is_flag=True,
    help="Run the command aside, and compare with what was kept: `bootseer env drift`.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing.")
def run(run_options: RunOptions, check_drift: bool, quiet: bool) -> None:
    """Run an install command, or restore its known result.

    The first time the command runs, and what it has made of its targets is captured. Whenever the
    same command would give the same result, on any node, that is there without running it. If
    anything goes wrong with that, the command runs as it would without.
    """
    if check_drift:
        key.show_drift(run_options, is_long=False, quiet=quiet, as_json=False)
        return
    from bootseer.env.client.connection import connect_agent
    from bootseer.env.client.run import run as restore_or_run
    from bootseer.env.client.terminal import tell

    path = os.environ.get("BOOTSEER_SOCKET", "")
    if not path:
        run_options = run_options._replace(waits=True)  # the server would end with the step

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
