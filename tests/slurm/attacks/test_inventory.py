"""Every process of ours on a node, and what it is able to do."""

import os
import re
import shlex
import stat
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.attacks]

CAP_SYS_ADMIN, CAP_IPC_LOCK = 1 << 21, 1 << 14
BROKERS = sum(1 << n for n in (0, 1, 2, 3, 5, 6, 7, 8, 14, 18, 19, 21, 23, 24))
"""What c_ext/privilege.c leaves a broker: mounts, namespaces, others' files and processes."""
FUSE = os.makedev(10, 229)
STARTED_S = 2.0
"""After which a worker has given up the rights of root, with which it is started."""
FILTERED = 2
"""What /proc/PID/status calls a process with a filter of system calls."""


class Expected(NamedTuple):
    """What a role may have.

    Attributes:
        user: "root", the name of an account of ours, or "job" for the job's user.
        effective: capabilities that it may have at most; None for any.
        bounding: capabilities that it could get back by an exec at most; None for any.
        seccomp: mode of its filter.
        no_new_privs: whether it can gain nothing by an exec.
        descriptors: kinds that it may have open; see `kind_of`.
    """

    user: str
    effective: int | None
    bounding: int | None
    seccomp: int
    no_new_privs: int
    descriptors: frozenset[str]


QUIET = frozenset({"/dev/null", "socket", "pipe", "anon", "memfd", "pidfd"})
SERVING = QUIET | {"/dev/fuse"}
LOGGING = QUIET | {"agent.log"}

# For the one who changes the processes: this table says what they have to be.
EXPECTED = {
    "broker": Expected(
        "root", BROKERS, BROKERS, 0, 0, LOGGING | SERVING | {"run", "folder", "namespace"}
    ),
    "lender": Expected("bootseer-cache", 0, 0, FILTERED, 1, LOGGING | {"cache", "folder"}),
    "supervisor": Expected("bootseer", 0, 0, FILTERED, 1, LOGGING | {"run", "cache", "folder"}),
    "warm_up": Expected("job", CAP_IPC_LOCK, CAP_IPC_LOCK, FILTERED, 1, QUIET | {"data"}),
    "serve_image": Expected("job", 0, 0, FILTERED, 1, SERVING | {"cache", "data"}),
    "serve_checkpoint": Expected("job", 0, 0, FILTERED, 1, SERVING | {"data"}),
    "run_environment": Expected("job", 0, 0, FILTERED, 1, QUIET | {"data"}),
    "publish": Expected("job", 0, 0, FILTERED, 1, QUIET),
    "worker": Expected("job", CAP_IPC_LOCK, CAP_IPC_LOCK, FILTERED, 1, QUIET | {"data"}),
}


def kind_of(path):
    """Sort what a descriptor leads to: the run folder, the cache, a user's data and so on."""
    if path.startswith(("socket:", "pipe:")):
        return path.partition(":")[0]
    if path.startswith("anon_inode:[pidfd]"):
        return "pidfd"
    if path.startswith("anon_inode:"):
        return "anon"
    if path.startswith("/memfd:"):
        return "memfd"
    if re.match(r"(mnt|user|pid|net):\[", path):
        return "namespace"
    if path.endswith("agent.log"):
        return "agent.log"
    if path in ("/dev/null", "/dev/fuse"):
        return path
    for place, kind in (("/run/bootseer", "run"), ("/var/cache/bootseer", "cache")):
        if path.startswith(place):
            return kind
    if path.startswith(("/home/", "/shared/", "/local/", "/mnt/")):
        return "data"
    return path


def descriptors(pid):
    found = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        opened = f"/proc/{pid}/fd/{number}"
        path = os.readlink(opened)
        try:
            status = os.stat(opened)
        except PermissionError:  # in a mount that is closed to root
            found[int(number)] = "data"
            continue
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == FUSE:
            path = "/dev/fuse"  # opened in a mount namespace that has gone
        found[int(number)] = "folder" if stat.S_ISDIR(status.st_mode) else kind_of(path)
    return found


def problems(one, expected, uids, status_of):
    """Compare a process with what its role may have."""
    status = status_of(one.pid)
    caps = {
        name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd")
    }
    found = []
    uid = uids[expected.user]
    if set(map(int, status["Uid"].split())) != {uid}:
        found.append(f"uids {status['Uid']}, not {uid}")
    if expected.effective is not None:
        for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            if caps[name] & ~expected.effective:
                found.append(f"{name} {caps[name]:x}")
    if expected.bounding is not None and caps["CapBnd"] & ~expected.bounding:
        found.append(f"CapBnd {caps['CapBnd']:x}")
    if int(status["Seccomp"]) != expected.seccomp:
        found.append(f"Seccomp {status['Seccomp']}")
    if int(status["NoNewPrivs"]) != expected.no_new_privs:
        found.append(f"NoNewPrivs {status['NoNewPrivs']}")
    if expected.user != "root" and os.stat(f"/proc/{one.pid}/mem").st_uid != 0:
        found.append("dumpable: its own user may look into it")
    for number, kind in descriptors(one.pid).items():
        if kind not in expected.descriptors:
            found.append(f"descriptor {number}: {kind}")
    return found


