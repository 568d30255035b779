"""No job takes more of a node than its share: folders, cache, processes, memory, time."""

import json
import shlex
import threading
from functools import partial

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.attacks]

TARGET = "/local/m/env"
MIB = 1 << 20
LEVELS = 1500
RUNS = 24
PROCESSES_PER_JOB = 64 + 16
"""Of ours, at once."""
MEMORY_MIB = 3000
"""Of all our processes for a job, page cache apart; the whole node's for one job."""


def env_run(make, target=TARGET, *options):
    argv = [site.bootseer(), "env", "run", "--target", target, "--mode=mount", *options]
    return shlex.join([*argv, "--", "sh", "-c", make])


def capture(arena, user="mallory", make=f"mkdir -p {TARGET}; echo 7 > {TARGET}/x", target=TARGET):
    run = env_run(make, target)
    with arena.shell("--bootseer=k", user=user) as job:
        assert job.run(run.replace("--mode", "--wait --mode", 1)).code == 0
    arena.sh(f"rm -rf {target}", user=user)
    return run


# Attack 3: what root has to clear away.


@pytest.mark.parametrize("end", ["end", "cancel", "agent killed"])
def test_deep_folders_are_cleared_away_and_stop_nobody(arena, end):
    """1,500 levels in a mounted environment; the job ends, and others' jobs start, and warm."""
    alices = "/local/alice-env"
    arena.sh(f"rm -rf {alices}", user="alice")
    hers = capture(arena, "alice", f"mkdir -p {alices}; echo 5 > {alices}/x", alices)
    run = capture(arena)
    try:
        job = arena.shell("--bootseer=k")
        assert "mounted" in job.run(run).text
        deep = shlex.join(arena.program("deep.py", f"{TARGET}/deep", LEVELS))
        assert f"done {LEVELS}" in job.run(deep, 60).text
        if end == "agent killed":
            for one in arena.ours(job.job_id):
                if one.uid != arena.uid("mallory"):
                    arena.cluster.run(["kill", "-9", str(one.inner)], node="n1", check=False)
        job.end() if end == "end" else job.cancel()
        for _ in range(2):
            with arena.shell("--bootseer=k", user="alice") as other:
                answer = other.run(f"{hers}; cat {alices}/x; echo y > {alices}/y")
                assert "mounted" in answer.text and "\n5" in answer.text, answer
            assert not arena.told(other.job_id, "alice")
        left = partial(lambda: [p.name for p in arena.on_host(arena.scratch).iterdir()])
        wait_until(
            lambda: str(job.job_id) not in left(),
            "what it left is removed",
            timeout_s=30,
            explain=lambda: str(left()),
        )
    finally:
        # Python cannot remove such a tree, and so not the cluster either.
        arena.cluster.run(["sh", "-c", f"rm -rf {arena.scratch}/*"], node="n1", check=False)
        arena.sh(f"rm -rf {alices}; rm -rf ~/.bootseer/env", user="alice")


def test_very_many_files_are_cleared_away_beside_other_jobs(arena):
    """200,000 names in a mounted environment: the epilog keeps its deadline, others do not wait."""
    run = capture(arena)
    with arena.shell("--bootseer=k") as job:
        job.run(run)
        made = f"mkdir {TARGET}/many && cd {TARGET}/many && seq 200000 | xargs touch"
        assert job.run(made, 120).code == 0
        job.cancel()
    done = arena.runs_well("--bootseer=k", user="alice")
    [epilog] = [s for s in arena.report(done)["nodes"][0]["stages"] if s["stage"] == "epilog"]
    assert epilog["end_s"] - epilog["start_s"] < 12
    wait_until(
        lambda: not (arena.on_host(arena.scratch) / str(job.job_id)).exists(),
        "what it left is removed",
        timeout_s=60,
    )


def test_a_tree_that_cannot_be_removed_easily(arena):
    """Folders without rights, files without write permission, immutable names of her own."""
    run = capture(arena)
    with arena.shell("--bootseer=k") as job:
        job.run(run)
        job.run(f"cd {TARGET}; mkdir -p a/b; touch a/b/c; mkfifo f; chmod 0 a/b a; chattr +i x")
        job.run(f"python3 -c \"import socket; socket.socket(1).bind('{TARGET}/socket')\"")
    wait_until(
        lambda: not (arena.on_host(arena.scratch) / str(job.job_id)).exists(), "it is removed"
    )


