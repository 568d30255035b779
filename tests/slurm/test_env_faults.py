"""Whatever goes wrong with an environment, the job has it, and nothing is left on the node."""

import os
import shlex
import signal

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.shell import JobShell

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.faults]
TARGET = "/local/env"
CACHE = "/var/cache/bootseer"
MAKE = (
    "umask 022; date +%N >> /shared/ran; mkdir -p {t}/lib; cd {t};"
    "for i in $(seq 40); do head -c 100000 /dev/zero | tr '\\0' $((i % 10)) > lib/m$i; done;"
    "head -c 3000000 /dev/urandom > lib/random; {more}"
)
READ = f"cat {TARGET}/lib/* | wc -c"
SIZE = str(40 * 100_000 + 3_000_000)


def env_run(*options, more="true"):
    run = [site.bootseer(), "env", "run", "--target", TARGET, "--mode=mount", *options]
    argv = [*run, "--", "sh", "-c"]
    return shlex.join([*argv, MAKE.format(t=TARGET, more=more)])


@pytest.fixture
def lab(lab):
    clear(lab)
    lab.cluster.run(["rm", "-f", "/shared/ran"])
    yield lab
    clear(lab)
    for node in lab.cluster.node_names:
        left = lab.cluster.run(["ls", f"{CACHE}/environments"], node=node, check=False)
        assert left.stdout == ""


@pytest.fixture
def captured(lab):
    with JobShell(lab, "--bootseer=first") as job:
        assert job.run(env_run("--wait")).code == 0
    clear(lab)


def clear(lab):
    for node in lab.cluster.node_names:
        lab.cluster.run(["rm", "-rf", TARGET], node=node)


def runs(lab):
    return len((lab.cluster.shared / "ran").read_text().split())


def fallbacks(lab, job):
    return {
        s["stage"]: s["detail"]
        for n in lab.report(job.job_id)["nodes"]
        for s in n["stages"]
        if s["status"] == "fallback"
    }


def find(lab, text):
    """The process, as the host counts, whose command has a text."""

    def look():
        return [p.pid for p in lab.cluster.processes("n1") if text in p.command]

    return wait_until(look, f"a process with {text}")[0]


def test_an_agent_that_dies_takes_no_environment_away(lab, captured):
    with JobShell(lab, "--bootseer=k") as job:
        assert "mounted" in job.run(env_run()).text
        written = job.run(f"echo x > {TARGET}/new; cat {TARGET}/lib/m1 | wc -c")
        assert written.text.strip() == "100000"
        os.kill(lab.agent("n1", job.job_id), signal.SIGKILL)
        assert job.run(READ).text.strip() == SIZE
        assert job.run(f"cat {TARGET}/new").text.strip() == "x"
        assert "without capturing it" in job.run(env_run()).text  # nobody is there to ask
    lab.assert_clean()
    assert "agent.died" in fallbacks(lab, job)


def test_who_serves_it_is_killed(lab, captured):
    with JobShell(lab, "--bootseer=k") as job:
        job.run(env_run())
        os.kill(find(lab, " serve_image alice "), signal.SIGKILL)
        assert job.run(f"cat {TARGET}/lib/random > /dev/null").code != 0
        clear(lab)
        assert "mounted" in job.run(env_run()).text
        assert job.run(READ).text.strip() == SIZE
    assert "the image server has ended" in fallbacks(lab, job)["image.serve"]
    lab.assert_clean()
    with JobShell(lab, "--bootseer=k") as later:
        later.run(env_run())
        assert later.run(READ).text.strip() == SIZE
    assert runs(lab) == 1


@pytest.mark.parametrize("victim", ["worker", "agent"])
def test_who_captures_is_killed_while_the_command_runs(lab, victim):
    with JobShell(lab, "--bootseer=k") as job:
        job.start(env_run(more="while [ ! -e /shared/go ]; do sleep 0.1; done; exit 0"))
        wait_until((lab.cluster.shared / "ran").exists, "the command")
        name = " run_environment alice "
        pid = find(lab, name) if victim == "worker" else lab.agent("n1", job.job_id)
        os.kill(pid, signal.SIGKILL)
        lab.cluster.run(["touch", "/shared/go"])
        answer = job.answer()
        lab.cluster.run(["rm", "/shared/go"])
        assert answer.code == 0
        assert "is not stored" in answer.text
        assert job.run(READ).text.strip() == SIZE
    assert not list((lab.store() / "env").glob("snapshots/*/manifest.json"))


