"""`bootseer doctor` and `bootseer config show`."""

import json
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from bootseer import config
from bootseer.cli import config as config_command
from bootseer.cli import doctor
from bootseer.doctor import runner
from bootseer.doctor.check import Check, Finding, warning

ERROR = Finding("a\x1b[2J is broken", "it \x07matters", "mend it")
WARNING = warning("b is odd", "slow", "turn it")
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def call(monkeypatch):
    """Run `bootseer doctor` with these checks; returns its exit code and output."""

    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(doctor, "leave", leave)
    real = runner.run_checks

    def run(*words, found=(), checks=None):
        made = checks or [Check("a.b", "a is whole", lambda _: found)]
        monkeypatch.setattr(runner, "run_checks", lambda machine: real(machine, made))
        done = CliRunner().invoke(doctor.doctor, words, catch_exceptions=False)
        return done.exit_code, done.output

    return run


def test_a_healthy_machine_is_one_line(call):
    code, output = call("--role", "compute", found=["a note"])
    assert (code, output) == (0, "compute node: nothing is wrong; checks made: 1\n")


def test_verbose_lists_checks_and_notes(call):
    code, output = call("--role", "submit", "--verbose", found=["a note"])
    assert code == 0
    first, second, last = output.splitlines()
    assert (first.split(), second.strip()) == (["ok", "a.b:", "a", "is", "whole"], "a note")
    assert last == "submit host: nothing is wrong; checks made: 1"


@pytest.mark.parametrize(
    ("found", "strict", "code"),
    [([WARNING], False, 0), ([WARNING], True, 1), ([ERROR], False, 1), ([ERROR, WARNING], True, 1)],
)
def test_the_exit_code(call, found, strict, code):
    assert call(*["--strict"] * strict, found=found)[0] == code


def test_a_finding_says_what_why_and_how(call):
    _, output = call("--role", "submit", found=[ERROR, WARNING])
    assert output.splitlines() == [
        "error: a?[2J is broken  [a.b]",  # names of others are no commands for the terminal
        "  why:  it ?matters",
        "  mend: mend it",
        "warning: b is odd  [a.b]",
        "  why:  slow",
        "  mend: turn it",
        "submit host: errors: 1, warnings: 1; checks made: 1",
    ]


def test_json_has_what_its_page_says(call):
    _, output = call("--role", "submit", "--json", found=[ERROR, "note"])
    document = json.loads(output)
    (check,) = document["checks"]
    assert check["findings"][0]["what"] == ERROR.what
    assert check["notes"] == ["note"]
    page = (DOCS / "formats/doctor.md").read_text()
    rows = re.findall(r"^\| (`[a-z_`, ]+) \|", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall("[a-z_]+", row)}
    assert named == {*document, *check, *check["findings"][0]}


def test_fix_mends_and_looks_again(call):
    broken = ["x"]

    def mend():
        broken.clear()
        return "mended x"

    def look(_):
        return [Finding("x", "y", "z", fix=mend)] if broken else []

    checks = [Check("a.b", "x is whole", look)]
    assert call("--role", "submit", checks=checks)[0] == 1
    code, output = call("--role", "submit", "--fix", checks=checks)
    assert (code, output.splitlines()[0]) == (0, "fix: mended x")
    assert call("--role", "submit", "--fix", checks=checks)[1].startswith("submit host: nothing")


def test_a_fix_that_fails_says_so(call):
    def mend():
        raise PermissionError(13, "Permission denied")

    code, output = call("--fix", found=[Finding("x", "y", "z", fix=mend)])
    assert code == 1
    assert output.startswith("fix: not mended: x: Permission denied, run this as root\n")


def test_settings_that_are_wrong_do_not_end_it(call, monkeypatch, tmp_path):
    file = tmp_path / "bootseer.toml"
    file.write_text("store.oops = 1\n")
    load = config.load
    monkeypatch.setattr(config, "load", lambda: load(str(file)))
    folders = [check for check in runner.CHECKS if check.name == "folders.settings"]
    code, output = call(checks=folders)
    assert code == 1
    assert "unknown setting store.oops" in output


def test_the_settings_are_loaded_once(call, monkeypatch):
    loads = []
    load = config.load
    monkeypatch.setattr(config, "load", lambda: loads.append(1) or load())
    assert call()[0] == 0
    assert loads == [1]


def test_all_checks_end_in_some_seconds():
    machine = doctor._machine(None, "compute")
    began = time.monotonic()
    results = runner.run_checks(machine)
    assert time.monotonic() - began < 60
    assert len(results) == len(runner.CHECKS)
    assert not [f.what for r in results for f in r.findings if "failed:" in f.what]


def test_the_page_of_checks_has_every_check():
    page = (DOCS / "admin/doctor.md").read_text()
    rows = re.findall(r"^\| ([a-z]+\.[a-z_]+) \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert rows == [check.name for check in runner.CHECKS]


# bootseer config show


@pytest.fixture
def shown(monkeypatch, tmp_path):
    file = tmp_path / "bootseer.toml"
    file.write_text(
        "# settings\nprolog.wait_s = 2\n[ image ] # x\n  pin=true\n[node]\n"
        'cache_dir = "/a"\n"run_dir" = "/b"\n'
    )
    load = config.load
    monkeypatch.setattr(config, "load", lambda: load(str(file)))

    def show(*words):
        done = CliRunner().invoke(config_command.config, ["show", *words, "--json"])
        return json.loads(done.output) if not done.exception else done.exception

    show.file = file
    return show


@pytest.mark.parametrize(
    ("name", "line"),
    [("prolog.wait_s", 2), ("image.pin", 4), ("node.cache_dir", 6), ("node.run_dir", 7)],
)
def test_a_setting_of_the_file_has_its_line(shown, name, line):
    assert shown(name)[name]["from"] == f"{shown.file}:{line}"


def test_defaults_and_variables(shown, monkeypatch):
    assert shown("store.url") == {
        "store.url": {
            "value": "file://{home}/.bootseer",
            "from": "default",
            "purpose": config.SETTINGS["store.url"].purpose,
        }
    }
    monkeypatch.setenv("AWS_PROFILE", "me")
    assert shown("aws.profile")["aws.profile"]["value"] == "me"
    assert "AWS_PROFILE" in shown("aws.profile")["aws.profile"]["from"]


def test_a_section_and_all_settings(shown):
    assert {name.partition(".")[0] for name in shown("cache")} == {"cache"}
    assert set(shown()) == set(config.SETTINGS)
    assert "there is no setting oops" in str(shown("oops"))


def test_a_row_is_one_line_in_a_pipe(shown):
    done = CliRunner().invoke(config_command.config, ["show"], env={"COLUMNS": "40"})
    for name, setting in config.SETTINGS.items():
        (row,) = (line for line in done.output.splitlines() if line.split()[:1] == [name])
        assert row.rstrip().endswith(setting.purpose)
