"""What `--help` says of the commands."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from bootseer.cli.main import cli

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
