"""The local HDFS: real daemons, which can be ended, stopped and started again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bootseer.cli.dev import dev
from bootseer.errors import ConfigError, Corrupt, NotFound, Unavailable
from bootseer.testing.cluster import Cluster, ClusterSpec
from bootseer.testing.cluster.poll import wait_until
from bootseer.testing.cluster.spec import HEAD
from bootseer.testing.hdfs import Hdfs, conf, hadoop_jars, jars

NAME = f"hdfs-{os.getpid()}"
BUILD = Path(__file__).parents[1] / "build"
RATE = "80mbit"


@pytest.fixture(scope="module")
def hdfs():
    folder = hadoop_jars(BUILD)
    spec = ClusterSpec(name=NAME, nodes=0, datanodes=2, datanode_rate=RATE)
    with Cluster.up(spec) as cluster:
        yield Hdfs.start(cluster, folder)
    assert not spec.state_dir.exists()


def names(hdfs, folder):
    lines = hdfs.fs("-ls", "-C", folder).stdout.split()
    return [line.rpartition("/")[2] for line in lines]


@pytest.mark.root
@pytest.mark.hdfs
class TestTheDaemons:
    def test_users_have_a_folder_of_their_own(self, hdfs):
        hdfs.fs("-put", "/etc/hosts", "/user/alice/hosts", user="alice")
        assert "d2" in hdfs.fs("-cat", "/user/alice/hosts", user="alice").stdout
        refused = hdfs.fs("-put", "/etc/hosts", "/user/alice/more", user="mallory", check=False)
        assert refused.returncode != 0
        assert "Permission denied" in refused.stderr

    def test_a_datanode_is_killed_and_comes_back(self, hdfs):
        assert hdfs.live_datanodes() == {"d1", "d2"}
        hdfs.stop("d2")
        wait_until(lambda: hdfs.live_datanodes() == {"d1"}, "d2 called dead", timeout_s=30)
        hdfs.start_datanodes("d2")
        assert hdfs.live_datanodes() == {"d1", "d2"}

    def test_the_namenode_is_restarted_and_knows_its_files(self, hdfs):
        hdfs.fs("-put", "/etc/hosts", "/kept")
        hdfs.stop(HEAD, kill=False)
        assert not hdfs.is_writable()
        with pytest.raises(Unavailable):
            hdfs.jmx(HEAD, "Hadoop:service=NameNode,name=NameNodeInfo")
        hdfs.start_namenode()
        assert "kept" in names(hdfs, "/")

    def test_a_daemon_is_stopped_and_goes_on(self, hdfs):
        hdfs.signal("d1", "STOP")
        try:
            (pid,) = hdfs.daemon_pids("d1")
            assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        finally:
            hdfs.signal("d1", "CONT")
        wait_until(lambda: hdfs.live_datanodes() == {"d1", "d2"}, "d1 live", timeout_s=30)

    def test_figures_of_each_datanode_can_be_had(self, hdfs):
        before = [written(hdfs, name) for name in ("d1", "d2")]
        hdfs.fs("-D", "dfs.replication=2", "-put", "/etc/services", "/user/services")
        size = os.stat("/etc/services").st_size
        wait_until(
            lambda: [written(hdfs, name) for name in ("d1", "d2")] == [b + size for b in before],
            "both DataNodes' figures",
        )

    def test_a_links_rate_holds(self, hdfs):
        for name in ("d1", "d2"):
            assert (
                f"rate {RATE[:-4]}Mbit"
                in hdfs.cluster.run(["tc", "qdisc", "show", "dev", "eth0"], node=name).stdout
            )

    def test_it_can_be_found_again(self, hdfs):
        found = Hdfs.attach(Cluster.attach(NAME))
        assert found.live_datanodes() == {"d1", "d2"}
        answer = CliRunner().invoke(dev, ["hdfs", "status", "--name", NAME, "--json"])
        document = json.loads(answer.output)
        assert document["datanodes"] == {"d1": "live", "d2": "live"}
        assert document["url"] == conf.url()

    def test_nothing_of_it_listens_on_the_host(self, hdfs):
        listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        assert f":{conf.RPC_PORT:04X} " not in listening
        assert hdfs.cluster.is_listening(HEAD, conf.RPC_PORT)


def written(hdfs, name):
    bean = hdfs.jmx(name, "Hadoop:service=DataNode,name=DataNodeActivity*")
    return bean["BytesWritten"]


@pytest.mark.root
@pytest.mark.hdfs
def test_an_interrupted_start_leaves_nothing(tmp_path):
    name = f"{NAME}-cut"
    code = (
        "import sys; from pathlib import Path; from bootseer.testing.hdfs import *\n"
        "from bootseer.testing.cluster import *\n"
        "with Cluster.up(ClusterSpec(name=sys.argv[1], nodes=0, datanodes=2)) as cluster:\n"
        "    print('up', flush=True); Hdfs.start(cluster, Path(sys.argv[2]))\n"
    )
    argv = [sys.executable, "-c", code, name, str(hadoop_jars(BUILD))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as starting:
        assert starting.stdout.readline() == b"up\n"
        wait_until(
            lambda: b"namenode.NameNode\0" in started(), "the NameNode's format", timeout_s=30
        )
        starting.terminate()
    state_dir = ClusterSpec(name, nodes=0, datanodes=2).state_dir
    Cluster.remove(name)  # SIGTERM is not Python's to clean up after; this is
    assert not state_dir.exists()
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if name in _read(p)]
    assert left == []


def started():
    """Command lines of the Java programs that run now."""
    lines = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        lines += line if line.startswith(b"java") else b""
    return lines


def _read(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_a_cluster_without_hdfs_says_so():
    with pytest.raises(NotFound):
        Cluster.attach("none-of-this-name")
    with pytest.raises(ConfigError, match="without nodes and DataNodes"):
        ClusterSpec(nodes=0)
    with pytest.raises(ConfigError, match="not a link rate"):
        ClusterSpec(datanodes=1, datanode_rate="quick")


def test_jars_are_what_they_were_or_refused(tmp_path, monkeypatch):
    def fetch(work, folder):
        folder.mkdir()
        for jar in jars.JARS:
            (folder / jar.file_name).write_bytes(b"another")

    monkeypatch.setattr(jars, "_fetch", fetch)
    with pytest.raises(Corrupt, match="SHA-256"):
        hadoop_jars(tmp_path / "build")
    assert [path.name for path in (tmp_path / "build").iterdir()] == [".hadoop.lock"]


def test_without_maven_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="install the package maven"):
        hadoop_jars(tmp_path / "build")
