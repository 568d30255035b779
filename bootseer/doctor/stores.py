"""Checks of the stores: answer, rights, speed, clock and tickets."""

from __future__ import annotations

import grp
import os
import pwd
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

from bootseer.doctor import store_probe
from bootseer.doctor.check import Check, Finding, Found, Unchecked, warning
from bootseer.doctor.machine import Machine, NoAnswer
from bootseer.doctor.store_probe import IMAGES, OWN, PROBES, SHARED, StoreProbe
from bootseer.env.snapshot.group_store import shared_urls
from bootseer.errors import BootseerError
from bootseer.slurm.plugin.files import python_path
from bootseer.store.hdfs.options import find_conf_dir
from bootseer.units import format_duration, format_size

_BOOT = "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from {module} import main; main()"
_PROBE_S = 3.0
"""For the store; the process needs up to a second to start and end."""
_KILL_S = 4.5
_SLOW_ANSWER_S = 2.0
_SLOW_BYTES_PER_S = 1e6
_SKEW_S = 5.0
"""A claim on an environment lasts a minute without a sign of life; times in reports are shifted."""
_LOW_TICKET_S = 3600.0
_DATE = re.compile(r"(\d\d/\d\d/\d{2,4} \d\d:\d\d:\d\d)")
_NOT_KEPT = "nothing is warmed, and what is recorded is kept on the node until the user's next job"
_AS_USER = "what users can do is seen by a user only: run it as one, or with --user NAME"


def probe(machine: Machine, setting: str, group: str = "") -> StoreProbe:
    """Try a store out, once for all checks.

    Args:
        machine: with the user whose rights are used.
        setting: the one that names the store.
        group: of a shared store.

    Raises:
        Unchecked: the settings cannot be used.
    """
    if machine.config_error:
        raise Unchecked("the settings cannot be used, see folders.settings")
    return machine.once(f"store {setting} {group}", lambda: _probe(machine, setting, group))


def _probe(machine: Machine, setting: str, group: str) -> StoreProbe:
    user = machine.user.name if machine.is_root and machine.user.uid else ""
    boot = _BOOT.format(module=store_probe.__name__)
    argv = [sys.executable, "-ISB", "-c", boot, ":".join(python_path())]
    argv += [machine.config.path, setting, group, user, str(_PROBE_S)]
    try:
        answer = machine.run(argv, timeout_s=_KILL_S, keep_environment=not user)
    except NoAnswer:
        return StoreProbe(problem=f"{setting} does not answer within {_KILL_S:g} s")
    try:
        return PROBES.decode(answer.stdout.encode())
    except BootseerError:
        last = answer.stderr.strip().rpartition("\n")[2]
        return StoreProbe(problem=f"{setting} could not be tried: {last or 'no result'}")


def _check_answer(machine: Machine, setting: str, group: str = "") -> Found:
    found = probe(machine, setting, group)
    named = f"{setting} {group}".strip()
    if found.is_refused and not machine.user.uid and _is_users_own(found.url, setting):
        raise Unchecked(f"{_AS_USER}; to root it says: {found.problem}")
    if found.problem:
        yield Finding(
            f"{named}, as {machine.user.name}: {found.problem}",
            _NOT_KEPT if setting == OWN else f"no job can use what is in {named}",
            "do what the message says; if it does not answer, look at its servers, at the mount "
            f"(`findmnt`) and at {setting} in {machine.config.path}",
        )
        return
    yield f"{found.url} answers {machine.user.name} in {format_duration(found.answer_s)}"


def _is_users_own(url: str, setting: str) -> bool:
    """Return whether a healthy store may refuse root: users have rights or keys there of their own.

    Root's jobs are no users' jobs, and agents use stores as the job's user.
    """
    return not url.startswith("file:") and (setting == OWN or not url.startswith("hdfs:"))


def _own(machine: Machine) -> Found:
    yield from _check_answer(machine, OWN)


def _images(machine: Machine) -> Found:
    if machine.config.image.store_url:
        yield from _check_answer(machine, IMAGES)


def _shared(machine: Machine) -> Found:
    for group in shared_urls(machine.config):
        if machine.user.uid and not _is_member(machine.user.name, group):
            yield f"{SHARED} {group}: {machine.user.name} is not a member"
            continue
        yield from _check_answer(machine, SHARED, group)


def _is_member(user: str, group: str) -> bool:
    try:
        return grp.getgrnam(group).gr_gid in os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return True  # the store's own check says so


