"""What agent.log has: a line for each step, whatever is in it."""

import logging
import re

import pytest

from bootseer.agent.node import log
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.core.event import Event
from bootseer.units import MIB

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} (\w+) (\w+): (.*)")


@pytest.fixture(autouse=True)
def root(monkeypatch):
    """The root logger, as it is in a process of its own."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging, "raiseExceptions", True)
    yield logging.root
    logging.root.setLevel(logging.WARNING)


def lines(capsys):
    return [LINE.fullmatch(line).groups() for line in capsys.readouterr().err.splitlines()]


def test_each_stage_has_a_line_with_its_level(capsys, tmp_path):
    log.set_up(is_debugging=False)
    events = EventLog(str(tmp_path / "events.jsonl"))
    events.note(Event("image.mount", 0, 1_500_000_000, "worker", bytes=3 * MIB, detail="served"))
    events.fall_back("image.cache", "no room")
    assert lines(capsys) == [
        ("INFO", "event", "image.mount 1.500 s 3.15 MB: served"),
        ("WARNING", "event", "image.cache 0.000 s: no room"),
    ]


def test_a_message_is_one_line_with_any_path(capsys):
    log.set_up(is_debugging=False)
    logging.getLogger("agent").warning("%s", "a\nb\x1b[31m \u202e \udcff \x7f")
    ((_, _, text),) = lines(capsys)
    assert text.isascii() and text.isprintable()


@pytest.mark.parametrize("is_debugging", [True, False])
def test_messages_are_logged_when_debugging(capsys, is_debugging):
    log.set_up(is_debugging=is_debugging)
    logging.getLogger("channel").debug("received Ready")
    assert bool(lines(capsys)) == is_debugging


def test_an_error_comes_with_its_traceback(capsys):
    log.set_up(is_debugging=False)
    try:
        raise RuntimeError("\x1b[31m")
    except RuntimeError:
        logging.getLogger("agent").exception("unexpected error")
    told = capsys.readouterr().err
    assert "Traceback" in told and "RuntimeError" in told
