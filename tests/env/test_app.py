"""bootseer-env: `bootseer env run` in a file of its own."""

import argparse
import json
import os
import subprocess
import sys

import click
import pytest

from bootseer.cli.env import env
from bootseer.env import zipapp
from bootseer.env.app import command_line

CLI_ALONE = {
    "--check-drift",  # it reads the store
    "--json",  # here it is always
    "-v",
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / zipapp.NAME
    path.write_bytes(zipapp.build())
    return path


def of_click(verb):
    return {
        tuple(option.opts): (
            option.help,
            tuple(option.type.choices) if isinstance(option.type, click.Choice) else None,
            option.is_flag or option.multiple or option.default,
        )
        for option in env.commands[verb].params
        if isinstance(option, click.Option) and option.opts[0] not in CLI_ALONE
    }


def of_argparse(verb):
    verbs = next(a for a in command_line()._actions if isinstance(a, argparse._SubParsersAction))
    return {
        tuple(option.option_strings): (
            option.help,
            option.choices,
            option.nargs == 0 or isinstance(option, argparse._AppendAction) or option.default,
        )
        for option in verbs.choices[verb]._actions
        if option.option_strings and "--help" not in option.option_strings
    }


@pytest.mark.parametrize("verb", ["run", "key"])
def test_its_options_are_those_of_bootseer_env(verb):
    assert of_argparse(verb) == of_click(verb)


def test_it_needs_nothing_but_a_python_and_gives_the_same_key(file, says, tmp_path):
    (tmp_path / "requirements.txt").write_text("six\n")
    words = ["key", "--target", tmp_path / "env", "--key-extra", "x", "--key-file"]
    words += [tmp_path / "requirements.txt", "--", "sh", "-c", "echo 1"]
    shown = subprocess.run(
        [sys.executable, "-ISB", file, *words],
        env=dict(os.environ),
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(shown.stdout) == json.loads(says(*words[:-4], "--json", *words[-4:]))


def test_without_an_agent_the_command_runs(file, tmp_path):
    environ = {name: value for name, value in os.environ.items() if name != "BOOTSEER_SOCKET"}
    words = ["run", "--target", tmp_path / "env", "--", "sh", "-c", "echo out; exit 7"]
    ran = subprocess.run(
        [sys.executable, "-ISB", file, *words], env=environ, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (7, "out\n")
    assert "keeping nothing: this job has no --bootseer" in ran.stderr
