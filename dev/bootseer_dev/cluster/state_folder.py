"""The cluster's state directory: its lock, its folders, its end.

The directory is locked (flock) by whoever starts the cluster, and the keeper inherits the lock:
a free lock means that the cluster is gone and its directory is left over. So no pid written to a
file is ever trusted before the lock has shown that its process lives.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from pathlib import Path

from bootseer.errors import Conflict, Denied
from bootseer_dev.cluster.roots.root import find
from bootseer_dev.cluster.slurm import releases
from bootseer_dev.cluster.slurm.configuration import cgroup_conf, example, slurm_conf
from bootseer_dev.cluster.spec import HEAD, ClusterSpec


def lock(state_dir: Path) -> int:
    """Create the state directory, or take over a left-over one, and return its locked descriptor.

    Raises:
        Conflict: a cluster of this name is up.
        Denied: the directory belongs to somebody else.
    """
    while True:
        state_dir.mkdir(mode=0o755, exist_ok=True)
        descriptor = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise Denied(f"{state_dir} belongs to somebody else; have it removed first")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its former owner may have removed it between our open and our lock.
            if state_dir.exists() and os.path.samestat(os.fstat(descriptor), state_dir.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise Conflict(f"a cluster is up in {state_dir}; take it down first") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def is_locked(state_dir: Path) -> bool:
    """Tell whether a cluster lives in the directory."""
    try:
        descriptor = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove(state_dir: Path) -> None:
    """Remove the state directory of a cluster that is gone; nothing happens if there is none."""
    shutil.rmtree(state_dir, ignore_errors=not state_dir.exists())


def clear(state_dir: Path) -> None:
    """Empty a state directory that an earlier cluster left."""
    for entry in state_dir.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def populate(spec: ClusterSpec) -> None:
    """Write all folders and files that the machines will find in their places."""
    state_dir = spec.state_dir
    (state_dir / "root").mkdir()
    _folder(state_dir / "shared", mode=0o1777)
    if not spec.is_rootless:
        for user in spec.users:
            uid = spec.uid(user)
            _folder(state_dir / "home" / user, mode=0o700, owner=(uid, uid))
    for name in spec.machine_names:
        machine = state_dir / "machines" / name
        _folder(machine / "cache")
        _folder(machine / "hdfs", mode=0o700)
        _folder(machine / "local", mode=0o1777)
        _folder(machine / "log" / "hdfs")
    for name in ("bootseer", "hadoop"):
        _folder(state_dir / "etc" / name)
    if spec.nodes:
        _populate_slurm(spec)


def _populate_slurm(spec: ClusterSpec) -> None:
    root = find(spec.slurm)
    slurm, munge = root.ids("slurm"), root.ids("munge")
    for name in spec.machine_names:
        machine = spec.state_dir / "machines" / name
        _folder(machine / "spool", owner=slurm if name == HEAD else None)
        _folder(machine / "log" / "slurm", owner=slurm)
        _folder(machine / "log" / "munge", mode=0o700, owner=munge)
    etc = spec.state_dir / "etc"
    _folder(etc / "slurm" / "plugstack.conf.d")
    (etc / "slurm" / "slurm.conf").write_text(slurm_conf(spec))
    for name in ("plugstack.conf", "job_container.conf"):
        (etc / "slurm" / name).write_text(example(name))
    if spec.slurm:
        for name, text in releases.release(spec.slurm).files.items():
            (etc / "slurm" / name).write_text(text)
    if text := cgroup_conf(spec):
        (etc / "slurm" / "cgroup.conf").write_text(text)
    _folder(etc / "munge", mode=0o700, owner=munge)
    key = etc / "munge" / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    os.chown(key, *munge)


def _folder(path: Path, *, mode: int = 0o755, owner: tuple[int, int] | None = None) -> None:
    path.mkdir(parents=True)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, *owner)
