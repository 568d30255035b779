"""What workers print, where the administrator reads it."""

import errno
import os
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from bootseer.agent.messages.worker import CloseWindow
from bootseer.agent.node import spawn
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.supervisor import worker_output
from bootseer.agent.supervisor.worker_output import MAX_BYTES, copy_output
from bootseer.agent.supervisor.worker_process import Worker
from bootseer.config import Config
from bootseer.errors import Closed

JOB = Job(7, "c", "n1", 65534, 65534, "nobody", "/", "k", False, "", 1.0, 1)


@pytest.fixture(autouse=True)
def nothing_copied(monkeypatch):
    monkeypatch.setattr(worker_output, "_copied_bytes", 0)


def printing(text):
    """Return a pipe that has been written to and closed."""
    printed, output = os.pipe()
    os.write(output, text)
    os.close(output)
    return printed


async def test_output_is_escaped(capsys):
    await copy_output(printing(b"Traceback:\n \x1b]0;t\x07 \x9b31m \xe2\x80\xae \x7f\r\n"))
    assert capsys.readouterr().err == (
        "Traceback:\n \\x1b]0;t\\x07 \\x9b31m \\xe2\\x80\\xae \\x7f\\x0d\n"
    )


async def test_so_much_is_copied_of_all_of_them_and_the_rest_is_read(capsys):
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            printed, output = os.pipe()
            nursery.start_soon(copy_output, printed)
            async with trio.lowlevel.FdStream(output) as stream:
                await stream.send_all(b"x" * MAX_BYTES)
    assert len(capsys.readouterr().err) == MAX_BYTES


async def test_a_full_disk_ends_nothing(monkeypatch):
    def write(_):
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=write))
    await copy_output(printing(b"x"))


@pytest.mark.root
@pytest.mark.parametrize("room", [MAX_BYTES, 0])
async def test_a_worker_prints_there_and_nowhere_else(tmp_path, capfd, monkeypatch, room):
    monkeypatch.setattr(worker_output, "MAX_BYTES", room)
    pid, end = spawn.spawn_worker(JobFolder(str(tmp_path)), JOB, "publish")
    worker = Worker(None, 0, end)
    await worker.send_task(JOB, Config({}))
    await worker.channel.send(CloseWindow())  # nothing that it takes: it ends by an error
    with pytest.raises(Closed):
        await worker.channel.receive()
    worker.channel.close()
    os.waitpid(pid, 0)
    await trio.testing.wait_all_tasks_blocked()
    assert ("was not expected" in capfd.readouterr().err) == bool(room)
