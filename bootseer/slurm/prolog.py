"""Warm a node for a job: start its agent and hold the job until it is ready or the wait is over.

Called by the plugin's job_prolog hook, by its step hook, and by slurm.conf's Prolog=; the first
call does the work. Always ends well: a prolog that fails would drain the node.

Until a job is known to have asked, only the standard library is imported; what speaks to the agent,
only while the agent starts.
"""

from __future__ import annotations

import math
import os
import pwd
import re
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bootseer import config as settings
from bootseer.agent.node import agent_process, control_socket, registry
from bootseer.agent.node.account import broker_settings
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.node.reap_agents import reap, reap_dead
from bootseer.core.nodelist import expand
from bootseer.errors import BootseerError, ConfigError
from bootseer.slurm import options
from bootseer.slurm.hook import log_line

if TYPE_CHECKING:
    from bootseer.slurm.configuration import SlurmConf

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}", re.ASCII)
_AGENT_START_S = 3.0
"""What the agent has beyond the job's wait; less than the 5 s after which the plugin ends us."""
_POLL_S = 0.005


def main() -> int:
    """Run for the job that the environment describes; prints what was done, returns 0."""
    started_ns = time.time_ns() - agent_process.age_ns()
    try:
        asked = options.parse(os.environ)
        if asked is not None:
            log_line(_warm(asked, started_ns))
    except BootseerError as error:
        log_line(str(error))
    except Exception as error:  # noqa: BLE001 (the hook must not fail the job)
        log_line(f"internal error, the job continues without BootSeer: {error!r}")
    return 0


def _warm(asked: options.JobOptions, started_ns: int) -> str:
    config = settings.load()
    for_broker = broker_settings(config)  # without its account nothing is started
    job = _job(asked, config, started_ns)
    reaped = reap_dead(config.node.run_dir)
    folder = JobFolder.of(config.node.run_dir, job.job_id)
    if not registry.claim(folder):
        if registry.agent_pid(folder) is not None or registry.is_starting(folder):
            return f"job {job.job_id}: its agent is already running"
        if not (reap(folder) and registry.claim(folder)):
            return f"job {job.job_id}: leftovers of an agent are in the way, nothing is warmed"
    _put_asked(folder, asked)
    folder.write("broker.json", for_broker._asdict())
    folder.write("job.json", job._asdict())
    _put_program(folder)
    until = time.monotonic() + _AGENT_START_S
    _start_agent(folder, job)
    detail = f"not mounted within {_AGENT_START_S:g} s; the job starts without it"
    if job.checkpoint and not _await(folder.mounted, until):
        _tell(folder, "checkpoint.mount", started_ns, status="fallback", detail=detail)
    if job.is_served and not _await(folder.served, until):
        _tell(folder, "image.mount", started_ns, status="fallback", detail=detail)
    ends = time.monotonic() + job.wait_s  # for the environment and the hot set together
    if job.environment and not _await(folder.named, max(until, ends)):
        _tell(folder, "env.mount", started_ns, status="fallback", detail=detail)
    for line in asked.ignored:
        _tell(folder, "options", time.time_ns(), status="fallback", detail=line)
    for name in reaped:
        _tell(folder, "node.reap", time.time_ns(), detail=f"left-overs of job {name}")
    status, said = _wait(folder, job.wait_s, ends, until + job.wait_s)
    # After the wait, in which an image is checked that this node has had for longer than it is up.
    if job.is_served and config.image.kernel_mount and not _await(folder.rooted, until):
        _tell(folder, "image.kernel", started_ns, status="fallback", detail=detail)
    _tell(folder, "prolog", started_ns, status=status, detail=said)
    seconds = (time.time_ns() - started_ns) / 1e9
    return f"job {job.job_id}, key {job.key}: {said} ({seconds:.2f} s)"


def _put_asked(folder: JobFolder, asked: options.JobOptions) -> None:
    """Keep for the plugin what this job has asked for: its steps may ask for something else."""
    key = "record" if asked.record_only else asked.key
    lines = (asked.image, asked.environment, options.join_ckpt(asked), key)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(folder.asked, flags, 0o600), "wb") as file:
        file.write(b"".join(b"%s\n" % line.encode() for line in lines))


def _put_program(folder: JobFolder) -> None:
    """Put bootseer-env where containers find it, which is installed beside our entry script."""
    installed = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "bootseer-env")
    try:
        with open(installed, "rb") as file:
            content = file.read()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(folder.program, flags, 0o755), "wb") as file:
            os.fchmod(file.fileno(), 0o755)
            file.write(content)
    except OSError as error:
        log_line(f"no {folder.program}: {error.strerror}; install the plugin again")


def _start_agent(folder: JobFolder, job: Job) -> None:
    """Start the agent; requests that come before it listens wait in its socket's queue."""
    with control_socket.listen(folder.socket, job.uid) as listener:
        agent_process.raise_priority()
        agent_process.start(folder, "warm", listener)


