"""The control group of an agent: who is in it, and who is killed with it."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from bootseer_dev.cluster.poll import wait_until

from bootseer.agent.node import agent_process, cgroup
from bootseer.agent.node.job import JobFolder

pytestmark = [pytest.mark.root]
JOB = "4711"
CHILDREN = "setsid sleep 60 & env -i sleep 60 & echo $!; wait"


@pytest.fixture(autouse=True)
def groups():
    """Leave no group behind; without version 2 of control groups there is nothing to test."""
    if cgroup._root() is None:
        pytest.skip("control groups of version 2 are not mounted")
    yield
    for name in os.listdir(cgroup._ours()) if os.path.exists(cgroup._ours()) else ():
        if f"-{JOB}-" in name:
            path = f"{cgroup._ours()}/{name}"
            wait_until(lambda path=path: cgroup._remove(path), f"{name} is empty")


@pytest.fixture
def start():
    started = []

    def run(command="exec sleep 60"):
        child = subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE, text=True)
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


def group_of(pid):
    with open(f"/proc/{pid}/cgroup") as file:
        return next(line[3:].rstrip("\n") for line in file if line.startswith("0::"))


def put(pid, name):
    with open(f"{cgroup.make(name)}/cgroup.procs", "w") as file:
        file.write(str(pid))


def members(name):
    with open(f"{cgroup._ours()}/{name}/cgroup.procs") as file:
        return file.read().split()


def test_all_processes_of_a_group_are_killed(start, tmp_path):
    """Also what has left session and environment behind."""
    name = cgroup.new_name("warm", JOB)
    os.mkfifo(tmp_path / "go")
    agent = start(f"read x < {tmp_path}/go; {CHILDREN}")
    put(agent.pid, name)
    with open(tmp_path / "go", "w") as go:
        go.write("on\n")
    agent.stdout.readline()
    assert len(members(name)) == 3
    assert group_of(agent.pid) == f"/bootseer/{name}"
    folder = JobFolder(str(tmp_path / JOB))
    os.mkdir(folder.path)
    folder.write("process.json", {"pid": agent.pid, "cgroup": group_of(agent.pid)})
    assert agent_process.kill_all(folder) == []
    assert agent.wait(10) == -signal.SIGKILL
    wait_until(lambda: members(name) == [], "its children have ended")
    cgroup.sweep(f"/bootseer/{name}")
    assert not os.path.exists(f"{cgroup._ours()}/{name}")


def test_a_group_is_removed_once_its_last_processes_have_ended(start):
    name = cgroup.new_name("warm", JOB)
    agent = start("trap 'sleep 0.2; exit' TERM; echo ready; while :; do sleep 0.01; done")
    agent.stdout.readline()
    put(agent.pid, name)
    agent.terminate()
    cgroup.sweep(f"/bootseer/{name}")
    assert not os.path.exists(f"{cgroup._ours()}/{name}")


@pytest.mark.parametrize("job", ["47", "4711.1", "711", "", ".*"])
def test_another_jobs_group_is_left_alone(start, job):
    name = cgroup.new_name("warm", JOB)
    agent = start()
    put(agent.pid, name)
    assert not cgroup.kill(group_of(agent.pid), job)
    time.sleep(0.2)
    assert agent.poll() is None
    assert cgroup.kill(f"/bootseer/{name}", JOB)
    assert agent.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("path", ["", "/", "None", "/bootseer", "/bootseer/x", "/../x"])
def test_other_groups_are_left_alone(start, path):
    """Where it could not be put into one, an agent is in slurmd's."""
    agent = start()
    assert not cgroup.kill(path, JOB)
    cgroup.sweep(path)
    time.sleep(0.1)
    assert agent.poll() is None


def test_groups_go_once_they_are_empty_and_not_new(start):
    old = f"bootseer-warm-{JOB}-{time.time_ns() - 120 * 10**9}"
    used = f"bootseer-recover-{JOB}-{time.time_ns() - 110 * 10**9}"
    new = cgroup.new_name("warm", JOB)
    agent = start()
    put(agent.pid, used)
    for name in (old, new):
        os.mkdir(f"{cgroup._ours()}/{name}")
    cgroup.sweep()
    assert [os.path.exists(f"{cgroup._ours()}/{name}") for name in (old, used, new)] == [
        *(False, True, True)
    ]
    agent.kill()
    agent.wait()

    def is_gone():
        cgroup.sweep()
        return not os.path.exists(f"{cgroup._ours()}/{used}")

    wait_until(is_gone, "the group that was used is gone")


