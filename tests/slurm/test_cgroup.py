"""Jobs in control groups of Slurm's, for proctrack/cgroup and task/cgroup: no agent is there."""

import hashlib
import os
import re
from functools import partial
from pathlib import Path

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.namespaces import control_groups
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, PLUGIN, Lab

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

ONLY_VERSION_2 = Path(__file__).with_name("only_version_2.c")
MEMORY_MIB = 200
WHOLE = "sha256sum < $BOOTSEER_IMAGE; cat $BOOTSEER_CKPT/file"
LIMITED = ("freezer", "memory", "cpuset", "devices")
"""Controllers of version 1 in which Slurm has a group for each step."""


@pytest.fixture(scope="module", params=[(1, "Alloc"), (2, "Contain")], ids=str)
def cgroup_lab(request, tmp_path_factory, slurm_release):
    version, flags = request.param
    if version == 1 and not all(map(control_groups.has_version_1, LIMITED)):
        pytest.skip("control groups of version 1 are not mounted")
    spec = ClusterSpec(
        name=f"cgroup-{os.getpid()}",
        systemd=True,
        cgroups=version == 1,
        cpus_per_node=os.cpu_count(),
        slurm=slurm_release,
        slurm_conf_extra=(f"PrologFlags={flags}",),
    )
    with Cluster.up(spec, print) as cluster:
        if version == 2:
            use_version_2(cluster)
        site.install(cluster, arguments=PLUGIN, config=CONFIG)
        yield Lab(cluster, tmp_path_factory.mktemp("images"))


def use_version_2(cluster):
    """Have Slurm use version 2; on a host that has both, slurmd must not see that."""
    plugins = {"proctrack/linuxproc": "proctrack/cgroup", "task/none": "task/cgroup"}
    conf = cluster.etc_slurm / "slurm.conf"
    text = conf.read_text()
    for without, with_groups in plugins.items():
        text = text.replace(without, with_groups)
    conf.write_text(text)
    (cluster.etc_slurm / "cgroup.conf").write_text("CgroupPlugin=cgroup/v2\n")
    library = cluster.state_dir / "only_version_2.so"
    cluster.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(ONLY_VERSION_2)])
    (cluster.shared / "slurmd.conf").write_text(f"[Service]\nEnvironment=LD_PRELOAD={library}\n")
    unit = "/run/systemd/system/slurmd.service.d"
    put = f"mkdir -p {unit}; cp /shared/slurmd.conf {unit}; systemctl daemon-reload"
    for node in cluster.node_names:
        cluster.run(["sh", "-c", put], node=node)
    cluster.run(["scontrol", "reconfigure"])


@pytest.fixture
def lab(cgroup_lab):
    yield cgroup_lab
    cgroup_lab.cluster.run(["scancel", "--user=alice"])
    cgroup_lab.assert_healthy()
    cgroup_lab.assert_clean()
    left = partial(processes_of_steps, cgroup_lab.cluster)
    wait_until(lambda: not left(), "Slurm's groups are empty", explain=lambda: str(left()))


def processes_of_steps(cluster):
    """Return the processes of each group that Slurm has for a step, on all nodes.

    Empty groups are left out: Slurm tries to remove a group once, when its step ends, and leaves
    one in which a process has not yet ended (step_destroy of its cgroup_v2.c).
    """
    found = {}
    for root in control_groups.roots():
        for folder, _, _ in os.walk(root / cluster.state_dir.name):
            if "/step_" in folder and (processes := listed(Path(folder, "cgroup.procs"))):
                found[folder] = processes
    return found


def listed(path):
    """Read the processes of a group, which may be removed meanwhile."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def groups(pid):
    """Return the group of a process in each hierarchy, by controllers; version 2 is ""."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return {line.split(":")[1]: line.split(":", 2)[2] for line in lines}


def of_the_agent(lab, job):
    return [p for p in lab.cluster.processes("n1") if f"jobs/{job}" in p.command]


def with_command(lab, command):
    return [p for p in lab.cluster.processes("n1") if re.fullmatch(rf"(\S+/)?{command}", p.command)]


def assert_limited(lab, job, its):
    """Check that a task's groups are its step's."""
    if not lab.cluster.spec.cgroups:
        assert re.search(r"slurmstepd\.scope/[^/]+/step_0/", its[""]), its
        return
    for controller in LIMITED:
        assert re.search(rf"/slurm[^/]*/uid_\d+/job_{job}/step_0", its[controller]), its
    of_the_job = its["memory"].partition("/step_")[0]
    limit = control_groups.hierarchies()["memory"] / of_the_job[1:] / "memory.limit_in_bytes"
    assert int(limit.read_text()) == MEMORY_MIB << 20


def assert_apart(lab, job, command):
    """Check that a task is where Slurm limits and ends it, and that the agent is not."""
    wait_until(lambda: len(of_the_agent(lab, job)) > 2, "broker, supervisor and lender")
    [task] = wait_until(lambda: with_command(lab, command), "the task", timeout_s=30)
    assert_limited(lab, job, groups(task.pid))
    assert processes_of_steps(lab.cluster)
    for process in of_the_agent(lab, job):
        for group in groups(process.pid).values():
            assert "/slurm" not in group, process


def test_the_agent_of_a_job_is_in_none_of_its_groups(lab):
    job, running = lab.start_in_background(
        "--bootseer", f"--mem={MEMORY_MIB}M", command="exec sleep 61"
    )
    assert_apart(lab, job, "sleep 61")
    lab.end(job, running)


def test_the_agent_that_a_step_starts_survives_the_step(lab):
    script = "#!/bin/sh\nsrun --bootseer=step sleep 62\nexec sleep 63\n"
    job = lab.sbatch(script, "-N2", f"--mem={MEMORY_MIB}M")
    lab.wait_for_agents(job)
    agent = lab.agent("n1", job)
    assert_apart(lab, job, "sleep 62")
    lab.cluster.run(["scancel", f"{job}.0"])
    wait_until(lambda: with_command(lab, "sleep 63"), "the end of the step", timeout_s=30)
    assert lab.agent("n1", job) == agent
    lab.cluster.run(["scancel", str(job)])
    lab.cluster.wait_for_job(job)
    wait_until(lambda: not of_the_agent(lab, job), "the end of the agent")


def test_steps_see_image_and_checkpoint(lab):
    lab.put_image()
    image = (lab.images / "tiny.sqsh").read_bytes()
    (lab.cluster.shared / "tiny.sqsh").write_bytes(image)
    add = [site.bootseer(), "image", "import", "/shared/tiny.sqsh", "--name", "tiny", "-q"]
    lab.cluster.run(add, user="alice")
    lab.cluster.run(["mkdir", "/shared/run"], user="alice")
    script = f"#!/bin/sh\necho x > $BOOTSEER_CKPT/file\n{WHOLE}\nsrun -N1 sh -c '{WHOLE}'\n"
    options = ("--bootseer-image=bootseer://tiny", "--bootseer-ckpt=file:///shared/run")
    job = lab.sbatch(script, "-N1", f"--mem={MEMORY_MIB}M", "-e/dev/null", *options)
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    output = (lab.cluster.shared / f"{job}.out").read_text().split()
    assert output == [hashlib.sha256(image).hexdigest(), "-", "x"] * 2
