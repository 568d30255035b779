"""What a machine of the cluster sees as its file system.

The host's folders appear at their own paths, on a root, an /etc and a /var that belong to the
cluster: a tmpfs and two overlays, so that mount points, users and settings can be made without a
trace on the host. All of it lives in private mount namespaces and goes with the last process.

    /                   tmpfs; the host's top-level folders bound in, /home and /mnt entry by entry
    /etc, /var          overlays over the host's, written to memory
    /etc/{slurm,munge,bootseer,hadoop}, /home/USER, /shared
                        from the state directory, one for all
    /var/log, /var/spool/slurm*, /var/cache/bootseer, /var/lib/hdfs
                        from the state directory, one per machine
    /run, /dev/shm      tmpfs, one per machine (/run/munge is one for all)
    /proc               of the cluster's PID namespace
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

from bootseer.testing.cluster import syscalls
from bootseer.testing.cluster.spec import HEAD, ClusterSpec, address

# Kept out of users' sight at the root of the cluster's tmpfs.
_PRIVATE = ".cluster"
_SHARED_ETC = ("slurm", "munge", "bootseer", "hadoop")


def enter_base(spec: ClusterSpec) -> None:
    """Build the root that all machines start from, and make it the caller's root.

    The caller is PID 1 of a new PID namespace, in a mount namespace of its own.

    Raises:
        OSError: the kernel refused a mount (no root, no overlayfs).
    """
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    root = spec.state_dir / "root"
    syscalls.mount("bootseer-cluster", str(root), "tmpfs", data="mode=755")
    _mirror(Path("/"), root, leave_out={"proc", "run", "etc", "var", "home", "mnt", "shared"})
    _mirror(Path("/home"), root / "home", leave_out=set(spec.users))
    _mirror(Path("/mnt"), root / "mnt", leave_out=set())
    for name in ("proc", "run", "shared", "etc", "var"):
        (root / name).mkdir()
    private = root / _PRIVATE
    private.mkdir(mode=0o700)
    for name in ("etc", "var"):
        _overlay(Path("/") / name, root / name, private)
    syscalls.bind("/var/tmp", str(root / "var/tmp"))
    syscalls.detach(f"{root}{root}")  # the bind shows the new root a second time, within itself
    syscalls.mount("proc", str(root / "proc"), "proc")

    _add_users(root / "etc", spec)
    _add_hosts(root / "etc", spec)
    for name in _SHARED_ETC:
        _bind_to(spec.state_dir / "etc" / name, root / "etc" / name)
    for user in spec.users:
        _bind_to(spec.state_dir / "home" / user, root / "home" / user)
    syscalls.bind(str(spec.state_dir / "shared"), str(root / "shared"))
    for folder in ("var/spool/slurmd", "var/spool/slurmctld", "var/cache/bootseer", "var/lib/hdfs"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    _open_fuse(root, private)
    (private / "munge").mkdir()
    shutil.chown(private / "munge", "munge", "munge")

    os.chdir(root)
    subprocess.run(["pivot_root", ".", "."], check=True)
    syscalls.detach(".")
    os.chdir("/")


def enter_machine(spec: ClusterSpec, name: str) -> None:
    """Give the calling process, already in a mount namespace of its own, one machine's mounts."""
    folder = spec.state_dir / "machines" / name
    syscalls.mount("tmpfs", "/run", "tmpfs", data="mode=755")
    syscalls.mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    Path("/run/lock").mkdir(mode=0o755)
    _bind_to(Path("/", _PRIVATE, "munge"), Path("/run/munge"))
    syscalls.bind(str(folder / "log"), "/var/log")
    syscalls.bind(str(folder / "cache"), "/var/cache/bootseer")
    syscalls.bind(str(folder / "hdfs"), "/var/lib/hdfs")
    syscalls.bind(str(folder / "spool"), f"/var/spool/{'slurmctld' if name == HEAD else 'slurmd'}")


def _mirror(host: Path, target: Path, *, leave_out: set[str]) -> None:
    """Make `target` a folder that shows each entry of the host's folder."""
    target.mkdir(exist_ok=True)
    for entry in host.iterdir() if host.is_dir() else ():
        place = target / entry.name
        if entry.name in leave_out:
            continue
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
        elif entry.is_dir():
            _bind_to(entry, place)
        elif entry.is_file():
            place.touch()
            syscalls.bind(str(entry), str(place))


def _overlay(lower: Path, target: Path, private: Path) -> None:
    upper, work = private / f"{lower.name}-upper", private / f"{lower.name}-work"
    upper.mkdir()
    work.mkdir()
    data = f"lowerdir={lower},upperdir={upper},workdir={work}"
    syscalls.mount("overlay", str(target), "overlay", data=data)


def _bind_to(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    syscalls.bind(str(source), str(target))


def _add_users(etc: Path, spec: ClusterSpec) -> None:
    with (etc / "passwd").open("a") as passwd, (etc / "group").open("a") as group:
        for user in spec.users:
            uid = spec.uid(user)
            passwd.write(f"{user}:*:{uid}:{uid}::{spec.home(user)}:/bin/bash\n")
            group.write(f"{user}:*:{uid}:\n")


def _add_hosts(etc: Path, spec: ClusterSpec) -> None:
    # Written anew: the host's own name must not lead out of the cluster.
    lines = ["127.0.0.1 localhost", *(f"{address(name)} {name}" for name in spec.machine_names)]
    (etc / "hosts").write_text("\n".join(lines) + "\n")


def _open_fuse(root: Path, private: Path) -> None:
    """Let users open /dev/fuse, as udev does on a real node; the host's stays as it is."""
    device = root / "dev/fuse"
    if not device.exists():
        return
    node = private / "fuse"
    os.mknod(node, stat.S_IFCHR | 0o666, device.stat().st_rdev)
    node.chmod(0o666)
    syscalls.bind(str(node), str(device))
