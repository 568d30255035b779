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
from bootseer_dev.cli.dev import dev
from bootseer_dev.cluster import Cluster, ClusterSpec, CommandFailed
from bootseer_dev.cluster.machines import Machines
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.spec import HEAD, address
from bootseer_dev.hdfs import Hdfs, HdfsSettings, conf, hadoop_jars, jars
from bootseer_dev.jobs import site
from click.testing import CliRunner

from bootseer.errors import ConfigError, Corrupt, Denied, NotFound, Unavailable

NAME = f"hdfs-{os.getpid()}"
BUILD = Path(__file__).parents[1] / "build"
RATE = "80mbit"
RATE_BYTES_PER_S = 10e6
BLOCK = 1 << 20
USER = 64321
"""An ordinary user, whom nobody else is."""


def refusal(*prefix):
    """Why no user namespace can be made, "" if one can."""
    argv = [*prefix, "unshare", "--user", "--map-root-user", "--mount", "true"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr.strip()


@pytest.fixture(scope="module")
def hdfs():
    folder = hadoop_jars(BUILD)
    spec = ClusterSpec(name=NAME, nodes=0, datanodes=2, datanode_rate=RATE)
    with Cluster.up(spec) as cluster:
        yield Hdfs.start(cluster, folder, HdfsSettings(block_bytes=BLOCK))
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

    @pytest.mark.faults
    def test_a_datanode_is_killed_and_comes_back(self, hdfs):
        assert hdfs.live_datanodes() == {"d1", "d2"}
        hdfs.stop("d2")
        wait_until(lambda: hdfs.live_datanodes() == {"d1"}, "d2 called dead", timeout_s=30)
        hdfs.start_datanodes("d2")
        assert hdfs.live_datanodes() == {"d1", "d2"}
        assert hdfs.active_namenode() == HEAD

    @pytest.mark.faults
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
        before = [hdfs.traffic(name) for name in ("d1", "d2")]
        put(hdfs, "/counted", bytes(BLOCK + 5))

        def more():
            pairs = zip(before, map(hdfs.traffic, ("d1", "d2")), strict=True)
            return [tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairs]

        # Both have written it all, and nobody has read.
        wait_until(
            lambda: more() == [(0, BLOCK + 5)] * 2,
            "both wrote",
            timeout_s=60,
            explain=lambda: str(more()),
        )
        read(hdfs, "d1", "/counted")
        wait_until(
            lambda: sum(r for r, _ in more()) >= BLOCK + 5,
            "they were read",
            timeout_s=60,
            explain=lambda: str(more()),
        )

    def test_the_namenode_s_calls_are_counted_at_once(self, hdfs):
        hdfs.fs("-touchz", "/asked")
        before = hdfs.calls()
        assert hdfs.calls()["GetFileInfo"] == before["GetFileInfo"]
        hdfs.fs("-test", "-e", "/asked")
        assert hdfs.calls()["GetFileInfo"] == before["GetFileInfo"] + 1

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

    def test_blocks_can_be_located_over_http(self, hdfs):
        put(hdfs, "/user/two blocks", bytes(2 * BLOCK))
        located = hdfs.webhdfs("/user/two blocks", "GETFILEBLOCKLOCATIONS", offset=f"{BLOCK}")
        (block,) = located["BlockLocations"]["BlockLocation"]
        assert (block["offset"], block["length"]) == (BLOCK, BLOCK)
        assert set(block["hosts"]) == {address("d1"), address("d2")}
        with pytest.raises(NotFound, match="/user/nowhere"):
            hdfs.webhdfs("/user/nowhere", "GET_BLOCK_LOCATIONS")
        with pytest.raises(Unavailable, match="400"):
            hdfs.webhdfs("/", "NO_SUCH_THING")

    def test_a_damaged_replica_is_found_out(self, hdfs):
        data = os.urandom(BLOCK + 100)
        put(hdfs, "/damaged", data)
        replicas = hdfs.replicas("/damaged")
        assert [(r.machine, r.start) for r in replicas] == [
            *(("d1", 0), ("d2", 0), ("d1", BLOCK), ("d2", BLOCK))
        ]
        assert [r.path.stat().st_size for r in replicas] == [r.size_bytes for r in replicas]
        replicas[2].damage(10, 2)
        stored = replicas[2].path.read_bytes()
        assert [i for i in range(100) if stored[i] != data[BLOCK + i]] == [10, 11]
        # One copy is whole, until that is damaged, too.
        hdfs.fs("-get", "/damaged", "/shared/whole")
        assert (hdfs.cluster.shared / "whole").read_bytes() == data
        hdfs.stop("d1")
        try:
            replicas[3].damage()
            with pytest.raises(CommandFailed, match="hecksum"):
                hdfs.fs("-get", "/damaged", "/shared/broken")
        finally:
            hdfs.start_datanodes("d1")
        with pytest.raises(ValueError, match="not in a block of 100"):
            replicas[3].damage(99, 2)

    def test_a_folder_s_quota_holds(self, hdfs):
        hdfs.fs("-mkdir", "/narrow")
        hdfs.admin("-setSpaceQuota", "1k", "/narrow")
        with pytest.raises(CommandFailed, match="quota of /narrow is exceeded"):
            put(hdfs, "/narrow/file", bytes(2000))

    def test_it_can_be_found_again(self, hdfs):
        found = Hdfs.attach(Cluster.attach(NAME))
        assert found.live_datanodes() == {"d1", "d2"}
        answer = CliRunner().invoke(dev, ["hdfs", "status", "--name", NAME, "--json"])
        document = json.loads(answer.output)
        assert document["datanodes"] == {
            name: {"state": "live", "address": address(name), "rate": RATE} for name in ("d1", "d2")
        }
        assert document["namenodes"] == {
            HEAD: {"state": "active", "address": address(HEAD), "rate": None}
        }
        assert document["url"] == hdfs.url
        assert document["writable"]

    def test_nothing_of_it_listens_on_the_host(self, hdfs):
        listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        assert f":{conf.RPC_PORT:04X} " not in listening
        assert hdfs.cluster.is_listening(HEAD, conf.RPC_PORT)


def read(hdfs, machine, path):
    """Read a file through one DataNode, which has all of it."""
    connection = http.client.HTTPConnection(address(machine), conf.DATANODE_HTTP_PORT)
    connection.sock = hdfs.cluster.connect(address(machine), conf.DATANODE_HTTP_PORT, timeout_s=30)
    namenode = hdfs.url.removeprefix("hdfs://")
    connection.request("GET", f"/webhdfs/v1{path}?op=OPEN&namenoderpcaddress={namenode}&offset=0")
    response = connection.getresponse()
    data = response.read()
    connection.close()
    assert response.status == 200, data
    return data


@pytest.fixture(scope="class")
def pair():
    spec = ClusterSpec(name=f"{NAME}-pair", nodes=0, datanodes=1, namenodes=2)
    with Cluster.up(spec) as cluster:
        yield Hdfs.start(cluster, hadoop_jars(BUILD))


@pytest.mark.hdfs
@pytest.mark.faults
class TestTwoNameNodes:
    def test_they_take_turns(self, pair):
        first = pair.active_namenode()
        (second,) = {"head", "head2"} - {first}
        assert pair.state(second) == "standby"
        pair.fs("-touchz", "/before")
        assert pair.fail_over() == second
        assert (pair.state(first), pair.state(second)) == ("standby", "active")
        pair.fs("-touchz", "/between")
        assert pair.fail_over() == first
        assert names(pair, "/") == ["before", "between", "user"]

    def test_one_that_hangs_is_ended_before_the_other_takes_over(self, pair):
        active = pair.active_namenode()
        pair.signal(active, "STOP")
        other = pair.fail_over()
        assert not pair.daemon_pids(active)
        assert pair.active_namenode() == other != active
        assert pair.is_writable()
        with pytest.raises(Unavailable, match="no other NameNode that answers"):
            pair.fail_over()
        pair.start_namenode(active)
        assert pair.state(active) == "standby"


@pytest.mark.hdfs
def test_the_commands_bring_it_up_and_down():
    name = f"{NAME}-cli"
    options = ("--datanodes", "1", "--rate", RATE, "--replication", "1", "--block-size", "2MiB")
    try:
        said = command("up", name, *options, "--build-dir", BUILD)
        assert "hdfs://10.77.0.1:8020 with 1 DataNodes after" in said
        assert f"d1     live     10.77.2.1    {RATE}" in command("status", name).splitlines()
        put_as = ("--user", "alice", "--", "-put", "/etc/hosts", "/user/alice/hosts")
        command("fs", name, *put_as)
        stat = command("fs", name, "--", "-stat", "%u %o %r", "/user/alice/hosts")
        assert stat.split() == ["alice", f"{2 << 20}", "1"]
        web = "http://10.77.0.1:9870/webhdfs/v1/user/alice?op=LISTSTATUS"
        code = f"import urllib.request as u; print(u.urlopen({web!r}).read().decode())"
        listed = json.loads(
            command("run", name, "--node", "d1", "--", sys.executable, "-P", "-c", code)
        )
        assert listed["FileStatuses"]["FileStatus"][0]["pathSuffix"] == "hosts"
        # A client finds the configuration, and is who it is told to be.
        client = "import hdfs_native; client = hdfs_native.Client(); path = '/user/alice/own'; "
        make = f"{client}client.create(path).close()"
        command("run", name, "--user", "alice", "--", sys.executable, "-P", "-c", make)
        show = f"{client}print(client.get_file_info(path).owner)"
        assert command("run", name, "--", sys.executable, "-P", "-c", show) == "alice\n"
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
def test_an_interrupted_start_leaves_nothing():
    name = f"{NAME}-cut"
    code = (
        "import sys; from pathlib import Path; from bootseer_dev.hdfs import *\n"
        "from bootseer_dev.cluster import *\n"
        "with Cluster.up(ClusterSpec(name=sys.argv[1], nodes=0, datanodes=2)) as cluster:\n"
        "    print('up', flush=True); Hdfs.start(cluster, Path(sys.argv[2]))\n"
    )
    argv = [sys.executable, "-I", "-c", code, name, str(hadoop_jars(BUILD))]
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
@pytest.mark.faults
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
                *("-k", "not TestTwoNameNodes"),
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
    tmp_path.chmod(0o755)
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


def test_settings_are_refused_that_hdfs_would_refuse():
    with pytest.raises(ConfigError, match="multiple of 512"):
        HdfsSettings(block_bytes=100_000)
    with pytest.raises(ConfigError, match="at least 65536"):
        HdfsSettings(block_bytes=512)
    with pytest.raises(ConfigError, match="2 DataNodes cannot keep 3 copies"):
        HdfsSettings(replication=3).copies(ClusterSpec(datanodes=2))
    with pytest.raises(ConfigError, match="cannot keep 0 copies"):
        HdfsSettings(replication=0).copies(ClusterSpec(datanodes=2))
    with pytest.raises(ConfigError, match="one NameNode or two, not 3"):
        ClusterSpec(datanodes=1, namenodes=3)


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