def _write(machine: Machine) -> Found:
    if not machine.user.uid:
        raise Unchecked(_AS_USER)
    found = probe(machine, OWN)
    if found.problem:
        raise Unchecked("the store cannot be used, see stores.own")
    if found.write_problem:
        yield Finding(
            f"{machine.user.name} cannot write in {found.url}: {found.write_problem}",
            _NOT_KEPT,
            f"make a folder for each user that is the user's own, or set {OWN} in "
            f"{machine.config.path} to one, such as file://{{home}}/.bootseer",
        )


def _speed(machine: Machine) -> Found:
    found = probe(machine, OWN)
    if found.problem:
        raise Unchecked("the store cannot be used, see stores.own")
    if found.read_bytes_per_s:
        yield (
            f"1 MiB: read at {format_size(found.read_bytes_per_s)}/s, written at "
            f"{format_size(found.write_bytes_per_s)}/s"
        )
    slow = found.answer_s > _SLOW_ANSWER_S
    if slow or 0 < found.read_bytes_per_s < _SLOW_BYTES_PER_S:
        how = f"answers after {format_duration(found.answer_s)}"
        if not slow:
            how = f"reads 1 MiB at {format_size(found.read_bytes_per_s)}/s"
        yield warning(
            f"{found.url} {how}",
            "plans and hot sets arrive after the job has begun to read",
            f"look at its servers and the network; {OWN} can name a faster place",
        )


def _clock(machine: Machine) -> Found:
    found = probe(machine, OWN)
    if abs(found.skew_s) > _SKEW_S:
        direction = "ahead of" if found.skew_s > 0 else "behind"
        yield warning(
            f"the clock of {found.url} is {format_duration(abs(found.skew_s))} {direction} this "
            "machine's",
            "claims on environments expire too early or late, and munge refuses messages",
            "systemctl enable --now chronyd (or systemd-timesyncd) on both",
        )


def _ticket(machine: Machine) -> Found:
    """Check the user's Kerberos ticket, if the store is in an HDFS that wants one."""
    config = machine.config
    if not config.store.url.startswith("hdfs:") or not _needs_kerberos(config.hdfs.conf_dir):
        return
    cache = machine.user.fill(config.hdfs.kerberos_cache)
    if not machine.user.uid:
        raise Unchecked(_AS_USER)
    try:
        answer = machine.run(["klist", *(["-c", cache] if cache else [])], as_user=True)
    except NoAnswer as why:
        raise Unchecked(f"tickets cannot be listed: {why}") from why
    ends_s = _end_of_ticket(answer.stdout)
    left_s = ends_s - time.time() if ends_s else 0.0
    who = f"{machine.user.name}'s Kerberos ticket"
    if left_s <= 0:
        yield Finding(
            f"{who} is missing or has expired",
            f"the store refuses the user: {_NOT_KEPT}",
            f"kinit{f' -c {cache}' if cache else ''} {machine.user.name}",
        )
    elif left_s < _LOW_TICKET_S:
        yield warning(
            f"{who} ends in {format_duration(left_s)}",
            "a job that ends later cannot store what it recorded",
            "kinit, and have tickets renewed on the nodes",
        )
    else:
        yield f"{who} lasts for {format_duration(left_s)}"


def _needs_kerberos(conf_dir: str) -> bool:
    try:
        tree = ElementTree.parse(Path(find_conf_dir(conf_dir), "core-site.xml"))
    except (BootseerError, OSError, ElementTree.ParseError):
        return False  # the store's own check says so
    properties = {p.findtext("name"): p.findtext("value") for p in tree.iter("property")}
    return (properties.get("hadoop.security.authentication") or "").strip() == "kerberos"


def _end_of_ticket(listed: str) -> float:
    """Return when the ticket-granting ticket ends, seconds since 1970; 0 if there is none."""
    for line in listed.splitlines():
        dates = _DATE.findall(line.replace("  ", " "))
        if "krbtgt/" in line and len(dates) >= 2:
            form = "%m/%d/%Y %H:%M:%S" if len(dates[1]) > 17 else "%m/%d/%y %H:%M:%S"
            return datetime.strptime(dates[1], form).timestamp()
    return 0.0


CHECKS = (
    Check("stores.own", "the user's store answers", _own),
    Check("stores.write", "the user can write there", _write),
    Check("stores.speed", "the user's store is fast enough", _speed),
    Check("stores.clock", "its clock is this machine's", _clock),
    Check("stores.ticket", "the user has a Kerberos ticket", _ticket),
    Check("stores.images", "the image store answers", _images),
    Check("stores.shared", "stores of groups answer", _shared),
)
