"""bootseer env: installed environments, captured once and restored everywhere."""

from __future__ import annotations

import os
import socket

import click

from bootseer.cli.env import key, manage, show
from bootseer.cli.env.options import key_options, targets_option, words


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
@targets_option
@click.option(
    "--mode",
    type=click.Choice(["auto", "mount", "unpack"]),
    default="auto",
    show_default=True,
    help="How to restore.",
)
@click.option("--read-only", is_flag=True, help="Nothing is going to be written to the targets.")
@click.option("--refresh", is_flag=True, help="Run the command, whatever there is, and keep that.")
@click.option("--no-capture", is_flag=True, help="Do not keep what the command makes.")
@click.option("--wait", "waits", is_flag=True, help="Go on only when all is stored.")
@click.option(
    "--wait-seconds",
    type=click.IntRange(0, 86400),
    default=600,
    show_default=True,
    help="Longest to wait for others who run it, or are at work in a target.",
)
@click.option(
    "--check-drift",
    is_flag=True,
    help="Run the command aside, and compare with what was kept: `bootseer env drift`.",
)
@key_options
@click.option("-q", "--quiet", is_flag=True, help="Say nothing.")
@words
def run(
    targets: tuple[str, ...],
    mode: str,
    read_only: bool,
    refresh: bool,
    no_capture: bool,
    waits: bool,
    wait_seconds: int,
    check_drift: bool,
    extra: tuple[str, ...],
    files: tuple[str, ...],
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run an install command, or restore its known result.

    The first time the command runs, and what it has made of its targets is captured. Whenever the
    same command would give the same result, on any node, that is there without running it. If
    anything goes wrong with that, the command runs as it would without.
    """
    if check_drift:
        key.show_drift(targets, extra, files, command, is_long=False, quiet=quiet, as_json=False)
        return
    from bootseer.env.client.run import RunOptions, connect_agent, tell
    from bootseer.env.client.run import run as carry_out

    run_options = RunOptions(
        command=command,
        targets=targets,
        mode=mode,
        read_only=read_only,
        refresh=refresh,
        captures=not no_capture,
        waits=waits or not os.environ.get("BOOTSEER_SOCKET"),
        wait_s=wait_seconds,
        extra=extra,
        key_files=files,
    )
    path = os.environ.get("BOOTSEER_SOCKET", "")

    def connect() -> socket.socket:
        if path:
            return connect_agent(path)
        # Not needed in a job, where what this imports would delay the start.
        from bootseer.env.server import standalone

        return standalone.start()

    def say(text: str) -> None:
        if not quiet:
            tell(text)

    raise SystemExit(carry_out(run_options, connect, os.environ, say))


for _command in (*key.COMMANDS, *show.COMMANDS, *manage.COMMANDS):
    env.add_command(_command)