def test_the_store_is_gone_from_the_beginning(lab, captured):
    away = lab.store().with_name("away")
    lab.store().rename(away)
    try:
        lab.store().write_text("no folder")
        with JobShell(lab, "--bootseer=k") as job:
            answer = job.run(env_run())
            assert answer.code == 0 and "running the command without capturing it" in answer.text
            assert job.run(READ).text.strip() == SIZE
    finally:
        lab.store().unlink()
        away.rename(lab.store())
    assert runs(lab) == 2


def test_the_store_goes_while_it_is_mounted(lab, captured):
    """What the node has can be read; what it has not is an error in time, and told."""
    lab.cluster.run(["rm", "-rf", f"{CACHE}/images"], node="n1")
    with JobShell(lab, "--bootseer=k") as job:
        job.run(env_run())
        assert job.run(f"cat {TARGET}/lib/m1 | wc -c").text.strip() == "100000"
        for part in lab.store().glob("images/*/part-*"):
            os.truncate(part, 4096)
        assert job.run(f"cat {TARGET}/lib/m1 | wc -c").text.strip() == "100000"
        assert job.run(f"cat {TARGET}/lib/random > /dev/null").code != 0
    assert "image.read" in fallbacks(lab, job)


def test_a_damaged_snapshot_is_made_anew(lab, captured):
    """Its manifest or its index: the command runs, and the next job has it again."""
    for name in ("manifest.json", "*/index"):
        found = lab.store().glob(f"env/snapshots/*/{name}")
        path = max(found, key=lambda path: path.stat().st_mtime_ns)
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
        before = runs(lab)
        for ran in (1, 0):
            with JobShell(lab, "--bootseer=k") as job:
                assert job.run(env_run("--mode=unpack", "--wait")).code == 0
                assert job.run(READ).text.strip() == SIZE
            clear(lab)
            assert runs(lab) - before == 1, (name, ran)


@pytest.fixture
def small_disk(lab):
    lab.cluster.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", CACHE], node="n1")
    yield
    lab.cluster.run(["umount", CACHE], node="n1")


def test_the_nodes_disk_is_full(lab, captured, small_disk):
    """Nothing is kept on it, and nothing can be written over it; what is there can be read."""
    with JobShell(lab, "--bootseer=k") as job:
        assert job.run(env_run()).code == 0
        assert job.run(READ).text.strip() == SIZE
        assert job.run(f"head -c 1000000 /dev/zero > {TARGET}/more").code != 0
    assert runs(lab) == 1


def test_the_targets_disk_is_full(lab, captured):
    """What cannot be unpacked is no half of it; the command has its own way to fail."""
    lab.cluster.run(["mkdir", "-p", "/local/small"], node="n1")
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "small", "/local/small"]
    lab.cluster.run(mount, node="n1")
    small = MAKE.format(t="/local/small/env", more="true")
    run = [site.bootseer(), "env", "run", "--mode=unpack", "--wait", "--target", "/local/small/env"]
    try:
        with JobShell(lab, "--bootseer=k") as job:
            big = shlex.join([*run, "--", "sh", "-ec", small])
            assert job.run(big).code != 0
    finally:
        lab.cluster.run(["umount", "/local/small"], node="n1")


def test_a_job_that_is_cancelled_leaves_nothing(lab, captured):
    job = JobShell(lab, "--bootseer=k")
    job.run(env_run())
    use = f"cat {TARGET}/lib/* > /dev/null; echo x >> {TARGET}/new; touch /shared/used"
    job.start(f"while true; do {use}; done")
    used = lab.cluster.shared / "used"
    wait_until(used.exists, "the environment is in use")
    assert job.cancel() == "CANCELLED"
    used.unlink()
    lab.assert_clean()
