"""What is read of a served image: told here, or by what answers before; once, and until the end."""

from types import SimpleNamespace

import pytest

from bootseer.image.serve import touch_log
from bootseer.image.serve.touch_log import TouchLog
from bootseer.units import NS_PER_MS

BEGAN_NS = 7_000_000_000


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now_ns=BEGAN_NS)
    clock.monotonic_ns = lambda: clock.now_ns
    monkeypatch.setattr(touch_log, "time", clock)
    return clock


class Answers:
    """What has answered reads without asking."""

    def __init__(self):
        self.read = []
        self.goes_on = []

    def __call__(self, *, go_on):
        told, self.read = self.read, []
        self.goes_on.append(go_on)
        return told


def test_what_is_read_is_noted_when_it_is_first(clock):
    log = TouchLog()
    log.note(0, 10)
    clock.now_ns += 5 * NS_PER_MS - 1
    log.note(20, 30)
    clock.now_ns += 1
    log.note(5, 25)
    log.note(40, 40)  # beyond the end there is nothing
    log.note(41, 40)
    log.note(35, 45)
    assert log.touches() == [(0, 10, 0), (20, 30, 4), (10, 20, 5), (35, 45, 5)]


def test_what_was_answered_without_asking_is_noted_at_its_time(clock):
    log, answers = TouchLog(), Answers()
    log.attach(answers)
    answers.read = [(0, 10, BEGAN_NS + 3 * NS_PER_MS)]
    clock.now_ns += 8 * NS_PER_MS
    log.note(5, 20)
    answers.read = [(50, 60, BEGAN_NS + 9 * NS_PER_MS)]
    assert log.touches() == [(0, 10, 3), (10, 20, 8), (50, 60, 9)]
    assert answers.goes_on == [True, True]


def test_nothing_is_noted_once_it_is_stopped(clock):
    log, answers = TouchLog(), Answers()
    log.attach(answers)
    log.note(0, 10)
    answers.read = [(20, 30, BEGAN_NS)]
    log.stop()
    assert answers.goes_on == [True, False], "nobody is to remember any more what is read"
    answers.read = [(40, 50, BEGAN_NS)]
    log.note(60, 70)
    assert log.touches() == [(0, 10, 0), (20, 30, 0)]
    assert len(answers.goes_on) == 2
