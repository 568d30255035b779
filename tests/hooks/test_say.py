"""What root's hooks and commands print of what users have written."""

import io
import os

import pytest
from rich.console import Console

from bootseer.agent.messages.control import AgentStatus
from bootseer.cli.status import _table
from bootseer.slurm.hook import log_line

EVIL = "[red]x[/nonsense]\x1b]0;t\x07\x1b[31m\u009b31m\u202e\u2028\udcff\ud800\nnext\r"


def test_a_hook_prints_one_line_for_any_text(capfd):
    log_line(f"job 1: image {EVIL}")
    said = capfd.readouterr().out
    assert said.endswith("\n")
    assert said[:-1].isprintable()


def test_a_hook_without_a_reader_continues(monkeypatch):
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(BrokenPipeError))
    log_line("x")


@pytest.mark.parametrize("images", [[], [{"path": EVIL, "want_bytes": 5, "done_bytes": 2}]])
def test_status_shows_names_as_they_are(images):
    job = {"job_id": 1, "user": EVIL, "key": EVIL}
    state = AgentStatus(job, "ready", EVIL, True, images, False, 0, 0)
    out = io.StringIO()
    Console(file=out, width=300).print(_table([state]))
    assert "[red]x[/nonsense]" in out.getvalue()
    assert all(c.isprintable() or c == "\n" for c in out.getvalue())
