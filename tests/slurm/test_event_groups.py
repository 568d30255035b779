"""A job's nodes have one of them store their events: a cluster with enough nodes for a group."""

import os

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, PLUGIN, Lab

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

NODES = 5
GATHERER, GIVERS = "n2", ("n3", "n5")
"""The first and the fourth node record, and write the plan."""
OPTIONS = (f"-N{NODES}", "--bootseer=record", "-Jgroups")
SETTINGS = f"[peers]\nmin_nodes = {NODES}\n"
SERVER = "ss -Hltnp 'sport >= :47100 and sport <= :47499'"
KILL = f"kill $({SERVER} | grep -o 'pid=[0-9]*' | cut -d= -f2)"
ATTEMPTS = 8
"""On a busy machine, epilogs of a job may begin at times that differ by more than nodes wait."""


@pytest.fixture(scope="module")
def groups_lab(tmp_path_factory, slurm_release):
    spec = ClusterSpec(name=f"groups-{os.getpid()}", nodes=NODES, slurm=slurm_release)
    config = CONFIG.replace("[image]\n", "[image]\ntraces_per_run = 1\n") + SETTINGS
    with Cluster.up(spec, print) as cluster:
        site.install(cluster, arguments=PLUGIN, config=config)
        yield Lab(cluster, tmp_path_factory.mktemp("images"))


@pytest.fixture
def lab(groups_lab):
    groups_lab.forget()
    yield groups_lab
    groups_lab.assert_healthy()
    groups_lab.assert_clean()


def objects(lab):
    """Return the nodes that have written a pack, and those that have written their own events."""
    names = [path.name for path in (lab.store() / "runs").glob("*/*")]
    packs = sorted(name.partition("-")[0] for name in names if name.endswith(".jsonl.gz"))
    return packs, sorted(name.partition("-")[0] for name in names if name.endswith(".json.gz"))


def test_one_object_has_the_events_of_a_group(lab):
    for _ in range(ATTEMPTS):
        lab.forget()
        job = lab.srun(*OPTIONS, command="sleep 2")
        reported = tuple(node["node"] for node in lab.report(job)["nodes"])
        assert reported == lab.cluster.node_names, "whoever has stored them"
        if objects(lab) == ([GATHERER], ["n1", "n4"]):
            break
    else:
        raise AssertionError(objects(lab))
    stage = lab.stages(job, GATHERER)["peers.gather"]
    assert stage["detail"] == "2 of 2 nodes have given their events"
    for node in lab.cluster.node_names:
        assert {"peers.serve", "epilog"} <= lab.stages(job, node).keys()
    assert lab.fallbacks(job) == set()
    unpublished = ["sh", "-c", "ls /var/cache/bootseer/unpublished/*/ 2>/dev/null"]
    for node in lab.cluster.node_names:
        assert not lab.cluster.run(unpublished, node=node, check=False).stdout


def test_without_the_gatherer_each_node_stores_its_own(lab):
    job_id, running = lab.start_in_background(*OPTIONS)

    def is_ended():
        return lab.cluster.run(["sh", "-c", KILL], node=GATHERER, check=False).returncode == 0

    wait_until(is_ended, "a server is there, and ended")
    lab.end(job_id, running)
    assert objects(lab) == ([], list(lab.cluster.node_names))
    for node in GIVERS:
        assert GATHERER in lab.stages(job_id, node)["peers.give"]["detail"]
    assert lab.stages(job_id, GATHERER)["peers.gather"]["status"] == "fallback"
