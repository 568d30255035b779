"""Whom root kills: what carries a folder's name and is an agent's, and nothing else."""

import errno
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from bootseer.agent.broker.registration import register_servers
from bootseer.agent.node import agent_process, reap_agents, registry, spawn
from bootseer.agent.node.job import Job, JobFolder

pytestmark = [pytest.mark.root]

USER = 65534
JOB = Job(7, "c", "n1", USER, USER, "nobody", "/", "k", False, "", 1.0, 1)


@pytest.fixture
def folder(tmp_path):
    return JobFolder(str(tmp_path))


@pytest.fixture
def start():
    """Start a sleeper; all are ended afterwards."""
    started = []

    def sleeper(env=None, *, user=0, command=("sleep", "60"), **more):
        child = subprocess.Popen(
            command, env={"PATH": "/usr/bin:/bin", **(env or {})}, user=user, group=user, **more
        )
        started.append(child)
        return child

    yield sleeper
    for child in started:
        child.kill()
        child.wait()


def _agent(folder, start):
    agent = start({spawn.TAG: folder.path}, start_new_session=True)
    folder.write("process.json", {"pid": agent.pid, "start": spawn.start_time(agent.pid)})
    return agent


WORKER = "import os, time; os.setresuid(65534, 65534, 65534); print(flush=True); time.sleep(60)"


def test_an_agent_and_its_worker_are_killed(folder, start):
    code = (
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', {WORKER!r}], stdout=subprocess.PIPE); "
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    agent = start(
        {spawn.TAG: folder.path},
        command=(sys.executable, "-P", "-c", code),
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    with agent.stdout as stdout:
        worker = int(stdout.readline())
    folder.write("process.json", {"pid": agent.pid, "start": spawn.start_time(agent.pid)})
    assert sorted(agent_process.kill_all(folder)) == sorted([agent.pid, worker])
    assert agent.wait(5) == -signal.SIGKILL


def test_a_process_stopped_by_its_user_is_killed_once_the_agent_has_ended(folder, start):
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WORKER!r}])"
    agent = start(
        {spawn.TAG: folder.path},
        command=(sys.executable, "-P", "-c", code),
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    folder.write("process.json", {"pid": agent.pid, "start": spawn.start_time(agent.pid)})
    with agent.stdout as stdout:
        stdout.readline()
        (worker,) = members(agent.pid)
        os.kill(worker, signal.SIGSTOP)
        assert agent.wait(10) == 0
        reap_agents.remove(folder)
        assert stdout.read() == b""  # nobody has the other end any more
    assert not os.path.exists(folder.path)


def members(session):
    """List the processes of a session but its first."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if spawn.status_fields(pid)[3] == str(session) and int(pid) != session:
                found.append(int(pid))
    return found


def test_an_agent_that_has_not_registered_is_killed(folder, start):
    agent = start({spawn.TAG: folder.path}, start_new_session=True)
    assert agent_process.kill_all(folder) == [agent.pid]


@pytest.mark.parametrize("registered", [True, False])
def test_a_users_process_with_the_name_is_not(folder, start, registered):
    own = [
        start({spawn.TAG: folder.path}, user=USER),
        start({spawn.TAG: folder.path}, user=USER, start_new_session=True),
    ]
    agent = _agent(folder, start)
    if not registered:
        os.unlink(f"{folder.path}/process.json")
    assert agent_process.kill_all(folder) == [agent.pid]
    assert [child.poll() for child in own] == [None, None]


def test_a_users_process_that_calls_itself_roots_is_not(folder, start):
    name = "\\rUid:\\t0"
    code = f"open('/proc/self/comm', 'w').write('{name}'); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    own = start(
        {spawn.TAG: folder.path}, user=USER, command=(sys.executable, "-P", "-c", code), **pipes
    )
    with own.stdin, own.stdout:
        own.stdout.readline()
        assert agent_process.kill_all(folder) == []


@pytest.mark.parametrize("suffix", ["0", "/", "/../2"])
def test_another_jobs_agent_is_not(folder, start, suffix):
    other = start({spawn.TAG: folder.path + suffix}, start_new_session=True)
    plain = start(start_new_session=True)
    _agent(folder, start)
    killed = agent_process.kill_all(folder)
    assert other.pid not in killed
    assert plain.pid not in killed


def test_a_process_id_used_again_is_not_the_agent(folder, start):
    stranger = start(start_new_session=True)
    folder.write("process.json", {"pid": stranger.pid, "start": "1"})
    assert registry.agent_pid(folder) is None
    assert agent_process.kill_all(folder) == []


@pytest.mark.parametrize(
    "document",
    [{}, {"pid": 1, "start": "0"}, {"pid": "1", "start": None}, {"pid": -1, "start": None}],
)
def test_an_unregistered_process_is_no_agent(folder, document):
    folder.write("process.json", document)
    assert registry.agent_pid(folder) is None


def test_a_process_may_have_any_name(start, tmp_path):
    program = tmp_path / ") Z 1 1 (\n"
    program.symlink_to("/bin/sleep")
    child = start(command=(str(program), "60"))
    assert spawn.start_time(child.pid) is not None


def test_a_worker_that_cannot_be_started_leaves_nothing_open(folder, monkeypatch):
    def fails(*_, **__):
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "posix_spawn", fails)
    connection = os.open(os.devnull, os.O_RDONLY)
    try:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match="no more processes"):
            spawn.spawn_worker(folder, JOB, "serve_image", connection)
        assert os.listdir("/proc/self/fd") == before
    finally:
        os.close(connection)


@pytest.mark.parametrize("code", [0, 3])
def test_leave_flushes_output_and_waits_for_no_thread(code):
    program = (
        "import threading, time; from bootseer.agent.node.spawn import leave; "
        "threading.Thread(target=time.sleep, args=[60]).start(); "
        f"print('said'); leave({code})"
    )
    ended = subprocess.run(
        [sys.executable, "-EP", "-c", program], stdout=subprocess.PIPE, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (code, b"said\n")
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-EP", "-c", program], stdout=full, timeout=30)
    assert ended.returncode == (code or 1)
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-EP", "-c", program]
    assert subprocess.run(closed, timeout=30).returncode == code


def test_a_job_is_served_while_any_of_its_servers_lives(tmp_path):
    folder = JobFolder(str(tmp_path))
    assert not registry.is_served(folder)
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    for sleeper in sleepers:
        register_servers(folder, [sleeper.pid])
    for sleeper in sleepers:
        assert registry.is_served(folder)
        sleeper.kill()
        sleeper.wait()
    assert not registry.is_served(folder)


@pytest.mark.parametrize("text", ["", "[]", '{"servers": 5}', '{"servers": [5, {}, {"pid": 1}]}'])
def test_a_damaged_list_of_servers_names_none(tmp_path, text):
    (tmp_path / "server.json").write_text(text)
    assert not registry.is_served(JobFolder(str(tmp_path)))
