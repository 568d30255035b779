"""The local cluster: it works as a cluster, and nothing of it is left when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from bootseer_dev.cli.dev import dev
from bootseer_dev.cluster import Cluster, ClusterSpec, CommandFailed, wait_until
from bootseer_dev.cluster.slurm.configuration import example, fill_in, slurm_conf
from click.testing import CliRunner

from bootseer.errors import ConfigError, Conflict, NotFound, Unavailable

NAME = f"test-{os.getpid()}"


def test_spec_refuses_what_cannot_work() -> None:
    for fields in (
        {"name": "../etc"},
        {"users": ("Root",)},
        {"nodes": 0},
        {"cpus_per_node": 0},
        {"link_rate": "fast"},
    ):
        with pytest.raises(ConfigError):
            ClusterSpec(**fields)


def test_slurm_conf_is_the_example_filled_in() -> None:
    text = slurm_conf(ClusterSpec(name="x", nodes=4, slurm_conf_extra=("PrologFlags=Contain",)))
    assert "NodeName=n[1-4] CPUs=8 RealMemory=4096 State=UNKNOWN" in text
    assert text.rstrip().endswith("PrologFlags=Contain")
    settings = [line for line in text.splitlines() if not line.startswith("#")]
    assert not any("@" in line for line in settings)
    assert len(text.splitlines()) > len(example("slurm.conf").splitlines())
    with pytest.raises(NotFound, match="@CPUS@"):
        fill_in("CPUs=@CPUS@", {})


def test_wait_until_explains_itself() -> None:
    with pytest.raises(Unavailable, match=r"not within 0\.01 s: pigs fly\. they walk"):
        wait_until(lambda: False, "pigs fly", timeout_s=0.01, explain=lambda: "they walk")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.up(ClusterSpec(name=NAME, nodes=4, link_rate="800mbit")) as cluster:
        yield cluster


@pytest.mark.root
@pytest.mark.slurm
class TestACluster:
    def test_four_nodes_run_a_user_s_job(self, cluster: Cluster) -> None:
        result = cluster.run(["srun", "-N4", "hostname"], user="alice")
        assert sorted(result.stdout.split()) == ["n1", "n2", "n3", "n4"]

    def test_a_batch_job_completes_and_is_remembered(self, cluster: Cluster) -> None:
        submit = ["sbatch", "--parsable", "-N2", "--mem=100", "--wrap=srun id -un > out"]
        job_id = cluster.run(submit, user="mallory").stdout.strip()
        assert cluster.wait_for_job(job_id) == "COMPLETED"
        home = cluster.state_dir / "home" / "mallory"
        assert (home / "out").read_text().split() == ["mallory", "mallory"]
        assert job_id in cluster.run(["sacct", "-c"]).stdout

    def test_several_jobs_share_a_node(self, cluster: Cluster) -> None:
        command = ["srun", "-w", "n1", "sh", "-c", "echo here; read -r _"]
        jobs = [cluster.popen(command, user="alice", stdin=subprocess.PIPE) for _ in range(2)]
        for job in jobs:
            assert job.stdout is not None
            assert job.stdout.readline() == "here\n"
        for job in jobs:
            job.communicate("\n")
            assert job.returncode == 0

    def test_users_exist_inside_only(self, cluster: Cluster) -> None:
        assert cluster.run(["id", "-u", "alice"], node="n2").stdout == "20001\n"
        assert "alice:" not in Path("/etc/passwd").read_text()
        assert not Path("/home/alice").exists()

    def test_homes_are_shared_and_private_to_their_users(self, cluster: Cluster) -> None:
        cluster.run(["sh", "-c", "echo hi > note"], user="alice", node="n1")
        assert cluster.run(["cat", "note"], user="alice", node="n4").stdout == "hi\n"
        with pytest.raises(CommandFailed, match="Permission denied"):
            cluster.run(["cat", "/home/alice/note"], user="mallory", node="n1")

    def test_the_caller_s_environment_stays_outside(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET", "x")
        printed = cluster.run(["env"], user="alice", env={"GIVEN": "y"}).stdout
        assert {line.partition("=")[0] for line in printed.splitlines()} == {
            *("HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH", "GIVEN")
        }

    def test_folders_are_shared_or_private_as_on_real_nodes(self, cluster: Cluster) -> None:
        (cluster.etc_bootseer / "made-outside").touch()
        script = "touch /shared/$0 /run/$0 /var/cache/bootseer/$0; ls /etc/bootseer"
        for node in ("n1", "n2"):
            assert cluster.run(["sh", "-c", script, node], node=node).stdout == "made-outside\n"
        assert {"n1", "n2"} <= {entry.name for entry in cluster.shared.iterdir()}
        for folder in ("/run", "/var/cache/bootseer"):
            listed = cluster.run(["ls", folder], node="n1").stdout.split()
            assert "n1" in listed
            assert "n2" not in listed
        assert cluster.shared.stat().st_mode & 0o7777 == 0o1777
        assert not Path("/etc/bootseer/made-outside").exists()

    def test_what_is_installed_in_usr_local_is_the_cluster_s(self, cluster: Cluster) -> None:
        """`bootseer plugin install` in a cluster wrote to the host's /usr/local/libexec."""
        host = sorted(Path("/usr/local").iterdir())
        assert cluster.run(["ls", "/usr/local"]).stdout.split() == [p.name for p in host]
        folder = f"/usr/local/libexec/{NAME}"
        cluster.run(["mkdir", "-p", folder])
        assert cluster.run(["ls", "-d", folder], node="n2").stdout == f"{folder}\n"
        assert not Path(folder).exists()
        assert sorted(Path("/usr/local").iterdir()) == host

    def test_links_are_limited_both_ways(self, cluster: Cluster) -> None:
        for node, device in ((None, "to-n3"), ("n3", "eth0")):
            shown = cluster.run(["tc", "qdisc", "show", "dev", device], node=node).stdout
            assert "tbf" in shown
            assert "800Mbit" in shown

    def test_slurmd_can_be_killed_and_started_again(self, cluster: Cluster) -> None:
        def daemons() -> set[int]:
            found = cluster.processes("n2")
            return {process.pid for process in found if process.command == "slurmd"}

        before = daemons()
        cluster.stop_slurmd("n2", kill=True)
        assert not daemons()
        cluster.start_slurmd("n2")
        cluster.restart_slurmd("n2")
        assert len(daemons()) == 1
        assert daemons().isdisjoint(before)
        assert cluster.run(["srun", "-w", "n2", "hostname"]).stdout == "n2\n"

    def test_a_command_ends_with_its_wrapper(self, cluster: Cluster) -> None:
        command = cluster.popen(["sleep", "1000"], node="n3")
        wait_until(lambda: _runs(cluster, "n3", "sleep 1000"), "the command runs")
        command.kill()
        command.communicate()
        wait_until(lambda: not _runs(cluster, "n3", "sleep 1000"), "the command ended")

    def test_orphans_are_reaped(self, cluster: Cluster) -> None:
        cluster.run(["sh", "-c", "setsid --fork true"], node="n1")
        wait_until(lambda: not any(_zombies(cluster)), "no zombies are left")

    def test_names_do_not_collide(self, cluster: Cluster) -> None:
        assert Cluster.attach(NAME).machine_pids == cluster.machine_pids
        with pytest.raises(Conflict, match="take it down first"):
            Cluster.up(ClusterSpec(name=NAME))
        assert set(cluster.node_states()) == set(cluster.node_names)


