"""What `--help` says of the commands."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from bootseer.cli.main import COMMANDS, cli

WIDTH = {"COLUMNS": "80"}


def groups(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command, (*path, name))


@pytest.mark.parametrize("path", list(groups()), ids=" ".join)
def test_no_line_is_cut_in_the_list_of_commands(path):
    done = CliRunner().invoke(cli, [*path, "--help"], env=WIDTH)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    listed = lines[lines.index("Commands:") + 1 :]
    assert listed
    assert [line for line in listed if line.endswith("...") or len(line) > 80] == []


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


def test_the_list_of_commands_imports_nothing_that_they_work_with():
    """With trio, pyarrow and rich it took half a second, and so did the completion of a name."""
    code = (
        "import sys\n"
        "from bootseer.cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "print({'trio', 'pyarrow', 'rich'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-Ic", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
