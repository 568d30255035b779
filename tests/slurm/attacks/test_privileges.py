"""Nobody gets root's rights, nor a descriptor of ours, by anything of their own that we touch."""

import json
import os
import re
import shlex
import signal
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.attacks]

TARGET = "/local/m/env"
GAIN = f"{TARGET}/gain"
ROOTS = "/shared/roots"
ALICES = "/home/alice/private"


def env_run(arena, make="true", target=TARGET, *options):
    argv = [site.bootseer(), "env", "run", "--target", target, "--mode=mount", *options]
    return shlex.join([*argv, "--", "sh", "-c", make])


@pytest.fixture
def forged(arena):
    """A snapshot of mallory's with a program in it that says it is root's; gives the command."""
    alices = arena.cluster.state_dir / "home/alice/private"
    alices.write_text("alice's own")
    alices.chmod(0o600)
    os.chown(alices, arena.uid("alice"), arena.uid("alice"))
    gain = arena.cluster.state_dir / "programs/gain"
    # A command that is different each time has a snapshot of its own.
    make = f"mkdir -p {TARGET}; cp {gain} {GAIN}; cp {gain} {TARGET}/other"
    run = env_run(arena, make)

    def forge(how):
        with arena.shell("--bootseer=m") as job:
            assert job.run(f"{run.replace('--mode=mount', '--mode=mount --wait')}").code == 0
        arena.sh(f"rm -rf {TARGET}")
        arena.attack("forge_snapshot.py", how, "gain", check=True)
        return run

    return forge


# Attack 1: set-user-ID programs, capabilities and devices out of one's own store.


def test_a_program_in_a_forged_snapshot_has_no_rights(arena, forged, secret):
    """Mallory forges a set-uid program with all capabilities; run from the mount, it is hers."""
    run = forged("rights")
    with arena.shell("--bootseer=m") as job:
        answer = job.run(run)
        assert answer.code == 0
        said = job.run(f"{GAIN} {ROOTS} {ALICES} /dev/kmsg; touch {GAIN}; {GAIN} {ROOTS} {ALICES}")
        assert "uid" in said.text, "the program has run"
        assert "GAINED" not in said.text and not re.search(r"CapEff:\s*0*[1-9a-f]", said.text)


@pytest.mark.parametrize("flags", ["-Urm", "-Urmpf --mount-proc"])
def test_a_forged_snapshot_mounted_in_a_namespace_of_ones_own(arena, forged, flags):
    """As root of a user namespace she remounts it without nosuid and nodev, and runs it there."""
    run = forged("rights")
    inner = arena.program("remount.py", GAIN, ROOTS, ALICES)
    script = f"{run}; {shlex.join(inner)}"
    with arena.shell("--bootseer=m") as job:
        said = job.run(f"unshare {flags} sh -c {shlex.quote(script)}", 60)
        assert "remounted" in said.text, "the attack has run"
        assert "GAINED" not in said.text
        # And from outside of the namespace, where its program would count as root's.
        again = job.run(f"{run}; {GAIN} {ROOTS} {ALICES}")
        assert "GAINED" not in again.text
    assert_no_privileged_file_on_disk(arena)


