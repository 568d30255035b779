"""Run the host's systemd as process 1 of a machine, with D-Bus, a journal and slurmd's unit.

Only these units are known to it: the host's own services stay where they are.
"""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from bootseer_dev.cluster.namespaces import control_groups, syscalls
from bootseer_dev.cluster.spec import ClusterSpec

PROGRAM = "/lib/systemd/systemd"
_UNITS = Path("/lib/systemd/system")
_OWN_UNITS = Path("/etc/systemd/system")
_SHOWN = (
    "basic.target",
    "dbus.service",
    "dbus.socket",
    "paths.target",
    "shutdown.target",
    "slices.target",
    "slurmd.service",
    "sockets.target",
    "sysinit.target",
    "system.slice",
    "systemd-journald.service",
    "systemd-journald.socket",
    "systemd-journald-dev-log.socket",
    "timers.target",
)
_NULL = "/run/null"
_TARGET = "machine.target"
_TARGET_TEXT = """[Unit]
Description=A machine of a local cluster
Requires=basic.target dbus.service systemd-journald.service
After=basic.target dbus.service
AllowIsolate=yes
"""


def boot(spec: ClusterSpec, name: str) -> int:
    """Start systemd in the caller's namespaces, with a PID and a cgroup namespace of its own.

    The caller is a machine's holder, with one thread. systemd becomes its parent's child.

    Returns:
        The id of systemd's process, in the caller's PID namespace.

    Raises:
        OSError: the kernel refused, or the host lacks control groups that the spec needs.
    """
    groups = control_groups.make(spec, name)
    _put_units()
    # Not the host's /dev/null: root of the machine may change what it takes for a file.
    os.mknod(_NULL, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    for path in ("/dev/console", "/dev/kmsg", "/etc/hostname"):  # the host's
        with suppress(FileNotFoundError):
            syscalls.bind(_NULL, path)
    pid = syscalls.clone(syscalls.CLONE_NEWPID | syscalls.CLONE_PARENT | signal.SIGCHLD)
    if pid == 0:
        _become(groups)
    return pid


def _become(groups: control_groups.Groups) -> NoReturn:
    """Become a machine's process 1."""
    try:
        groups.enter()
        syscalls.mount("proc", "/proc", "proc")
        groups.mount()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.closerange(3, 1024)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        environment = {"container": "bootseer", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        argv = ["systemd", f"--unit={_TARGET}", "--log-target=journal", "--show-status=no"]
        os.execve(PROGRAM, argv, environment)
    finally:
        os._exit(1)


def _put_units() -> None:
    """Show systemd no units but those that a machine has."""
    shown = {name: (_UNITS / name).read_bytes() for name in _SHOWN if (_UNITS / name).exists()}
    for folder in (_UNITS, _OWN_UNITS):
        syscalls.mount("tmpfs", str(folder), "tmpfs", data="mode=755")
    for name, text in shown.items():
        (_UNITS / name).write_bytes(text)
    (_UNITS / _TARGET).write_text(_TARGET_TEXT)
    wanted = _UNITS / "sysinit.target.wants"
    wanted.mkdir()
    (wanted / "systemd-journald.service").symlink_to(_UNITS / "systemd-journald.service")
    for generators in ("/lib/systemd/system-generators", "/etc/systemd/system-generators"):
        if os.path.isdir(generators):
            syscalls.mount("tmpfs", generators, "tmpfs", data="mode=755")
