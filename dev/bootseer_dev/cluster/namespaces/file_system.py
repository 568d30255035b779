"""What a machine of the cluster sees as its file system.

The host's folders appear at their own paths, on a root, an /etc, a /var and a /usr/local that
belong to the cluster: a tmpfs and three overlays, so that mount points, users, settings and
programs can be made without a trace on the host. All of it lives in private mount namespaces and
goes with the last process.

    /                   tmpfs; the host's top-level folders bound in, /home and /mnt entry by entry
    /etc, /var, /usr/local
                        overlays over the host's, written to memory
    /etc/{slurm,munge,bootseer,hadoop}, /home/USER, /shared
                        from the state directory, one for all
    /var/log, /var/spool/slurm*, /var/cache/bootseer, /var/lib/hdfs, /local
                        from the state directory, one per machine
    /run, /dev/shm      tmpfs, one per machine (/run/munge is one for all)
    /proc               of the cluster's PID namespace

With another release of Slurm than the host's, "the host" above is a Debian root of that release
(`bootseer_dev.cluster.roots`), and from the host proper come /dev, /sys, /tmp and /var/tmp, the
checkout, and, in the place of the virtual environment that runs this, one of the root's own Python.

In an ordinary user's cluster there is nothing of Slurm's and munge's, and no /home/USER; its /root
is an empty folder, the host's being closed to it.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from bootseer_dev.cluster.namespaces import syscalls
from bootseer_dev.cluster.roots.root import checkout, find
from bootseer_dev.cluster.spec import HEAD, ClusterSpec, address

# Kept out of users' sight at the root of the cluster's tmpfs.
_PRIVATE = ".cluster"
_OPENED = ("home", "mnt")
_DEVICES_AND_TMP = ("dev", "sys", "tmp")
_VAR = ("spool/slurmd", "spool/slurmctld", "cache/bootseer", "lib/hdfs")


def enter_base(spec: ClusterSpec) -> None:
    """Build the root that all machines start from, and make it the caller's root.

    The caller is PID 1 of a new PID namespace, in a mount namespace of its own.

    Raises:
        OSError: the kernel refused a mount (no rights, no overlayfs).
    """
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    source = find(spec.slurm)
    root = spec.state_dir / "root"
    syscalls.mount("bootseer-cluster", str(root), "tmpfs", data="mode=755")
    # Entries are added to these by root's clusters alone, whose root may list them whatever is set.
    opened = () if spec.is_rootless else _OPENED
    made = {"proc", "run", "shared", "local", "etc", "var"}
    made |= {"root"} if spec.is_rootless else set()
    hosts = () if source.is_hosts else _DEVICES_AND_TMP
    _mirror(source.folder, root, leave_out=made.union(opened, hosts))
    for name in opened:
        _mirror(source.folder / name, root / name, leave_out=set(spec.users))
    for name in hosts:
        _bind_to(Path("/", name), root / name)
    for name in made:
        (root / name).mkdir()
    private = root / _PRIVATE
    private.mkdir(mode=0o700)
    # What the overlays add is there before they are: an ordinary user may add nothing afterwards
    # to folders of the host's.
    etc, var, local = (private / f"{name}-upper" for name in ("etc", "var", "local"))
    local.mkdir()
    _write_etc(source.folder / "etc", etc, spec)
    for name in _VAR:
        (var / name).mkdir(parents=True)
    for upper, name in ((etc, "etc"), (var, "var"), (local, "usr/local")):
        _overlay(source.folder / name, root / name, upper, spec)
    syscalls.bind("/var/tmp", str(root / "var/tmp"))
    if not source.is_hosts:
        _bind_to(checkout(), Path(f"{root}{checkout()}"))
        _bind_to(source.environment, Path(f"{root}{sys.prefix}"))
    syscalls.detach(f"{root}{root}")  # the bind shows the new root a second time, within itself
    syscalls.mount("proc", str(root / "proc"), "proc")

    for folder in (spec.state_dir / "etc").iterdir():
        _bind_to(folder, root / "etc" / folder.name)
    syscalls.bind(str(spec.state_dir / "shared"), str(root / "shared"))
    if not spec.is_rootless:
        for user in spec.users:
            _bind_to(spec.state_dir / "home" / user, root / "home" / user)
        _open_fuse(root, private)
    if spec.nodes:
        (private / "munge").mkdir()
        os.chown(private / "munge", *source.ids("munge"))

    os.chdir(root)
    subprocess.run(["pivot_root", ".", "."], check=True)
    syscalls.detach(".")
    os.chdir("/")


def enter_machine(spec: ClusterSpec, name: str) -> None:
    """Give the calling process, already in a mount namespace of its own, one machine's mounts."""
    folder = spec.state_dir / "machines" / name
    # As systemd has it: namespaces that are made later see what is mounted then.
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_SHARED)
    syscalls.mount("tmpfs", "/run", "tmpfs", data="mode=755")
    syscalls.mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    Path("/run/lock").mkdir(mode=0o755)
    syscalls.bind(str(folder / "log"), "/var/log")
    syscalls.bind(str(folder / "cache"), "/var/cache/bootseer")
    syscalls.bind(str(folder / "hdfs"), "/var/lib/hdfs")
    syscalls.bind(str(folder / "local"), "/local")
    if spec.nodes:
        _bind_to(Path("/", _PRIVATE, "munge"), Path("/run/munge"))
        spool = "slurmctld" if name == HEAD else "slurmd"
        syscalls.bind(str(folder / "spool"), f"/var/spool/{spool}")


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


def _overlay(lower: Path, target: Path, upper: Path, spec: ClusterSpec) -> None:
    work = upper.with_name(f"{lower.name}-work")
    work.mkdir()
    data = f"lowerdir={lower},upperdir={upper},workdir={work}"
    if spec.is_rootless:
        data += ",userxattr"  # it may set no others
    syscalls.mount("overlay", str(target), "overlay", data=data)


def _bind_to(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    syscalls.bind(str(source), str(target))


def _write_etc(lower: Path, etc: Path, spec: ClusterSpec) -> None:
    etc.mkdir()
    passwd, group = ((lower / name).read_text() for name in ("passwd", "group"))
    for user in spec.users:
        uid = spec.uid(user)
        passwd += f"{user}:*:{uid}:{uid}::{spec.home(user)}:/bin/bash\n"
        group += f"{user}:*:{uid}:\n"
    (etc / "passwd").write_text(passwd)
    (etc / "group").write_text(group)
    # Not added to: the host's own name must not lead out of the cluster.
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