# Attack 6: the node's cache.


def cache_bytes(arena):
    done = arena.cluster.run(["du", "-s", "-B1", arena.images_cache], node="n1", check=False)
    return int(done.stdout.split()[0]) if done.stdout else 0


class Watch(threading.Thread):
    """Looks at the cache all the time, and keeps what it has seen at most."""

    def __init__(self, arena):
        super().__init__()
        self._arena = arena
        self._over = threading.Event()
        self.most = 0

    def run(self):
        while not self._over.wait(0.1):
            self.most = max(self.most, cache_bytes(self._arena))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()


@pytest.fixture
def alices_image(arena):
    """An image that alice has used on the node: all of it is cached. Gives its folder there."""
    arena.sh(f"{site.bootseer()} image import /mnt/share/tiny.sqsh --name a --quiet", user="alice")
    arena.cluster.run(["sh", "-c", f"rm -rf {arena.images_cache}/*"], node="n1")
    with arena.shell("--bootseer=a", "--bootseer-image=bootseer://a", user="alice") as job:
        job.run("cat $BOOTSEER_IMAGE > /dev/null", 60)
        yield job, cache_bytes(arena)
    arena.sh(
        f"{site.bootseer()} image rm a --now --quiet; rm -rf ~/.bootseer", user="alice", check=False
    )
    arena.cluster.run(["sh", "-c", f"rm -rf {arena.images_cache}/*"], node="n1")


def ask_for(arena, job, names):
    for name in names:
        job.run(shlex.join(arena.program("talk_serve.py", f"bootseer://{name}", "/dev/null")), 60)


@pytest.mark.parametrize("case", ["manifests", "full_images"])
def test_the_cache_does_not_grow_past_its_quota(arena, alices_image, case):
    """Images of hers fill it: 58 MiB of digests each and no good bytes, or bytes; alice's stays."""
    alices, before = alices_image
    quota = max(96 * MIB, before + 64 * MIB)
    counts = (4, 1_900_000) if case == "manifests" else (6, 40 * MIB)
    arena.attack("forge_store.py", case, *counts, check=True, timeout_s=200)
    with (
        arena.settings(cache={"quota_gib": quota / (1 << 30), "free_share": 0.0}),
        Watch(arena) as seen,
    ):
        for _ in range(2):
            with arena.shell("--bootseer=m") as job:
                ask_for(arena, job, [f"m{n}" for n in range(counts[0])])
    assert seen.most <= quota * 1.02, (seen.most / MIB, quota / MIB)
    assert alices.run("cat $BOOTSEER_IMAGE | wc -c", 60).code == 0
    assert cache_bytes(arena) >= before // 2


def test_what_another_user_has_cached_survives_a_flood(arena, alices_image):
    """Alice's job has ended; mallory's flood takes mallory's room, not all of alice's."""
    _, before = alices_image
    arena.attack("forge_store.py", "full_images", 8, 30 * MIB, check=True, timeout_s=200)
    quota = before + 64 * MIB
    alices_image[0].end()
    entries = {p.name for p in arena.on_host(arena.images_cache).iterdir()}
    with arena.settings(cache={"quota_gib": quota / (1 << 30), "free_share": 0.0}):
        for _ in range(2):
            with arena.shell("--bootseer=m") as job:
                ask_for(arena, job, [f"m{n}" for n in range(8)])
    assert entries <= {p.name for p in arena.on_host(arena.images_cache).iterdir()}


def test_no_more_images_are_served_than_may_be(arena):
    """Forty images are asked for: eight are served, the rest is refused, the agent lives."""
    arena.attack("forge_store.py", "full_images", 40, MIB, check=True)
    with arena.shell("--bootseer=m") as job:
        ask_for(arena, job, [f"m{n}" for n in range(40)])
        assert len(arena.ours(job.job_id, role="serve_image")) <= 8
        assert [one for one in arena.ours(job.job_id) if one.uid == 0]


