"""The process that opens a job's image, as its user, while the agent is starting."""

import os
import signal
import threading
from contextlib import suppress

import pytest
import trio
import trio.testing
from bootseer_dev.cluster.poll import wait_until

from bootseer.agent.broker.forks import fork_opener
from bootseer.agent.broker.processes import Processes
from bootseer.agent.messages.worker import StartTask
from bootseer.agent.node.job import Job
from bootseer.agent.workers import base
from bootseer.agent.workers.images.identify_image import open_and_identify, receive
from bootseer.errors import Denied, NotFound, Unavailable

pytestmark = [pytest.mark.root]

NOBODY = 65534
IDENTIFY = "bootseer.agent.workers.images.identify_image.identify"
IMAGE_BYTES = b"not a squashfs, and an image all the same" * 1000


@pytest.fixture
def ask(tmp_path):
    """Start an opener for an image; gives its process id, and the socket on which it answers."""
    os.chmod(tmp_path, 0o755)
    begun = []

    def start(image):
        job = Job(7, "c", "n1", NOBODY, NOBODY, "nobody", "/", "k", False, str(image), 1.0, 1)
        begun.append(fork_opener(job))
        return begun[-1]

    yield start
    for pid, answer in begun:
        answer.close()
        with suppress(ChildProcessError):  # reaped already
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(IMAGE_BYTES)
    path.chmod(0o644)
    return path


def test_the_opener_returns_the_identified_image(ask, image):
    pid, answer = ask(image)
    opened = receive(answer, str(image))
    assert os.waitpid(pid, 0)[0] == pid
    expected = open_and_identify(str(image))
    assert opened.identity == expected.identity
    assert opened.image.size_bytes == len(IMAGE_BYTES)
    assert os.pread(opened.image.fd, 100, 0) == IMAGE_BYTES[:100]
    assert opened.start_ns <= expected.start_ns
    os.close(opened.image.fd)
    os.close(expected.image.fd)


def test_the_opener_has_the_users_rights(ask, image):
    image.chmod(0o600)
    with pytest.raises(Denied, match="may not be read by the job's user"):
        receive(ask(image)[1], str(image))


@pytest.mark.parametrize("name", ["missing", "missing\n", "\udcff", "a\0b"])
def test_a_failed_open_is_reported(ask, tmp_path, name):
    with pytest.raises(NotFound, match="image"):
        receive(ask(tmp_path / name)[1], name)


def test_the_openers_death_is_reported(ask, image, monkeypatch):
    monkeypatch.setattr(IDENTIFY, lambda _: signal.pause())
    pid, answer = ask(image)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="has died"):
        receive(answer, str(image))


def test_the_opener_has_only_the_image_and_its_socket_open(ask, image, tmp_path, monkeypatch):
    monkeypatch.setattr(IDENTIFY, lambda _: signal.pause())
    with open(tmp_path / "not its", "w"):
        pid, _ = ask(image)
        expected = [*["/dev/null"] * 2, str(image), "socket"]
        wait_until(lambda: opened_by(pid) == expected, "the opener has the image and its socket")


def opened_by(pid):
    """List what a process has open beyond standard input."""
    folder, names = f"/proc/{pid}/fd", []
    for fd in sorted(os.listdir(folder), key=int)[1:]:
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(os.readlink(f"{folder}/{fd}").partition(":")[0])
    return sorted(names)


def test_an_ended_process_keeps_its_id_until_released(ask, image, monkeypatch):
    killed = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    processes = Processes(None, None, None)
    pid, answer = ask(image)
    handle = processes.adopt(pid)
    os.close(receive(answer, str(image)).image.fd)
    for _ in range(2):
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_pid == pid
    processes.kill(handle)
    with pytest.raises(NotFound):
        processes.kill(handle)
    processes.end()
    assert killed == [pid]
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


def test_an_error_in_the_opener_is_reported(ask, image, monkeypatch):
    def fails(_):
        raise RuntimeError("something unforeseen" + "\0" * 100_000)

    monkeypatch.setattr(IDENTIFY, fails)
    with pytest.raises(Unavailable, match=r"internal error: RuntimeError\('something unforeseen"):
        receive(ask(image)[1], str(image))


@pytest.mark.parametrize("by_opener", [True, False])
async def test_waiting_for_a_hanging_image_can_be_cancelled(monkeypatch, by_opener):
    answered, left = threading.Event(), threading.Event()

    def hangs(*_):
        answered.wait(5)  # in place of ever
        left.set()

    monkeypatch.setattr(base, "open_and_identify", hangs)
    monkeypatch.setattr(base, "receive", hangs)
    job = Job(7, "c", "n1", NOBODY, NOBODY, "nobody", "/", "k", False, "/x", 1.0, 1)
    opened = "of the opener" if by_opener else None
    task = base.Task(None, StartTask(job, {}), opened)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.opened, "/x")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert not left.is_set()
    answered.set()
    assert left.wait(5)
