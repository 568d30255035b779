"""The machines of a cluster: their places, how to run something there, what runs there."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bootseer.errors import Denied, NotFound
from bootseer.fuse.mountinfo import MountInfo, read_mounts
from bootseer_dev.cluster.namespaces import enter, observe
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.spec import HEAD, ClusterSpec

StdIO = int | IO[str] | None


@dataclass(frozen=True, slots=True)
class Machines:
    """Running machines, whatever daemons they have.

    A machine is named ``head`` (login node, slurmctld, munged, NameNode), ``n1`` to ``nN``, ``d1``
    to ``dM`` (DataNodes) or ``head2``. Where a method takes ``node=None`` it means the head.

    Attributes:
        spec: what they were started with.
        keeper_pid: PID 1 of them all, as the host counts; its end is theirs.
        machine_pids: for each machine a process that only holds its namespaces.
    """

    spec: ClusterSpec
    keeper_pid: int
    machine_pids: Mapping[str, int]

    # --- Places ---

    @property
    def node_names(self) -> tuple[str, ...]:
        """``n1`` to ``nN``."""
        return self.spec.node_names

    @property
    def state_dir(self) -> Path:
        """The cluster's folder on the host, which the machines see at the same path."""
        return self.spec.state_dir

    @property
    def shared(self) -> Path:
        """The folder, mode 1777, that all machines see at /shared; its path on the host."""
        return self.state_dir / "shared"

    @property
    def etc_slurm(self) -> Path:
        """What all machines see at /etc/slurm; its path on the host."""
        return self.state_dir / "etc" / "slurm"

    @property
    def etc_bootseer(self) -> Path:
        """What all machines see at /etc/bootseer; its path on the host."""
        return self.state_dir / "etc" / "bootseer"

    def log(self, node: str | None = None, name: str | None = None) -> Path:
        """Return a log's path on the host: a file of the machine's /var/log.

        Args:
            node: a machine.
            name: relative to /var/log; by default slurmd's log, on the head slurmctld's.
        """
        machine = node or HEAD
        default = "slurm/slurmctld.log" if machine == HEAD else "slurm/slurmd.log"
        return self.state_dir / "machines" / machine / "log" / (name or default)

    # --- Commands ---

    def command(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> list[str]:
        """Return the host's command line that runs `argv` inside; see `enter.command_line`.

        Raises:
            Denied: the machines are in a user namespace, whose only user is root: the caller.
        """
        rootless = self.spec.is_rootless
        if rootless and user != "root":
            raise Denied(
                f"an ordinary user's cluster cannot run commands as {user!r}, only as root"
            )
        home = self.spec.home(user)
        pid = self.holder_pid(node or HEAD)
        return enter.command_line(
            pid, argv, user=user, home=home, cwd=cwd, env=env, rootless=rootless
        )

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float = 60,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - subprocess.run's name for it
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine and return its exit code and output.

        Raises:
            CommandFailed: `check` is set and the exit code is not 0.
            subprocess.TimeoutExpired: it took longer; it has been sent SIGTERM.
        """
        result = subprocess.run(
            self.command(argv, user=user, node=node, env=env, cwd=cwd),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            **({"stdin": subprocess.DEVNULL} if input is None else {"input": input}),
        )
        result = subprocess.CompletedProcess(
            list(argv), result.returncode, result.stdout, result.stderr
        )
        if check and result.returncode != 0:
            raise enter.CommandFailed(node or HEAD, result)
        return result

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: StdIO = subprocess.DEVNULL,
        stdout: StdIO = subprocess.PIPE,
        stderr: StdIO = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a machine.

        A signal to the returned process ends it, whereupon the command gets SIGTERM.
        """
        return subprocess.Popen(
            self.command(argv, user=user, node=node, env=env, cwd=cwd),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    # --- Looking inside ---

    def holder_pid(self, machine: str) -> int:
        """Return the process that holds a machine's namespaces, as the host counts.

        Raises:
            NotFound: there is no such machine.
        """
        if machine not in self.machine_pids:
            raise NotFound(f"cluster {self.spec.name!r} has no {machine!r}: {[*self.machine_pids]}")
        return self.machine_pids[machine]

    def processes(self, node: str | None = None) -> list[observe.NodeProcess]:
        """List a machine's processes, with pids as the host counts; its holder is left out.

        On a node they are known by its network too, so that a process which made itself mounts
        of its own is seen.
        """
        machine = node or HEAD
        namespaces = ("mnt",) if machine == HEAD else ("mnt", "net")
        return observe.processes(self.holder_pid(machine), namespaces=namespaces)

    def mounts(self, node: str | None = None) -> list[MountInfo]:
        """List what is mounted on a machine."""
        return read_mounts(self.holder_pid(node or HEAD))

    def connect(
        self, host: str, port: int, node: str | None = None, *, timeout_s: float = 5
    ) -> socket.socket:
        """Connect to an address as a machine would; the socket is for use from the host.

        Raises:
            OSError: nobody listens there.
        """
        pid = self.holder_pid(node or HEAD)
        rootless = self.spec.is_rootless
        return enter.connect(pid, host, port, rootless=rootless, timeout_s=timeout_s)

    @contextmanager
    def network(self, node: str | None = None) -> Iterator[None]:
        """Have this process's network be a machine's within the block.

        That holds for the calling thread and those that are started in the block; others must have
        ended before, and again at the end: trio keeps its threads for ten seconds.

        Raises:
            Denied: the machines are in a user namespace, from which there is no way back.
            Unavailable: other threads go on.
        """
        if self.spec.is_rootless:
            raise Denied("an ordinary user's process cannot visit a network: run it there instead")
        _wait_for_one_thread()
        with enter.network(self.holder_pid(node or HEAD)):
            yield
            _wait_for_one_thread()

    def is_listening(self, node: str, port: int) -> bool:
        """Tell whether a TCP port of the machine takes connections."""
        return observe.is_listening(self.holder_pid(node), port)


def _wait_for_one_thread() -> None:
    wait_until(
        lambda: threading.active_count() == 1,
        "all threads but one ended",
        timeout_s=20,
        explain=lambda: f"There are {threading.enumerate()}",
    )
