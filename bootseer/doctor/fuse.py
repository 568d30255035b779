"""Checks of what mounts need of the kernel: FUSE, user namespaces, overlays, read-ahead."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from functools import partial

from bootseer.doctor.check import COMPUTE, Check, Finding, Found, warning
from bootseer.doctor.machine import Machine, set_mode

_DEVICE = "/dev/fuse"
_RULE = 'KERNEL=="fuse", MODE="0666"'


def _device(machine: Machine) -> Found:
    path = machine.path(_DEVICE)
    if not path.exists():
        yield Finding(
            f"{_DEVICE} is not there",
            "no checkpoint, image or environment can be mounted",
            "modprobe fuse; echo fuse > /etc/modules-load.d/fuse.conf",
        )


def _users(machine: Machine) -> Found:
    path = machine.path(_DEVICE)
    if not path.exists():
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o006 == 0o006:
        return
    if not machine.is_root and os.access(path, os.R_OK | os.W_OK):
        yield f"{_DEVICE} has mode {mode:04o}, and you can open it"
        return
    yield Finding(
        f"users cannot open {_DEVICE} (mode {mode:04o})",
        "container runtimes mount images as the user, and fail",
        f"chmod 666 {_DEVICE}; for the next boot, in /etc/udev/rules.d/99-fuse.rules:  {_RULE}",
        fix=partial(_open_device, machine),
    )


def _open_device(machine: Machine) -> str:
    set_mode(machine.path(_DEVICE), 0o666)
    return f"opened {_DEVICE} to users until the next boot (mode 0666)"


def _namespaces(machine: Machine) -> Found:
    for name, bad, mend in (
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=65536"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ):
        with suppress(FileNotFoundError):
            if machine.read(f"/proc/sys/{name}").strip() == bad:
                why = "containers of users cannot be started without a set-user-id program"
                if name.startswith("user/"):
                    why = "mounts of jobs are ordinary ones, environments are unpacked, and " + why
                yield warning(
                    f"{name.replace('/', '.')} is {bad}",
                    why,
                    f"sysctl -w {mend}; for the next boot, put {mend} into /etc/sysctl.d/",
                )


def _kernel(machine: Machine) -> Found:
    release = machine.read("/proc/sys/kernel/osrelease").strip()
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    cachestat = "has cachestat" if version >= (6, 5) else "has no cachestat (Linux 6.5)"
    yield f"Linux {release} {cachestat}"
    if version < (5, 2):
        yield warning(
            f"Linux {release} is older than 5.2",
            "environments are not mounted but unpacked, and a checkpoint has no MOUNTPOINT",
            "install a kernel of 5.2 or later",
        )


def _overlay(machine: Machine) -> Found:
    release = machine.read("/proc/sys/kernel/osrelease").strip()
    kinds = machine.read("/proc/filesystems").split()
    modules = f"/lib/modules/{release}/kernel/fs/overlayfs"
    if "overlay" not in kinds and not machine.path(modules).exists():
        yield warning(
            "the kernel has no overlayfs",
            "environments are not mounted but unpacked",
            "modprobe overlay; echo overlay > /etc/modules-load.d/overlay.conf",
        )


def _read_ahead(machine: Machine) -> Found:
    folder = machine.path("/sys/class/bdi")
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [entry / "read_ahead_kb" for entry in names]
    files = [file for file in files if file.exists()]
    if not files:
        why = "there is no /sys/class/bdi with read_ahead_kb"
    elif os.statvfs(files[0]).f_flag & os.ST_RDONLY or not files[0].stat().st_mode & 0o200:
        why = f"{files[0]} cannot be written: /sys is mounted read-only"
    else:
        return
    yield warning(
        why,
        "the kernel reads 128 KiB ahead in mounted checkpoints: 0.5 instead of 4 GB/s",
        "mount -o remount,rw /sys (a container that runs slurmd must have it writable)",
    )


def _fusermount(machine: Machine) -> Found:
    program = machine.find_program("fusermount3", "fusermount")
    if not program:
        yield warning(
            "there is no fusermount3",
            "container runtimes cannot mount a squashfs as the user",
            "install the package fuse3",
        )
    elif not os.stat(program).st_mode & stat.S_ISUID:
        yield warning(
            f"{program} is not set-user-id",
            "users outside of a user namespace cannot mount a squashfs",
            f"chmod u+s {program}, or install the package fuse3 again",
        )


CHECKS = (
    Check("fuse.device", "there is /dev/fuse", _device, COMPUTE),
    Check("fuse.users", "users can open /dev/fuse", _users, COMPUTE),
    Check("fuse.fusermount", "users can mount a squashfs", _fusermount, COMPUTE),
    Check("fuse.user_namespaces", "users may have user namespaces", _namespaces, COMPUTE),
    Check("fuse.kernel", "the kernel is new enough", _kernel),
    Check("fuse.overlay", "the kernel has overlayfs", _overlay, COMPUTE),
    Check("fuse.read_ahead", "the read-ahead of mounts can be set", _read_ahead, COMPUTE),
)
