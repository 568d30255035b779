"""Environments on a real cluster: captured by one node, on all others without the command."""

import json
import shlex
from functools import partial

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.slurm, pytest.mark.root]
TARGET = "/local/env"
MAKE = (
    f"umask 022; date +%N >> /shared/ran; mkdir -p {TARGET}/lib {TARGET}/bin; cd {TARGET};"
    'for i in $(seq 50); do echo "$i" > lib/m$i.py; done; ln lib/m1.py lib/again.py;'
    "ln -s ../lib bin/lib; cp /bin/sh bin/tool; chmod 500 lib/m2.py"
)


def env_run(*options, target=TARGET, make=MAKE):
    run = [site.bootseer(), "env", "run", "--target", target, "--mode=mount", *options]
    argv = [*run, "--", "sh", "-c", make]
    return shlex.join(argv)


def digest():
    python = site.bootseer().removesuffix("bootseer") + "python"
    code = (
        "import sys; from bootseer.env.client.scan import scan, tree_digest;"
        "print(tree_digest({p: n._replace(uid=0, gid=0) for p, n in scan(sys.argv[1]).items()}))"
    )
    return f"cd / && {python} -IEc {shlex.quote(code)} {TARGET}"


@pytest.fixture
def lab(lab):
    forget(lab)
    lab.cluster.run(["rm", "-f", "/shared/ran"])
    yield lab
    forget(lab)


def forget(lab):
    for node in lab.cluster.node_names:
        lab.cluster.run(["rm", "-rf", TARGET, "/local/root"], node=node)


def runs(lab):
    """How often the command has run."""
    path = lab.cluster.shared / "ran"
    return len(path.read_text().split()) if path.exists() else 0


def keys(lab):
    folder = lab.store() / "env/snapshots"
    return [f.name for f in folder.iterdir() if (f / "manifest.json").exists()]


def mounted(lab, job):
    """Kind of what was mounted where, by the job's events."""
    return {n["node"]: [s["stage"] for s in n["stages"]] for n in lab.report(job)["nodes"]}


def test_one_node_captures_and_the_others_have_it(lab):
    job = lab.srun("--bootseer=k", command=f"{env_run('--wait')} && {digest()}")
    assert runs(lab) == 1
    [captured] = set(job.stdout.split())
    assert job.stderr.count("without running the command") == 1
    for restore in ("mount", "unpack"):
        forget(lab)
        job = lab.srun("--bootseer=k", command=f"{env_run('--mode', restore)} && {digest()}")
        assert job.stdout.split() == [captured] * 2
        assert job.stderr.count(f"{restore}ed in") == 2
        assert not lab.fallbacks(job)
    assert runs(lab) == 1


def test_the_plan_has_it_mounted_before_it_is_asked_for(lab):
    see = f"cat {TARGET}/lib/m7.py; echo more > {TARGET}/lib/new; cat {TARGET}/lib/new"
    lab.srun("--bootseer=k", command=f"{env_run('--wait')}; {see}")
    forget(lab)
    lab.srun("--bootseer=k", command=f"{env_run()}; {see}")
    forget(lab)
    options = ("--label", "--bootseer=k", "--bootseer-wait=20")
    job = lab.srun(*options, command=f"{env_run()}; {see}")
    said = [line.split(": ") for line in job.stdout.splitlines()]  # of both nodes, in any order
    for task in ("0", "1"):
        assert [text for label, text in said if label == task] == ["7", "more"]
    assert len(said) == 4
    assert "will be ready when" in job.stderr
    for node in lab.cluster.node_names:
        stages = lab.stages(job, node)
        assert stages["image.mount"]["end_s"] < stages["env.find"]["start_s"]
        assert stages["image.prefetch"]["bytes"] > 0
        # Nothing of what the job has written stays, and nothing is left at the target.
        assert lab.cluster.run(["ls", TARGET], node=node).stdout == ""
        assert lab.cluster.run(["ls", "/var/cache/bootseer/environments"], node=node).stdout == ""


def test_what_is_named_is_there_before_the_first_step(lab):
    lab.srun("--bootseer=k", command=env_run("--wait"))
    [key] = keys(lab)
    (lab.cluster.shared / "env.json").write_text(json.dumps({"key": key}))
    for name in (key[:10], "/shared/env.json"):
        forget(lab)
        # Others may keep the processors busy for more than the agent's three seconds.
        options = ("--bootseer=other", f"--bootseer-env={name}", "--bootseer-wait=20")
        job = lab.srun(*options, command=f"cat {TARGET}/lib/m7.py && {digest()}")
        assert job.stdout.split()[0] == "7"
        assert f"environment snapshot {key[:12]}: " in job.stderr
        assert not lab.fallbacks(job)


def test_a_name_that_is_none_is_told_and_costs_nothing(lab):
    job = lab.srun("--bootseer=k", "--bootseer-env=nosuch", command="true")
    assert "there is no environment 'nosuch'" in job.stderr
    assert lab.fallbacks(job) == {"env.find"}


def test_later_steps_of_a_batch_job_find_it(lab):
    script = f"#!/bin/sh\n{env_run()}; srun -N1 cat {TARGET}/lib/m7.py\n"
    for _ in range(2):
        job_id = lab.sbatch(script, "-N1", "--bootseer=batch")
        assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
        assert "\n7\n" in (lab.cluster.shared / f"{job_id}.out").read_text()
        wait_until(partial(keys, lab), "a snapshot")
        forget(lab)
    assert runs(lab) == 1


