"""How wide what commands print is: only a terminal has a width."""

import io
import re
import sys
from pathlib import Path

import bootseer_dev
import click
import pytest
from rich.table import Table

import bootseer
from bootseer.cli.report import timeline
from bootseer.cli.terminal.console import console, line_width, print_lines
from bootseer.core.event import FALLBACK, Event
from bootseer.startup.report import build
from bootseer.startup.run_events import NodeRun

SENTENCE = "one sentence that goes on and on, as those with a path do; " * 10


class Output(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.fixture
def printed(monkeypatch):
    """Print a sentence and a row; returns the lines."""

    def lines(*, err, is_terminal):
        out = Output(is_terminal)
        monkeypatch.setattr(sys, "stderr" if err else "stdout", out)
        table = Table(box=None, show_header=False)
        table.add_row("row", SENTENCE.strip())
        shown = console(err=err)
        shown.print(SENTENCE)
        shown.print(table)
        return out.getvalue().splitlines()

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    return lines


@pytest.mark.parametrize("err", [False, True])
def test_nothing_is_wrapped_in_a_pipe_whatever_columns_says(printed, err):
    first, second = printed(err=err, is_terminal=False)
    assert first.strip() == SENTENCE.strip()
    assert second.split(maxsplit=1) == ["row", SENTENCE.strip() + " "]


@pytest.mark.parametrize("err", [False, True])
def test_a_terminal_is_as_wide_as_columns_says(printed, err):
    lines = printed(err=err, is_terminal=True)
    assert len(lines) > 20
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in lines) <= 40


def test_a_report_is_neither_cut_nor_filled_up_in_a_pipe(monkeypatch):
    out = Output(False)
    monkeypatch.setattr(sys, "stdout", out)
    event = Event("image.identify", 0, 10**9, "agent", FALLBACK, detail=SENTENCE.strip())
    run = NodeRun("c.7", 7, "k", "n1", "cold", 0, (event,))
    print_lines(timeline.write([build([run])], line_width()))
    lines = out.getvalue().splitlines()
    assert sum(SENTENCE.strip() in line for line in lines) == 2  # the stage, and the fallback
    assert max(map(len, lines)) < 2 * len(SENTENCE)


@pytest.mark.parametrize(
    ("env", "is_styled"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_lines_are_styled_where_a_terminal_shows_it(monkeypatch, env, is_styled):
    for name, value in {"NO_COLOR": "", "TERM": "xterm", **env}.items():
        monkeypatch.setenv(name, value)
    out = Output(True)
    monkeypatch.setattr(sys, "stdout", out)
    print_lines([click.style("bold", bold=True)])
    assert ("\x1b" in out.getvalue()) == is_styled


def test_there_is_no_other_console():
    folders = [Path(package.__file__).parent for package in (bootseer, bootseer_dev)]
    made = {p.name for f in folders for p in f.rglob("*.py") if "Console(" in p.read_text()}
    assert made == {"console.py"}
