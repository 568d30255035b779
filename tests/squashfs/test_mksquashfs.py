"""mksquashfs found, started, and asked for where this process may not start it."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootseer.errors import Unavailable
from bootseer.squashfs import mksquashfs
from bootseer.squashfs.mksquashfs import MAX_FDS, MAX_REQUEST_BYTES, ConfinedStart, start_plainly


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a mksquashfs of the test's own, which is yet to be written."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path / "bin/mksquashfs"


def write(program: Path, script: str) -> None:
    program.write_text(script)
    program.chmod(0o755)


def test_mksquashfs_is_searched_in_the_path(program: Path) -> None:
    write(program, "#!/bin/sh\n")
    assert mksquashfs.find_program() == str(program)


def test_mksquashfs_gets_its_arguments_and_no_environment(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
    said = 'echo "$@"; cat; env | grep -e LC_ALL -e SOURCE; readlink /proc/$$/fd/$1'
    write(program, f"#!/bin/sh\n{{ {said}; }} >&2\n")
    (tmp_path / "stdin").write_text("input\n")
    files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("stdin", "err", "more")]
    stdin, stderr, more = files
    try:
        assert start_plainly([str(more), "two"], stdin, stderr, [more]).wait() == 0
    finally:
        for fd in files:
            os.close(fd)
    found = (tmp_path / "err").read_text().splitlines()
    assert found == [f"{more} two", "input", "LC_ALL=C", str(tmp_path / "more")]


def test_a_mksquashfs_that_cannot_be_run_is_reported(program: Path) -> None:
    write(program, "#!/no/such/program\n")
    with pytest.raises(Unavailable, match="/bin/mksquashfs cannot be run: No such file"):
        start_plainly([], 0, 2, [])


class Starter:
    """The other end: what the process is asked that may start it."""

    def __init__(self) -> None:
        ours, self.end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.start = ConfinedStart(ours)
        self.ours = ours

    def hear(self) -> tuple[dict[str, object], socket.socket, list[int]]:
        """Return a request, the connection for its answer, and the other descriptors."""
        request, fds, _, _ = socket.recv_fds(self.end, MAX_REQUEST_BYTES, MAX_FDS)
        return json.loads(request), socket.socket(fileno=fds[0]), fds[1:]


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    with starter.ours, starter.end:
        yield starter


def test_a_start_request_has_arguments_and_descriptors(starter: Starter) -> None:
    assert starter.start.fileno() == starter.ours.fileno()
    log = os.memfd_create("log")
    program = starter.start(["-", "image"], log, log, [log])
    request, connection, fds = starter.hear()
    assert request == {"arguments": ["-", "image"], "numbers": [log]}
    assert [os.path.samestat(os.fstat(fd), os.fstat(log)) for fd in fds] == [True] * 3
    with connection:
        connection.send(b"3")
    assert (program.wait(), program.wait()) == (3, 3)
    program.kill()  # too late, and no error
    for fd in (log, *fds):
        os.close(fd)


@pytest.mark.parametrize(("answer", "status"), [(b"0", 0), (b"-15", -15), (b"", -signal.SIGKILL)])
def test_the_exit_status_is_that_of_the_starters_answer(
    starter: Starter, answer: bytes, status: int
) -> None:
    program = starter.start([], 0, 2, [])
    _, connection, fds = starter.hear()
    with connection:
        if answer:
            connection.send(answer)
    assert program.wait() == status
    for fd in fds:
        os.close(fd)


def test_closing_the_connection_kills_mksquashfs(starter: Starter) -> None:
    program = starter.start([], 0, 2, [])
    _, connection, fds = starter.hear()
    with connection:
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        program.kill()
        assert connection.recv(1) == b""
        connection.send(b"-9")  # and there is an answer all the same
    assert program.wait() == -9
    for fd in fds:
        os.close(fd)


def test_a_missing_starter_is_reported_and_leaves_nothing_open(starter: Starter) -> None:
    starter.end.close()
    opened = os.listdir("/proc/self/fd")
    with pytest.raises(Unavailable, match="cannot be run") as raised:
        starter.start([], 0, 2, [])
    assert os.listdir("/proc/self/fd") == opened
    assert str(raised.value).endswith("Broken pipe")


def test_mksquashfs_dies_with_the_starter(starter: Starter) -> None:
    program = starter.start([], 0, 2, [])
    starter.end.close()
    program.kill()
    assert program.wait() == -signal.SIGKILL
