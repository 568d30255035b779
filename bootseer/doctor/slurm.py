"""Checks of Slurm's configuration and daemons; finds its files and its release for others."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from functools import partial

from bootseer.agent.node.spawn import status_fields
from bootseer.core.nodelist import expand
from bootseer.doctor.check import COMPUTE, Check, Finding, Found, Role, Unchecked, warning
from bootseer.doctor.machine import Machine, NoAnswer
from bootseer.slurm.configuration import PluginLine, PlugStack, SlurmConf
from bootseer.slurm.package import installed
from bootseer.slurm.plugin.files import PLUGIN

_PLACES = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
)
_VERSION = re.compile(r"slurm\S*\s+(\d+\.\d+\.\d+)", re.IGNORECASE)
_EARLY = {"alloc", "contain", "x11", "runinjob", "deferbatch", "forcerequeueonfail", "nohold"}
"""Flags with which the prolog runs at the allocation: prolog_str2flags of Slurm."""
_MARGIN_S = 5.0
"""What the plugin gives a prolog after its wait, before it kills it."""
_LONG_PROLOG_S = 5.0
_STARTED_S = 1.0
"""How exactly the start of a process is known, and the time of a file on a share."""


def slurm_conf(machine: Machine) -> SlurmConf:
    """Return what slurm.conf sets.

    Raises:
        Unchecked: there is no slurm.conf on this machine.
    """

    def read() -> SlurmConf:
        places = [os.environ.get("SLURM_CONF", ""), *_PLACES]
        for place in filter(None, places):
            if machine.path(place).is_file():
                return SlurmConf(place, machine.path)
        raise Unchecked("there is no slurm.conf here, see slurm.conf")

    return machine.once("slurm.conf", read)


def plugstack(machine: Machine) -> PlugStack:
    """Return the plugins that Slurm loads.

    Raises:
        Unchecked: see `slurm_conf`.
    """

    def read() -> PlugStack:
        try:
            conf = slurm_conf(machine)
            folder = os.path.dirname(conf.path)
            path = conf.get("PlugStackConfig", f"{folder}/plugstack.conf")
        except Unchecked:
            path = "/etc/slurm/plugstack.conf"
        return PlugStack(path, machine.path)

    return machine.once("plugstack.conf", read)


def our_lines(machine: Machine) -> list[PluginLine]:
    """Return our plugin's lines in the plugin stack, as often as Slurm reads them."""
    plugins = plugstack(machine).plugins
    return [line for line in plugins if os.path.basename(line.path) == PLUGIN]


def argument_seconds(machine: Machine) -> tuple[float, float]:
    """Return max_wait and epilog_timeout of the plugin's line, in seconds, or their defaults."""
    line = next(iter(our_lines(machine)), PluginLine("", 0, False, "", ()))
    return _seconds_of(line, "max_wait", 60), _seconds_of(line, "epilog_timeout", 20)


def _seconds_of(line: PluginLine, name: str, default: float) -> float:
    """Return the number of an argument of the plugin's, or the default."""
    try:
        return float(line.argument(name))
    except ValueError:
        return default


def slurm_release(machine: Machine) -> str:
    """Return the installed release of Slurm, such as "22.05.8".

    Raises:
        Unchecked: no program tells it.
    """

    def ask() -> str:
        said = []
        for argv in (["srun", "--version"], ["scontrol", "--version"], ["slurmd", "-V"]):
            with suppress(NoAnswer):
                answer = machine.run(argv, timeout_s=2)
                match = _VERSION.search(answer.stdout)
                if match:
                    return match[1]
                said.append((answer.stderr or answer.stdout).strip().partition("\n")[0])
        raise Unchecked(f"no program of Slurm tells its release: {'; '.join(said) or 'not found'}")

    return machine.once("slurm release", ask)


def slurmd_pid(machine: Machine) -> int | None:
    """Return the process id of this machine's slurmd; None if none runs.

    From its pid file, or else from systemd: `slurmd --systemd` of newer releases writes no file.
    """
    return machine.once("slurmd_pid", partial(_find_slurmd, machine))


def _find_slurmd(machine: Machine) -> int | None:
    try:
        name = slurm_conf(machine).get("SlurmdPidFile", "/var/run/slurmd.pid")
    except (Unchecked, OSError):
        name = "/var/run/slurmd.pid"
    host = os.uname().nodename.partition(".")[0]
    name = name.replace("%h", host).replace("%n", host)
    try:
        return _slurmd_of(machine.read(name, 32)) or _slurmd_of(_main_pid(machine))
    except OSError:
        return _slurmd_of(_main_pid(machine))


def _main_pid(machine: Machine) -> str:
    """Return what systemd says of slurmd's process; "" without systemd."""
    if not machine.path("/run/systemd/system").is_dir():
        return ""
    try:
        argv = ["systemctl", "show", "--property=MainPID", "--value", "slurmd.service"]
        return machine.run(argv).stdout
    except NoAnswer:
        return ""


