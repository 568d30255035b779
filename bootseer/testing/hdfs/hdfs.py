"""A running HDFS, as tests and the command line handle it."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bootseer.errors import NotFound, Unavailable
from bootseer.testing.cluster.machines import Machines
from bootseer.testing.cluster.poll import wait_until
from bootseer.testing.cluster.spec import HEAD, address
from bootseer.testing.hdfs import conf

NAMENODE = "namenode"
DATANODE = "datanode"
CONF_DIR = "/etc/hadoop"

_MAIN = {
    NAMENODE: "org.apache.hadoop.hdfs.server.namenode.NameNode",
    DATANODE: "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
_SHELL = "org.apache.hadoop.fs.FsShell"
# Little memory and a quick start: these daemons are many, and live for a test.
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_DAEMON_JVM = ("-Xmx160m", f"-Djava.io.tmpdir={conf.DATA_DIR}/tmp")
_SHELL_JVM = ("-Xmx512m",)
_START_TIMEOUT_S = 60
_LOG4J = """log4j.rootLogger=INFO,out
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""
# Figures are those of a second ago; by default they are ten seconds old.
_METRICS = "*.period=1\n"
_CLASSPATH = "classpath"


@dataclass(frozen=True, slots=True)
class Hdfs:
    """The NameNode on a cluster's head and a DataNode on each of its machines for them.

    They end with the cluster. The superuser is root, who in an ordinary user's cluster is that
    user.

    Attributes:
        cluster: whose machines they are on.
        jars: folder of Hadoop's jars.
    """

    cluster: Machines
    jars: Path

    @classmethod
    def start(cls, cluster: Machines, jars: Path) -> Hdfs:
        """Format a new file system, start all daemons, and return when all DataNodes are known.

        Every user of the cluster gets a folder ``/user/NAME``.

        Args:
            cluster: with DataNodes' machines.
            jars: what `hadoop_jars` returned.

        Raises:
            Unavailable: a daemon did not start; the text names its log.
        """
        hdfs = cls(cluster, jars)
        hdfs._configure()
        hdfs._make_tmp(HEAD)
        words = ("-format", "-force", "-nonInteractive")
        cluster.run(hdfs._command(_MAIN[NAMENODE], *words, jvm=_DAEMON_JVM))
        hdfs.start_namenode(wait=False)
        hdfs.start_datanodes()
        hdfs.make_homes()
        return hdfs

    @classmethod
    def attach(cls, cluster: Machines) -> Hdfs:
        """Return the HDFS that was started on a cluster.

        Raises:
            NotFound: there is none.
        """
        noted = cluster.state_dir / "etc" / "hadoop" / _CLASSPATH
        if not noted.exists():
            raise NotFound(
                f"cluster {cluster.spec.name!r} has no HDFS; start one with `bootseer dev hdfs up`"
            )
        return cls(cluster, Path(noted.read_text().removesuffix("/*")))

    @property
    def url(self) -> str:
        """The URL of its root, which only the cluster's machines reach."""
        return conf.url()

    # --- Daemons ---

    def start_namenode(self, *, wait: bool = True) -> None:
        """Start the NameNode, with what it knew before.

        Args:
            wait: until it has left safe mode with all DataNodes that it waits for.
        """
        self._start_daemon(HEAD, NAMENODE)
        if wait:
            self._wait(self.is_writable, "the NameNode out of safe mode", NAMENODE)

    def start_datanodes(self, *names: str) -> None:
        """Start DataNodes, by default all, and wait until the NameNode knows them."""
        names = names or self.cluster.spec.datanode_names
        for name in names:
            self._start_daemon(name, DATANODE)
        wanted = set(names)
        self._wait(lambda: wanted <= self.live_datanodes(), f"{sorted(wanted)} live", DATANODE)
        self._wait(self.is_writable, "the NameNode out of safe mode", NAMENODE)

    def stop(self, machine: str, *, kill: bool = True) -> None:
        """End the daemon on a machine, the head's or a DataNode's, and wait until it is gone.

        Args:
            machine: where.
            kill: with SIGKILL instead of SIGTERM.
        """
        role = NAMENODE if machine == HEAD else DATANODE
        signal = "KILL" if kill else "TERM"
        self.signal(machine, signal)
        wait_until(
            lambda: not self.daemon_pids(machine), f"the {role} on {machine} ended", timeout_s=30
        )

    def signal(self, machine: str, name: str) -> None:
        """Send a signal, ``STOP`` or ``CONT`` for one, to the daemon on a machine."""
        for pid in self.daemon_pids(machine):
            subprocess.run(["kill", f"-{name}", str(pid)], check=True)

    def daemon_pids(self, machine: str) -> list[int]:
        """The daemons on a machine, as the host counts: one, or none when it has ended."""
        return [
            process.pid
            for process in self.cluster.processes(machine)
            if process.command.startswith("java ")
            and any(main in process.command for main in _MAIN.values())
        ]

    # --- What it says ---

    def jmx(self, machine: str, bean: str) -> dict[str, Any]:
        """Ask a daemon's web server for the figures under a name.

        Args:
            machine: the head for the NameNode, or a DataNode's.
            bean: as in ``Hadoop:service=NameNode,name=FSNamesystem``; may end in ``*``.

        Raises:
            Unavailable: it does not answer.
        """
        port = conf.HTTP_PORT if machine == HEAD else conf.DATANODE_HTTP_PORT
        connection = http.client.HTTPConnection(address(machine), port, timeout=5)
        try:
            connection.sock = self.cluster.connect(address(machine), port)
            connection.request("GET", f"/jmx?qry={bean}")
            beans = json.loads(connection.getresponse().read())["beans"]
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            raise Unavailable(f"the daemon on {machine} does not answer: {error}") from error
        finally:
            connection.close()
        found: dict[str, Any] = beans[0] if beans else {}
        return found

    def live_datanodes(self) -> set[str]:
        """Name the machines whose DataNodes the NameNode calls live."""
        try:
            info = self.jmx(HEAD, "Hadoop:service=NameNode,name=NameNodeInfo")
        except Unavailable:
            return set()
        live = json.loads(info.get("LiveNodes", "{}"))
        by_address = {address(name): name for name in self.cluster.spec.datanode_names}
        hosts = (node["xferaddr"].rpartition(":")[0] for node in live.values())
        return {by_address[host] for host in hosts if host in by_address}

    def is_writable(self) -> bool:
        """Whether the NameNode answers and is out of safe mode."""
        try:
            info = self.jmx(HEAD, "Hadoop:service=NameNode,name=NameNodeInfo")
        except Unavailable:
            return False
        return info.get("Safemode") == ""

    # --- Hadoop's own command ---

    def fs(
        self,
        *arguments: str,
        user: str = "root",
        node: str | None = None,
        check: bool = True,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``hadoop fs ARGUMENTS``.

        Raises:
            CommandFailed: `check` is set and the exit code is not 0.
        """
        argv = self.fs_command(*arguments)
        user, env = self.login(user)
        return self.cluster.run(
            argv, user=user, node=node, env=env, check=check, timeout_s=timeout_s
        )

    def fs_command(self, *arguments: str) -> list[str]:
        """Return the command line of ``hadoop fs ARGUMENTS``, for a machine of the cluster."""
        return self._command(_SHELL, *arguments, jvm=_SHELL_JVM)

    def login(self, user: str) -> tuple[str, Mapping[str, str]]:
        """How to be this user of HDFS: a user of the machines, and variables of the environment.

        An ordinary user's cluster has no users but root, and its HDFS believes what it is told.
        """
        if self.cluster.spec.is_rootless:
            return conf.SUPERUSER, {"HADOOP_USER_NAME": user}
        return user, {}

    def make_homes(self) -> None:
        """Give every user of the cluster a folder of their own."""
        users = self.cluster.spec.users
        self.fs("-mkdir", "-p", *(f"/user/{user}" for user in users))
        for user in users:
            self.fs("-chown", f"{user}:{user}", f"/user/{user}")

    # --- How ---

    def _configure(self) -> None:
        folder = self.cluster.state_dir / "etc" / "hadoop"
        (folder / "core-site.xml").write_text(conf.xml(conf.core_site()))
        hdfs = conf.hdfs_site(self.cluster.spec.datanodes)
        (folder / "hdfs-site.xml").write_text(conf.xml(hdfs))
        (folder / "log4j.properties").write_text(_LOG4J)
        (folder / "hadoop-metrics2.properties").write_text(_METRICS)
        (folder / _CLASSPATH).write_text(f"{self.jars}/*")

    def _start_daemon(self, machine: str, role: str) -> None:
        self._make_tmp(machine)
        own = f"-D{conf.ADDRESS}={address(machine)}"
        argv = self._command(_MAIN[role], jvm=(*_DAEMON_JVM, own))
        script = 'setsid "$@" >>"$0" 2>&1 </dev/null &'
        self.cluster.run(["sh", "-c", script, f"/var/log/hdfs/{role}.log", *argv], node=machine)

    def _make_tmp(self, machine: str) -> None:
        self.cluster.run(["mkdir", "-p", f"{conf.DATA_DIR}/tmp"], node=machine)

    def _command(self, main: str, *arguments: str, jvm: tuple[str, ...]) -> list[str]:
        return ["java", *_JVM, *jvm, "-cp", f"{CONF_DIR}:{self.jars}/*", main, *arguments]

    def _wait(self, condition: Callable[[], bool], what: str, role: str) -> None:
        machine = HEAD if role == NAMENODE else self.cluster.spec.datanode_names[0]
        log = partial(self.cluster.log, machine, f"hdfs/{role}.log")
        wait_until(
            condition, what, timeout_s=_START_TIMEOUT_S, explain=lambda: f"Look into {log()}"
        )
