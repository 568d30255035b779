"""A cluster for attacks: alice works there, mallory attacks, and what must hold is checked."""

import re
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, HEALTHY_STATES, RUN_DIR, Lab
from bootseer_dev.jobs.shell import JobShell

PROGRAMS = Path(__file__).parent / "programs"
NODE = "n1"
CACHE = "/var/cache/bootseer"
SECRET = "the-secret-that-only-root-can-read"
ROLES = (
    *("warm_up", "serve_image", "serve_checkpoint", "run_environment", "provide_environment"),
    *("publish", "upload_import", "await_import", "identify_image", "hot_pack", "mksquashfs"),
)
"""Words of a command line, or of a name, that tell what a process of ours does."""
_OURS = re.compile(r"bootseer\.(agent|broker|supervisor)|bootseer-(pro|epi)log|^\S*mksquashfs")
_TAG = re.compile(rb"\0BOOTSEER_JOB_DIR=([^\0]*)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Ours(NamedTuple):
    """A process of BootSeer's on a node; `pid` as the host counts, `inner` as the node does."""

    pid: int
    inner: int
    uid: int
    role: str
    command: str


class Arena(Lab):
    """The lab, as attacks need it; what is known of file and process names is in here alone."""

    # Names.

    def folder(self, job):
        return f"{RUN_DIR}/jobs/{job}"

    def socket(self, job):
        return f"{self.folder(job)}/agent.sock"

    @property
    def scratch(self):
        """Where the node keeps what jobs write over environments."""
        return f"{CACHE}/environments"

    @property
    def images_cache(self):
        return f"{CACHE}/images"

    def on_host(self, path, node=NODE):
        """A node's path, as the host reaches it."""
        return Path(f"/proc/{self.cluster.holder_pid(node)}/root{path}")

    def uid(self, user):
        return self.cluster.spec.uid(user)

    # Processes.

    def ours(self, job=None, uid=None, role=None, node=NODE):
        """List processes of BootSeer's: of a job, of a user, of a role."""
        found = []
        for process in self.cluster.processes(node):
            with suppress(OSError):
                tag = _tag(process.pid)
                if not tag and not _OURS.search(process.command):
                    continue
                if job is not None and tag != self.folder(job):
                    continue
                inner = int(_status(process.pid)["NSpid"].split()[-1])
                words = set(process.command.replace("/", " ").split())
                named = (r for r in ROLES if r in words or process.has_role(r))
                what = next(named, "")
                is_hook = re.search(r"bootseer-(pro|epi)log", process.command)
                what = what or ("hook" if is_hook else "broker" if process.uid == 0 else "worker")
                found.append(Ours(process.pid, inner, process.uid, what, process.command))
        return [
            one
            for one in found
            if (uid is None or one.uid == uid) and (role is None or one.role == role)
        ]

    def users(self, user, node=NODE):
        """List all processes of a user on a node."""
        return [p for p in self.cluster.processes(node) if p.uid == self.uid(user)]

    def memory_mib(self, job):
        """Memory of our processes for a job, pages of files apart."""
        total = 0
        for one in self.ours(job):
            with suppress(OSError, KeyError):
                total += int(_status(one.pid)["RssAnon"].split()[0])
        return total / 1024

    # Attackers.

    def program(self, name, *arguments):
        """The words that run one of the attack programs."""
        path = self.cluster.state_dir / "programs" / name
        words = [str(path), *map(str, arguments)]
        return [sys.executable, *words] if name.endswith(".py") else words

    def attack(self, name, *arguments, user="mallory", node=NODE, **more):
        """Run an attack program beside all jobs; returns what came of it."""
        argv = self.program(name, *arguments)
        return self.cluster.run(argv, user=user, node=node, **{"check": False, **more})

    @contextmanager
    def attacking(self, name, *arguments, user="mallory", node=NODE):
        """Have an attack program run beside all jobs for the length of a block."""
        process = self.cluster.popen(self.program(name, *arguments), user=user, node=node)
        try:
            assert process.stdout.readline() == "at it\n", process.communicate()
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=20)

    def shell(self, *options, user="mallory", node=NODE):
        """A job of the attacker's that does what it is told."""
        return JobShell(self, *options, user=user, node=node)

    def sh(self, script, user="mallory", node=NODE, **more):
        return self.cluster.run(["sh", "-c", script], user=user, node=node, **more)

    def ask_for_job(self, *options, command="true", user="mallory", env=None, timeout_s=90):
        """Run a job on the node, whatever comes of it; returns job id (0: none), code, stderr."""
        argv = ["srun", "-n1", f"-w{NODE}", *options]
        argv += ["sh", "-c", f"echo job=$SLURM_JOB_ID; {command}"]
        line = self.cluster.command(argv, user=user, env=env)
        done = subprocess.run(
            line, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False
        )
        found = re.search(rb"^job=(\d+)$", done.stdout, re.MULTILINE)
        job = int(found[1]) if found else 0
        if job:
            self.cluster.wait_for_job(job, timeout_s=timeout_s)
        return job, done.returncode, done.stderr.decode(errors="replace")

    def runs_well(self, *options, command="true", user="mallory", env=None):
        """Run a job on the node that has to end as if there were no BootSeer."""
        job, code, stderr = self.ask_for_job(*options, command=command, user=user, env=env)
        assert code == 0, stderr
        assert self.cluster.job_state(job) == "COMPLETED"
        return job

    @contextmanager
    def settings(self, **sections):
        """Other settings for the jobs that begin in a block: ``image={"io_deadline_s": 5}``."""
        path = self.cluster.etc_bootseer / "bootseer.toml"
        before = path.read_text()
        text = before
        for section, values in sections.items():
            lines = "".join(f"{key} = {value}\n" for key, value in values.items())
            if f"[{section}]\n" not in text:
                text += f"[{section}]\n"
            text = text.replace(f"[{section}]\n", f"[{section}]\n{lines}")
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)

    # What must hold.

    def told(self, job, user="mallory"):
        """Stages of a job that fell back, with their details."""
        return {
            s["stage"]: s["detail"]
            for n in self.report(job, user)["nodes"]
            for s in n["stages"]
            if s["status"] == "fallback"
        }

    def left_of_others(self, job):
        """What is left on the nodes, but for one job that goes on."""
        kept = {
            one.command for node in self.cluster.node_names for one in self.ours(job, node=node)
        }
        left = []
        for node in self.cluster.node_names:
            for entry in self.left_overs(node):
                if entry not in kept and not re.search(rf"jobs/{job}(\D|$)", entry):
                    left.append(f"{node}: {entry}")
            for one in self.users("mallory", node):
                left.append(f"{node}: {one.command}")
            scratch = self.on_host(self.scratch, node)
            left += [str(path) for path in scratch.glob("*") if path.name != str(job)]
        return left


