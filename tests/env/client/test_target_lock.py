"""Who has a target has it alone; who waits for it is let in, told, or late."""

import errno
import fcntl
import os
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until

from bootseer.env.client import target_lock
from bootseer.env.client.target_lock import locked


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def lock_of(target):
    return target.parent / f".{target.name}.bootseer-{os.geteuid()}.lock"


def descriptors(path):
    """Those of this process that are open on a file, by its name."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of this listing
            found += [fd] * (os.readlink(f"/proc/self/fd/{fd}") == str(path))
    return found


def test_a_command_under_a_lock_does_not_wait_for_it(target):
    with locked([str(target)], pytest.fail) as outer:
        with locked([str(target)], pytest.fail, held=outer.held) as inner:
            assert (inner.fds, inner.found, inner.late) == ([], "", "")
            assert inner.held == outer.held  # for what runs under that one
        assert lock_of(target).exists()
    assert not lock_of(target).exists()


def test_the_lock_of_another_is_not_one_that_is_held_around(target):
    other = target.parent / "other"
    other.mkdir()
    with locked([str(other)], pytest.fail) as around, locked([str(target)], pytest.fail):
        told = []
        with locked([str(target)], told.append, held=around.held, until=0) as late:
            assert (told, late.late) == ([str(target)], str(target))


def test_who_is_late_for_one_target_locks_no_other(target):
    targets = [str(target.parent / name) for name in ("a", "b", "c")]
    with locked(targets[1:2], pytest.fail), locked(targets, lambda _: None, until=0) as late:
        assert (late.late, len(late.fds)) == (targets[1], 1)
        assert not lock_of(Path(targets[2])).exists()


def test_a_lock_is_looked_at_less_and_less_often(target, monkeypatch):
    pauses = []

    def sleep(pause_s):
        pauses.append(pause_s)
        if len(pauses) == 7:
            opened.close()

    monkeypatch.setattr(target_lock.time, "sleep", sleep)
    with ExitStack() as opened:
        opened.enter_context(locked([str(target)], pytest.fail))
        with locked([str(target)], lambda _: None, heeds=False) as turn:
            assert len(turn.fds) == 1
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25]


def test_who_waits_for_one_after_the_other_is_told_once(target):
    told, entered = [], threading.Event()

    def wait():
        with locked([str(target)], told.append):
            entered.set()

    waiting = threading.Thread(target=wait)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(locked([str(target)], pytest.fail))
        waiting.start()
        wait_until(lambda: len(descriptors(lock_of(target))) == 2, "the other to wait")
        lock_of(target).unlink()  # as its holder does at the end
        second.enter_context(locked([str(target)], pytest.fail))
        first.close()
        wait_until(lambda: len(descriptors(lock_of(target))) == 2, "it to wait again")
        assert not entered.is_set()
        second.close()
    waiting.join()
    assert entered.is_set() and told == [str(target)]


@pytest.mark.parametrize("leaves", ["", "made"])
def test_what_is_not_heeded_is_locked_anew(target, leaves):
    """Who comes later finds that lock, and not the one that was waited for."""
    found, waits, goes_on = [], threading.Event(), threading.Event()

    def wait():
        with locked([str(target)], lambda _: waits.set(), heeds=not leaves) as turn:
            found.append((turn.found, len(turn.fds), lock_of(target).exists()))
            goes_on.wait(10)

    with locked([str(target)], pytest.fail) as turn:
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert waits.wait(10)
        turn.leaves = leaves
    wait_until(lambda: found, "who waits to be let in")
    try:
        with locked([str(target)], lambda _: None, until=0) as late:
            assert late.late
    finally:
        goes_on.set()
        waiting.join()
    assert found == [("", 1, True)]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_is_no_other_kind_of_file(target, make):
    make(lock_of(target))
    with locked([str(target)], pytest.fail) as turn:
        assert len(turn.fds) == 1
        assert [path.suffix for path in (target.parent / "tmp").iterdir()] == [".lock"]
    assert lock_of(target).exists()


@pytest.mark.root
def test_a_lock_is_not_another_users_file(target):
    lock_of(target).touch()
    os.chown(lock_of(target), 1234, 1234)
    with locked([str(target)], pytest.fail) as turn:
        assert len(turn.fds) == 1
        assert [path.suffix for path in (target.parent / "tmp").iterdir()] == [".lock"]
    assert lock_of(target).stat().st_uid == 1234


def test_where_files_cannot_be_locked_nobody_waits(target, monkeypatch):
    def flock(fd, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked([str(target)], pytest.fail) as turn:
        assert (turn.fds, turn.found, turn.late, turn.held) == ([], "", "", "")
