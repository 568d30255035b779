"""The cluster's keeper: PID 1 of its PID namespace, and the machines it holds.

Started as ``python -m bootseer_dev.cluster.namespaces.keeper`` with a spec on its command line.
Standard input is the lifeline of the process that starts it. Until the line ``keep`` arrives there,
the end of the input ends the keeper, so that an interrupted start leaves nothing. From then on it
only waits: when it dies, however it dies, the kernel ends every process of the cluster, and with
the last process go all mounts, links and namespaces.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from bootseer_dev.cluster.namespaces import file_system, syscalls, systemd, user_namespace
from bootseer_dev.cluster.spec import HEAD, ClusterSpec, address

KEEP = "keep"
PID_FILE = "keeper.pid"
_BRIDGE = "br0"


def main() -> None:
    """Leave the host's namespaces, fork PID 1, and tell the starter its pid on the host."""
    spec = ClusterSpec.from_json(json.loads(sys.argv[1]))
    os.umask(0o022)
    with _explained(spec):
        if spec.is_rootless:
            user_namespace.enter()
        syscalls.unshare(
            syscalls.CLONE_NEWPID
            | syscalls.CLONE_NEWNS
            | syscalls.CLONE_NEWNET
            | syscalls.CLONE_NEWIPC
            | syscalls.CLONE_NEWUTS
        )
    pid = os.fork()
    if pid:
        (spec.state_dir / PID_FILE).write_text(str(pid))
        return
    _keep(spec)


def _keep(spec: ClusterSpec) -> None:
    with _explained(spec):
        file_system.enter_base(spec)
    pids = _start_machines(spec)
    # Orphans of the cluster come to PID 1; ignoring the signal lets the kernel reap them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(json.dumps(pids), flush=True)
    if sys.stdin.readline().strip() != KEEP:
        return
    while True:
        signal.pause()


@contextmanager
def _explained(spec: ClusterSpec) -> Iterator[None]:
    """Have what the kernel refuses an ordinary user be explained, as the last that is said."""
    try:
        yield
    except OSError as error:
        # ENOSPC: there are as many namespaces as there may be, which can be none.
        if spec.is_rootless and error.errno in (errno.EPERM, errno.EACCES, errno.ENOSPC):
            sys.exit(f"{error}; {user_namespace.advice()}")
        raise


def _start_machines(spec: ClusterSpec) -> dict[str, int]:
    """Fork a holder for every machine, and connect them; returns their pids in the namespace."""
    pids: dict[str, int] = {}
    talks: dict[str, socket.socket] = {}
    for name in spec.machine_names:
        ours, theirs = socket.socketpair()
        pids[name] = os.fork()
        if pids[name] == 0:
            _hold(spec, name, theirs)
        theirs.close()
        talks[name] = ours
    _expect(talks)  # every holder is in its own network namespace
    _ip(_head_links(spec, pids))
    for name in spec.linked_names:
        _limit(f"to-{name}", spec.rate(name))
    for talk in talks.values():
        talk.send(b".")
    # Each has its link up, and says which process has its namespaces from now on.
    return {name: _expect_pid(name, talk) for name, talk in talks.items()}


def _hold(spec: ClusterSpec, name: str, talk: socket.socket) -> NoReturn:
    """Become a machine, say so, and stay: a namespace lives as long as a process is in it."""
    try:
        is_node = name != HEAD
        own_net = syscalls.CLONE_NEWNET if is_node else 0
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | own_net)
        socket.sethostname(name)
        file_system.enter_machine(spec, name)
        talk.send(b".")
        _expect({name: talk})
        if is_node:
            _ip(["link set lo up", f"addr add {address(name)}/16 dev eth0", "link set eth0 up"])
            _limit("eth0", spec.rate(name))
        if is_node and spec.systemd:
            talk.send(str(systemd.boot(spec, name)).encode())
            os._exit(0)
        talk.send(str(os.getpid()).encode())
        while True:
            signal.pause()
    finally:
        # Only an error leads here; it must not lead back into the keeper's own code.
        traceback.print_exc()
        os._exit(1)


def _head_links(spec: ClusterSpec, pids: dict[str, int]) -> list[str]:
    lines = [
        "link set lo up",
        f"link add {_BRIDGE} type bridge",
        f"addr add {address(HEAD)}/16 dev {_BRIDGE}",
        f"link set {_BRIDGE} up",
    ]
    for name in spec.linked_names:
        lines.append(f"link add to-{name} type veth peer name eth0 netns {pids[name]}")
        lines.append(f"link set to-{name} master {_BRIDGE} up")
    return lines


def _limit(device: str, rate: str | None) -> None:
    if rate is not None:
        _batch("tc", [f"qdisc add dev {device} root tbf rate {rate} burst 256kb latency 50ms"])


def _ip(lines: list[str]) -> None:
    _batch("ip", lines)


def _batch(program: str, lines: list[str]) -> None:
    subprocess.run([program, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def _expect(talks: dict[str, socket.socket]) -> None:
    for name, talk in talks.items():
        if talk.recv(1) != b".":
            raise _did_not_start(name)


def _expect_pid(name: str, talk: socket.socket) -> int:
    pid = talk.recv(16)
    if not pid:
        raise _did_not_start(name)
    return int(pid)


def _did_not_start(name: str) -> RuntimeError:
    return RuntimeError(f"machine {name} did not start; its error is above")


if __name__ == "__main__":
    main()