def _runs(cluster: Cluster, node: str, command: str) -> bool:
    return any(process.command == command for process in cluster.processes(node))


def _zombies(cluster: Cluster) -> Iterator[int]:
    for pid in _members(_pid_namespace(cluster.keeper_pid)):
        with suppress(FileNotFoundError):  # reaped meanwhile
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                yield pid


@pytest.mark.root
@pytest.mark.slurm
class TestItsEnd:
    def test_the_command_line_brings_up_and_down(self) -> None:
        name = f"{NAME}-cli"
        links, namespaces = _host_links()
        _dev("up", "--name", name, "--nodes", "1", "--slurm-conf", "PrologFlags=Alloc,Contain")
        try:
            cluster = Cluster.attach(name)
            members = _pid_namespace(cluster.keeper_pid)
            assert json.loads(_dev("status", "--name", name, "--json"))["nodes"] == {"n1": "idle"}
            assert name not in Path("/proc/self/mounts").read_text()
            assert (links, namespaces) == _host_links()
        finally:
            _dev("down", "--name", name)
        _dev("down", "--name", name)
        assert not cluster.state_dir.exists()
        wait_until(lambda: not _members(members), "init has reaped the keeper")
        assert (links, namespaces) == _host_links()
        with pytest.raises(NotFound):
            Cluster.attach(name)

    def test_a_killed_keeper_takes_all_with_it(self) -> None:
        cluster = Cluster.up(ClusterSpec(name=f"{NAME}-kill", nodes=1))
        members = _pid_namespace(cluster.keeper_pid)
        assert len(_members(members)) > 4
        os.kill(cluster.keeper_pid, signal.SIGKILL)
        wait_until(lambda: not _members(members), "all processes ended")
        assert cluster.state_dir.exists()
        # What is left does not hinder the next one.
        with Cluster.up(ClusterSpec(name=f"{NAME}-kill", nodes=1)) as again:
            assert again.keeper_pid != cluster.keeper_pid
        assert not cluster.state_dir.exists()

    @pytest.mark.parametrize("moment", ["etc", "keeper.pid", "machines/n1/log/slurm/slurmd.log"])
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_an_interrupted_start_leaves_nothing(self, moment: str, number: signal.Signals) -> None:
        spec = ClusterSpec(name=f"{NAME}-break", nodes=2)
        script = (
            "from bootseer_dev.cluster import Cluster, ClusterSpec\n"
            f"Cluster.up(ClusterSpec({spec.name!r}, nodes=2))"
        )
        starting = subprocess.Popen([sys.executable, "-I", "-c", script], stderr=subprocess.PIPE)
        wait_until((spec.state_dir / moment).exists, f"{moment} is there")
        starting.send_signal(number)
        starting.communicate()
        assert starting.returncode != 0
        wait_until(lambda: not _keepers(spec.name), "the keeper ended")
        assert spec.state_dir.exists() == (number == signal.SIGKILL)
        Cluster.remove(spec.name)
        assert not spec.state_dir.exists()


def _dev(*words: str) -> str:
    result = CliRunner().invoke(dev, ["cluster", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def _pid_namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


def _members(namespace: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and _pid_namespace(int(folder.name)) == namespace:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _keepers(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if "cluster.namespaces.keeper" in text and f'"{name}"' in text:
            found.append(text)
    return found


def _host_links() -> tuple[str, str]:
    """Return the names of the host's network devices and named network namespaces."""
    links = sorted(entry.name for entry in Path("/sys/class/net").iterdir())
    netns = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    return " ".join(links), netns.stdout
