"""Checks of the machine's services and tools: accounts, systemd, cgroups, munge, mksquashfs."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

from bootseer.agent.node.account import broker_settings
from bootseer.core.nodelist import expand
from bootseer.doctor.check import COMPUTE, Check, Finding, Found, Unchecked, warning
from bootseer.doctor.machine import Machine, NoAnswer
from bootseer.doctor.slurm import slurm_conf
from bootseer.errors import BootseerError
from bootseer.slurm.accounts import make_accounts
from bootseer.slurm.package import installed

_SYSTEMD = {"StandardOutput=append:": 240, "OOMPolicy=": 243}
"""What the agent's unit uses, and the version of systemd that has it first."""
_MKSQUASHFS = (4, 5)


def _accounts(machine: Machine) -> Found:
    try:
        found = broker_settings(machine.config)
    except BootseerError as error:
        yield Finding(
            str(error),
            "no agent starts: nothing is warmed, nothing is recorded",
            "as root: systemd-sysusers /usr/lib/sysusers.d/bootseer.conf"
            if installed.package()
            else "run `bootseer plugin install` as root, which makes them",
            fix=partial(_make_accounts, machine),
        )
        return
    yield f"supervisor: {found.account.name}, block cache: {found.cache_account.name}"


def _make_accounts(machine: Machine) -> str:
    made = make_accounts(machine.config)
    return f"made the accounts {', '.join(made)}" if made else "the accounts are there"


def _systemd(machine: Machine) -> Found:
    if not machine.path("/run/systemd/system").is_dir():
        yield "systemd does not run here: the agent has a session of its own"
        return
    if not machine.path("/usr/bin/systemd-run").exists():
        yield Finding(
            "systemd runs this machine, but there is no /usr/bin/systemd-run",
            "no agent starts: nothing is warmed",
            "install the package systemd",
        )
        return
    answer = machine.run(["systemctl", "--version"])
    match = re.match(r"systemd (\d+)", answer.stdout)
    version = int(match[1]) if match else 0
    yield f"systemd {version}"
    lacking = [name for name, first in _SYSTEMD.items() if version < first]
    if version and lacking:
        yield Finding(
            f"systemd {version} does not know {', '.join(lacking)} of the agent's unit",
            "no agent starts: nothing is warmed",
            f"upgrade systemd to {max(_SYSTEMD.values())} or later",
        )


def _cgroup(machine: Machine) -> Found:
    places = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    found = next((p for p in places if machine.path(f"{p}/cgroup.procs").exists()), "")
    if found:
        yield f"cgroup version 2 at {found}"
        return
    yield warning(
        "cgroup version 2 is not mounted",
        "without systemd the agent stays in slurmd's group, and its processes are found one by one",
        "boot with systemd.unified_cgroup_hierarchy=1, or "
        "mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified",
    )


def _munge(machine: Machine) -> Found:
    with suppress(Unchecked):
        if slurm_conf(machine).get("AuthType", "auth/munge").lower() != "auth/munge":
            return
    why = "Slurm refuses every message: no job can be submitted, and the node goes down"
    mend = "systemctl start munge; `journalctl -u munge` says why it ended"
    try:
        made = machine.run(["munge", "-n"], timeout_s=2)
        if made.returncode:
            yield Finding(f"munge does not answer: {_first(made.stderr)}", why, mend)
            return
        read = machine.run(["unmunge"], input=made.stdout, timeout_s=2)
    except NoAnswer as error:
        yield Finding(f"munge cannot be asked: {error}", why, mend)
        return
    if read.returncode:
        yield Finding(f"munge does not read its own credential: {_first(read.stderr)}", why, mend)


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]


def _mksquashfs(machine: Machine) -> Found:
    mend = "install the package squashfs-tools, 4.5 or later"
    why = "environments (`bootseer env run`) cannot be captured on this node"
    try:
        answer = machine.run(["mksquashfs", "-version"])
    except NoAnswer:
        yield warning("there is no mksquashfs", why, mend)
        return
    match = re.search(r"version (\d+)\.(\d+)", answer.stdout)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < _MKSQUASHFS:
        yield warning(f"mksquashfs is {'.'.join(map(str, version))}, older than 4.5", why, mend)


def _peers(machine: Machine) -> Found:
    settings = machine.config.peers
    if not settings.min_nodes:
        yield "nodes of a job do not read from each other: peers.min_nodes is 0"
        return
    with suppress(OSError):
        nodes = sum(len(expand(text)) for text in slurm_conf(machine).nodes)
        if nodes < settings.min_nodes:
            yield f"the cluster has {nodes} nodes, fewer than peers.min_nodes"
            return
    name = os.uname().nodename.partition(".")[0] + settings.host_suffix
    why = (
        f"jobs of {settings.min_nodes} nodes and more read everything from the store, on each node"
    )
    try:
        answer = machine.run(["getent", "ahosts", name])
    except NoAnswer as error:
        raise Unchecked(str(error)) from error
    address = answer.stdout.partition(" ")[0]
    try:
        is_loopback = ip_address(address).is_loopback
    except ValueError:
        yield warning(
            f"{name} has no address",
            why,
            "put the node's names into DNS or /etc/hosts, or correct peers.host_suffix",
        )
        return
    yield f"{name} is {address}"
    if is_loopback:
        yield warning(
            f"{name} leads to {address} on this node, where no other node reaches it",
            why,
            "give it the node's address in /etc/hosts, or set peers.host_suffix",
        )


CHECKS = (
    Check("system.accounts", "BootSeer's accounts are there", _accounts, COMPUTE),
    Check("system.systemd", "systemd can start the agent", _systemd, COMPUTE),
    Check("system.cgroup", "agents have control groups", _cgroup, COMPUTE),
    Check("system.munge", "munge answers", _munge),
    Check("system.peers", "nodes of a job can read from each other", _peers, COMPUTE),
    Check("system.mksquashfs", "environments can be captured", _mksquashfs, COMPUTE),
)
