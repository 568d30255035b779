"""bootseer-env: `bootseer env run` in a file of its own."""

import argparse
import json
import os
import subprocess
import sys

import click
import pytest

from bootseer.cli.env.env import env
from bootseer.env import build_zipapp
from bootseer.env.client.options import RunOptions
from bootseer.env.client.zipapp_main import command_line, main
from bootseer.errors import ConfigError

CLI_ALONE = {
    "--check-drift",  # it reads the store
    "--json",  # here it is always
    "-v",
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / build_zipapp.NAME
    path.write_bytes(build_zipapp.build())
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
    assert shown.stdout == says(*words[:-4], "--json", *words[-4:])


def test_without_an_agent_the_command_runs(file, tmp_path):
    environ = {name: value for name, value in os.environ.items() if name != "BOOTSEER_SOCKET"}
    words = ["run", "--target", tmp_path / "env", "--", "sh", "-c", "echo out; exit 7"]
    ran = subprocess.run(
        [sys.executable, "-ISB", file, *words], env=environ, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (7, "out\n")
    assert "without capturing it: this job has no --bootseer" in ran.stderr


def asked(*words):
    options = vars(command_line().parse_args(["run", "--target", "/env", *words]))
    options["command"] = options["command"][-1:]  # without the --, which not every Python leaves
    return RunOptions(**{name: options[name] for name in RunOptions._fields})


def as_tuples(found):
    return [tuple(value) if isinstance(value, list) else value for value in found]


def test_what_is_not_asked_for_is_as_usual():
    usual = RunOptions(["make"], ["/env"])
    assert as_tuples(asked("--", "make")) == as_tuples(usual)
    assert (usual.read_only, usual.force, usual.no_capture, usual.waits) == (
        *(False, False, False, False),
    )


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("--read-only", "read_only", True),
        ("--force", "force", True),
        ("--no-capture", "no_capture", True),
        ("--wait", "waits", True),
        ("--wait-seconds=5", "wait_s", 5),
        ("--mode=mount", "mode", "mount"),
        ("--key-extra=x", "extra", ["x"]),
        ("--key-file=x", "key_files", ["x"]),
    ],
)
def test_what_is_asked_for_is_passed_on(option, name, value):
    assert asked(option, "--", "make") == asked("--", "make")._replace(**{name: value})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "run|key"),
        (["run", "--", "true"], "--target"),
        (["run", "--target", "/env"], "no command given"),
        (["key", "--target", "/env", "--"], "no command given"),
        (["run", "--target", "/env", "--mode", "x", "--", "true"], "invalid choice"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(capsys, words, why):
    with pytest.raises(SystemExit) as refused:
        main(words)
    assert refused.value.code == 2
    assert why in capsys.readouterr().err


@pytest.fixture
def no_agent(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOTSEER_SOCKET", str(tmp_path / "none"))


RUN = ["run", "--key-file", "/none", "--target"]


def test_an_agent_that_does_not_answer_keeps_nobody(no_agent, capfd, tmp_path):
    assert main([*RUN, str(tmp_path / "env"), "--", "sh", "-c", "echo out; exit 7"]) == 7
    said = capfd.readouterr()
    assert said.out == "out\n"
    assert said.err.startswith("bootseer: running the command without capturing it: [Errno 2]")


@pytest.mark.parametrize("has_agent", [False, True])
def test_what_is_to_be_quiet_says_nothing(capfd, tmp_path, monkeypatch, has_agent):
    monkeypatch.setenv("BOOTSEER_SOCKET", str(tmp_path / "none") if has_agent else "")
    words = ["-q", "--", "sh", "-c", "echo told >&2; exit 7"]
    assert main([*RUN, str(tmp_path / "env"), *words]) == 7
    assert capfd.readouterr() == ("", "told\n")


def test_what_goes_wrong_is_told_with_its_exit_status(no_agent, capsys):
    assert main(["run", "--target", "/", "--", "true"]) == ConfigError.exit_code
    assert capsys.readouterr().err.startswith("bootseer: --target / is not allowed")


def test_what_is_wrong_with_a_key_is_told_beside_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["key", "--target", "env", "--", "make"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["targets"] == [str(tmp_path / "env")]
    assert said.err.startswith("bootseer: what make reads is not in the key")
