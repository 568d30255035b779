"""What a machine of the cluster looks like from the host: processes, mounts, listening ports."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"
_NAME_LENGTH = 15


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A process of one machine.

    Attributes:
        pid: as the host counts, so that a test may signal it.
        uid: its effective user.
        command: its arguments, joined by blanks; a kernel-style ``[name]`` for a zombie.
        name: what `ps -e` calls it, at most 15 characters; a fork's arguments are its parent's.
    """

    pid: int
    uid: int
    command: str
    name: str

    def has_role(self, role: str) -> bool:
        """Return whether it is an agent's process with a role, such as "serve_image"."""
        return self.name == f"bs-{role}"[:_NAME_LENGTH]


def inner_pids(keeper_pid: int) -> dict[int, int]:
    """Map pids inside the keeper's PID namespace to the host's, for the keeper's children."""
    children = Path(f"/proc/{keeper_pid}/task/{keeper_pid}/children").read_text().split()
    level = len(_pids(keeper_pid)) - 1  # a child may be the first process of its own namespace
    found = {}
    for pid in map(int, children):
        with suppress(FileNotFoundError):  # it has ended
            found[_pids(pid)[level]] = pid
    return found


def processes(holder_pid: int, *, namespaces: tuple[str, ...]) -> list[NodeProcess]:
    """List the processes that share any of these namespaces with the holder, without it."""
    wanted = {_namespace(holder_pid, kind) for kind in namespaces}
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == holder_pid:
            continue
        pid = int(folder.name)
        try:
            if wanted.isdisjoint(_namespace(pid, kind) for kind in namespaces):
                continue
            status = _status(pid)
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:  # it is gone, or is none of ours
            continue
        command = " ".join(word.decode(errors="replace") for word in words)
        name, uid = status["Name"], int(status["Uid"].split()[1])
        found.append(NodeProcess(pid, uid, command or f"[{name}]", name))
    return sorted(found, key=lambda process: process.pid)


def is_listening(holder_pid: int, port: int) -> bool:
    """Tell whether a TCP port is open for connections in the holder's network namespace."""
    for line in Path(f"/proc/{holder_pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            return True
    return False


def is_stopped(pid: int) -> bool:
    """Tell whether a signal has stopped every thread of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    try:
        stats = [(thread / "stat").read_text() for thread in threads]
    except OSError:  # a thread has just ended
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def _namespace(pid: int, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def _pids(pid: int) -> list[int]:
    """List a process's ids in each PID namespace that it is in, from ours down."""
    return [int(number) for number in _status(pid)["NSpid"].split()]


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
