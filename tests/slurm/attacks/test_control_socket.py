"""What can be said to an agent, by its own user and by others, in whatever namespace."""

import os
import shlex

import pytest
from bootseer_dev.cluster.poll import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.attacks]

NAMESPACES = {
    "none": "",
    "user and mount": "unshare -Urm ",
    "mapped to itself": "unshare -Ucm ",
    "pid": "unshare -Urmpf --mount-proc ",
    "network and host name": "unshare -Urmnui ",
}
MEMORY_MIB = 700
"""Of all our processes for the job; lines and answers must not pile up."""


def talk(arena, job, case, before=""):
    return job.run(f"{before}{shlex.join(arena.program('talk.py', case))}", 170)


def roots(arena, job):
    """The agent's processes, once the broker's copies have given up root's rights."""
    wait_until(
        lambda: len(arena.ours(job.job_id, uid=0)) == 1, "the broker alone is root", timeout_s=60
    )
    return {one.pid for one in arena.ours(job.job_id) if one.uid not in (arena.uid("mallory"),)}


@pytest.mark.parametrize(
    "case", ["types", "shapes", "descriptors", "connections", "slow", "conversations"]
)
def test_no_request_ends_an_agent(arena, case):
    """Requests of every wrong kind from the job itself; the same processes answer after."""
    with arena.shell("--bootseer=m") as job:
        before = roots(arena, job)
        open_before = {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in before}
        answer = talk(arena, job, case)
        assert answer.text.strip().endswith("well done"), answer.text[-800:]
        assert roots(arena, job) >= before
        wait_until(
            lambda: all(len(os.listdir(f"/proc/{p}/fd")) <= n + 8 for p, n in open_before.items()),
            "no descriptor is kept",
            timeout_s=20,
        )
        assert arena.memory_mib(job.job_id) < MEMORY_MIB
        log = arena.on_host(f"{arena.folder(job.job_id)}/agent.log")
        assert "Traceback" not in log.read_text(errors="replace")
    assert "agent.died" not in arena.told(job.job_id)


@pytest.mark.parametrize("kind", [kind for kind in NAMESPACES if kind != "none"])
@pytest.mark.parametrize("case", ["types", "conversations"])
def test_requests_from_namespaces_of_ones_own(arena, kind, case):
    """The same from user, mount, pid and network namespaces: nothing is mounted on the node."""
    with arena.shell("--bootseer=m") as job:
        before = roots(arena, job)
        mounts = len(arena.cluster.mounts("n1"))
        answer = talk(arena, job, case, NAMESPACES[kind])
        assert answer.text.strip().endswith("well done"), answer.text[-800:]
        assert roots(arena, job) >= before
        assert len(arena.cluster.mounts("n1")) <= mounts + 1


def test_who_asks_has_gone_and_its_number_is_anothers(arena):
    """Half of `env` requests end at once: root looks for their namespaces by a number in vain."""
    ask = (
        "import os, socket, sys\n"
        "for n in range(200):\n"
        "    if not os.fork():\n"
        "        s = socket.socket(socket.AF_UNIX); s.connect(os.environ['BOOTSEER_SOCKET'])\n"
        '        s.sendall(b\'{"op":"env"}\\n\'); os._exit(0)\n'
        "    os.wait()\n"
    )
    with arena.shell("--bootseer=m") as job:
        before = roots(arena, job)
        job.run(f"/usr/bin/python3 -c {shlex.quote(ask)}", 120)
        assert talk(arena, job, "shapes").code == 0
        assert roots(arena, job) >= before


def test_another_users_agent_is_deaf(arena, victim):
    """Mallory asks alice's agent for everything, as herself and as root of a user namespace."""
    path = arena.socket(victim.id)
    for before in NAMESPACES.values():
        argv = [*before.split(), *arena.program("talk.py", "refused", path)]
        said = arena.cluster.run(argv, user="mallory", node="n1", check=False)
        assert said.stdout == "well done\n", (before, said.stderr)


def test_another_users_agent_is_deaf_to_a_job(arena, victim):
    """The same from within a job of hers that is told alice's socket."""
    env = {"BOOTSEER_SOCKET": arena.socket(victim.id)}
    inner = arena.program("talk.py", "refused", arena.socket(victim.id))
    job = arena.runs_well("--bootseer=m", command=shlex.join(inner), env=env)
    assert job


def test_alices_mounts_are_closed(arena, victim):
    """Nor are her checkpoint, her processes' folders, or her mount namespace to be had."""
    folder = arena.folder(victim.id)
    for attempt in (
        f"ls {folder}/ckpt",
        f"cat {folder}/ckpt/kept",
        f"unshare -Urm ls {folder}/ckpt",
        f"unshare -Urm umount -l {folder}/ckpt",
        f"fusermount3 -u {folder}/ckpt",
        *(f"cat /proc/{one.inner}/environ" for one in arena.ours(victim.id)),
        *(f"ls /proc/{one.inner}/fd" for one in arena.ours(victim.id)),
        *(f"kill -CONT {one.inner}" for one in arena.ours(victim.id)),
        *(f"nsenter -m -t {one.inner} true" for one in arena.ours(victim.id)),
    ):
        done = arena.sh(attempt, check=False)
        assert done.returncode != 0, attempt


FINISH = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'{"op":"finish","timeout_s":1}\\n')
print(s.recv(999))
"""


def test_two_jobs_of_hers_do_not_reach_into_each_other_beyond_the_user(arena):
    """Her first job's socket answers her second job, as it is hers; ending it is still root's."""
    with arena.shell("--bootseer=m") as first, arena.shell("--bootseer=m") as second:
        said = second.run(f"/usr/bin/python3 -c {shlex.quote(FINISH)} {arena.socket(first.job_id)}")
        assert "error" in said.text
        assert roots(arena, first)
