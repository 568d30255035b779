"""The plugin in real srun, sbatch, salloc, slurmd and slurmstepd, with entry scripts of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec, wait_until
from bootseer_dev.jobs.site import bootseer

pytestmark = [pytest.mark.root, pytest.mark.slurm]

AGENT = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o666)
    listener.listen()
    while True:
        with listener.accept()[0] as connection, open(sys.argv[2], "ab") as log:
            while data := connection.recv(4096):
                log.write(data)
"""


class Site:
    """A cluster with the plugin, whose entry scripts a test writes."""

    def __init__(self, cluster: Cluster, libexec: Path) -> None:
        self.cluster = cluster
        self.libexec = libexec

    def script(self, name: str, body: str) -> None:
        path = self.libexec / name
        path.with_suffix(".new").write_text(f"#!/bin/sh\n{body}\n")
        path.with_suffix(".new").chmod(0o755)
        path.with_suffix(".new").replace(path)

    def seen(self, job_id: str) -> dict[str, dict[str, str]]:
        """The environment that each node's prolog script had."""
        return {
            path.name: dict(line.split("=", 1) for line in path.read_text().splitlines())
            for path in self.libexec.glob(f"env.{job_id}/*")
        }

    def all_idle(self) -> bool:
        return set(self.cluster.node_states().values()) == {"idle"}


RECORD = """
mkdir -p $(dirname $0)/env.$SLURM_JOB_ID
env > $(dirname $0)/env.$SLURM_JOB_ID/$SLURMD_NODENAME
mkdir -p /run/bootseer/jobs/$SLURM_JOB_ID
"""
FORGET = "rm -r /run/bootseer/jobs/$SLURM_JOB_ID"


@pytest.fixture(scope="module")
def installed(host_program: Path, slurm_release: str | None) -> Iterator[Site]:
    spec = ClusterSpec(name=f"spank-{os.getpid()}", slurm=slurm_release)
    with Cluster.up(spec, print) as cluster:
        libexec = cluster.shared / "libexec"
        install = [bootseer(), "plugin", "install", "--no-advice", "--no-accounts"]
        arguments = ["max_wait=1", "epilog_timeout=1"]
        cluster.run([*install, f"--prefix={libexec}", "--", *arguments])
        shutil.copy(host_program.parent / "stub.so", libexec / "bootseer-advice.so")
        cluster.restart_slurmd()
        yield Site(cluster, libexec)


@pytest.fixture
def site(installed: Site) -> Iterator[Site]:
    installed.script("bootseer-prolog", RECORD)
    installed.script("bootseer-epilog", FORGET)
    yield installed
    # Whatever a test did to the entry scripts, no node is drained and no job is left.
    wait_until(installed.all_idle, "all nodes are idle", timeout_s=15)


@pytest.mark.parametrize("program", ["srun", "sbatch", "salloc"])
def test_options_are_in_the_help(site, program):
    text = site.cluster.run([program, "--help"], user="alice").stdout
    for name in ("", "-image", "-env", "-ckpt", "-wait"):
        assert f"--bootseer{name}=" in text


def test_job_that_does_not_ask_starts_nothing(site):
    job_id = site.cluster.run(["srun", "printenv", "SLURM_JOB_ID"], user="alice").stdout.strip()
    assert site.seen(job_id) == {}


def test_srun_reaches_every_node(site):
    command = [
        "srun",
        "-N2",
        "--bootseer=k",
        "--bootseer-image=/i.sqsh",
        "printenv",
        "SLURM_JOB_ID",
    ]
    result = site.cluster.run(command, user="alice")
    [job_id] = set(result.stdout.split())
    assert "bootseer: BOOTSEER_JOB_NAME is printenv" in result.stderr
    seen = site.seen(job_id)
    assert seen.keys() == {"n1", "n2"}
    secrets = {env.pop("SPANK_BOOTSEER_SECRET") for env in seen.values()}
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in secrets) and len(secrets) == 1
    for node, env in seen.items():
        assert (env["SLURMD_NODENAME"], env["SLURM_JOB_ID"]) == (node, job_id)
        assert (env["SLURM_JOB_USER"], env["SLURM_JOB_UID"]) == ("alice", "20001")
        assert {name: value for name, value in env.items() if name.startswith("SPANK_")} == {
            "SPANK_BOOTSEER_KEY": "k",
            "SPANK_BOOTSEER_IMAGE": "/i.sqsh",
            "SPANK_BOOTSEER_JOB_NAME": "printenv",
        }


