"""The local HDFS: real daemons, which can be ended, stopped and started again.

What needs no root is tested twice, as root and as an ordinary user: `test_an_ordinary_user_…`.
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from bootseer.cli.dev import dev
from bootseer.errors import ConfigError, Corrupt, Denied, NotFound, Unavailable
from bootseer.testing import site
from bootseer.testing.cluster import Cluster, ClusterSpec
from bootseer.testing.cluster.machines import Machines
from bootseer.testing.cluster.poll import wait_until
from bootseer.testing.cluster.spec import HEAD, address
from bootseer.testing.hdfs import Hdfs, conf, hadoop_jars, jars

NAME = f"hdfs-{os.getpid()}"
BUILD = Path(__file__).parents[1] / "build"
RATE = "80mbit"
RATE_BYTES_PER_S = 10e6
USER = 64321
"""An ordinary user, whom nobody else is."""


def refusal(*prefix):
    """Why no user namespace can be made, "" if one can."""
    argv = [*prefix, "unshare", "--user", "--map-root-user", "--mount", "true"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr.strip()


@pytest.fixture(scope="module")
def namespaces():
    """The right to make a cluster's namespaces: root's, or the kernel's consent."""
    if os.geteuid() and (why := refusal()):
        pytest.skip(f"no user namespaces for ordinary users: {why}")


@pytest.fixture(scope="module")
def hdfs(namespaces):
    folder = hadoop_jars(BUILD)
    spec = ClusterSpec(name=NAME, nodes=0, datanodes=2, datanode_rate=RATE)
    with Cluster.up(spec) as cluster:
        yield Hdfs.start(cluster, folder)
    assert not spec.state_dir.exists()


def names(hdfs, folder):
    lines = hdfs.fs("-ls", "-C", folder).stdout.split()
    return [line.rpartition("/")[2] for line in lines]


def put(hdfs, path, data, *options):
    """Write a file by way of a folder that all machines see."""
    source = hdfs.cluster.shared / "data"
    source.write_bytes(data)
    hdfs.fs(*options, "-put", "-f", "/shared/data", path)


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
        for node, device in (("d1", "eth0"), (None, "to-d1")):
            shown = hdfs.cluster.run(["tc", "qdisc", "show", "dev", device], node=node).stdout
            assert f"rate {RATE[:-4]}Mbit" in shown
        size = 6 << 20
        put(hdfs, "/timed", bytes(size))
        began = time.monotonic()
        assert read(hdfs, "d1", "/timed") == bytes(size)
        # A burst may pass at once.
        assert time.monotonic() - began > 0.9 * (size - (256 << 10)) / RATE_BYTES_PER_S

    def test_it_can_be_found_again(self, hdfs):
        found = Hdfs.attach(Cluster.attach(NAME))
        assert found.live_datanodes() == {"d1", "d2"}
        answer = CliRunner().invoke(dev, ["hdfs", "status", "--name", NAME, "--json"])
        document = json.loads(answer.output)
        assert document["datanodes"] == {"d1": "live", "d2": "live"}
        assert document["url"] == hdfs.url

    def test_nothing_of_it_listens_on_the_host(self, hdfs):
        listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        assert f":{conf.RPC_PORT:04X} " not in listening
        assert hdfs.cluster.is_listening(HEAD, conf.RPC_PORT)


def written(hdfs, name):
    bean = hdfs.jmx(name, "Hadoop:service=DataNode,name=DataNodeActivity*")
    return bean["BytesWritten"]


def read(hdfs, machine, path):
    """Read a file through one DataNode, which has all of it."""
    connection = http.client.HTTPConnection(address(machine), conf.DATANODE_HTTP_PORT)
    connection.sock = hdfs.cluster.connect(address(machine), conf.DATANODE_HTTP_PORT, timeout_s=30)
    namenode = hdfs.url.removeprefix("hdfs://")
    connection.request("GET", f"/webhdfs/v1{path}?op=OPEN&namenoderpcaddress={namenode}&offset=0")
    data = connection.getresponse().read()
    connection.close()
    return data


@pytest.mark.hdfs
def test_the_commands_bring_it_up_and_down(namespaces):
    name = f"{NAME}-cli"
    options = ("--datanodes", "1", "--rate", RATE)
    try:
        said = command("up", name, *options, "--build-dir", BUILD)
        assert "hdfs://10.77.0.1:8020 with 1 DataNodes after" in said
        assert "d1  live" in command("status", name).splitlines()
        put_as = ("--user", "alice", "--", "-put", "/etc/hosts", "/user/alice/hosts")
        command("fs", name, *put_as)
        stat = command("fs", name, "--", "-stat", "%u %r", "/user/alice/hosts")
        assert stat.split() == ["alice", "1"]
        web = "http://10.77.0.1:9870/webhdfs/v1/user/alice?op=LISTSTATUS"
        code = f"import urllib.request as u; print(u.urlopen({web!r}).read().decode())"
        listed = json.loads(command("run", name, "--node", "d1", "--", sys.executable, "-c", code))
        assert listed["FileStatuses"]["FileStatus"][0]["pathSuffix"] == "hosts"
        cluster = Cluster.attach(name)
        inside = os.readlink(f"/proc/{cluster.keeper_pid}/ns/pid")
        assert members(inside)
    finally:
        command("down", name)
    assert not members(inside)
    assert not cluster.state_dir.exists()
    assert name not in Path("/proc/self/mounts").read_text()


