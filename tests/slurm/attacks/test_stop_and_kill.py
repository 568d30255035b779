"""Users stop and kill what has their own rights, at every moment; only their own job may notice."""

import os
import shlex
import signal
import time
from contextlib import suppress

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site

from bootseer.agent.broker.mounts import MAX_IMAGES

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.attacks]

TARGET = "/local/m/env"
END_S = 60
"""Within this time a job is over, whatever its user does to our processes."""
OVER = ("COMPLETED", "CANCELLED", "FAILED")


@pytest.fixture
def stored(arena):
    """An image, a checkpoint and an environment of mallory's; gives the options and the command."""
    make = f"mkdir -p {TARGET}; head -c 9000000 /dev/urandom > {TARGET}/data"
    argv = [site.bootseer(), "env", "run", "--target", TARGET, "--mode=mount"]
    run = shlex.join([*argv, "--", "sh", "-c", make])
    arena.sh("mkdir -p /shared/m-ckpt /local/m")
    (arena.cluster.shared / "m.sqsh").write_bytes((arena.images / "tiny.sqsh").read_bytes())
    arena.sh(f"{site.bootseer()} image import /shared/m.sqsh --name m --quiet")
    with arena.shell("--bootseer=m") as job:
        assert job.run(run.replace("--mode", "--wait --mode")).code == 0
    arena.sh(f"rm -rf {TARGET}; rm -rf ~/.bootseer/plans")
    arena.cluster.run(["sh", "-c", f"rm -rf {arena.images_cache}/*"], node="n1")
    options = (
        "--bootseer=m",
        "--bootseer-image=bootseer://m",
        "--bootseer-ckpt=file:///shared/m-ckpt",
    )
    return options, run


def begin_reading(arena, job, run):
    """Have what is mounted read without a cache, in the background of a job."""
    job.run(f"{run}; head -c 9000000 /dev/urandom > $BOOTSEER_CKPT/data", 60)
    reader = shlex.join(arena.program("direct_read.py"))
    job.run(f"{{ {reader} $BOOTSEER_CKPT/data $BOOTSEER_IMAGE {TARGET}/data > /local/m-r 2>&1 & }}")
    said = arena.on_host("/local/m-r")
    wait_until(lambda: said.exists() and "at it" in said.read_text(), "readers")


def signal_own(arena, number, role=None):
    """Signal all that has mallory's rights and is ours."""
    found = arena.ours(uid=arena.uid("mallory"), role=role)
    for one in found:
        arena.sh(f"kill -{number} {one.inner}", check=False)
    return found


# Attack 4: to have the node drained.


@pytest.mark.parametrize(
    ("role", "end"),
    [
        ("serve_checkpoint", "cancel"),
        ("serve_image", "cancel"),
        ("warm_up", "cancel"),
        (None, "cancel"),
        (None, "end"),
    ],
)
def test_what_serves_is_stopped_while_others_wait_for_it(arena, stored, role, end):
    """Readers with O_DIRECT wait for a stopped server; then the job is cancelled, or ends."""
    options, run = stored
    job = arena.shell(*options)
    try:
        begin_reading(arena, job, run)
        assert signal_own(arena, "STOP", role) or role == "warm_up"
        began = time.monotonic()
        if end == "cancel":
            arena.cluster.run(["scancel", str(job.job_id)])
            state = arena.cluster.wait_for_job(job.job_id, timeout_s=END_S)
        else:
            job.process.stdin.write("kill $(pgrep -u mallory -f direct_read); exit 0\n")
            job.process.stdin.flush()
            state = arena.cluster.wait_for_job(job.job_id, timeout_s=END_S)
        assert state in OVER
        assert time.monotonic() - began < END_S
        wait_until(
            lambda: set(arena.cluster.node_states().values()) <= {"idle", "mixed"},
            "the node takes jobs",
            timeout_s=END_S,
        )
        arena.runs_well("--bootseer=next")
    finally:
        arena.cluster.run(["scancel", str(job.job_id)], check=False)
        job.process.communicate(timeout=60)


# Every own process, at every moment.

COMMAND = (
    "sleep 0.5; {mark}; {run}; cat $BOOTSEER_IMAGE > /dev/null; echo x > $BOOTSEER_CKPT/x; sleep 1"
)


