"""How the prolog starts an agent, and how long it waits."""

import os
import re
import signal
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until

from bootseer import config as settings
from bootseer.agent.messages.control import AgentStatus, GetStatus
from bootseer.agent.node import agent_process, control_client, registry, spawn
from bootseer.agent.node.broker_settings import BrokerSettings, NodeAccount
from bootseer.agent.node.job import Job, JobFolder
from bootseer.errors import ConfigError
from bootseer.slurm import options, prolog

pytestmark = [pytest.mark.root]

ROOT = Path(__file__).parents[2]
JOB = Job(7, "c", "n1", 65534, 65534, "nobody", "/nonexistent", "k", False, "", 0.0, 1)


@pytest.fixture
def folder(tmp_path):
    folder = JobFolder.of(str(tmp_path), JOB.job_id)
    registry.claim(folder)
    folder.write("job.json", JOB._asdict())
    accounts = (NodeAccount("daemon", 1, 1), NodeAccount("bin", 2, 2))
    folders = (str(tmp_path), f"{tmp_path}/cache")
    settings = BrokerSettings(*accounts, *folders, 1 << 30, 0.1, 0.5, [])
    folder.write("broker.json", settings._asdict())
    return folder


def test_a_silent_agent_is_reported_before_the_plugin_ends_the_prolog():
    grace_ms = re.search(r"GRACE_MS = (\d+)", (ROOT / "spank/script.c").read_text())[1]
    assert int(grace_ms) / 1000 > prolog._AGENT_START_S + 1


class Clock:
    """In place of the module `time`: nothing takes time but what waits."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s

    def time_ns(self):
        return 1

    def sleep(self, seconds):
        self.now_s += seconds


def test_environment_and_hot_set_are_waited_for_once(tmp_path, monkeypatch):
    accounts = {"node.service_user": "nobody", "node.cache_user": "daemon"}
    clock = Clock()
    config = settings.Config({"node.run_dir": str(tmp_path / "run"), **accounts})

    def answer(socket, request, kind, timeout_s):
        """As an agent whose store hangs."""
        assert request.timeout_s <= timeout_s
        clock.sleep(request.timeout_s)
        return kind(ready=False)

    asked = options.JobOptions("k", environment="train", wait_s=8)
    job = JOB._replace(wait_s=8.0, environment="train")
    monkeypatch.setattr(prolog.settings, "load", lambda: config)
    monkeypatch.setattr(prolog, "_job", lambda *_: job)
    monkeypatch.setattr(prolog, "_start_agent", lambda *_: clock.sleep(0.1))
    monkeypatch.setattr(prolog, "time", clock)
    monkeypatch.setattr(control_client, "ask", answer)
    monkeypatch.setattr(control_client, "tell", lambda *_: None)
    prolog._warm(asked, 1)
    assert 108 <= clock.now_s < 108.5


def test_a_step_is_not_held_for_as_long_as_the_settings_would_have_it(monkeypatch):
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "65534", "SLURM_CLUSTER_NAME": "c"}
    config = settings.Config({"prolog.wait_s": 30.0})
    for limit, wait_s in (({}, 30.0), ({"BOOTSEER_WAIT_LIMIT": "10"}, 10)):
        monkeypatch.setattr(os, "environ", env | limit)
        assert prolog._job(options.JobOptions(), config, 1).wait_s == wait_s


def test_a_step_takes_from_slurm_conf_what_it_is_not_told(monkeypatch, tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text('SlurmctldHost=a clustername = "Main"\nPrologFlags=Alloc\n')
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "65534", "BOOTSEER_WAIT_LIMIT": "10"}
    monkeypatch.setattr(os, "environ", env | {"SLURM_CONF": str(conf)})
    assert prolog._job(options.JobOptions(), settings.Config({}), 1).cluster == "main"
    conf.unlink()
    assert prolog._job(options.JobOptions(), settings.Config({}), 1).cluster == "cluster"


def test_a_step_starts_nothing_where_no_hook_would_end_it(monkeypatch, tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("PrologFlags=Alloc,RunInJob\n")
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "65534", "BOOTSEER_WAIT_LIMIT": "10"}
    monkeypatch.setattr(os, "environ", env | {"SLURM_CONF": str(conf)})
    with pytest.raises(ConfigError, match="RunInJob"):
        prolog._job(options.JobOptions(), settings.Config({}), 1)


@pytest.fixture
def run_agent(monkeypatch, tmp_path):
    """Have agents started with settings of the test's own, and with some code run first."""
    settings = tmp_path / "bootseer.toml"
    accounts = 'service_user = "daemon"\ncache_user = "bin"'
    settings.write_text(f'[node]\n{accounts}\ncache_dir = "{tmp_path}/cache"\n')

    def use(code=""):
        own = f"from bootseer import config; config.load.__defaults__ = ({str(settings)!r},); "

        def command(*arguments):
            argv = spawn.command(*arguments)
            boot = argv[3].removesuffix("main()") + own + code + "main()"
            return [*argv[:3], boot, *argv[4:]]

        monkeypatch.setattr(agent_process, "command", command)

    return use


def test_a_request_before_slow_imports_waits_for_the_agent(folder, run_agent):
    # What it would import is kept from it: the socket is there all the same.
    run_agent("sys.modules['bootseer.agent.supervisor.supervisor'] = None; ")
    prolog._start_agent(folder, JOB)
    assert os.stat(folder.socket).st_uid == JOB.uid
    wait_until(lambda: folder.read("process.json"), "the agent is registered")
    os.waitpid(folder.read("process.json")["pid"], 0)
    with open(f"{folder.path}/agent.log") as log:
        assert "bootseer.agent.supervisor.supervisor" in log.read()


def test_requests_are_answered_once_the_agent_listens(folder, run_agent):
    run_agent()
    prolog._start_agent(folder, JOB)
    try:
        status = control_client.ask(folder.socket, GetStatus(), AgentStatus, 30)
        assert status.job["job_id"] == JOB.job_id
    finally:
        pid = registry.agent_pid(folder)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