def test_nobody_else_sees_what_is_mounted(lab):
    lab.srun("--bootseer=k", command=env_run("--wait"))
    forget(lab)
    job_id, running = lab.start_in_background(
        "--bootseer=k", command=f"{env_run()} && touch {TARGET}/up && sleep 60"
    )
    try:
        see = f"ls {TARGET}; cd /run/bootseer/jobs/*; ls envs; ls image-1; true"
        shown = ["sh", "-c", "ls /run/bootseer/jobs/*/state/*.shown"]
        for node in lab.cluster.node_names:
            wait_until(
                lambda node=node: not lab.cluster.run(shown, node=node, check=False).returncode,
                f"the environment is mounted on {node}",
            )
        for user in ("root", "mallory"):
            seen = lab.cluster.run(["sh", "-c", see], node="n1", user=user, check=False)
            assert "lib" not in seen.stdout.split()
            assert user == "root" or seen.stderr.count("Permission denied") == 2
    finally:
        lab.end(job_id, running)


CONTAINER = r"""
set -e; R=/local/root; J=$(dirname $BOOTSEER_SOCKET)
mkdir -p $R/usr $R/etc $R/tmp $R/proc $R/dev $R/sys $R/env $R/home $R$J
for d in bin lib lib64 sbin; do [ -L $R/$d ] || ln -s usr/$d $R/$d; done
touch $R/etc/passwd $R/etc/group $R/etc/hosts $R/etc/resolv.conf
exec ch-run -w -b /usr:/usr -b $J:$J $R -- sh -c "$0"
"""
INSIDE = (
    "${BOOTSEER_SOCKET%%/*}/bootseer-env run %s --target /env -- "
    "sh -c 'echo ran; mkdir /env/lib; echo 5 > /env/lib/x' && cat /env/lib/x && "
    "grep -c ' /env .* overlay' /proc/self/mountinfo || true"
)


def test_in_containers_without_anything_installed_there(lab):
    """With Charliecloud, in its own user and mount namespaces."""

    def start(*options):
        command = shlex.join(["sh", "-c", CONTAINER, INSIDE % " ".join(options)])
        job = lab.srun("-N1", "--bootseer=c", command=command, check=False)
        lab.cluster.run(["rm", "-rf", "/local/root/env"], node="n1")
        return job.stdout.split()

    assert start("--wait") == ["ran", "5", "0"]
    assert start("--mode=mount") == ["5", "1"]
    assert start("--mode=unpack") == ["5", "0"]


def test_another_users_snapshot_is_not_used(lab):
    lab.srun("--bootseer=k", command=env_run("--wait"))
    forget(lab)
    [key] = keys(lab)
    job = lab.srun(
        "--bootseer=k", f"--bootseer-env={key}", command=f"ls {TARGET} || true", user="mallory"
    )
    assert job.stdout == ""
    assert "there is no" in json.dumps(lab.report(job, "mallory")) or "env.find" in job.stderr
    lab.forget("mallory")


def test_only_tasks_of_jobs_with_bootseer_have_a_mount_namespace_of_their_own(lab):
    see = "readlink /proc/self/ns/mnt"
    nodes = {lab.cluster.run(["sh", "-c", see], node=n).stdout for n in lab.cluster.node_names}
    without = set(lab.srun(command=see).stdout.splitlines(keepends=True))
    both = f"{see}; sleep 1"  # or one could have the number of the other, which has ended
    own = set(lab.srun("--bootseer=k", command=both).stdout.splitlines(keepends=True))
    assert without == nodes
    assert len(own) == 2 and not own & nodes


LEAVE = """
import ctypes, os
libc, user_and_mounts = ctypes.CDLL(None), 0x10000000 | 0x20000
before, ready, done = os.readlink("/proc/self/exe"), os.pipe(), os.pipe()
child = os.fork()
if not child:
    libc.unshare(user_and_mounts)
    os.write(ready[1], b".")
    os.read(done[0], 1)
    os._exit(0)
os.read(ready[0], 1)
assert libc.setns(os.pidfd_open(child), user_and_mounts) == 0
os.write(done[1], b".")
print(before == os.readlink("/proc/self/exe"), before)
"""
"""As Apptainer, which then looks for its files beside its own."""


@pytest.mark.parametrize("options", [(), ("--bootseer=k",)], ids=["without", "with"])
def test_a_task_that_leaves_its_mount_namespace_still_finds_its_own_program(lab, options):
    python = lab.cluster.run(["realpath", "/usr/bin/python3"]).stdout.strip()
    argv = ["srun", "-N2", *options, python, "-c", LEAVE]
    said = lab.cluster.run(argv, user="alice").stdout.splitlines()
    assert said == [f"True {python}"] * 2
    lab.cluster.wait_for_job(lab.newest_job())


def test_a_job_without_the_plugins_namespace_has_it_unpacked(lab):
    """As of a process that got out of the task's namespace: nothing is mounted in the node's."""
    lab.srun("--bootseer=k", command=env_run("--wait"))
    forget(lab)
    job_id, running = lab.start_in_background("--bootseer=k")
    try:
        command = f"BOOTSEER_SOCKET=/run/bootseer/jobs/{job_id}/agent.sock {env_run()}"
        done = lab.cluster.run(["sh", "-c", command], node="n1", user="alice")
        assert "unpacked in" in done.stderr
        assert lab.cluster.run(["cat", f"{TARGET}/lib/m7.py"], node="n1").stdout == "7\n"
    finally:
        lab.end(job_id, running)
