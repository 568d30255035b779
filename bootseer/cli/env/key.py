"""bootseer env: the key of an install command, and whether its result has changed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from bootseer.cli.env.options import (
    KEY_CHARS,
    counts,
    document_of,
    install_command,
    say_deltas,
    with_env_store,
)
from bootseer.cli.options import json_option, quiet_option
from bootseer.cli.terminal.console import new_table, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bootseer.env.admin.drift import DriftResult
    from bootseer.env.client.command_key import Keys
    from bootseer.env.client.key import KeyPart
    from bootseer.env.client.options import RunOptions
    from bootseer.store.api.base import Store

_PASS_ON = {"ignore_unknown_options": True}


@click.command(
    context_settings=_PASS_ON,
    epilog="""\b
Examples:
  bootseer env key --target /tmp/env -- \\
    pip install --target /tmp/env -r requirements.txt
  bootseer env key --json --target /tmp/env -- \\
    pip install --target /tmp/env . > env.json
""",
)
@install_command(runs=False)
@click.option("-v", "--verbose", is_flag=True, help="Say why each part is in the key.")
@json_option
def key(
    run_options: RunOptions,
    verbose: bool,
    as_json: bool,
) -> None:
    """Show the key of an install command and what goes into it.

    These are all the inputs that the result depends on. The command is not run.
    `--bootseer-env=FILE` reads the output of --json.
    """
    from bootseer.cli.terminal import runner
    from bootseer.env.client import key as env_key

    run_options = _with_absolute_targets(run_options)
    parts = _warned(run_options, _keys_now(run_options)).parts
    if as_json:
        document = env_key.to_document(parts) | {"targets": list(run_options.targets)}
        print_json(document)
        return
    for part in parts:
        runner.print_line(f"{part.name}: {part.value}")
        if verbose:
            runner.print_line(f"    {part.why}")
    runner.print_line(f"key: {env_key.key_of(parts)}")


@click.command(
    context_settings=_PASS_ON,
    epilog="""\b
Example:
  bootseer env explain --target /tmp/env -- \\
    pip install --target /tmp/env -r requirements.txt
""",
)
@install_command(runs=False)
@json_option
def explain(
    run_options: RunOptions,
    as_json: bool,
) -> None:
    """Explain why the key of an install command changed.

    Only inputs that the result depends on are compared. The last run is that with the same targets.
    The command is not run.
    """
    from bootseer.cli.terminal import runner
    from bootseer.env.client import key as env_key
    from bootseer.env.snapshot import repository
    from bootseer.errors import NotFound

    run_options = _with_absolute_targets(run_options)
    keys = _warned(run_options, _keys_now(run_options))

    async def read(store: Store) -> tuple[Sequence[KeyPart] | None, dict[str, bool]]:
        last, there = None, {}
        with suppress(NotFound):
            last = await repository.read_run(store, run_options.targets)
        for parts in (keys.parts, keys.as_empty):
            there[env_key.key_of(parts)] = await _is_there(store, env_key.key_of(parts))
        return last, there

    last, there = with_env_store(read)
    # What a run has put into the targets is no change, if it is what would be put there.
    full, empty = env_key.key_of(keys.parts), env_key.key_of(keys.as_empty)
    last_key = env_key.key_of(last) if last is not None else ""
    is_same = last_key in (full, empty)
    name = empty if there[empty] and (is_same or last is None) else full
    changes = env_key.compare(last, keys.parts) if last is not None and not is_same else []
    if as_json:
        document = {
            "key": name,
            "last_key": last_key or None,
            "changes": [change._asdict() for change in changes],
            "is_there": there[name],
        }
        print_json(document)
        return
    if last is None:
        runner.print_line("no run with these targets is known")
    elif not changes:
        runner.print_line("nothing has changed since the last run")
    for change in changes:
        runner.print_line(f"{change.name}:")
        runner.print_line(f"    was {change.before or 'none'}")
        runner.print_line(f"    is  {change.after or 'none'}")
    state = "is there" if there[name] else "is missing: `bootseer env run` runs the command"
    runner.print_line(f"the environment {name[:KEY_CHARS]} {state}")
    if name != full:
        runner.print_line(
            "its targets are not empty: if they hold something else, the command runs"
        )


@click.command(
    context_settings=_PASS_ON,
    epilog="""\b