@pytest.fixture
def busy(arena):
    """A job with an image, a checkpoint and an environment; its shell."""
    make = "mkdir -p /local/m/env/lib; echo 7 > /local/m/env/lib/x"
    argv = [site.bootseer(), "env", "run", "--target", "/local/m/env", "--mode=mount", "--wait"]
    run = shlex.join([*argv, "--", "sh", "-c", make])
    arena.sh("mkdir -p /shared/m-ckpt /local/m")
    (arena.cluster.shared / "m.sqsh").write_bytes((arena.images / "tiny.sqsh").read_bytes())
    arena.sh(f"{site.bootseer()} image import /shared/m.sqsh --name m --quiet")
    options = (
        "--bootseer=m",
        "--bootseer-image=bootseer://m",
        "--bootseer-ckpt=file:///shared/m-ckpt",
    )
    with arena.shell("--bootseer=m") as job:
        assert job.run(run).code == 0
    arena.sh("rm -rf /local/m/env")
    with arena.shell(*options) as job:
        assert "mounted" in job.run(run).text
        assert job.run("head -c9 $BOOTSEER_IMAGE >/dev/null; echo x > $BOOTSEER_CKPT/x").code == 0
        yield job


def others(arena, job):
    """List the processes of the job's user that are not ours."""
    ours = {one.pid for one in arena.ours(job.job_id)}
    return [process for process in arena.users("mallory") if process.pid not in ours]


def group_of(pid):
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line[3:] for line in lines if line.startswith("0::"))


def have_all_started(arena, job_id):
    """Whether all workers have had the time to give up root's rights."""
    try:
        began = [psutil.Process(one.pid).create_time() for one in arena.ours(job_id)]
    except psutil.NoSuchProcess:
        return False
    return time.time() - max(began) > STARTED_S


def test_every_process_is_what_the_table_says(arena, busy, status_of):
    """Identity, capabilities, filter, no_new_privs, descriptors of each process of a busy job.

    All are in one control group, which nothing else is in.
    """
    uids = {"root": 0, "job": arena.uid("mallory")}
    for name in ("bootseer", "bootseer-cache"):
        uids[name] = int(arena.cluster.run(["id", "-u", name]).stdout)
    copies = {uids["bootseer"]: "supervisor", uids["bootseer-cache"]: "lender"}
    wait_until(partial(have_all_started, arena, busy.job_id), "all workers have started")
    found = {}
    roles = set()
    for one in arena.ours(busy.job_id):
        role = copies.get(one.uid, one.role)
        roles.add(role)
        wrong = problems(one, EXPECTED[role], uids, status_of)
        if wrong:
            found[f"{role} {one.pid}"] = wrong
    groups = {group_of(one.pid) for one in arena.ours(busy.job_id)}
    (group,) = groups
    assert re.search(rf"/bootseer-warm-{busy.job_id}-\d+(\.service)?$", group)
    assert group not in {group_of(process.pid) for process in others(arena, busy)}
    missing = {
        "broker",
        "lender",
        "supervisor",
        "serve_image",
        "serve_checkpoint",
        "publish",
    } - roles
    assert (found, missing) == ({}, set())


def test_nothing_of_ours_leads_into_the_job(arena, busy, status_of):
    """No worker shares a session or a process group with the job's own processes."""
    ours = arena.ours(busy.job_id)
    theirs = [process.pid for process in others(arena, busy)]
    assert ours and theirs
    sessions = {os.getsid(pid) for pid in theirs}
    assert not sessions & {os.getsid(one.pid) for one in ours}
    for one in ours:
        assert int(status_of(one.pid)["PPid"]) not in theirs


def test_the_job_has_no_descriptor_of_ours(arena, busy):
    """What a task of the job inherits: no socket of root's, no /dev/fuse, nothing in RUN_DIR."""
    listed = busy.run("sleep 100 & ls -l /proc/$!/fd; kill $!").text
    assert "/dev/fuse" not in listed and "bootseer" not in listed, listed


def test_no_process_of_ours_has_the_users_environment(arena, busy):
    """Roots' processes carry nothing of the job's environment, workers neither."""
    for one in arena.ours(busy.job_id):
        environ = Path(f"/proc/{one.pid}/environ").read_bytes()
        assert b"SLURM_JOB_ID" not in environ and b"SPANK_" not in environ, one


def test_image_and_checkpoint_are_mounted_without_rights(arena, busy):
    """Every mount of ours for the job is nosuid and nodev, on the node and in the job."""
    inside = busy.run("cat /proc/self/mountinfo").text.splitlines()
    on_node = Path(f"/proc/{arena.cluster.holder_pid('n1')}/mountinfo").read_text().splitlines()
    seen = 0
    for line in [*inside, *on_node]:
        words = line.split()
        if arena.folder(busy.job_id) in words[4] or words[4] == "/local/m/env":
            seen += 1
            assert {"nosuid", "nodev"} <= set(words[5].split(",")), line
    assert seen > 3


def test_descriptors_stay_as_few_as_they_were(arena, busy):
    """Asking for the same environment again and again leaves no descriptor open anywhere."""
    ask = f"{site.bootseer()} env run --target /local/m/e2 --no-capture -- true"

    def count():
        return {one.pid: len(os.listdir(f"/proc/{one.pid}/fd")) for one in arena.ours(busy.job_id)}

    busy.run(f"for i in 1 2 3; do {ask}; done")
    wait_until(lambda: not arena.ours(busy.job_id, role="run_environment"), "no run under way")
    before = count()
    busy.run(f"for i in 1 2 3 4 5 6 7 8; do {ask}; done", 60)
    wait_until(lambda: not arena.ours(busy.job_id, role="run_environment"), "no run under way")
    after = count()
    assert after.keys() <= before.keys()
    assert all(after[pid] <= before[pid] + 2 for pid in after), (before, after)
