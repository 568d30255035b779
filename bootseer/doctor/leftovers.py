"""Checks for what dead jobs and agents have left on the node."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from bootseer.agent.node import registry
from bootseer.agent.node.reap_agents import reap_dead
from bootseer.doctor.check import COMPUTE, Check, Found, Unchecked, warning
from bootseer.doctor.machine import Machine
from bootseer.errors import Denied
from bootseer.folder_ownership import check_alone
from bootseer.fuse.mountinfo import read_mounts
from bootseer.slurm.package import installed, versions

_REAP = "bootseer node reap"


def _agents(machine: Machine) -> Found:
    """Find folders of jobs whose agent is dead; see `reap_dead`, which removes them."""
    run_dir = str(machine.path(machine.config.node.run_dir))
    if os.path.isdir(f"{run_dir}/jobs"):
        try:
            check_alone(run_dir, f"{run_dir}/jobs")
        except Denied as why:  # what is in it may be a user's
            raise Unchecked(f"{why}, see folders.run_dir") from why
    dead = []
    for folder in registry.job_folders(run_dir):
        if registry.agent_pid(folder) is not None or registry.is_starting(folder):
            continue
        if registry.is_served(folder) or (registry.has_ended(folder) and registry.is_young(folder)):
            continue  # its epilog is about to
        dead.append(os.path.basename(folder.path))
    if dead:
        yield warning(
            f"folders of jobs without an agent: {', '.join(dead)}",
            "what they recorded is not published, and their mounts may answer with errors",
            _REAP,
            fix=partial(_reap, run_dir),
        )


def _reap(run_dir: str) -> str:
    reap_dead(run_dir)
    return "reaped the folders of dead agents"


def _mounts(machine: Machine) -> Found:
    jobs = f"{machine.path(machine.config.node.run_dir)}/jobs/"
    names = {
        os.path.basename(folder.path) for folder in registry.job_folders(os.path.dirname(jobs[:-1]))
    }
    lost = [
        mount.mountpoint
        for mount in read_mounts()
        if mount.mountpoint.startswith(jobs)
        and mount.mountpoint.removeprefix(jobs).partition("/")[0] not in names
    ]
    if lost:
        yield warning(
            f"mounts of jobs that are gone: {', '.join(lost[:5])}",
            "whoever looks at them waits or gets an error",
            "umount -l " + " ".join(lost[:5]),
        )


def _processes(machine: Machine) -> Found:
    """Find brokers whose job's folder is gone."""
    jobs = f"{machine.path(machine.config.node.run_dir)}/jobs/"
    ours = os.stat("/proc/self/ns/net").st_ino
    lost = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with suppress(OSError):
            folder = _folder_of(entry, jobs)
            # Nodes that are containers of one machine may see each other's processes.
            is_here = bool(folder) and os.stat(f"/proc/{entry}/ns/net").st_ino == ours
            if is_here and not os.path.isdir(folder):
                lost.append(entry)
    if lost:
        yield warning(
            f"agents whose job's folder is gone: processes {', '.join(lost)}",
            "they hold memory and do nothing",
            f"kill -9 {' '.join(lost)}",
        )


def _versions(machine: Machine) -> Found:
    """Find folders of older versions of a package from which nothing runs any more."""
    package = installed.package()
    if package is None:
        return
    for name, is_used in versions.older_versions(installed.FOLDER).items():
        folder = installed.FOLDER / name
        if is_used:
            yield f"jobs use {folder}"
        else:
            yield warning(
                f"nothing runs from {folder}, a version before {package.version}",
                "it takes space on the disk until the next upgrade",
                package.install_again("bootseer"),
                fix=partial(_remove_versions, installed.FOLDER),
            )


def _remove_versions(top: Path) -> str:
    kept = versions.remove_unused(top)
    return f"removed older versions{', but ' + ', '.join(kept) if kept else ''}"


def _folder_of(pid: str, jobs: str) -> str:
    """Return the job's folder in the command line of an agent's process; "" for others.

    Raises:
        OSError: the process is gone.
    """
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = os.fsdecode(file.read(65536)).split("\0")
    if not any("from bootseer.agent." in word for word in words[:5]):
        return ""
    return next((word for word in words if word.startswith(jobs)), "")


CHECKS = (
    Check("leftovers.agents", "no agent has died", _agents, COMPUTE, needs_root=True),
    Check("leftovers.mounts", "no mount has lost its job", _mounts, COMPUTE),
    Check("leftovers.processes", "no agent has lost its job", _processes, COMPUTE, needs_root=True),
    Check("leftovers.versions", "older versions of a package are gone", _versions, needs_root=True),
)