def test_without_version_2_an_agent_is_still_started(start, monkeypatch):
    monkeypatch.setattr(cgroup, "_ROOTS", ("/nowhere",))
    agent = start()
    assert cgroup.make(cgroup.new_name("warm", JOB)) == ""
    assert not cgroup.kill(group_of(agent.pid), JOB)
    cgroup.sweep()
    assert agent.poll() is None


@pytest.fixture
def slurms():
    """A group as Slurm makes it for a step, in version 1; returns its folder, from the mount."""
    freezer = "/sys/fs/cgroup/freezer"
    if not os.path.exists(f"{freezer}/cgroup.procs"):
        pytest.skip("control groups of version 1 are not mounted")
    top = f"bootseer-test-{os.getpid()}"
    group = f"{top}/slurm_n1/uid_1000/job_{JOB}/step_0"
    os.makedirs(f"{freezer}/{group}")
    yield f"{freezer}/{group}"
    while group:
        os.rmdir(f"{freezer}/{group}")
        group = os.path.dirname(group)


def test_an_agent_that_a_step_starts_leaves_slurms_groups(slurms):
    code = "from bootseer.agent.node import agent_process, cgroup; "
    code += f"cgroup._write({slurms + '/cgroup.procs'!r}, '0'); before = cgroup._own_groups(); "
    code += "agent_process._leave_slurms_groups(); print(before, cgroup._own_groups())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    groups = [line.split(":")[2] for line in done.stdout.splitlines() if ":freezer:" in line]
    before = slurms.removeprefix("/sys/fs/cgroup/freezer")
    assert groups == [before, before.partition("/slurm")[0]]


SYSTEMD = """#!/bin/sh
# In place of busctl: note the call, refuse what this release does not know, else move the caller.
echo "$@" >> {calls}
case "$*" in *{unknown}*) exit 1;; esac
mkdir {parent}/{name}.scope && echo $PPID > {parent}/{name}.scope/cgroup.procs
"""
ENTER = "import sys; from bootseer.agent.node import cgroup; cgroup._under_systemd = lambda: True; "


@pytest.fixture
def enter(tmp_path):
    """Enter a group in a process of its own; returns the group, and the calls of busctl."""

    def run(unknown):
        name = cgroup.new_name("warm", JOB)
        busctl, calls = tmp_path / "busctl", tmp_path / "calls"
        os.makedirs(cgroup._ours(), exist_ok=True)
        names = {"calls": calls, "unknown": unknown, "parent": cgroup._ours(), "name": name}
        busctl.write_text(SYSTEMD.format(**names))
        busctl.chmod(0o755)
        code = f"{ENTER}cgroup._BUSCTL = {str(busctl)!r}; cgroup._MOVE_S = 0.1; "
        code += f"cgroup.enter({name!r}); print(cgroup._own_groups())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        groups = re.findall(rf"/{name}(\S*)", done.stdout.decode())
        return groups, calls.read_text().splitlines()

    return run


def test_systemd_is_asked_for_a_scope_of_the_running_process(enter):
    groups, [call] = enter("nothing")
    assert groups == [".scope"]
    assert re.search(r"\.scope fail 6 PIDs au 1 \d+ Slice s bootseer\.slice .* 0$", call)
    assert "OOMPolicy s continue" in call


def test_a_systemd_that_does_not_know_a_property_is_asked_without(enter):
    groups, [first, second] = enter("OOMPolicy")
    assert groups == [".scope"]
    assert first.replace(" OOMPolicy s continue", "").replace("fail 6", "fail 5") == second


def test_without_systemds_help_the_agent_enters_a_group_below_its_own(enter):
    groups, calls = enter("StartTransientUnit")
    assert groups == [""]
    assert len(calls) == 2


def test_a_scope_that_systemd_enters_late_is_not_waited_for(enter, monkeypatch):
    """It may do so at any time, so no other group is made."""
    monkeypatch.setattr(sys.modules[__name__], "SYSTEMD", "#!/bin/sh\necho $@ >> {calls}\n")
    groups, calls = enter("nothing")
    assert groups == []
    assert len(calls) == 1