@pytest.mark.parametrize(
    ("lines", "key", "name"),
    [
        (["#SBATCH --bootseer", "#SBATCH -J of-the-file"], "", "of-the-file"),
        (["#SBATCH --bootseer=k2"], "k2", "job.sh"),
        (["#SBATCH --bootseer", "#SBATCH --comment=x --job-name  'of it'"], "", "of_it"),
        # A step's own request: the job's prolog had no reason to start anything.
        (["srun -J step --bootseer=k3 true"], "k3", "step"),
    ],
)
def test_batch_scripts(site, lines, key, name):
    script = site.cluster.shared / "job.sh"
    # The inner srun inherits the options, "(null)" for the one without a value among them.
    script.write_text("\n".join(["#!/bin/sh", *lines, "srun true"]))
    script.chmod(0o755)
    submit = ["sbatch", "--parsable", "-o", "/dev/null", str(script)]
    job_id = site.cluster.run(submit, user="alice").stdout.strip()
    assert site.cluster.wait_for_job(job_id) == "COMPLETED"
    [env] = site.seen(job_id).values()
    assert (env["SPANK_BOOTSEER_KEY"], env["SPANK_BOOTSEER_JOB_NAME"]) == (key, name)


@pytest.mark.parametrize(
    ("options", "env", "script", "name"),
    [
        (["--wrap=true"], {}, None, "wrap"),
        (["--wrap=true", "-J", "cli"], {"SBATCH_JOB_NAME": "env"}, None, "cli"),
        ([], {"SBATCH_JOB_NAME": "env"}, "#SBATCH -J of-the-file", "env"),
        ([], {}, "", "sbatch"),
        ([], {"SLURM_JOB_NAME": "outer"}, "#SBATCH -J mine", "mine"),
    ],
)
def test_the_key_is_made_of_the_name_that_slurm_gives_the_job(site, options, env, script, name):
    submit = ["sbatch", "--parsable", "--bootseer", "-o", "/dev/null", *options]
    text = None if script is None else f"#!/bin/sh\n{script}\ntrue\n"
    answer = site.cluster.run(submit, user="alice", env=env, input=text)
    assert f"bootseer: BOOTSEER_JOB_NAME is {name}" in answer.stderr
    job_id = answer.stdout.strip()
    assert site.cluster.wait_for_job(job_id) == "COMPLETED"
    [seen] = site.seen(job_id).values()
    assert seen["SPANK_BOOTSEER_JOB_NAME"] == name
    shown = site.cluster.run(["scontrol", "--oneliner", "show", "job", job_id]).stdout
    assert f" JobName={name} " in f" {shown}"


def test_salloc(site):
    command = ["salloc", "-Jalloc", "--bootseer", "printenv", "SLURM_JOB_ID"]
    job_id = site.cluster.run(command, user="alice").stdout.strip()
    [env] = site.seen(job_id).values()
    assert env["SPANK_BOOTSEER_JOB_NAME"] == "alloc"


@pytest.mark.parametrize(
    ("options", "env"), [(["--bootseer-wait=abc"], {}), (["--bootseer"], {"BOOTSEER_WAIT": "abc"})]
)
@pytest.mark.parametrize("program", ["srun", "salloc", "sbatch"])
def test_malformed_values_end_the_command(site, program, options, env):
    wrap = ["--wrap=true"] if program == "sbatch" else ["true"]
    result = site.cluster.run([program, *options, *wrap], user="alice", env=env, check=False)
    assert result.returncode != 0
    assert "=abc: not a whole number of seconds from 0 to 3600" in result.stderr


@pytest.mark.parametrize("how", ["hang", "abort"])
def test_failing_advice(site, how):
    result = site.cluster.run(["srun", f"--bootseer={how}", "echo", "fine"], user="alice")
    assert (result.stdout, result.stderr) == ("fine\n", "")


@pytest.mark.parametrize("body", ["exit 1", "kill -9 $$", "setsid sleep 60 &", "sleep 60"])
def test_entry_scripts_that_go_wrong_fail_no_job(site, body):
    site.script("bootseer-prolog", f"{RECORD}\n{body}")
    site.script("bootseer-epilog", f"{FORGET}\n{body}")
    command = ["srun", "--bootseer", "--bootseer-wait=0", "echo", "fine"]
    assert site.cluster.run(command, user="alice").stdout == "fine\n"


def test_events_and_socket(site):
    agent = site.cluster.shared / "agent.py"
    agent.write_text(AGENT)
    log = site.cluster.shared / "events"
    site.script(
        "bootseer-prolog",
        f"{RECORD}\nsocket=/run/bootseer/jobs/$SLURM_JOB_ID/agent.sock\n"
        f"setsid {sys.executable} {agent} $socket {log} &\n"
        "while ! test -S $socket; do sleep 0.02; done",
    )
    command = ["srun", "--bootseer", "sh", "-c", "test -S $BOOTSEER_SOCKET"]
    site.cluster.run(command, user="alice")
    wait_until(lambda: log.read_text().count("\n") == 2, "two events are there", timeout_s=5)
    start, end = map(json.loads, log.read_text().splitlines())
    assert (start["stage"], end["stage"]) == ("step.start", "step")
    assert start["start_ns"] == end["start_ns"] < end["end_ns"]
