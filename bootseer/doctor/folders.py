"""Checks of BootSeer's folders and its settings file."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from functools import partial
from pathlib import Path

from bootseer.doctor.check import COMPUTE, Check, Finding, Fix, Found, Unchecked, warning
from bootseer.doctor.machine import Machine, set_mode
from bootseer.errors import Denied
from bootseer.posix import OPEN_FOLDER
from bootseer.units import GIB, format_size

_SHARED = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "cifs", "smb3"}
_IN_MEMORY = {"tmpfs", "ramfs"}
_MIN_CACHE_BYTES = GIB


def _settings(machine: Machine) -> Found:
    path = machine.config.path
    if machine.config_error:
        yield Finding(
            machine.config_error,
            "BootSeer does nothing on this machine but to log this; jobs run without it",
            f"edit {path}; `bootseer config show` lists all settings",
        )
        return
    if not machine.path(path).exists():
        yield f"there is no {path}: all settings have their defaults"
        return
    closed = machine.closed_to_users(path)
    if closed:
        yield Finding(
            f"users cannot read {path}: {closed} is closed to them",
            "srun's advice and the commands of users fail",
            f"chmod o+rX {closed}",
            fix=partial(_open_file, machine.path(path), path) if closed == path else None,
        )


def _open_file(path: Path, name: str) -> str:
    set_mode(path, 0o644)
    return f"opened {name} for reading (mode 0644)"


def _run_dir(machine: Machine) -> Found:
    top = machine.config.node.run_dir
    for name in (top, f"{top}/jobs"):
        path = machine.path(name)
        if not os.path.lexists(path):
            continue  # the first prolog makes it
        info = os.lstat(path)
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISDIR(info.st_mode) and info.st_uid == 0 and not mode & 0o022:
            continue
        yield Finding(
            f"{name} is not a folder of root's alone: it belongs to {_owner(info.st_uid)}, "
            f"mode {mode:04o}",
            "a user could replace the folders of jobs: the prolog refuses it, nothing is warmed",
            f"look at what is in it, then: chown root:root {name} && chmod 755 {name}",
            fix=_owner_fix(path, name, info),
        )


def _owner_fix(path: Path, name: str, info: os.stat_result) -> Fix | None:
    """Return what makes a folder root's alone.

    None for what is no folder, such as a link, and where a user can have put something in: root
    would trust that afterwards.
    """
    if not stat.S_ISDIR(info.st_mode):
        return None
    was_roots = info.st_uid == 0 and not info.st_mode & 0o022
    return partial(_own_folder, path, name, was_roots) if was_roots or _is_empty(path) else None


def _is_empty(path: Path | int) -> bool:
    """Return whether a folder, a path or a descriptor, has nothing but empty folders in it."""
    fd = os.dup(path) if isinstance(path, int) else os.open(path, OPEN_FOLDER)
    try:
        for entry in os.listdir(fd):
            inner = os.open(entry, OPEN_FOLDER, dir_fd=fd)
            try:
                if os.listdir(inner):
                    return False
            finally:
                os.close(inner)
    except OSError:
        return False  # something else is in it
    finally:
        os.close(fd)
    return True


def _own_folder(path: Path, name: str, was_roots: bool) -> str:
    fd = os.open(path, OPEN_FOLDER)
    try:
        before = os.fstat(fd)
        os.fchown(fd, 0, 0)
        os.fchmod(fd, 0o755)
        if not was_roots and not _is_empty(fd):
            os.fchown(fd, before.st_uid, before.st_gid)
            raise Denied(f"somebody has put something into {name}: look at it first")
    finally:
        os.close(fd)
    return f"made {name} root's, mode 0755"


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def file_system(machine: Machine, name: str) -> str:
    """Return the kind of file system that a path is on, or will be made on."""
    import psutil

    found = Path(os.path.realpath(machine.nearest(name)))
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((kinds[p] for p in (found, *found.parents) if p in kinds), "unknown file system")


def _run_dir_kind(machine: Machine) -> Found:
    name = machine.config.node.run_dir
    kind = file_system(machine, name)
    yield f"{name} is on {kind}"
    if kind not in _IN_MEMORY:
        yield warning(
            f"{name} is on {kind}, not on a tmpfs",
            "folders of jobs outlive a reboot, and a full or shared disk holds up prologs",
            "set node.run_dir to a folder below /run, and the plugin's run_dir= with it",
        )


def _cache(machine: Machine) -> Found:
    """Check the cache folder: root's, and its parts of the accounts that write there."""
    config = machine.config
    top = config.node.cache_dir
    place = machine.nearest(top)
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        yield Finding(
            f"{top} is on a file system that is mounted read-only",
            _NO_CACHE,
            f"mount -o remount,rw $(findmnt -nT {shlex.quote(top)} -o TARGET), or set "
            "node.cache_dir to another disk",
        )
        return
    if not os.path.lexists(machine.path(top)):
        yield f"{top} is made by the first job"
        return
    yield from _root_alone(machine, top)
    accounts = (("images", config.node.cache_user), ("unpublished", config.node.service_user))
    for name, account in accounts:
        yield from _owned(machine, f"{top}/{name}", account)


_NO_CACHE = "blocks of images are not kept on the node, and events that wait are lost"