@pytest.mark.parametrize("number", ["STOP", "KILL"])
@pytest.mark.parametrize("phase", ["start", "window", "running", "epilog"])
def test_own_processes_are_signalled(arena, stored, number, phase):
    """From outside of the job, from a phase on, each that appears. The job ends as Slurm has it."""
    options, run = stored
    mark = f"{site.bootseer()} mark first-step" if phase == "running" else "true"
    # What waits for a process that is stopped is hers alone.
    command = f"timeout -k2 15 sh -c {shlex.quote(COMMAND.format(run=run, mark=mark))}; true"
    if phase == "start":
        with arena.attacking("menace.py", number, 30):
            job, _, _ = arena.ask_for_job(*options, command=command, timeout_s=90)
    else:
        shell = arena.shell(*options)
        job = shell.job_id
        wait_until(lambda: arena.ours(job, uid=arena.uid("mallory")), "workers")
        if phase != "epilog":
            with arena.attacking("menace.py", number, 20):
                shell.start(f"{command}; exit 0")
                assert arena.cluster.wait_for_job(job, timeout_s=END_S) in OVER
        else:
            shell.run(command, 60)
            with arena.attacking("menace.py", number, 20):
                shell.start("exit 0")
                assert arena.cluster.wait_for_job(job, timeout_s=END_S) in OVER
                wait_until(lambda: not arena.ours(job), "the epilog's end", timeout_s=END_S)
        shell.process.communicate(timeout=30)
    wait_until(lambda: not arena.ours(job), "the epilog's end", timeout_s=END_S)
    arena.runs_well("--bootseer=next")


def test_servers_are_killed_again_and_again(arena, stored):
    """The limits hold: she kills what serves her images, and asks again, forty times."""
    ask = "{ " + shlex.join(arena.program("ask_again.py", "bootseer://m", 40)) + "; }"
    with arena.shell("--bootseer=m") as job:
        broker = [one for one in arena.ours(job.job_id) if one.uid == 0]
        before = len(os.listdir(f"/proc/{broker[0].pid}/fd"))
        said = job.run(ask, 170)
        assert "asked 40" in said.text, said.text[-500:]
        point = arena.folder(job.job_id)
        mounts = [m for m in arena.cluster.mounts("n1") if m.mountpoint.startswith(f"{point}/")]
        assert len(mounts) <= MAX_IMAGES + 1
        # Eight images at a time have a server and a prefetch each; every job has some more, and
        # some are ending.
        assert len(arena.ours(job.job_id)) <= 2 * 8 + 9
        assert len(os.listdir(f"/proc/{broker[0].pid}/fd")) < before + 64
        assert arena.memory_mib(job.job_id) < 900


# The job itself.


def test_a_job_is_cancelled_while_its_prolog_runs(arena, stored):
    """Again and again, at another moment each time."""
    options, _ = stored
    for wait_s in (0, 0.05, 0.1, 0.2, 0.4, 0.8):
        argv = ["sbatch", "--parsable", "-o/dev/null", "-n1", "-wn1", *options, "--wrap=sleep 60"]
        job = int(arena.cluster.run([*argv, "--bootseer-wait=5"], user="mallory").stdout)
        wait_until(lambda job=job: arena.cluster.job_state(job) != "PENDING", "its start")
        arena.sh(f"sleep {wait_s}; scancel {job}", node=None)
        assert arena.cluster.wait_for_job(job, timeout_s=END_S) in OVER
    arena.runs_well("--bootseer=next")


def test_a_job_is_requeued_again_and_again(arena, stored):
    """It has the same number each time: what the last one left is not the next one's."""
    options, _ = stored
    argv = ["sbatch", "--parsable", "--requeue", "-o/dev/null", "-n1", "-wn1", *options]
    wrap = "--wrap=echo x > $BOOTSEER_CKPT/$SLURM_RESTART_COUNT-x; sleep 60"
    job = int(arena.cluster.run([*argv, "--begin=now", wrap], user="mallory").stdout)
    for _ in range(2):
        wait_until(lambda: arena.cluster.job_state(job) == "RUNNING", "it runs", timeout_s=150)
        arena.wait_for_agents(job, "n1")
        arena.cluster.run(["scontrol", "requeue", str(job)])
        wait_until(
            lambda: arena.cluster.job_state(job) == "PENDING", "it is requeued", timeout_s=60
        )
        # Slurm would have it wait for two minutes.
        arena.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    arena.cluster.run(["scancel", str(job)])
    arena.cluster.wait_for_job(job, timeout_s=END_S)