def _slurmd_of(text: str) -> int | None:
    """Return the process id in a text, if it is a slurmd's."""
    try:
        pid = int(text)
        with open(f"/proc/{pid}/comm") as file:
            return pid if file.read().startswith("slurmd") else None
    except (OSError, ValueError):
        return None


def find_role(machine: Machine) -> Role:
    """Find out what a machine is for: a compute node has a slurmd, or its name in slurm.conf."""
    if slurmd_pid(machine) is not None:
        return Role.COMPUTE
    with suppress(Unchecked, OSError):
        names = {name for text in slurm_conf(machine).nodes for name in expand(text)}
        host = os.uname().nodename
        if {host, host.partition(".")[0]} & names:
            return Role.COMPUTE
    return Role.SUBMIT


def _conf(machine: Machine) -> Found:
    try:
        conf = slurm_conf(machine)
    except Unchecked:
        yield Finding(
            f"there is no slurm.conf in {', '.join(_PLACES[:3])}",
            "no job can be submitted from here, and nothing of Slurm's settings can be checked",
            "set SLURM_CONF to its path, or install Slurm",
        )
        return
    except OSError as error:
        yield Finding(
            f"{error.filename} cannot be read: {error.strerror}",
            "srun and the checks need it",
            f"chmod o+r {error.filename}",
        )
        return
    closed = machine.closed_to_users(conf.path)
    if closed:
        yield Finding(
            f"users cannot read {conf.path}: {closed} is closed to them",
            "their srun, sbatch and salloc need it",
            f"chmod o+rX {closed}",
        )
    yield f"{conf.path}, Slurm {slurm_release(machine)}"


def _prolog_flags(machine: Machine) -> Found:
    conf = slurm_conf(machine)
    flags = conf.flags("PrologFlags")
    yield f"PrologFlags={conf.get('PrologFlags') or '(none)'}"
    if not flags & _EARLY:
        yield Finding(
            f"{conf.path}: PrologFlags does not have Alloc",
            "the prolog runs when the first step starts, so nothing is read ahead before it; a "
            "batch job's script gets no checkpoint and no image",
            f"set in {conf.path}:  PrologFlags={','.join(['Alloc', *_written(conf)])}",
        )


def _written(conf: SlurmConf) -> list[str]:
    return [word for word in conf.get("PrologFlags").split(",") if word]


def _run_in_job(machine: Machine) -> Found:
    conf = slurm_conf(machine)
    if "runinjob" in conf.flags("PrologFlags"):
        yield Finding(
            f"{conf.path}: PrologFlags has RunInJob",
            "Slurm calls neither prolog nor epilog of a plugin, so that no job is warmed",
            f"remove RunInJob in {conf.path}:  PrologFlags=Alloc,Contain",
        )


def _prolog_timeout(machine: Machine) -> Found:
    conf = slurm_conf(machine)
    max_wait_s, epilog_s = argument_seconds(machine)
    both = conf.seconds("PrologEpilogTimeout", float("inf"))
    for kind, needed_s in (("Prolog", max_wait_s + _MARGIN_S), ("Epilog", epilog_s)):
        limit_s = conf.seconds(f"{kind}Timeout", both)
        name = f"{kind}Timeout" if conf.get(f"{kind}Timeout") else "PrologEpilogTimeout"
        if limit_s > needed_s:
            continue
        yield Finding(
            f"{conf.path}: {name}={limit_s:g}, but BootSeer's {kind.lower()} may take "
            f"{needed_s:g} s",
            "when it expires, Slurm drains the node",
            f"set in {conf.path}:  {name}={_rounded(needed_s)}",
        )