def _root_alone(machine: Machine, top: str) -> Found:
    info = os.lstat(machine.path(top))
    mode = stat.S_IMODE(info.st_mode)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid or mode & 0o022:
        yield Finding(
            f"{top} is not a folder of root's alone: it belongs to {_owner(info.st_uid)}, mode "
            f"{mode:04o}",
            "a user could replace what is cached: the broker refuses it, nothing is warmed",
            f"look at what is in it, then: chown root:root {top} && chmod 755 {top}",
            fix=_owner_fix(machine.path(top), top, info),
        )
    elif not mode & 0o200 or not mode & 0o001:
        yield Finding(
            f"{top} has mode {mode:04o}",
            f"the accounts of BootSeer cannot work in it: {_NO_CACHE}",
            f"chmod 755 {top}",
            fix=_owner_fix(machine.path(top), top, info),
        )


def _owned(machine: Machine, name: str, account: str) -> Found:
    path = machine.path(name)
    try:
        entry = pwd.getpwnam(account)
        info = os.lstat(path)
    except (KeyError, FileNotFoundError):
        return  # see system.accounts; the first job makes it
    if stat.S_ISDIR(info.st_mode) and info.st_uid == entry.pw_uid and info.st_mode & 0o700 == 0o700:
        return
    yield Finding(
        f"{name} cannot be written by {account}: it belongs to {_owner(info.st_uid)}, mode "
        f"{stat.S_IMODE(info.st_mode):04o}",
        _NO_CACHE,
        f"on a node without jobs: rm -r {name} (it is made anew), or chown -R {account}: {name}",
    )


def _cache_kind(machine: Machine) -> Found:
    name = machine.config.node.cache_dir
    kind = file_system(machine, name)
    yield f"{name} is on {kind}"
    if kind in _SHARED:
        yield Finding(
            f"{name} is on {kind}, which nodes share",
            "the nodes damage each other's block cache, and it is no faster than the store",
            "set node.cache_dir to a folder on a local disk, in bootseer.toml",
        )
    elif kind in _IN_MEMORY:
        yield warning(
            f"{name} is on {kind}",
            "cached blocks take memory from jobs",
            "set node.cache_dir to a folder on a local disk, in bootseer.toml",
        )


def _cache_space(machine: Machine) -> Found:
    config = machine.config
    name = config.node.cache_dir
    space = os.statvfs(machine.nearest(name))
    total_bytes, free_bytes = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    kept_bytes = config.cache.free_share * total_bytes
    usable_bytes = min(free_bytes - kept_bytes, config.cache.quota_gib * GIB)
    yield (
        f"{format_size(free_bytes)} of {format_size(total_bytes)} are free at {name}, quota "
        f"{config.cache.quota_gib:g} GiB"
    )
    held_bytes = _held_bytes(machine)
    if usable_bytes + held_bytes < min(_MIN_CACHE_BYTES, config.cache.quota_gib * GIB):
        yield warning(
            f"images can use {format_size(max(0, usable_bytes))} more at {name}: "
            f"{format_size(free_bytes)} are free, and cache.free_share keeps "
            f"{format_size(kept_bytes)} of them",
            "blocks of images are not kept on the node, and environments are unpacked",
            f"free space at {name}, or set node.cache_dir to a larger disk",
        )


def _held_bytes(machine: Machine) -> int:
    """Return what the block cache is charged, all of which it can reuse."""
    folder = machine.path(f"{machine.config.node.cache_dir}/images")
    if not machine.is_root or not folder.is_dir():
        return 0
    return sum(account.stat().st_size for account in folder.glob("*/account"))


def _scratch(machine: Machine) -> Found:
    for setting in ("checkpoint.spill_dir", "env.scratch_dir"):
        name = str(machine.config.values[setting])
        path = machine.path(name)
        if path.is_dir():
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o003 == 0o003 or (not machine.is_root and os.access(path, os.W_OK)):
                continue
            what = f"users cannot write in {name} (mode {mode:04o})"
            mend = f"chmod 1777 {name}, or set {setting} to another folder"
        else:
            what = f"{name} is not a folder"
            mend = f"install -d -m 1777 {name}, or set {setting} to another folder"
        why = (
            "a checkpoint's files cannot be written out of order"
            if setting.startswith("checkpoint")
            else "environments cannot be captured"
        )
        yield warning(f"{setting}: {what}", why, mend)


def _unpublished(machine: Machine) -> Found:
    folder = machine.path(f"{machine.config.node.cache_dir}/unpublished")
    if not folder.is_dir():
        return
    try:
        waiting = [len(list(user.iterdir())) for user in folder.iterdir() if user.is_dir()]
    except PermissionError as error:
        raise Unchecked("only root can see what waits to be published") from error
    if sum(waiting):
        yield f"{sum(waiting)} notes of {len(waiting)} users wait for their next job"


CHECKS = (
    Check("folders.settings", "the settings file can be used", _settings),
    Check("folders.run_dir", "node.run_dir is root's alone", _run_dir, COMPUTE),
    Check("folders.run_dir_kind", "node.run_dir is in memory", _run_dir_kind, COMPUTE),
    Check("folders.cache", "node.cache_dir can be written", _cache, COMPUTE),
    Check("folders.cache_kind", "node.cache_dir is on a local disk", _cache_kind, COMPUTE),
    Check("folders.cache_space", "there is space for the block cache", _cache_space, COMPUTE),
    Check("folders.scratch", "users can write spill and scratch files", _scratch, COMPUTE),
    Check("folders.unpublished", "what waits to be published is known", _unpublished, COMPUTE),
)