def command(verb, name, *words):
    argv = [site.bootseer(), "dev", "hdfs", verb, "--name", name, *words]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout


def members(pid_namespace):
    """The processes in a PID namespace, zombies left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            inside = os.readlink(folder / "ns" / "pid") == pid_namespace
            if inside and "\nState:\tZ" not in (folder / "status").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.hdfs
def test_an_interrupted_start_leaves_nothing(namespaces):
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
            lambda: b"namenode.NameNode\0-format\0" in started(),
            "the NameNode's format",
            timeout_s=30,
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


@pytest.mark.root
@pytest.mark.hdfs
@pytest.mark.slow
def test_an_ordinary_user_gets_the_same():
    as_user = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
    if why := refusal(*as_user):
        pytest.skip(f"no user namespaces for ordinary users: {why}")
    place = Path(tempfile.mkdtemp(prefix="bootseer-test-", dir="/var/tmp"))
    try:
        # A checkout may be closed to others.
        shutil.copytree(hadoop_jars(BUILD), place / "build" / f"hadoop-{jars.HADOOP_VERSION}")
        shutil.copy(Path(__file__).parents[1] / "pyproject.toml", place)
        (place / "tests").mkdir()
        copy = shutil.copy(__file__, place / "tests")
        subprocess.run(["chown", "-R", f"{USER}:{USER}", place], check=True)
        done = subprocess.run(
            [
                *(*as_user, sys.executable, "-m", "pytest", copy, "-m", "hdfs and not root"),
                *("-p", "no:cacheprovider", f"--basetemp={place / 'tmp'}", "-q"),
            ],
            cwd=place,
            env={"PATH": "/usr/bin:/bin", "HOME": str(place), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert " passed" in done.stdout
        assert "skipped" not in done.stdout
    finally:
        shutil.rmtree(place)
    assert list(Path("/var/tmp").glob(f"bootseer-cluster-{USER}-*")) == []
    wait_until(lambda: not processes_of(USER), "the user's processes ended")


def processes_of(uid):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == uid:
                found.append(folder.name)
        except OSError:
            continue
    return found


@pytest.mark.root
@pytest.mark.hdfs
def test_where_user_namespaces_are_forbidden_the_setting_is_named(tmp_path):
    name = f"{NAME}-forbidden"
    (tmp_path / f"hadoop-{jars.HADOOP_VERSION}").mkdir()
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    # The limit is that of a user namespace, which has the host's users.
    with subprocess.Popen(["unshare", "--user", "cat"], stdin=subprocess.PIPE) as holder:
        host = os.readlink("/proc/self/ns/user")
        wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/user") != host, "its namespace")
        for kind in ("uid", "gid"):
            Path(f"/proc/{holder.pid}/{kind}_map").write_text("0 0 70000")
        script = (
            'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --reuid="$1" '
            '--regid="$1" --clear-groups "$2" dev hdfs up --name "$3" --build-dir "$4"'
        )
        words = ("-", str(USER), site.bootseer(), name, str(tmp_path))
        started = subprocess.run(
            ["nsenter", f"--target={holder.pid}", "--user", "sh", "-c", script, *words],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        holder.communicate()
    assert started.returncode == Unavailable.exit_code, started.stderr
    assert "set sysctl user.max_user_namespaces=15000, or be root" in started.stderr
    assert not ClusterSpec(name, nodes=0, datanodes=1, owner=USER).state_dir.exists()


def test_what_needs_root_says_so():
    with pytest.raises(Denied, match="run this as root"):
        Cluster.up(ClusterSpec(nodes=1, owner=USER))
    spec = ClusterSpec(nodes=0, datanodes=1, owner=USER)
    machines = Machines(spec, 1, {HEAD: 1})
    with pytest.raises(Denied, match="only as root"):
        machines.command(["true"], user="alice")
    with pytest.raises(Denied, match="run it there instead"), machines.network():
        pass


def test_users_clusters_do_not_collide():
    folders = {ClusterSpec("same", owner=uid).state_dir for uid in (0, 1000, 1001)}
    assert len(folders) == 3


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


def test_a_folder_that_is_closed_is_named(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(Denied, match=r"into .*build: Permission denied; choose another folder"):
        hadoop_jars(tmp_path / "build")
