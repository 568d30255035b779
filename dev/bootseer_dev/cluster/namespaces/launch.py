"""The life of a cluster's keeper, seen from the host: start, commit, end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bootseer.errors import Unavailable
from bootseer_dev.cluster import state_folder
from bootseer_dev.cluster.namespaces import control_groups, enter, keeper, observe
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.spec import ClusterSpec

_KEEPER_LOG = "keeper.log"
_END_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Launched:
    """A keeper that ends with its starter, until `commit`.

    Attributes:
        keeper_pid: as the host counts.
        machine_pids: for each machine a process that holds its namespaces, as the host counts.
    """

    keeper_pid: int
    machine_pids: dict[str, int]
    _process: subprocess.Popen[str]

    def commit(self) -> None:
        """Let the keeper outlive its starter."""
        assert self._process.stdin is not None
        self._process.stdin.write(keeper.KEEP + "\n")
        _hang_up(self._process)


def launch(spec: ClusterSpec, lock: int) -> Launched:
    """Start the keeper with its machines; the state directory is populated.

    Args:
        spec: what to start.
        lock: the state directory's locked descriptor, which the keeper inherits.

    Raises:
        Unavailable: the keeper did not come up; the text has the end of its log.
    """
    log = spec.state_dir / _KEEPER_LOG
    package_root = Path(__file__).parents[3]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", keeper.__name__, json.dumps(asdict(spec))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd="/",
            # A user's own PATH may lack tc and pivot_root.
            env={**os.environ, "PATH": enter.PATH, "PYTHONPATH": str(package_root)},
            pass_fds=[lock],
            start_new_session=True,
        )
    try:
        # The process started here only forks the keeper; the keeper is nobody's child.
        process.wait()
        assert process.stdout is not None
        answer = process.stdout.readline()
        if not answer:
            raise Unavailable(f"the cluster's keeper did not start:\n{log.read_text().strip()}")
        pid = int((spec.state_dir / keeper.PID_FILE).read_text())
        inner = observe.inner_pids(pid)
        pids = {name: inner[inner_pid] for name, inner_pid in json.loads(answer).items()}
    except BaseException:
        _hang_up(process)
        raise
    return Launched(pid, pids, process)


def _hang_up(process: subprocess.Popen[str]) -> None:
    """Close our ends of the keeper's pipes, among them its lifeline."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def end(state_dir: Path) -> None:
    """End the cluster in the directory, if one lives, and remove the directory.

    Raises:
        Unavailable: the cluster does not end.
    """
    if state_folder.is_locked(state_dir):
        pid = wait_until(lambda: _keeper_pid(state_dir), f"the keeper's pid is in {state_dir}")
        _kill(pid)
        wait_until(
            lambda: not state_folder.is_locked(state_dir), f"the cluster in {state_dir} ended"
        )
    control_groups.remove(state_dir)
    state_folder.remove(state_dir)


def _kill(pid: int) -> None:
    """Kill the keeper and wait until it is dead, and with it, as its PID 1, its whole namespace."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The descriptor is sure to mean one process; see that it is the keeper and no later owner
        # of its pid.
        if _is_keeper(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if not select.select([pidfd], [], [], _END_TIMEOUT_S)[0]:
                raise Unavailable(f"the cluster's keeper, pid {pid}, does not end")
    finally:
        os.close(pidfd)


def _keeper_pid(state_dir: Path) -> int:
    try:
        return int((state_dir / keeper.PID_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _is_keeper(pid: int) -> bool:
    """Tell whether this is the pid of a keeper that lives."""
    try:
        return keeper.__name__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