def assert_no_privileged_file_on_disk(arena):
    """Nothing set-uid, no device and no capability has got to a disk of the node's."""
    state = arena.cluster.state_dir
    for place in (state / "machines", state / "shared", state / "home"):
        for folder, _, names in os.walk(place):
            for name in names:
                path = f"{folder}/{name}"
                try:
                    mode = os.lstat(path).st_mode
                    xattrs = os.listxattr(path, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                assert not stat.S_ISCHR(mode) and not stat.S_ISBLK(mode), path
                assert "security.capability" not in xattrs, path
                if mode & stat.S_ISUID:
                    assert os.lstat(path).st_uid != 0, path


def test_copied_up_it_is_on_the_disk_without_rights(arena, forged):
    """She opens the forged program for writing: the kernel copies it to the node's disk as root."""
    run = forged("rights")
    with arena.shell("--bootseer=m") as job:
        job.run(f"{run}; touch {GAIN}; chmod 6755 {GAIN}; : >> {TARGET}/other")
        scratch = arena.on_host(arena.scratch)
        for path in scratch.rglob("*"):
            info = path.lstat()
            assert not (info.st_mode & stat.S_ISUID and info.st_uid == 0), path
            names = os.listxattr(path, follow_symlinks=False)
            assert "security.capability" not in names, path
        said = job.run(f"{GAIN} {ROOTS} {ALICES}")
        assert "GAINED" not in said.text


def test_a_device_in_a_forged_snapshot_cannot_be_opened(arena, forged):
    run = forged("device")
    with arena.shell("--bootseer=m") as job:
        said = job.run(f"{run}; cat {GAIN} | head -c1 > /dev/null; stat -c %F {GAIN}; true")
        opened = job.run(f'python3 -c \'open("{GAIN}", "rb")\'')
        assert opened.code != 0 or "character special" not in said.text


def test_devices_made_in_a_namespace_of_ones_own_are_none(arena, forged):
    """Root of a user namespace makes a device over the environment, and a new one in a copy."""
    run = forged("rights")
    made = f"mknod {TARGET}/null c 1 3 && echo x > {TARGET}/null && echo GAINED"
    with arena.shell("--bootseer=m") as job:
        said = job.run(f"unshare -Urm sh -c {shlex.quote(f'{run}; {made}')}")
        assert "GAINED" not in said.text
        arena_says = job.run(f"{run}; mknod {TARGET}/null c 1 3 && echo GAINED")
        assert "GAINED" not in arena_says.text


def few_numbers(arena):
    """Have numbers of processes recur soon, where the cluster has a limit of its own for them."""
    limit = "/proc/sys/kernel/pid_max"
    own = int(arena.cluster.run(["cat", limit], node="n1").stdout)
    if own != int(Path(limit).read_text()):  # since Linux 6.14
        arena.cluster.run(["sh", "-c", f"echo 5000 > {limit}"], node="n1")
    # Those below 300 are given once only.
    arena.cluster.run(["sh", "-c", "for n in $(seq 400); do /bin/true; done"], node="n1")


def test_the_number_of_a_dead_agent_leads_nowhere(arena, forged):
    """The agent is dead, its number is mallory's, in mounts of hers: the next step gains nothing.

    The test helps her: it kills root's processes. She kills her own and forks until the number is
    given again; what the plugin then finds where the agent's mounts were is hers.
    """
    run = forged("rights")
    few_numbers(arena)
    with arena.shell("--bootseer=m", "-c2", "--bootseer-ckpt=file:///shared/m-c") as job:
        [first, *_] = [one for one in arena.ours(job.job_id) if one.uid == 0]
        fakes = [f"{arena.folder(job.job_id)}/envs/{n}" for n in (1, 2)]
        fakes += [f"{arena.folder(job.job_id)}/ckpt"]
        occupy = shlex.join(arena.program("occupy", first.inner, TARGET, *fakes))
        # Asked for in there, it is mounted in there, and what flags it has is for her to say.
        script = shlex.quote(f"{run}; touch {GAIN}; chmod 6755 {GAIN}; exec {occupy}")
        job.run(f"mkdir -p /shared/m-c; {{ unshare -Urm sh -c {script} > /local/m-occupy 2>&1 & }}")
        said = arena.on_host("/local/m-occupy")

        def says(word):
            return said.exists() and word in said.read_text()

        def all_dead():
            for one in arena.ours(job.job_id):
                with suppress(ProcessLookupError):  # some die with their agent
                    os.kill(one.pid, signal.SIGKILL)
            return not arena.ours(job.job_id)

        wait_until(lambda: says("at it"), "her mounts", timeout_s=30)
        wait_until(all_dead, "the end of all that is ours")
        wait_until(lambda: says("occupied"), "the number is hers", timeout_s=60)
        step = job.run(
            f"srun --overlap -n1 -wn1 sh -c '{GAIN} {ROOTS} {ALICES}; $BOOTSEER_CKPT/gain {ROOTS}'"
        )
        shown = job.run(f"srun --overlap -n1 -wn1 grep ' {TARGET} ' /proc/self/mountinfo").text
        job.run("pkill occupy; rm -f /local/m-occupy; true")
        assert "GAINED" not in step.text
        # Nor does the step have a mount out of her namespace, where its flags were hers to take.
        for line in shown.splitlines():
            words = line.split()
            if words[4:5] == [TARGET]:
                assert {"nosuid", "nodev"} <= set(words[5].split(",")), line


def test_a_checkpoint_holds_no_privileged_program(arena):
    """A set-uid program with capabilities on the mounted checkpoint is the user's, and no more."""
    gain = arena.cluster.state_dir / "programs/gain"
    arena.sh("mkdir -p /shared/m-ckpt")
    with arena.shell("--bootseer=m", "--bootseer-ckpt=file:///shared/m-ckpt") as job:
        job.run(f"cp {gain} $BOOTSEER_CKPT/gain; chmod 6755 $BOOTSEER_CKPT/gain")
        job.run("cd $BOOTSEER_CKPT; mknod d c 1 3; setfattr -n security.capability -v 0x gain")
        said = job.run(f"$BOOTSEER_CKPT/gain {ROOTS} {ALICES}")
        assert "uid" in said.text and "GAINED" not in said.text
        inner = shlex.join(
            arena.program("remount.py", f"{arena.folder(job.job_id)}/ckpt/gain", ROOTS)
        )
        said = job.run(f"unshare -Urm {inner}")
        assert "remounted" in said.text and "GAINED" not in said.text


# Attack 2: a library that runs programs.

PROBE = """#!/bin/sh
{ id -u; ls -l /proc/$$/fd; grep -E 'Seccomp:|NoNewPrivs' /proc/$$/status; } >> /shared/m-ran 2>&1
echo '{"Version": 1, "AccessKeyId": "x", "SecretAccessKey": "y"}'
"""
URLS = {
    "s3": "s3://bucket/x",
    "s3 on loopback": "s3://bucket/x?endpoint_override=127.0.0.1:9&scheme=http&region=x",
    "s3 with TLS on loopback": "s3://bucket/x?endpoint_override=localhost:9&scheme=https&region=x",
    "gs": "gs://bucket/x",
    "abfs": "abfs://bucket/x",
    "hdfs": "hdfs://127.0.0.1:9/x",
}


@pytest.mark.parametrize("kind", URLS)
def test_no_worker_runs_a_program_of_the_users(arena, kind):
    """~/.aws/config and Google's file name a program; it never runs with our descriptors."""
    arena.sh("mkdir -p ~/.aws ~/.config/gcloud; umask 077")
    home = arena.cluster.state_dir / "home/mallory"
    probe = arena.cluster.shared / "m-probe"
    probe.write_text(PROBE)
    probe.chmod(0o755)
    config = "[{}]\ncredential_process = /shared/m-probe\nregion = x\n"
    (home / ".aws/config").write_text(config.format("default"))
    (home / ".aws/credentials").write_text(config.format("default"))
    source = {
        "type": "external_account",
        "audience": "x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://localhost:9/",
        "credential_source": {"executable": {"command": "/shared/m-probe", "timeout_millis": 5000}},
    }
    (home / ".config/gcloud/application_default_credentials.json").write_text(json.dumps(source))
    for path in (home / ".aws").iterdir():
        path.chmod(0o644)
    job = arena.runs_well(
        "--bootseer=m", f"--bootseer-ckpt={URLS[kind]}", command="ls $BOOTSEER_CKPT; true"
    )
    assert job
    ran = arena.cluster.shared / "m-ran"
    if ran.exists():
        said = ran.read_text()
        assert "socket:" not in said and "/dev/fuse" not in said, said
        numbers = [int(line.split()[-3]) for line in said.splitlines() if " -> " in line]
        # The shell's own is 255 or 10; what it inherits has lower numbers.
        assert not [n for n in numbers if 2 < n < 10], said


# Attack 7: to look into processes of ours that have one's own rights.


def test_no_process_of_a_capture_can_be_looked_into(arena):
    """Beside a capture from its start to its end, her own tracer tries each process of ours."""
    make = f"mkdir -p {TARGET}; head -c 120000000 /dev/urandom > {TARGET}/data"
    argv = arena.program("trace_all.py", 40)
    tracer = arena.cluster.popen(argv, user="mallory", node="n1")
    try:
        assert tracer.stdout.readline() == "at it\n"
        with arena.shell("--bootseer=m") as job:
            assert job.run(env_run(arena, make, TARGET, "--wait"), 90).code == 0
        wait_until(lambda: not arena.ours(uid=arena.uid("mallory")), "no worker", timeout_s=30)
    finally:
        (arena.cluster.shared / "m-stop").write_text("")
        said, _ = tracer.communicate(timeout=60)
    assert "-mkfs-time" in said.rpartition("tried")[2], "the packer was seen"
    assert "INTO" not in said, said


def test_nothing_of_the_users_outlives_the_epilog(arena):
    """A capture is under way as the job is cancelled: no packer and no worker is left."""
    make = f"mkdir -p {TARGET}; head -c 150000000 /dev/urandom > {TARGET}/data"
    with arena.shell("--bootseer=m") as job:
        job.run(env_run(arena, make), 90)  # goes on to be captured
        wait_until(
            lambda: arena.ours(uid=arena.uid("mallory"), role="run_environment"), "a capture"
        )
        job.cancel()
    wait_until(lambda: not arena.users("mallory"), "nothing of mallory's", timeout_s=30)


def test_processes_that_bear_our_names_stop_nobody(arena):
    """She leaves daemons in namespaces of their own that look like ours; clearing up goes on."""
    name = "bootseer.agent.workers.base"
    with arena.attacking("pose_as.py", name, user="mallory"):
        job = arena.runs_well("--bootseer=m")
        wait_until(lambda: not os.path.exists(arena.on_host(arena.folder(job))), "the job gone")
    assert set(arena.cluster.node_states().values()) <= {"idle", "mixed", "allocated"}