# Attack 9, and other bombs.


def test_many_env_runs_at_once(arena):
    """24 at once capture: processes and memory are bounded, and each command runs."""
    runs = " & ".join(
        env_run(
            f"mkdir -p {TARGET}{n}; head -c 3000000 /dev/urandom > {TARGET}{n}/x", f"{TARGET}{n}"
        )
        for n in range(RUNS)
    )
    with arena.shell("--bootseer=m") as job:
        job.start(f"{{ {runs} & wait; }} > /dev/null 2>&1")
        most, memory = 0, 0.0
        for _ in range(40):
            most = max(most, len(arena.ours(job.job_id)))
            memory = max(memory, arena.memory_mib(job.job_id))
        job.answer(150)
        made = job.run(f"ls -d {TARGET}*/x | wc -l")
        assert made.text.strip() == str(RUNS)
        assert most <= PROCESSES_PER_JOB and memory < MEMORY_MIB, (most, memory)
        assert [one for one in arena.ours(job.job_id) if one.uid == 0]


def test_jobs_one_after_the_other_leave_nothing(arena):
    """Forty short jobs, eight at once: no process, mount, folder or descriptor adds up."""
    argv = ["srun", "-n1", "-wn1", "--bootseer=m", "true"]
    for _ in range(5):
        started = [arena.cluster.popen(argv, user="mallory") for _ in range(8)]
        assert [process.wait(120) for process in started] == [0] * 8
        for process in started:
            process.communicate()
    wait_until(lambda: not arena.ours(uid=arena.uid("mallory")), "no worker", timeout_s=60)


def test_a_tree_changes_while_it_is_captured(arena):
    """Files come, go, shrink and become links to root's file while a capture reads them."""
    storm = shlex.join(arena.program("storm.py", f"{TARGET}/s", 8))
    with arena.shell("--bootseer=m") as job:
        job.run(f"mkdir -p {TARGET}/s; {{ {storm} & }}")
        for number in range(4):
            job.run(env_run(f"echo {number} > {TARGET}/n", TARGET, "--wait", "--force"), 60)
        assert [one for one in arena.ours(job.job_id) if one.uid == 0]
    for path in arena.store("mallory").rglob("*"):
        assert not path.is_file() or b"the-secret-that" not in path.read_bytes()


def test_the_command_replaces_its_target_by_a_link(arena):
    """The target becomes a link to alice's home, or to root's file, while the command runs."""
    for place in ("/home/alice", "/shared/roots", "/proc/self", "/dev"):
        with arena.shell("--bootseer=m") as job:
            job.run(
                env_run(f"rm -rf {TARGET}; ln -sfn {place} {TARGET}; true", TARGET, "--wait"), 60
            )
            assert [one for one in arena.ours(job.job_id) if one.uid == 0]
        arena.sh(f"rm -rf {TARGET}")
    found = list(arena.store("mallory").glob("env/snapshots/*/manifest.json"))
    for path in found:
        assert "alice" not in json.loads(path.read_text())["captured_by"]


def test_events_fill_nothing(arena):
    """Half a million events, and details of a thousand characters, from eight processes."""
    mark = (
        "import json,os,socket,time\n"
        "for n in range(4000):\n"
        "    s=socket.socket(1); s.settimeout(5)\n"
        "    try:\n"
        "        s.connect(os.environ['BOOTSEER_SOCKET']); t=time.time_ns()\n"
        "        s.sendall(json.dumps({'op':'event','stage':'mark.x','start_ns':t,'end_ns':t,"
        "'detail':'y'*900}).encode()+b'\\n'); s.recv(99)\n"
        "    except OSError: pass\n"
        "    s.close()\n"
    )
    with arena.shell("--bootseer=m") as job:
        one = f"/usr/bin/python3 -c {shlex.quote(mark)}"
        job.run(" & ".join([one] * 6) + " & wait", 170)
        used = arena.cluster.run(
            ["du", "-s", "-B1", arena.folder(job.job_id)], node="n1", check=False
        )
        assert int(used.stdout.split()[0]) < 8 * MIB
        assert arena.memory_mib(job.job_id) < 400
