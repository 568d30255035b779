"""What `--help` says of the commands."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bootseer.cli.main import COMMANDS, cli

WIDTH = {"COLUMNS": "80"}


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


def groups() -> list[tuple[str, ...]]:
    return [path for path, command in commands() if isinstance(command, click.Group)]


@pytest.mark.parametrize("path", groups(), ids=" ".join)
def test_no_line_is_cut_in_the_list_of_commands(path):
    done = CliRunner().invoke(cli, [*path, "--help"], env=WIDTH)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    listed = lines[lines.index("Commands:") + 1 :]
    assert listed
    assert [line for line in listed if line.endswith("...") or len(line) > 80] == []


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_page_fits_a_terminal_and_has_an_example(path):
    done = CliRunner().invoke(cli, [*path, "--help"], env=WIDTH, prog_name="bootseer")
    lines = done.output.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    at = next(n for n, line in enumerate(lines) if line.lstrip().startswith("Example"))
    assert "bootseer " in "".join(lines[at : at + 2])


def test_all_groups_are_looked_at():
    found = set(groups())
    assert {(), ("image",), ("env",), ("dev",), ("dev", "cluster"), ("dev", "hdfs")} <= found


def test_where_developers_code_is_not_installed_there_is_all_else(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "bootseer_dev"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bootseer_dev", None)  # cannot be imported
    done = CliRunner().invoke(cli, ["--help"], env=WIDTH)
    assert done.exit_code == 0
    listed = done.output.partition("Commands:")[2].splitlines()
    assert [line.split()[0] for line in listed if line] == [n for n in COMMANDS if n != "dev"]
    done = CliRunner().invoke(cli, ["dev", "--help"])
    assert (done.exit_code, "No such command 'dev'" in done.output) == (2, True)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_command_says(name):
    command = cli.get_command(click.Context(cli), name)
    assert command.get_short_help_str(200) == COMMANDS[name][1]


def imported(*argv: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import sys\n"
        "from bootseer.cli.main import cli\n"
        "from bootseer.errors import BootseerError\n"
        "try:\n"
        "    cli(sys.argv[1:], standalone_mode=False)\n"
        "except BootseerError:\n"
        "    pass\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-Ic", code, *argv], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


OF_THE_PROGRAM = {
    "bootseer",
    "bootseer.cli",
    "bootseer.cli.main",
    "bootseer.cli.terminal",
    "bootseer.cli.terminal.standard_output",
    "bootseer.errors",
}


def test_the_list_of_commands_imports_none_of_them():
    """With all of them it took a tenth of a second, and so did the completion of a name."""
    modules = imported("--help")
    assert {name for name in modules if name.startswith("bootseer")} == OF_THE_PROGRAM
    assert modules & {"trio", "pyarrow", "rich"} == set()


def test_the_state_of_a_node_without_jobs_imports_no_tables_and_no_stores():
    assert imported("status") & {"trio", "pyarrow", "rich", "bootseer.store", "psutil"} == set()


# No job has this id.
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_report_imports_what_it_reads_and_no_more(options):
    """With pyarrow it took half as long again."""
    modules = imported("report", "4294967295", *options)
    assert "bootseer.startup.run_events" in modules
    unneeded = {"pyarrow", "hdfs_native", "psutil", "bootseer.checkpoint", "rich.progress"}
    assert modules & unneeded == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_calls_the_program(shell):
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert f"_BOOTSEER_COMPLETE={shell}_complete" in done.output


def test_bash_completes_commands_and_options():
    script = (
        'source <(bootseer completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        '_bootseer_completion bootseer; echo "${COMPREPLY[@]}"'
    )

    def completed(*words: str) -> list[str]:
        argv = ["bash", "-c", script, "bash", "bootseer", *words]
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PATH": path})
        return done.stdout.split()

    assert completed("sta") == ["status"]
    assert completed("image", "ver") == ["verify"]
    assert set(completed("report", "--")) == {"--user", "--alone", "--json", "--help"}


@pytest.mark.parametrize("job", ["abc", "0", "-1", "1234_5", "1234.0", "\u0661"])
def test_a_report_says_how_a_job_is_named(job):
    done = CliRunner().invoke(cli, ["report", "--", job])
    assert (done.exit_code, "is not the number of a job, such as 1234" in done.output) == (2, True)