Example:
  bootseer env drift --target /tmp/env -- \\
    pip install --target /tmp/env -r requirements.txt
""",
)
@install_command(runs=False)
@click.option("-l", "--long", "is_long", is_flag=True, help="List every file.")
@quiet_option
@json_option
def drift(
    run_options: RunOptions,
    is_long: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run an install command aside, and compare with its snapshot.

    The command sees empty folders at its targets. No other process sees them, and they are removed
    afterwards. That takes root's rights or user namespaces. Times are not compared. The exit code
    is 0 if the result is the same, 1 if not. The command's output goes to standard error.
    """
    show_drift(run_options, is_long=is_long, quiet=quiet, as_json=as_json)


COMMANDS = (key, explain, drift)


def show_drift(run_options: RunOptions, *, is_long: bool, quiet: bool, as_json: bool) -> None:
    """Do what ``bootseer env drift`` does; ends the program if the result has changed."""
    from bootseer import config as settings
    from bootseer.cli.terminal import runner
    from bootseer.env.admin.drift import drift as compare
    from bootseer.env.snapshot.group_store import shared_stores

    run_options = _with_absolute_targets(run_options)
    image = _image_here()
    config = settings.load()

    async def work(store: Store) -> DriftResult:
        stores = [store, *shared_stores(config, runner.caller())]
        return await compare(stores, run_options, image, config.env.scratch_dir)

    found = with_env_store(work, after="the command was ended; nothing was stored")
    key = found.snapshot.key
    if as_json:
        document = {
            "key": key,
            "versions": [version._asdict() for version in found.versions],
            **document_of(found.deltas, run_options.targets),
        }
        print_json(document)
    elif found.deltas:
        _say_drift(found, run_options.targets, is_long=is_long, quiet=quiet)
    elif not quiet:
        runner.print_line(f"no drift: the result is still {key[:KEY_CHARS]}")
    if found.deltas:
        sys.exit(1)


def _say_drift(found: DriftResult, targets: Sequence[str], *, is_long: bool, quiet: bool) -> None:

    from bootseer.cli.terminal import runner
    from bootseer.cli.terminal.console import console, plain

    if found.versions:
        table = new_table("distribution", "kept", "now")
        for version in found.versions:
            row = (version.name, version.before or "none", version.after or "none")
            table.add_row(*map(plain, row))
        console().print(table)
    if is_long:
        say_deltas(found.deltas, targets)
    if quiet:
        return
    runner.print_line(f"drift from {found.snapshot.key[:KEY_CHARS]}: {counts(found.deltas)}")
    runner.print_line("`bootseer env run --force` captures the new result")


async def _is_there(store: Store, key: str) -> bool:
    from bootseer.env.snapshot import repository
    from bootseer.errors import Corrupt, NotFound

    try:
        await repository.read_snapshot(store, key)
    except (NotFound, Corrupt):
        return False
    return True


def _with_absolute_targets(run_options: RunOptions) -> RunOptions:
    from bootseer.errors import ConfigError

    paths = [os.path.abspath(target) for target in run_options.targets]
    if "/" in paths:
        raise ConfigError("--target / is not allowed: choose a folder below it")
    return run_options._replace(targets=paths)


def _keys_now(run_options: RunOptions) -> Keys:
    """Return the key that a command has here and now."""
    from bootseer.env.client.command_key import keys_of

    return keys_of(run_options, run_options.targets, os.environ, os.getcwd(), _image_here())


def _warned(run_options: RunOptions, keys: Keys) -> Keys:
    """Print the warnings about a key; returns the key."""
    from bootseer.env.client.command_key import warnings
    from bootseer.env.client.terminal import tell

    for line in warnings(run_options.targets, keys, os.environ):
        tell(line)
    return keys


def _image_here() -> str:
    """Return the digest of the container image around, as the agent of the job knows it."""
    from bootseer.env.client.connection import ask_agent_for_image

    path = os.environ.get("BOOTSEER_SOCKET", "")
    return ask_agent_for_image(path) if path else ""