def _rounded(needed_s: float) -> int:
    """Round up to a time that leaves room for the site's own scripts."""
    return int(needed_s // 30 + 2) * 30


def _batch_start(machine: Machine) -> Found:
    conf = slurm_conf(machine)
    limit_s = conf.seconds("BatchStartTimeout", 10)
    wait_s = min(machine.config.prolog.max_wait_s, argument_seconds(machine)[0])
    if limit_s <= wait_s:
        yield warning(
            f"{conf.path}: BatchStartTimeout={limit_s:g}, but a prolog may hold a batch job for "
            f"{wait_s:g} s",
            "Slurm may requeue a batch job while its prolog waits (--bootseer-wait)",
            f"set in {conf.path}:  BatchStartTimeout={_rounded(wait_s)}, or prolog.max_wait_s = 5 "
            "in bootseer.toml",
        )


def _message(machine: Machine) -> Found:
    conf = slurm_conf(machine)
    limit_s = conf.seconds("MessageTimeout", 10)
    longest_s = max(machine.config.prolog.wait_s, _LONG_PROLOG_S)
    if not conf.flags("PrologFlags") & _EARLY and limit_s <= longest_s:
        yield warning(
            f"{conf.path}: MessageTimeout={limit_s:g}, and the prolog runs when a step starts",
            f"a step whose prolog takes {longest_s:g} s fails to launch",
            f"set in {conf.path}:  PrologFlags=Alloc, or MessageTimeout=30",
        )


def _unkillable(machine: Machine) -> Found:
    conf = slurm_conf(machine)
    limit_s = conf.seconds("UnkillableStepTimeout", 60)
    io_s = machine.config.image.io_deadline_s
    if limit_s <= io_s:
        yield warning(
            f"{conf.path}: UnkillableStepTimeout={limit_s:g}, not more than image.io_deadline_s = "
            f"{io_s:g}",
            "Slurm drains a node whose step waits for a store that long",
            f"set in {conf.path}:  UnkillableStepTimeout={_rounded(io_s)}",
        )


def _containers(machine: Machine) -> Found:
    conf = slurm_conf(machine)
    kind = conf.get("JobContainerType") or conf.get("NamespaceType")
    if not kind or kind.endswith("/none"):
        return
    folder = os.path.dirname(conf.path)
    text = ""
    for name in ("job_container.conf", "namespace.yaml"):
        with suppress(FileNotFoundError):
            text += machine.read(f"{folder}/{name}")
    match = re.search(r"^\s*dirs\s*[=:]\s*[\"']?([^\"'#\n]+)", text, re.IGNORECASE | re.MULTILINE)
    private = [d.strip() for d in (match[1] if match else "/tmp,/dev/shm").split(",")]
    yield f"{kind} makes {', '.join(private)} private"
    for setting in ("node.run_dir", "node.cache_dir"):
        place = str(machine.config.values[setting])
        inside = next((d for d in private if d and f"{place}/".startswith(f"{d}/")), "")
        if inside:
            yield Finding(
                f"{kind} gives each job its own {inside}, and {setting} = {place} is in it",
                "steps do not see the job's agent, mounts and images there",
                f"take {inside} out of Dirs, or set {setting} elsewhere in bootseer.toml",
            )


def _slurmd(machine: Machine) -> Found:
    pid = slurmd_pid(machine)
    if pid is None:
        yield Finding(
            "slurmd does not run here",
            "this node takes no jobs",
            "systemctl start slurmd, and look at `journalctl -u slurmd`",
        )
        return
    started = time.time() - (
        time.clock_gettime(time.CLOCK_BOOTTIME)
        - int(status_fields(pid)[19]) / os.sysconf("SC_CLK_TCK")
    )
    for name in dict.fromkeys(plugstack(machine).files):
        changed = machine.path(name).stat().st_mtime
        if changed > started + _STARTED_S:
            yield Finding(
                f"{name} has changed since slurmd started",
                "slurmd looks for the hooks of plugins only when it starts: BootSeer's prolog may "
                "not run",
                "systemctl restart slurmd (jobs go on)",
            )
            return


def _controller(machine: Machine) -> Found:
    try:
        answer = machine.run(["scontrol", "ping"])
    except NoAnswer as why:
        yield warning(
            f"slurmctld cannot be asked: {why}",
            "no job can be submitted while it does not answer",
            "systemctl status slurmctld, on the host of SlurmctldHost",
        )
        return
    if "is UP" not in answer.stdout:
        said = (answer.stdout or answer.stderr).strip().partition("\n")[0]
        yield warning(
            f"slurmctld does not answer: {said}",
            "no job can be submitted",
            "systemctl status slurmctld, on the host of SlurmctldHost",
        )


def _hooks(machine: Machine) -> Found:
    conf = slurm_conf(machine)
    for name in ("Prolog", "Epilog"):
        value = conf.get(name)
        if "bootseer" in value and "*" not in value and not machine.path(value).is_file():
            yield Finding(
                f"{conf.path}: {name}={value}, which is not there",
                "Slurm drains a node whose prolog or epilog cannot run",
                "remove the line"
                if installed.package()
                else "run `bootseer plugin install --prolog-only` on the nodes, or remove the line",
            )


CHECKS = (
    Check("slurm.conf", "slurm.conf can be read", _conf),
    Check("slurm.prolog_flags", "the prolog runs at the allocation", _prolog_flags),
    Check("slurm.run_in_job", "prolog and epilog run outside of the job", _run_in_job),
    Check("slurm.prolog_timeout", "Slurm waits for prolog and epilog", _prolog_timeout),
    Check("slurm.batch_start", "Slurm waits for batch jobs that are held", _batch_start),
    Check("slurm.message_timeout", "a prolog at a step's start is in time", _message),
    Check("slurm.unkillable", "a slow store drains no node", _unkillable),
    Check("slurm.job_containers", "jobs see BootSeer's folders", _containers),
    Check("slurm.hooks", "Prolog= and Epilog= name existing scripts", _hooks, COMPUTE),
    Check("slurm.slurmd", "slurmd runs, with the present plugins", _slurmd, COMPUTE),
    Check("slurm.controller", "slurmctld answers", _controller),
)