@pytest.mark.parametrize("number", ["STOP", "KILL", "USR1", "TSTP", "QUIT"])
def test_a_job_is_signalled_by_scancel(arena, stored, number):
    """`scancel --signal` to steps, batch and all; then it is cancelled."""
    options, run = stored
    with_run = f"--wrap={run}; cat $BOOTSEER_IMAGE > /dev/null; sleep 60"
    argv = ["sbatch", "--parsable", "-o/dev/null", "-n1", "-wn1", *options, with_run]
    job = int(arena.cluster.run(argv, user="mallory").stdout)
    arena.wait_for_agents(job, "n1")
    # Slurm waits for ever for a task that is stopped before it runs its program.
    wait_until(
        lambda: "slurm_script" in arena.sh("pgrep -a -u mallory || true", node="n1").stdout,
        "the script runs",
    )
    for more in ("", "--batch", "--full"):
        arena.sh(f"scancel --signal={number} {more} {job}", node=None, check=False)
    arena.sh(f"scancel {job}", node=None, check=False)
    assert arena.cluster.wait_for_job(job, timeout_s=END_S) in OVER


@pytest.mark.parametrize("where", ["$BOOTSEER_CKPT", "$(dirname $BOOTSEER_IMAGE)", TARGET])
def test_a_job_ends_inside_of_its_mounts(arena, stored, where):
    """Its processes, and one in a namespace of its own, have a mount as their folder at the end."""
    options, run = stored
    script = (
        f"{run}; cd {where}; exec 9< .; setsid unshare -Urm sleep 20 > /dev/null 2>&1 & sleep 1"
    )
    arena.runs_well(*options, command=f"({script})")
    arena.sh("pkill -u mallory sleep; true")
    arena.runs_well("--bootseer=next")


def test_a_job_leaves_file_systems_over_ours(arena, stored):
    """She mounts her own over each of our folders that she can, in all namespaces that she can."""
    options, run = stored
    places = "/run/bootseer $BOOTSEER_CKPT /var/cache/bootseer /proc"
    cover = f"for d in {places}; do mount -t tmpfs x $d; done"
    hidden = f"unshare -Urmp --fork sh -c {shlex.quote(cover + '; sleep 30')}"
    script = f"{run}; {hidden} > /dev/null 2>&1 & sleep 1"
    arena.runs_well(*options, command=script)
    arena.sh("pkill -u mallory sleep; true")


def test_the_agent_is_killed_by_nobody_but_root(arena, victim):
    """Signals of mallory's to alice's and root's processes are refused."""
    ours = [*arena.ours(victim.id), *(o for o in arena.ours() if o.uid == 0)]
    with arena.shell("--bootseer=m") as job:
        for one in [*ours, *(o for o in arena.ours(job.job_id) if o.uid == 0)]:
            for number in ("TERM", "KILL", "STOP"):
                assert job.run(f"kill -{number} {one.inner}").code != 0


def test_a_user_who_dies_with_root_leaves_nothing(arena, stored):
    """Agent and all servers are killed at once, under readers that cannot be interrupted."""
    options, run = stored
    job = arena.shell(*options)
    begin_reading(arena, job, run)
    for one in arena.ours(job.job_id):
        if one.uid == arena.uid("mallory"):
            os.kill(one.pid, signal.SIGSTOP)
    for one in arena.ours(job.job_id):
        if one.uid != arena.uid("mallory"):
            with suppress(ProcessLookupError):  # it has ended with another
                os.kill(one.pid, signal.SIGKILL)
    arena.cluster.run(["scancel", str(job.job_id)])
    assert arena.cluster.wait_for_job(job.job_id, timeout_s=END_S) in OVER
    job.process.communicate(timeout=30)
    arena.runs_well("--bootseer=next")