def _await(mark: str, until: float) -> bool:
    """Wait until a step that starts now finds something mounted, if it can be."""
    while not os.path.exists(mark):
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)
    return True


def _wait(folder: JobFolder, wait_s: float, ends: float, latest: float) -> tuple[str, str]:
    """Hold the job for its hot set where that is asked for; returns status and detail.

    Otherwise nothing is waited for: what the agent does, it does while the job is launched.

    Args:
        folder: of the job.
        wait_s: that the job may be held for, in all.
        ends: when that is over, on the clock `time.monotonic`.
        latest: when an agent that has not answered by then is given up.
    """
    if wait_s <= 0:
        return "ok", "the agent is running"
    from bootseer.agent.messages.control import Readiness, WaitReady
    from bootseer.agent.node import control_client

    try:
        now = time.monotonic()
        left_s = max(0.0, ends - now)
        request, answer_s = WaitReady(left_s), max(left_s, latest - now)
        answer = control_client.ask(folder.socket, request, Readiness, answer_s)
    except BootseerError as error:
        return "fallback", str(error)
    if answer.ready:
        return "ok", answer.detail
    return "fallback", f"not ready within {wait_s:g} s"


def _job(asked: options.JobOptions, config: settings.Config, started_ns: int) -> Job:
    """Take what Slurm says of the job, and check it for what it will be used for.

    Raises:
        ConfigError: a variable is missing or not what Slurm would set.
    """
    env = os.environ
    try:
        job_id, uid = int(env["SLURM_JOB_ID"]), int(env["SLURM_JOB_UID"])
        user = pwd.getpwuid(uid)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"not called by Slurm, or for an unknown user: {error}") from error
    limit = env.get("BOOTSEER_WAIT_LIMIT", "")  # as a step's hook sets it, which is told less
    conf = _slurm_conf(env) if limit else None
    if conf and "runinjob" in conf.flags("PrologFlags"):
        raise ConfigError(
            f"{conf.path} has PrologFlags=RunInJob, with which Slurm tells no plugin that a job "
            "ends: nothing is started"
        )
    named = conf.get("ClusterName").lower() if conf else ""
    cluster = env.get("SLURM_CLUSTER_NAME") or named or "cluster"
    node = env.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
    for name in (cluster, node):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name[:80]!a} cannot be the name of a cluster or node")
    nodelist = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or ""
    nodes, node_index = _place(env, nodelist, node)
    wait_s = config.prolog.wait_s if asked.wait_s is None else float(asked.wait_s)
    max_wait_s = min(config.prolog.max_wait_s, int(limit) if limit.isdecimal() else math.inf)
    gid = env.get("SLURM_JOB_GID", "")
    return Job(
        job_id=job_id,
        cluster=cluster,
        node=node,
        uid=uid,
        gid=int(gid) if gid.isdecimal() else user.pw_gid,
        user=user.pw_name,
        home=user.pw_dir,
        key=asked.key or options.key_of_name(env.get(options.PREFIX + "JOB_NAME", "")),
        record_only=asked.record_only,
        image=asked.image or (asked.imported if config.image.importer else ""),
        checkpoint=asked.checkpoint,
        mountpoint=asked.mountpoint,
        mountpoint_listed=asked.mountpoint in config.checkpoint.mountpoints,
        read_only=asked.read_only,
        nodes=nodes,
        node_index=node_index,
        environment=asked.environment,
        nodelist=nodelist if nodes > 1 else "",
        secret=asked.secret,
        wait_s=min(wait_s, max_wait_s),
        started_ns=started_ns,
    )


def _place(env: Mapping[str, str], nodelist: str, node: str) -> tuple[int, int]:
    """Return how many nodes the job has and which of them this is, 0 and 0 if that is not known."""
    names = expand(nodelist)
    if node in names:
        return len(names), names.index(node)
    # As a step's hook is told.
    count, index = env.get("SLURM_NNODES", ""), env.get("SLURM_NODEID", "")
    if count.isdecimal() and index.isdecimal() and int(index) < int(count):
        return int(count), int(index)
    return 0, 0


def _slurm_conf(env: Mapping[str, str]) -> SlurmConf | None:
    from bootseer.slurm.configuration import SlurmConf  # imports much that a job's hook does not

    try:
        return SlurmConf(env.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
    except OSError:
        return None


def _tell(
    folder: JobFolder, stage: str, start_ns: int, status: str = "ok", detail: str = ""
) -> None:
    """Give the agent an event; it is no reason to fail when it cannot be had."""
    from bootseer.agent.messages.control import TellEvent
    from bootseer.agent.node import control_client

    request = TellEvent(
        stage, start_ns, time.time_ns(), source="prolog", status=status, detail=detail
    )
    try:
        control_client.tell(folder.socket, request)
    except BootseerError as error:
        log_line(f"event {stage} is lost: {error}")
