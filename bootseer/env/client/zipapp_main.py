"""bootseer-env: `bootseer env run` for containers. Standard library only, Python 3.8 or later.

A file of its own, made by `bootseer.env.build_zipapp`, that is in each job's folder; nothing
needs to be installed in the image.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Sequence

from bootseer.env.client import key as env_key
from bootseer.env.client.command import execute
from bootseer.env.client.command_key import keys_of, warnings
from bootseer.env.client.connection import connect_agent
from bootseer.env.client.options import MODES, OPTIONS, Option, RunOptions
from bootseer.env.client.run import run
from bootseer.env.client.terminal import tell
from bootseer.errors import BootseerError

_EPILOG = """examples:
  bootseer-env run --target /env -- pip install --target /env -r requirements.txt
  bootseer-env key --target /env -- pip install --target /env -r requirements.txt
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status."""
    parser = command_line()
    options = vars(parser.parse_args(arguments))
    verb, quiet = options.pop("verb"), options.pop("quiet", False)
    if options["command"][:1] == ["--"]:
        del options["command"][0]
    if not options["command"]:
        parser.error("no command given: put it after --")
    run_options = RunOptions(**options)

    def say(text: str) -> None:
        if not quiet:
            tell(text)

    try:
        if verb == "key":
            targets = [os.path.abspath(target) for target in run_options.targets]
            keys = keys_of(run_options, targets, os.environ, os.getcwd(), "")
            for line in warnings(targets, keys, os.environ):
                tell(line)
            document = {**env_key.to_document(keys.parts), "targets": targets}
            print(json.dumps(document, indent=1))
            return 0
        path = os.environ.get("BOOTSEER_SOCKET", "")
        if not path:
            say("running the command without capturing it: this job has no --bootseer")
            return execute(run_options.command, os.environ)
        return run(run_options, lambda: connect_agent(path), os.environ, say)
    except BootseerError as error:
        print(f"bootseer: {error}", file=sys.stderr)
        return error.exit_code


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="bootseer-env",
        description="Capture the result of an install command once, and restore it everywhere.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="run|key")
    for verb, text in (
        ("run", "restore the result of an install command, or run it and capture that"),
        ("key", "print the key of an install command: all that its result depends on"),
    ):
        _add_options(verbs.add_parser(verb, help=text, description=text), verb)
    return parser


def _add_options(parser: argparse.ArgumentParser, verb: str) -> None:
    for option in OPTIONS:
        if verb == "run" or not option.is_for_run:
            _add_option(parser, option)
    if verb == "run":
        parser.add_argument("-q", "--quiet", action="store_true", help="Print no messages.")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def _add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    name, field, text, default = option.name, option.field, option.help, option.default
    if isinstance(default, bool):
        parser.add_argument(name, dest=field, action="store_true", help=text)
    elif isinstance(default, int):
        metavar = option.metavar
        parser.add_argument(name, dest=field, type=int, default=default, metavar=metavar, help=text)
    elif isinstance(default, str):
        parser.add_argument(name, dest=field, choices=MODES, default=default, help=text)
    else:
        parser.add_argument(
            name,
            dest=field,
            action="append",
            default=[],
            required=option.is_required,
            metavar=option.metavar,
            help=text,
        )
