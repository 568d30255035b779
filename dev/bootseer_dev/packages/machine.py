"""A machine with a whole Debian of its own, run by systemd, to install packages on.

Unlike the machines of a local cluster, it shares no folder with the host: it is a root with an
overlay for what it writes. All of it ends with the process that holds it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bootseer.errors import Unavailable
from bootseer_dev.cluster.namespaces.enter import PATH, CommandFailed
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.roots.root import Root

NAME = "node1"
_ADDRESS = "192.0.2.1"
"""As in boot-machine."""
_BOOT = Path(__file__).with_name("boot-machine")
_CGROUP_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_FROM_HOST = ("/etc/resolv.conf", "/etc/hosts")
_NOT_CLEAN = ("usr/sbin/policy-rc.d", "etc/dpkg/dpkg.cfg.d/no-documentation")
"""What a root has so that it is small and starts nothing; a real machine has neither."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A running machine; as a context manager it ends at the end.

    Attributes:
        folder: what it has written, and its mount point, on the host.
        holder: the process that ends it.
        init: its systemd, as the host counts.
    """

    folder: Path
    holder: subprocess.Popen[bytes]
    init: int

    @classmethod
    def up(cls, root: Root, folder: Path) -> Machine:
        """Boot a machine, and return when systemd takes orders.

        Args:
            root: of a Debian release, with systemd; it is not changed.
            folder: an empty folder of the host's for the machine.

        Raises:
            Unavailable: it does not come up.
        """
        for name in ("upper", "work", "merged", "home"):
            (folder / name).mkdir()
        for name in _NOT_CLEAN:  # an overlay shows this as removed
            (folder / "upper" / name).parent.mkdir(parents=True, exist_ok=True)
            os.mknod(folder / "upper" / name, 0o020000, os.makedev(0, 0))
        _put_names(folder / "upper/etc")
        group = _group(folder)
        group.mkdir()
        log = (folder / "boot.log").open("wb")
        with log:
            holder = subprocess.Popen(
                ["sh", str(_BOOT), str(root.folder), str(folder), str(group), NAME],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": PATH},
                start_new_session=True,
            )
        machine = None
        try:
            init = wait_until(lambda: _child(holder), "the machine's first process", timeout_s=20)
            machine = cls(folder, holder, init)
            wait_until(machine._is_ready, "systemd takes orders", timeout_s=60)
        except BaseException as error:
            said = (folder / "boot.log").read_text(errors="replace")
            (machine or cls(folder, holder, 0)).down()
            raise Unavailable(f"the machine does not come up: {error}\n{said}") from error
        return machine

    def down(self) -> None:
        """End the machine, and remove its folder."""
        self.holder.send_signal(signal.SIGKILL)  # its child, the first process, dies with it
        self.holder.wait()
        group = _group(self.folder)
        wait_until(lambda: not _has_processes(group), "the machine's processes ended")
        for folder, _, _ in os.walk(group, topdown=False):
            os.rmdir(folder)
        shutil.rmtree(self.folder)

    def __enter__(self) -> Machine:
        """Return the machine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End it."""
        self.down()

    @property
    def files(self) -> Path:
        """Its root, as a path of the host's."""
        return Path(f"/proc/{self.init}/root")

    def command(self, script: str, *, user: str = "root", cwd: str = "") -> list[str]:
        """Return the host's command line that runs a shell script on the machine.

        Programs that fetch packages have the host's network: the machine's has no way out.
        """
        spaces = ["mount", "uts", "ipc", "pid", "cgroup", *([] if "apt-get" in script else ["net"])]
        home = "/root" if user == "root" else f"/home/{user}"
        return [
            *("nsenter", f"--target={self.init}", *(f"--{kind}" for kind in spaces), "--"),
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"),
            *("env", "--ignore-environment", f"--chdir={cwd or home}"),
            *(f"{key}={value}" for key, value in _environment(user, home).items()),
            *("sh", "-euc", script),
        ]

    def run(
        self,
        script: str,
        *,
        user: str = "root",
        cwd: str = "",
        timeout_s: float = 300,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script on the machine; returns its exit code and what it wrote.

        Raises:
            CommandFailed: `check` is set and the exit code is not 0.
        """
        done = subprocess.run(
            self.command(script, user=user, cwd=cwd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            result = subprocess.CompletedProcess([script], done.returncode, done.stdout, "")
            raise CommandFailed(NAME, result)
        return done

    def _is_ready(self) -> bool:
        if self.holder.poll() is not None:
            raise Unavailable("its first process has ended")
        asked = self.run("systemctl is-active basic.target dbus.socket", check=False, timeout_s=20)
        return asked.returncode == 0


def _environment(user: str, home: str) -> Mapping[str, str]:
    proxies = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    own = {"HOME": home, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8", "PATH": PATH}
    return {**proxies, **own, "DEBIAN_FRONTEND": "noninteractive"}


def _put_names(etc: Path) -> None:
    etc.mkdir(exist_ok=True)
    for path in map(Path, _FROM_HOST):
        shutil.copyfile(path, etc / path.name)
    with (etc / "hosts").open("a") as file:
        file.write(f"\n{_ADDRESS} {NAME}\n")
    (etc / "hostname").write_text(f"{NAME}\n")
    (etc / "machine-id").write_text(f"{os.urandom(16).hex()}\n")


def _group(folder: Path) -> Path:
    """Return the machine's control group.

    Raises:
        Unavailable: control groups of version 2 are not mounted.
    """
    for root in _CGROUP_ROOTS:
        if os.path.exists(f"{root}/cgroup.procs"):
            return Path(root, f"bootseer-{folder.parent.name}-{folder.name}")
    raise Unavailable("control groups of version 2 are not mounted")


def _has_processes(group: Path) -> bool:
    return any(path.read_text().strip() for path in group.rglob("cgroup.procs"))


def _child(holder: subprocess.Popen[bytes]) -> int:
    if holder.poll() is not None:
        raise Unavailable(f"{sys.argv[0]}: its first process has ended")
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
    return int(children[0]) if children else 0
