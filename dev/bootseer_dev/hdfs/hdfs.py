"""A running HDFS, as tests and the command line handle it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bootseer.errors import NotFound, Unavailable
from bootseer_dev.cluster.machines import Machines
from bootseer_dev.cluster.namespaces import observe
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.spec import HEAD, address
from bootseer_dev.hdfs import conf, java, replica, web

_NOT_OF_CLIENTS = frozenset({"SendHeartbeat", "BlockReport", "BlockReceivedAndDeleted"})
"""Calls that the DataNodes make."""
_START_TIMEOUT_S = 60
_CLASSPATH = "classpath"
_STATE = "Hadoop:service=NameNode,name=NameNodeStatus"
_INFO = "Hadoop:service=NameNode,name=NameNodeInfo"
_ACTIVE = "active"


class Traffic(NamedTuple):
    """What a DataNode has carried since it started.

    Attributes:
        read_bytes: of blocks read from it, with their checksums: 8 bytes more for each KiB.
        written_bytes: of blocks written to it.
    """

    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Hdfs:
    """The NameNode on a cluster's head and a DataNode on each of its machines for them.

    They end with the cluster. The superuser is root, who in an ordinary user's cluster is that
    user. Of two NameNodes one is active; the other follows, until `fail_over`.

    Attributes:
        cluster: whose machines they are on.
        jars: folder of Hadoop's jars.
    """

    cluster: Machines
    jars: Path

    @classmethod
    def start(
        cls, cluster: Machines, jars: Path, settings: conf.HdfsSettings | None = None
    ) -> Hdfs:
        """Format a new file system, start all daemons, and return when all DataNodes are known.

        Every user of the cluster gets a folder ``/user/NAME``.

        Args:
            cluster: with DataNodes' machines.
            jars: what `hadoop_jars` returned.
            settings: defaults for files, and more of Hadoop's. If they ask for Kerberos, a ticket
                of the superuser's is at `java.TICKETS` by now.

        Raises:
            ConfigError: there are fewer DataNodes than copies.
            Unavailable: a daemon did not start; the text names its log.
        """
        hdfs = cls(cluster, jars)
        hdfs._configure(settings or conf.HdfsSettings())
        hdfs._make_namenode(HEAD, "-format")
        hdfs.start_namenode(wait=False)
        for other in cluster.spec.namenode_names[1:]:
            hdfs._wait_for_state(HEAD)
            hdfs._make_namenode(other, "-bootstrapStandby")
            hdfs.start_namenode(other, wait=False)
            hdfs._wait_for_state(other)
            hdfs._tool(java.HA_ADMIN, "-transitionToActive", HEAD)
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
        return conf.url(self.cluster.spec)

    # --- Daemons ---

    def start_namenode(self, machine: str = HEAD, *, wait: bool = True) -> None:
        """Start a NameNode, with what it knew before; if there are two, as the one that follows.

        Args:
            machine: where.
            wait: until it has left safe mode with all DataNodes that it waits for.
        """
        self._start_daemon(machine)
        if wait:
            self._wait(
                lambda: self._safe_mode(machine) == "", "the NameNode out of safe mode", machine
            )

    def start_datanodes(self, *names: str) -> None:
        """Start DataNodes, by default all, and wait until the NameNode knows them."""
        names = names or self.cluster.spec.datanode_names
        for name in names:
            self._start_daemon(name)
        for name in names:
            self._wait(partial(self._has_registered, name), f"{name} registered", name)
        wanted = set(names)
        self._wait(lambda: wanted <= self.live_datanodes(), f"{sorted(wanted)} live", names[0])
        self._wait(self.is_writable, "the NameNode out of safe mode", HEAD)

    def fail_over(self) -> str:
        """Make the NameNode active that was not, and return its machine.

        The other one, if it does not answer, is killed first: it might go on writing.

        Raises:
            CommandFailed: it did not become active.
            Unavailable: there is only one, or this one does not answer.
        """
        states = {name: self.state(name) for name in self.cluster.spec.namenode_names}
        new = next((name for name, state in states.items() if state not in (None, _ACTIVE)), None)
        if new is None:
            raise Unavailable(f"there is no other NameNode that answers: {states}")
        (old,) = states.keys() - {new}
        if states[old] is None:
            self.stop(old)
        self._tool(java.HA_ADMIN, "-failover", old, new)
        return new

    def stop(self, machine: str, *, kill: bool = True) -> None:
        """End the daemon on a machine, a NameNode or a DataNode, and wait until it is gone.

        Args:
            machine: where.
            kill: with SIGKILL instead of SIGTERM.
        """
        self.signal(machine, "KILL" if kill else "TERM")
        wait_until(
            lambda: not self.daemon_pids(machine), f"the daemon on {machine} ended", timeout_s=30
        )

    def signal(self, machine: str, name: str) -> None:
        """Send a signal, ``STOP`` or ``CONT`` for one, to the daemon on a machine.

        After ``STOP`` it answers nothing: its threads stop only when each gets a processor again.
        """
        for pid in self.daemon_pids(machine):
            subprocess.run(["kill", f"-{name}", str(pid)], check=True)
            if name == "STOP":
                wait_until(partial(observe.is_stopped, pid), f"process {pid} stopped")

    def daemon_pids(self, machine: str) -> list[int]:
        """The daemons on a machine, as the host counts: one, or none when it has ended."""
        return [
            process.pid
            for process in self.cluster.processes(machine)
            if java.is_daemon(process.command)
        ]

    # --- What it says ---

    def jmx(self, machine: str, bean: str) -> dict[str, Any]:
        """Ask a daemon's web server for the figures under a name.

        They are those of this call or later ones.

        Args:
            machine: a NameNode's or a DataNode's.
            bean: as in ``Hadoop:service=NameNode,name=FSNamesystem``; may end in ``*``.

        Raises:
            Unavailable: it does not answer.
        """
        # What it answers may be as old as that.
        time.sleep(conf.METRICS_PERIOD_MS / 1000)
        return web.jmx(self.cluster, machine, bean)

    def webhdfs(self, path: str, op: str, **parameters: str) -> Any:
        """Ask the active NameNode by WebHDFS, as superuser: ``GET_BLOCK_LOCATIONS``, for one.

        Raises:
            NotFound: there is no such file.
            Unavailable: no NameNode is active, or it answers with another error.
        """
        machine = self.active_namenode()
        if machine is None:
            raise Unavailable("no NameNode is active")
        return web.webhdfs(self.cluster, machine, path, op, **parameters)

    def state(self, machine: str) -> str | None:
        """The state of the NameNode on a machine: ``active``, ``standby``; None if it is silent."""
        try:
            found = web.jmx(self.cluster, machine, _STATE)
        except Unavailable:
            return None
        return str(found["State"]) if found else None

    def active_namenode(self) -> str | None:
        """Name the machine whose NameNode is active, if one is and answers."""
        names = self.cluster.spec.namenode_names
        return next((name for name in names if self.state(name) == _ACTIVE), None)

    def live_datanodes(self) -> set[str]:
        """Name the machines whose DataNodes the active NameNode calls live."""
        live = json.loads(self._info().get("LiveNodes", "{}"))
        by_address = {address(name): name for name in self.cluster.spec.datanode_names}
        hosts = (node["xferaddr"].rpartition(":")[0] for node in live.values())
        return {by_address[host] for host in hosts if host in by_address}

    def _has_registered(self, machine: str) -> bool:
        """Whether a DataNode says so; the NameNode takes one that was killed for live a while."""
        try:
            bean = self.jmx(machine, "Hadoop:service=DataNode,name=DataNodeInfo")
        except Unavailable:
            return False
        actors = json.loads(bean.get("BPServiceActorInfo", "[]"))
        return bool(actors) and all(actor["ActorState"] == "RUNNING" for actor in actors)

    def is_writable(self) -> bool:
        """Whether an active NameNode answers and is out of safe mode."""
        return self._info().get("Safemode") == ""

    def traffic(self, machine: str) -> Traffic:
        """Count the bytes that went from and to a DataNode; it counts when a transfer is over.

        Raises:
            Unavailable: it does not answer.
        """
        bean = self.jmx(machine, "Hadoop:service=DataNode,name=DataNodeActivity*")
        return Traffic(bean["BytesRead"], bean["BytesWritten"])

    def calls(self, machine: str = HEAD) -> dict[str, int]:
        """Count the calls a NameNode has answered, by name: ``GetBlockLocations``, ``GetListing``.

        Raises:
            Unavailable: it does not answer.
        """
        name = f"RpcDetailedActivityForPort{conf.RPC_PORT}"
        bean = self.jmx(machine, f"Hadoop:service=NameNode,name={name}")
        end = "NumOps"
        # What begins with "Overall" counts the same calls again.
        return {
            key.removesuffix(end): count
            for key, count in bean.items()
            if key.endswith(end) and not key.startswith("Overall")
        }

    def calls_since(self, before: Mapping[str, int]) -> dict[str, int]:
        """Count the calls of clients since an earlier count by `calls`, of the same NameNode.

        Raises:
            Unavailable: it does not answer.
        """
        return {
            name: count - before.get(name, 0)
            for name, count in sorted(self.calls().items())
            if name not in _NOT_OF_CLIENTS and count > before.get(name, 0)
        }

    def replicas(self, path: str) -> list[replica.Replica]:
        """Find the replicas of a closed file's blocks on the DataNodes' disks, block by block.

        Raises:
            NotFound: there is no such file.
            Unavailable: no NameNode answers.
        """
        return replica.find(self.cluster, self.webhdfs(path, "GET_BLOCK_LOCATIONS"))

    # --- Hadoop's own commands ---

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
        return java.command(self.jars, java.SHELL, arguments)

    def admin(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``hdfs dfsadmin ARGUMENTS``: ``-setSpaceQuota 10m /user/alice``, for one.

        Raises:
            CommandFailed: the exit code is not 0.
        """
        return self._tool(java.ADMIN, *arguments)

    def login(self, user: str) -> tuple[str, Mapping[str, str]]:
        """How to be this user of HDFS: a user of the machines, and variables of the environment.

        An ordinary user's cluster has no users but root, and its HDFS believes what it is told.
        """
        env = {"HADOOP_CONF_DIR": java.CONF_DIR}
        if user == conf.SUPERUSER:
            env["KRB5CCNAME"] = java.TICKETS
        if self.cluster.spec.is_rootless:
            return conf.SUPERUSER, {**env, "HADOOP_USER_NAME": user}
        return user, env

    def make_homes(self) -> None:
        """Give every user of the cluster a folder of their own."""
        users = self.cluster.spec.users
        self.fs("-mkdir", "-p", *(f"/user/{user}" for user in users))
        for user in users:
            self.fs("-chown", f"{user}:{user}", f"/user/{user}")

    # --- How ---

    def _info(self) -> dict[str, Any]:
        machine = self.active_namenode()
        try:
            return web.jmx(self.cluster, machine, _INFO) if machine else {}
        except Unavailable:
            return {}

    def _safe_mode(self, machine: str) -> str | None:
        try:
            return web.jmx(self.cluster, machine, _INFO).get("Safemode")
        except Unavailable:
            return None

    def _configure(self, settings: conf.HdfsSettings) -> None:
        folder = self.cluster.state_dir / "etc" / "hadoop"
        for name, text in conf.files(self.cluster.spec, settings).items():
            (folder / name).write_text(text)
        (folder / _CLASSPATH).write_text(f"{self.jars}/*")

    def _make_namenode(self, machine: str, how: str) -> None:
        self._make_tmp(machine)
        argv = java.command(
            self.jars, java.NAMENODE, (how, "-force", "-nonInteractive"), address(machine)
        )
        self.cluster.run(argv, node=machine)

    def _start_daemon(self, machine: str) -> None:
        self._make_tmp(machine)
        is_datanode = machine in self.cluster.spec.datanode_names
        main = java.DATANODE if is_datanode else java.NAMENODE
        argv = java.command(self.jars, main, own=address(machine))
        script = 'setsid "$@" >>"$0" 2>&1 </dev/null &'
        self.cluster.run(
            ["sh", "-c", script, f"/var/log/{self._log(machine)}", *argv], node=machine
        )

    def _make_tmp(self, machine: str) -> None:
        self.cluster.run(["mkdir", "-p", f"{conf.DATA_DIR}/tmp"], node=machine)

    def _log(self, machine: str) -> str:
        is_datanode = machine in self.cluster.spec.datanode_names
        return f"hdfs/{'datanode' if is_datanode else 'namenode'}.log"

    def _tool(self, main: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        user, env = self.login(conf.SUPERUSER)
        return self.cluster.run(java.command(self.jars, main, arguments), user=user, env=env)

    def _wait_for_state(self, machine: str) -> None:
        self._wait(lambda: self.state(machine) is not None, "the NameNode answers", machine)

    def _wait(self, condition: Callable[[], bool], what: str, machine: str) -> None:
        log = partial(self.cluster.log, machine, self._log(machine))
        wait_until(
            condition, what, timeout_s=_START_TIMEOUT_S, explain=lambda: f"Look into {log()}"
        )