class Victim:
    """A job of alice's beside the attacks, with a checkpoint that it reads all the time."""

    def __init__(self, arena):
        self._arena = arena
        arena.sh("mkdir -p /shared/alice; chmod 755 /shared/alice", user="alice")
        options = ("--bootseer=victim", "--bootseer-ckpt=file:///shared/alice")
        self.job = arena.shell(*options, user="alice")
        assert self.job.run("echo kept > $BOOTSEER_CKPT/kept").code == 0
        self.id = self.job.job_id
        self.agents = self._agents()

    def _agents(self):
        return {one.pid for one in self._arena.ours(self.id) if one.uid == 0}

    def check(self):
        """The job has noticed nothing."""
        assert self.job.run("cat $BOOTSEER_CKPT/kept", 20).text.strip() == "kept"
        assert self._agents() == self.agents


class World:
    """A cluster with a victim; after an attack that did harm the next one gets another."""

    def __init__(self, spec):
        self._spec = spec
        self._cluster = None
        self.arena = None
        self.victim = None
        self.is_spoilt = True

    def enter(self):
        if self.is_spoilt:
            self.leave()
            self._begin()
            self.is_spoilt = False
        return self.arena

    def _begin(self):
        self._cluster = Cluster.up(self._spec, print)
        cluster = self._cluster
        site.install(cluster, config=CONFIG)
        shutil.copytree(PROGRAMS, cluster.state_dir / "programs")
        for source in PROGRAMS.glob("*.c"):
            output = cluster.state_dir / "programs" / source.stem
            subprocess.run(["gcc", "-Wall", "-static", "-o", output, source], check=True)
        secret = cluster.shared / "roots"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        images = cluster.state_dir / "images"
        images.mkdir(mode=0o755)
        self.arena = Arena(cluster, images)
        self.arena.put_image()
        self.arena.mount_share()
        self.victim = Victim(self.arena)

    def check(self):
        """Nothing has happened outside of the attacker's own job."""
        arena, victim = self.arena, self.victim
        states = arena.cluster.node_states()
        assert set(states.values()) <= HEALTHY_STATES, states
        victim.check()
        left = partial(arena.left_of_others, victim.id)
        wait_until(
            lambda: not left(), "nothing left", timeout_s=30, explain=lambda: "\n".join(left())
        )
        assert not (arena.cluster.shared / "pwned").exists()
        for node in arena.cluster.node_names:
            log = arena.slurmd_log(node)
            assert not _CONTROL.search(log.replace("\t", " ")), "a control character in the log"
            assert "Traceback" not in log

    def leave(self):
        if self._cluster is None:
            return
        if self.victim is not None:
            self.victim.job.process.kill()
            self.victim.job.process.communicate()
        # A tree that is too deep for Python to remove may be in there.
        machines = self._cluster.state_dir / "machines"
        Cluster.down(self._cluster) if not self.is_spoilt else self._end_hard(machines)
        self._cluster = self.victim = None

    def _end_hard(self, machines):
        subprocess.run(
            ["rm", "-rf", *machines.glob("*/cache"), *machines.glob("*/local")], check=False
        )
        self._cluster.down()


@pytest.fixture(scope="module")
def world(request, slurm_release):
    name = request.module.__name__.rpartition("test_")[2].replace("_", "-")
    world = World(ClusterSpec(name=f"attack-{name}"[:31], nodes=2, slurm=slurm_release))
    yield world
    world.leave()


@pytest.fixture
def arena(world):
    """Nothing is known of mallory's jobs; afterwards nobody else has noticed any."""
    arena = world.enter()
    arena.forget("mallory")
    world.is_spoilt = True
    yield arena
    world.check()
    for path in (arena.cluster.state_dir / "home/mallory").iterdir():
        subprocess.run(["rm", "-rf", path], check=True)
    for node in arena.cluster.node_names:
        clear = f"rm -rf /shared/m* /local/m* {CACHE}/unpublished"
        arena.cluster.run(["sh", "-c", clear], node=node)
    world.is_spoilt = False


@pytest.fixture
def victim(world, arena):
    return world.victim


@pytest.fixture
def secret():
    return SECRET


def _status(pid):
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _tag(pid):
    found = _TAG.search(b"\0" + Path(f"/proc/{pid}/environ").read_bytes()[:65536])
    return found[1].decode(errors="replace") if found else ""


@pytest.fixture(scope="session")
def status_of():
    """What /proc says of a process."""
    return _status
