"""Many tasks on several nodes have one environment made at once, and some of them are killed.

Each is a process of its own, as is who has the store for it; they start when Hypothesis says, and
the store fails now and then. Nodes have a target of their own or share one.

What holds:

- Who ends well has all of the environment in its target, and it stays there.
- No two commands run in one target at a time.
- While all is well, the command runs once, on one of the nodes.
- What the dead leave behind is in nobody's way, and what is kept is all of it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from bootseer_dev.actors.environment import EnvRun, Servers
from bootseer_dev.actors.simulation import SETTINGS, no_logs, search
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.root  # nodes are mount namespaces
PATIENCE_S = 120.0
CLAIM_S = 3.0
"""Of those who may be killed. A busy machine holds the others up for longer now and then."""
FILES = {f"d{number % 3}/{number}": f"content {number}\n" * 100 for number in range(8)}
INSTALL = """
exec 8>{place}/looking 9>{place}/installing
flock -s 8  # for a moment, while somebody looks at what is there
flock -n 9 || echo clash >> {folder}/log
echo run >> {folder}/log
mkdir -p {place}/target/d0 {place}/target/d1 {place}/target/d2
for n in 0 1 2 3 4 5 6 7; do
    for line in $(seq 100); do echo "content $n"; done > {place}/target/d$((n % 3))/$n
    sleep 0.02
done
"""


class World:
    """The store, the nodes and what runs on them."""

    def __init__(self, plan, folder, servers):
        self.folder = folder
        self.servers = servers
        self.place = folder / "place"
        self.is_calm = plan.is_calm
        self.claim_s = PATIENCE_S if plan.is_calm else CLAIM_S
        self.was_away = False
        self.seeds = count(plan.seed)
        self.running = []
        self.ended = set()
        self.told = []
        self.killed = Counter()
        self.began = time.monotonic()
        for name in ("place", "scratch", "store"):
            (folder / name).mkdir()
        names = ["shared"] * plan.nodes if plan.shares else [f"n{n}" for n in range(plan.nodes)]
        self.nodes = [folder / name for name in names]
        for node in self.nodes:
            node.mkdir(exist_ok=True)
        (folder / "log").touch()
        text = INSTALL.format(place=self.place, folder=folder)
        self.command = ["sh", "-c", text]

    def say(self, *words):
        self.told.append(f"{time.monotonic() - self.began:6.2f} " + " ".join(map(str, words)))

    def start(self, node, tasks):
        for _ in range(tasks):
            seed = next(self.seeds)
            run = EnvRun(
                *(self.servers, self.folder, self.nodes[node], self.place, self.command),
                seed=seed,
                claim_s=self.claim_s,
            )
            self.running.append(run)
            self.say("starts", seed, "on", self.nodes[node].name)

    def look(self):
        """See what has ended, and that what was there is there."""
        for run in [run for run in self.running if run.status() is not None]:
            self.running.remove(run)
            self.hear(run)
        for node in self.ended:
            self.check_between_commands(node)
        assert "clash" not in self.log(), "two commands ran in one target"

    def hear(self, run):
        status, said = run.end(PATIENCE_S)
        self.say("ended on", run.node.name, status, said)
        assert "Traceback" not in said, said
        self.was_away |= "without capturing it" in said
        if status == 0:
            self.ended.add(run.node)
            if self.was_away:  # later ones ran the command again, as without BootSeer
                self.check_between_commands(run.node)
            else:
                self.check(run.node)
        else:
            assert status < 0 and self.killed["command"], said

    def check_between_commands(self, node):
        with (node / "looking").open("w") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.check(node)

    def check(self, node):
        target = node / "target"
        found = {}
        for folder, folders, names in os.walk(target):
            if folder == str(target):
                folders[:] = [name for name in folders if not self.is_unpacking(node, name)]
            for path in (Path(folder) / name for name in names):
                found[str(path.relative_to(target))] = path.read_text()
        assert found == FILES, f"{sorted(found)}: not all of it is there"

    def is_unpacking(self, node, name):
        """Whether what is in a folder is not yet where it belongs: a restore is at work."""
        is_temporary = name.startswith(".target.bootseer-")
        return is_temporary and any(run.node == node for run in self.running)

    def log(self):
        return (self.folder / "log").read_text().split()

    def kill(self, which, what):
        if self.running:
            run = self.running[which % len(self.running)]
            self.killed[what] += 1
            self.say("kills", what, "on", run.node.name)
            if what == "command":
                run.kill()
            else:
                run.kill_server()

    def end(self):
        """See what there is when all have ended."""
        (self.folder / "away").unlink(missing_ok=True)
        deadline = time.monotonic() + PATIENCE_S
        while self.running:
            self.look()
            assert time.monotonic() < deadline, "some do not end"
            time.sleep(0.01)
        self.look()
        self.nodes.append(self.folder / "another")
        self.nodes[-1].mkdir()
        self.start(-1, 1)
        while self.running:
            self.look()
            time.sleep(0.01)
        assert self.nodes[-1] in self.ended
        if self.is_calm:
            left = [path for node in self.nodes for path in node.glob(".*")]
            assert left == [], "locks are left"
            assert list((self.folder / "store/env").glob("claims/*")) == []
            assert self.log() == ["run"], "what is kept was not used"


KINDS = ["start"] * 6 + ["kill command", "kill server", "away", "back"]
STEP = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 3),
    st.sampled_from([1, 1, 2, 4, 8]),
    st.sampled_from([0.0, 0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0]),
)


@dataclass
class Plan:
    """What is drawn for a run.

    Attributes:
        steps: kind, node or process, number of tasks, and the seconds until the next one.
        nodes: how many there are.
        shares: they have one target together.
        is_calm: nobody is killed, and the store does not fail.
        seed: of which calls of the store fail.
    """

    steps: list
    nodes: int
    shares: bool
    is_calm: bool
    seed: int


PLANS = st.builds(
    Plan,
    steps=st.lists(STEP, min_size=2, max_size=10),
    nodes=st.integers(1, 4),
    shares=st.booleans(),
    is_calm=st.booleans(),
    seed=st.integers(0, 2**32),
)


def check(plan):
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        closing(Servers()) as servers,
    ):
        world = World(plan, Path(folder), servers)
        try:
            for kind, which, tasks, pause_s in plan.steps:
                if kind == "start":
                    if len(world.running) < 16:
                        world.start(which % len(world.nodes), tasks)
                elif not plan.is_calm:
                    if kind == "away":
                        world.was_away = True
                        (world.folder / "away").touch()
                    elif kind == "back":
                        (world.folder / "away").unlink(missing_ok=True)
                    else:
                        world.kill(which, kind.split()[1])
                until = time.monotonic() + pause_s
                while time.monotonic() < until:
                    world.look()
                    time.sleep(0.01)
            world.end()
        except AssertionError:
            print("\n".join(world.told))  # Hypothesis would print what happens the next time
            raise
        finally:
            for run in world.running:
                with suppress(AssertionError):
                    run.kill()
                    run.end(1)


@settings(SETTINGS, max_examples=8, derandomize=True, phases=[Phase.generate])
@given(PLANS)
def test_many_tasks_some_of_which_are_killed(plan):
    check(plan)


@pytest.mark.simulations
@pytest.mark.timeout(0)
def test_more_of_it(capfd):
    with capfd.disabled(), no_logs():
        assert search(PLANS, check, at_once=30, phases=[Phase.generate])
