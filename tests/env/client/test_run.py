"""`env run` in processes of its own: of any Python, with signals, pipes, and sudden ends."""

import errno
import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from glob import glob
from pathlib import Path

import psutil
import pytest
import trio

import bootseer
from bootseer.env.client import run as env_run
from bootseer.env.client.command import execute
from bootseer.env.client.command_key import Keys, result_mark, warnings
from bootseer.env.client.inputs.recorder import InputRecorder, RecordedInputs
from bootseer.env.client.key import KeyPart
from bootseer.env.client.messages import CaptureDone, Hello, Request, RunCommand
from bootseer.env.client.options import RunOptions
from bootseer.env.client.target_lock import locked
from bootseer.env.client.temporary import temporary_name
from bootseer.env.server.connection import ServerConnection
from bootseer.env.snapshot import repository
from bootseer.errors import ConfigError
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore

VERSIONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"]

CLIENT = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from bootseer.env.client.options import RunOptions
from bootseer.env.client.run import run

def say(text):
    print(text, file=sys.stderr, flush=True)

end = socket.socket(fileno=int(sys.argv[2]))
sys.exit(run(RunOptions(sys.argv[4:], [sys.argv[3]], waits=True), lambda: end, os.environ, say))
"""


@pytest.fixture
def alone(tmp_path):
    """A folder with nothing to import but this package."""
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "bootseer").symlink_to(Path(bootseer.__file__).parent)
    return folder


@pytest.fixture(params=VERSIONS)
def python(request):
    versions = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")) + "/versions"
    found = sorted(glob(f"{versions}/{request.param}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {request.param} of pyenv's")
    return found[-1]


def test_the_standard_library_is_all_it_needs(alone, python):
    code = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]\n"
    code += "sys.path.insert(0, sys.argv[1]); import bootseer.env.client.run\n"
    code += "print(*sorted(name for name in sys.modules if 'bootseer' in name))"
    argv = [python, "-I", "-S", "-W", "error", "-c", code, alone]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    assert not {"bootseer.store", "bootseer.env.server.session", "bootseer._io"} & set(
        done.stdout.split()
    )


class Clients:
    """`env run` in processes, each with a session in this one."""

    def __init__(self, lab, alone, nursery):
        self.lab = lab
        self.alone = alone
        self.nursery = nursery
        self.target = lab.counts.parent / "target"
        self.scope = None

    async def start(self, *command, python=sys.executable, **options):
        ours, theirs = socket.socketpair()
        scope = self.scope = trio.CancelScope()

        async def serve():
            with scope:
                await self.lab.serve(theirs)

        self.nursery.start_soon(serve)
        with ours:
            fd = ours.fileno()
            argv = [python, "-I", "-S", "-c", CLIENT, self.alone, str(fd), self.target, *command]
            return await trio.lowlevel.open_process(argv, pass_fds=[fd], **options)

    async def run(self, script, **options):
        """Run a script that counts; returns exit status, standard output and error."""
        return await self.run_command(*self.lab.command(script), **options)

    async def run_command(self, *command, given=b"", **options):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = await self.start(*command, **pipes, **options)
        outputs = {}

        async def read(name):
            outputs[name] = b""
            async for part in getattr(process, name):
                outputs[name] += part

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, "stdout")
                nursery.start_soon(read, "stderr")
                await process.stdin.send_all(given)
                await process.stdin.aclose()
            status = await process.wait()
        return status, outputs["stdout"], outputs["stderr"].decode()


@pytest.fixture
def clients(lab, alone, nursery):
    return Clients(lab, alone, nursery)


async def is_there(path):
    with trio.fail_after(20):
        while not path.exists():
            await trio.sleep(0.01)


async def test_every_python_captures_and_restores(clients, python, look):
    script = f"echo 1 > {clients.target}/file; ln {clients.target}/file {clients.target}/again"
    status, _, said = await clients.run(script, python=python)
    assert (status, clients.lab.runs()) == (0, 1)
    assert "stored as" in said
    made = look(clients.target)
    subprocess.run(["rm", "-r", clients.target], check=True)
    status, _, said = await clients.run(script, python=python)
    assert (status, clients.lab.runs()) == (0, 1)
    assert "without running the command" in said
    assert look(clients.target) == made


def test_what_any_python_reads_is_noted(python, tmp_path):
    (tmp_path / "file").write_text("x")
    code = "import os; open('file').close(); os.environ.get('ONE'); dict(os.environ)"
    with InputRecorder({"ONE": "1", "TWO": "2"}, []) as record:
        argv = [python, "-W", "error", "-c", code]
        done = subprocess.run(argv, env=record.environ, cwd=tmp_path, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert record.not_in([], str(tmp_path)) == RecordedInputs(
            ("ONE",), (str(tmp_path / "file"),)
        )


async def test_what_the_key_does_not_tell_is_said_and_kept(clients, tmp_path, monkeypatch):
    monkeypatch.setenv("VARIANT", "1")
    (tmp_path / "a b").write_text("x")
    code = "import os; os.environ['VARIANT'], open('a b')"
    script = f'cd {tmp_path}; {sys.executable} -c "{code}"; : > {clients.target}/x'
    _, _, said = await clients.run(script)
    assert f"""add --key-extra "$VARIANT" --key-file '{tmp_path}/a b'""" in said
    (listed,) = await repository.list_snapshots(clients.lab.store)
    found = {(finding.kind, finding.path) for finding in listed.snapshot.findings}
    assert ("variable not in the key", "VARIANT") in found
    assert ("file not in the key", str(tmp_path / "a b")) in found


def test_a_key_that_may_be_stale_or_never_come_again_is_told():
    keys = Keys((), (), ("make", "cmake"))
    environ = {"SLURM_JOB_ID": "31", "SLURM_ARRAY_JOB_ID": "7"}
    (line,) = warnings(["/tmp/env-310"], keys, environ)
    assert line.startswith("what make and cmake reads is not in the key")
    lines = warnings(["/tmp/env-31", "/tmp/7/env", "/tmp/env"], Keys((), ()), environ)
    assert [line.partition(" has ")[0] for line in lines] == [
        "--target /tmp/env-31",
        "--target /tmp/7/env",
    ]
    assert warnings(["/tmp/env-31"], Keys((), ()), {}) == []


async def test_silence_has_another_name_in_older_pythons(clients, python, monkeypatch):
    silent = CLIENT.replace(
        "\ndef say", "\nimport bootseer.env.client.connection as c; c._SILENCE_S = 0.2\ndef say"
    )
    monkeypatch.setattr(sys.modules[__name__], "CLIENT", silent)

    async def nothing(end):
        with end:
            await trio.sleep_forever()

    clients.lab.serve = nothing
    status, _, said = await clients.run("exit 3", python=python)
    assert (status, clients.lab.runs()) == (3, 1)
    assert "no answer within 0.2 s" in said
    clients.scope.cancel()


async def test_what_goes_in_and_out_is_the_commands(clients):
    given = os.urandom(300_000)
    status, out, said = await clients.run(
        f"cat; echo told >&2; : > {clients.target}/x", given=given
    )
    assert (status, out) == (0, given)
    assert [line.split(" ")[0] for line in said.splitlines()] == ["running", "told", "stored"]


async def test_what_is_restored_reads_and_writes_nothing(clients):
    script = f"cat; : > {clients.target}/x"
    await clients.run(script)
    subprocess.run(["rm", "-r", clients.target], check=True)
    assert (await clients.run(script, given=b"ignored"))[:2] == (0, b"")


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 5", 5), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("exec /none", 127)],
)
async def test_the_exit_status_is_the_commands(clients, script, status):
    assert (await clients.run(script))[0] == status
    assert await repository.list_snapshots(clients.lab.store) == []
    assert await clients.lab.store.list("env/claims") == []


async def test_a_command_that_is_not_there_or_none(clients, tmp_path):
    (tmp_path / "no-program").write_text("#!/bin/sh\n")
    status, _, said = await clients.run_command("no-such-command")
    assert status == 127
    assert "no-such-command: command not found" in said
    status, _, said = await clients.run_command(str(tmp_path / "no-program"))
    assert status == 126
    assert "Permission denied" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_signals_are_passed_on(clients, tmp_path, number):
    name = number.name.removeprefix("SIG")
    loop = f": > {tmp_path}/ready; while :; do sleep 0.02; done"
    process = await clients.start(*clients.lab.command(f"trap 'exit 9' {name}; {loop}"))
    await is_there(tmp_path / "ready")
    process.send_signal(number)
    with trio.fail_after(10):
        assert await process.wait() == 9


async def test_an_interrupt_is_for_the_command_to_decide(clients, tmp_path):
    """The terminal's goes to both."""
    script = f": > {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 4"
    process = await clients.start(*clients.lab.command(script))
    await is_there(tmp_path / "ready")
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    with trio.fail_after(10):
        assert await process.wait() == 4


def test_a_signal_before_the_command_has_begun_is_passed_on(monkeypatch):
    popen = subprocess.Popen

    def late(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return popen(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", late)
    before = signal.getsignal(signal.SIGTERM)
    assert execute(["sleep", "20"], os.environ) == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_command_has_the_signals_that_it_would_have(monkeypatch):
    code = "import signal as s\nassert [s.getsignal(n) for n in (1, 15)] == [s.SIG_DFL] * 2\n"
    code += "assert s.getsignal(2) is s.default_int_handler"
    assert execute([sys.executable, "-P", "-c", code], os.environ) == 0


async def test_a_session_that_dies_in_mid_command(clients, tmp_path):
    script = f": > {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    process = await clients.start(*clients.lab.command(script), stderr=subprocess.PIPE)
    await is_there(tmp_path / "ready")
    clients.scope.cancel()
    (tmp_path / "go").touch()
    said = b""
    with trio.fail_after(10):
        async for part in process.stderr:
            said += part
        assert await process.wait() == 0
    assert b"the result is not stored: " in said
    assert await clients.lab.store.list("env/claims") == []


async def test_who_is_killed_in_mid_command_holds_nobody_up(clients, tmp_path):
    """The claim goes with the conversation, and the next one captures."""
    script = f": > {clients.target}/x; : > {tmp_path}/ready; sleep 0.3"
    process = await clients.start(*clients.lab.command(script))
    await is_there(tmp_path / "ready")
    process.kill()
    await process.wait()
    subprocess.run(["rm", "-r", clients.target], check=True)
    status, _, said = await clients.run(script)
    assert (status, clients.lab.runs()) == (0, 2)
    assert "stored as" in said


# The command line, with a process of its own for the store.


LOCAL = """
import sys
from contextlib import asynccontextmanager
sys.path[:0] = sys.argv[2:]
from bootseer import config
from bootseer.env.server import standalone
from bootseer.store import key_lease
load = config.load
config.load = lambda: load({config!r})
key_lease.LASTS_S = 1.5
{more}
standalone.main()
"""
HANGING = """
from bootseer.testing.fault_store import FlakyStore
import trio
class Hanging(FlakyStore):
    async def around(self, operation, name, call):
        if operation == "commit" and name.endswith("/manifest"):  # of its squashfs
            open({reached!r}, "w").close()
            await trio.sleep_forever()
        return await call()
from bootseer.env.server import session_context
connect = session_context.connect
session_context.connect = lambda *args: Hanging(connect(*args), lambda *_: False)
"""
CLI = """
import sys
from contextlib import asynccontextmanager
from bootseer.cli.main import main
from bootseer.env.server import standalone
standalone._BOOT = sys.argv.pop(1)
main()
"""


class CommandLine:
    def __init__(self, folder):
        self.folder = folder
        self.target = folder / "target"
        self.counts = folder / "counts"
        self.config = folder / "bootseer.toml"
        self.store = LocalStore(folder / "store")
        self.reached = folder / "reached"
        self.scratch = folder / "scratch"
        self.scratch.mkdir(exist_ok=True)
        self.config.write_text(
            f'[store]\nurl = "file://{folder}/store"\n[env]\nscratch_dir = "{self.scratch}"\n'
        )
        self.environ = {**os.environ, "HOME": str(folder)}
        self.environ.pop("BOOTSEER_SOCKET", None)
        self.prefix = []

    def words(self, script, *, hangs=False):
        more = HANGING.format(reached=str(self.reached)) if hangs else ""
        boot = LOCAL.format(config=str(self.config), more=more)
        argv = [*self.prefix, sys.executable, "-I", "-c", CLI, boot, "env", "run"]
        argv += ["--target", str(self.target), "--"]
        return [*argv, "sh", "-c", f"echo x >> {self.counts}; {script}"]

    async def start(self, script, *, hangs=False, environ=()):
        return await trio.lowlevel.open_process(
            self.words(script, hangs=hangs),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self.environ, **dict(environ)},
        )

    async def run(self, script, **options):
        with trio.fail_after(30):
            return await self.end(await self.start(script, **options))

    async def end(self, process):
        out, said = b"", b""
        async for part in process.stdout:
            out += part
        async for part in process.stderr:  # its end: nobody has it open any more
            said += part
        return await process.wait(), out.decode(), said.decode()

    def runs(self):
        return len(self.counts.read_text().split())


@pytest.fixture
def command_line(tmp_path):
    return CommandLine(tmp_path)


def children(process):
    return psutil.Process(process.pid).children()


async def test_the_command_line_without_an_agent(command_line):
    script = f"echo out; echo 1 > {command_line.target}/file"
    status, out, said = await command_line.run(script)
    assert (status, out) == (0, "out\n")
    assert "bootseer: stored as" in said
    subprocess.run(["rm", "-r", command_line.target], check=True)
    status, out, said = await command_line.run(script)
    assert (status, out, command_line.runs()) == (0, "", 1)
    assert "without running the command" in said
    assert (command_line.target / "file").read_text() == "1\n"


@pytest.mark.parametrize("where", ["in a folder that is gone", "with a full disk"])
async def test_the_command_runs_whatever_is_wrong_around_it(command_line, tmp_path, where):
    (tmp_path / "gone").mkdir()
    prefix = (
        'cd "$0"; rmdir "$0"; exec "$@"' if where.endswith("gone") else 'exec "$@" 2> /dev/full'
    )
    command_line.prefix = ["sh", "-c", prefix, str(tmp_path / "gone")]
    status, out, said = await command_line.run(f"echo out; : > {command_line.target}/x")
    assert (status, out, command_line.runs()) == (0, "out\n", 1)
    assert "Traceback" not in said


async def test_what_is_ignored_stays_ignored(command_line):
    """As under nohup."""
    command_line.prefix = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    script = f": > {command_line.folder}/ready; sleep 0.5; : > {command_line.target}/x"
    process = await command_line.start(script)
    await is_there(command_line.folder / "ready")
    process.send_signal(signal.SIGHUP)
    assert (await command_line.end(process))[0] == 0
    assert (command_line.target / "x").exists()


def test_without_a_place_for_a_lock_there_is_none(tmp_path, monkeypatch):
    def nowhere():
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    target = tmp_path / "target"
    (tmp_path / f".target.bootseer-{os.geteuid()}.lock").mkdir()
    with locked([str(target)], print) as turn:
        assert turn.fds == []
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(target / "tmp"))
    (target / "tmp").mkdir(parents=True)
    with locked([str(target)], print) as turn:
        assert turn.fds == []  # it would be captured


def test_long_names_of_targets_that_begin_alike_have_locks_of_their_own(tmp_path):
    targets = [str(tmp_path / ("n" * 60 + end)) for end in "12"]
    with locked(targets, pytest.fail) as turn:
        assert len(turn.fds) == len(list(tmp_path.glob(".*.lock"))) == 2


async def test_an_env_run_in_the_command_of_another_has_the_same_turn(command_line):
    inner = shlex.join(command_line.words("exit 0"))
    (command_line.folder / "inner").write_text(inner)
    status, _, said = await command_line.run(f"sh {command_line.folder}/inner")
    assert (status, command_line.runs()) == (0, 2)
    assert "waiting" not in said


@pytest.mark.parametrize("names", [["a", "a/b"], ["a/b", "a"], ["a", "link"], ["a", "link/b"]])
def test_targets_in_each_other_are_refused(tmp_path, names):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    run_options = RunOptions(["true"], [str(tmp_path / name) for name in names])
    with pytest.raises(ConfigError, match=r"name it once|leave it out"):
        env_run.run(run_options, pytest.fail, {}, pytest.fail)


async def test_a_configuration_that_is_wrong_is_told(command_line):
    command_line.config.write_text("[nonsense]\nx = 1\n")
    status, _, said = await command_line.run("exit 6")
    assert status == 6
    assert "without capturing it: " in said and "unknown setting nonsense.x" in said
    assert "Traceback" not in said


async def test_a_store_that_cannot_be_is_told(command_line):
    command_line.folder.joinpath("store").write_text("no folder")
    status, _, said = await command_line.run("exit 6")
    assert status == 6
    assert "without capturing it: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("when", ["in mid-command", "while it is stored"])
async def test_the_process_that_has_the_store_is_killed(command_line, when):
    """What it claimed runs out, and the next one captures."""
    waits = f": > {command_line.folder}/ready; sleep 0.3"
    script = f"{waits}; echo 1 > {command_line.target}/file"
    with trio.fail_after(40):
        hangs = when == "while it is stored"
        process = await command_line.start(script, hangs=hangs)
        await is_there(command_line.reached if hangs else command_line.folder / "ready")
        keeper = next(p for p in children(process) if "-ISB" in p.cmdline())
        keeper.kill()
        status, _, said = await command_line.end(process)
        assert status == 0
        assert "the result is not stored" in said
        assert not any(command_line.scratch.iterdir())
        assert await repository.list_snapshots(command_line.store) == []
        subprocess.run(["rm", "-r", command_line.target], check=True)
        status, _, said = await command_line.run(script)
        assert (status, command_line.runs()) == (0, 2)
        assert "stored as" in said


async def test_no_process_is_left_when_env_run_is_killed(command_line):
    script = f": > {command_line.folder}/ready; exec sleep 30"
    with trio.fail_after(20):
        process = await command_line.start(script)
        await is_there(command_line.folder / "ready")
        found = children(process)
        process.kill()
        await process.wait()
        keeper = next(p for p in found if "-ISB" in p.cmdline())
        await trio.to_thread.run_sync(keeper.wait, 10)
        for left in found:
            if left.is_running():
                left.kill()  # the command: nobody is there to end it
    assert await command_line.store.list("env/claims") == []


async def test_the_command_line_with_an_agent(command_line, lab, nursery, tmp_path):
    path = str(tmp_path / "socket")
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(path)
    listener.listen()

    async def agent():
        while True:
            end, _ = await listener.accept()
            line = b""
            while not line.endswith(b"\n"):
                line += await end.recv(1)
            assert json.loads(line) == {"op": "env"}
            nursery.start_soon(lab.serve, socket.socket(fileno=end.detach()))

    nursery.start_soon(agent)
    script = f"echo 1 > {command_line.target}/file"
    environ = {"BOOTSEER_SOCKET": path}
    status, _, said = await command_line.run(script, environ=environ)
    assert (status, "stored as" in said) == (0, False)  # by the agent, when the job goes on
    with trio.fail_after(10):
        while not any(f.snapshot for f in await repository.list_snapshots(lab.store)):
            await trio.sleep(0.02)
    subprocess.run(["rm", "-r", command_line.target], check=True)
    _, _, said = await command_line.run(script, environ=environ)
    assert "without running the command" in said
    assert command_line.runs() == 1
    _, _, said = await command_line.run("exit 0", environ={"BOOTSEER_SOCKET": f"{path}.none"})
    assert "without capturing it: [Errno 2]" in said
    nursery.cancel_scope.cancel()
    listener.close()


async def at_once(clients, scripts):
    """Run scripts at once; returns what `Clients.run` does for each."""
    done = [None] * len(scripts)

    async def one(number, script):
        done[number] = await clients.run(script)

    async with trio.open_nursery() as nursery:
        for number, script in enumerate(scripts):
            nursery.start_soon(one, number, script)
    return done


def locks_of(target):
    return [path.name for path in target.parent.iterdir() if path.name.endswith(".lock")]


class Slow(MemoryStore):
    """Has others begin before the first has ended."""

    @asynccontextmanager
    async def open(self, name, **options):
        await trio.sleep(0.2)
        async with super().open(name, **options) as reader:
            yield reader


class Stuck(MemoryStore):
    """Gives no content of snapshots for a while."""

    def __init__(self):
        super().__init__()
        self.is_stuck = False
        self.reached, self.goes_on = trio.Event(), trio.Event()

    @asynccontextmanager
    async def open(self, name, **options):
        if self.is_stuck and "/part-" in name:
            self.reached.set()
            await self.goes_on.wait()
        async with super().open(name, **options) as reader:
            yield reader


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_who_is_ended_while_it_restores_gets_nothing_afterwards(clients, tmp_path, number):
    """The next one begins when nothing is restored any more, and finds its target as it was."""
    clients.lab.store = store = Stuck()
    (clients.target / "base").mkdir(parents=True)
    script = f"for n in 1 2 3; do echo $n > {clients.target}/$n; done"
    await clients.run(script)
    subprocess.run(["rm", "-r", clients.target], check=True)
    (clients.target / "base").mkdir(parents=True)
    store.is_stuck = True
    process = await clients.start(*clients.lab.command(script), stderr=subprocess.DEVNULL)
    with trio.fail_after(20):
        await store.reached.wait()
        process.send_signal(number)
        await process.wait()
        script = f"ls -A {clients.target} > {tmp_path}/seen; : > {clients.target}/mine"
        assert (await clients.run(script))[0] == 0
        store.goes_on.set()
        while clients.nursery.child_tasks:
            await trio.sleep(0.01)
    assert (tmp_path / "seen").read_text() == "base\n"
    assert sorted(os.listdir(clients.target)) == ["base", "mine"]
    assert not list(tmp_path.glob(".target*"))


async def test_what_was_unpacked_goes_with_who_unpacked_it(clients):
    """The command begins with what was there."""
    left = clients.target / temporary_name("target")

    async def serve(end):
        talk = ServerConnection(end)
        await talk.send(Hello())
        for fd in (await talk.receive())[1]:
            os.close(fd)
        left.mkdir()
        talk.close()

    clients.lab.serve = serve
    assert (await clients.run(f"[ ! -e {left} ]"))[0] == 0


async def test_older_ones_that_have_the_store_are_not_given_locks(clients):
    seen = []

    async def serve(end):
        talk = ServerConnection(end)
        await talk.send(Hello())
        message, fds = await talk.receive()
        seen.append((type(message), len(fds)))
        for fd in fds:
            os.close(fd)
        await talk.send(RunCommand(why="no"))
        talk.close()

    clients.lab.serve = serve
    assert (await clients.run("exit 3"))[0] == 3
    assert seen == [(Request, 2)]


async def test_while_one_restores_no_other_runs_the_command(clients, look):
    """The tasks of a node, all with one target."""
    script = f"for n in $(seq 99); do echo $n > {clients.target}/$n; done"
    clients.lab.store = Slow()
    assert (await clients.run(script))[0] == 0
    made = look(clients.target)
    subprocess.run(["rm", "-r", clients.target], check=True)
    done = await at_once(clients, [script] * 8)
    assert [status for status, _, _ in done] == [0] * 8
    assert all("without running the command" in said for _, _, said in done)
    assert any("waiting for another process" in said for _, _, said in done)
    assert clients.lab.runs() == 1
    assert look(clients.target) == made
    assert locks_of(clients.target) == []


@pytest.mark.parametrize("status", [0, 3])
async def test_without_a_store_one_after_the_other_runs_it_until_one_succeeds(clients, status):
    async def nothing(end):
        end.close()

    clients.lab.serve = nothing
    done = await at_once(clients, [f"sleep 1; exit {status}"] * 4)
    assert [found for found, _, _ in done] == [status] * 4
    assert clients.lab.runs() == (4 if status else 1)
    assert locks_of(clients.target) == []


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_what_was_made_meanwhile_is_told_to_who_waited(tmp_path, names):
    """Who does not heed it has the targets for himself, as have those who come later."""
    targets = [str(tmp_path / name) for name in names]
    found, waits = [], threading.Event()

    def wait(heeds):
        with locked(targets, lambda target: waits.set(), heeds=heeds) as turn:
            found.append((turn.found, len(turn.fds), len(locks_of(tmp_path / "a"))))

    for heeds in (True, False):
        with locked(targets, print) as turn:
            waiting = threading.Thread(target=wait, args=[heeds])
            waiting.start()
            assert waits.wait(10)
            turn.leaves = "made"
        waiting.join()
        waits.clear()
    assert found == [("made", 0, 0), ("", len(names), len(names))]


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_nobody_waits_for_ever_for_who_may_have_been_suspended(tmp_path, names):
    targets = [str(tmp_path / name) for name in names]
    said = []
    script = f"echo $BOOTSEER_ENV_LOCKS >> {tmp_path}/ran; exit 7"
    run_options = RunOptions(["sh", "-c", script], targets, wait_s=0)
    with locked(targets[-1:], pytest.fail):
        assert env_run.run(run_options, pytest.fail, dict(os.environ), said.append) == 7
    assert "waiting" in said[0] and "without capturing it" in said[1] and targets[-1] in said[1]
    # What it could lock, it had.
    assert len((tmp_path / "ran").read_text().split()) == len(names) - 1
    assert all(locks_of(target) == [] for target in map(Path, targets))


async def test_another_result_is_not_taken_for_what_was_made_meanwhile(clients, monkeypatch):
    async def nothing(end):
        end.close()

    clients.lab.serve = nothing
    script = f"sleep 1; echo $FLAVOUR > {clients.target}/flavour"
    words = clients.lab.command(script)
    processes = []
    with trio.fail_after(20):
        for flavour in ("one", "two"):
            monkeypatch.setenv("FLAVOUR", flavour)
            processes.append(await clients.start(*words, stderr=subprocess.DEVNULL))
            while not clients.lab.runs():
                await trio.sleep(0.01)
        assert [await process.wait() for process in processes] == [0, 0]
    assert (clients.target / "flavour").read_text() == "two\n"


def test_pythons_and_files_in_targets_do_not_tell_results_apart(tmp_path):
    parts = [
        KeyPart("command", "true"),
        KeyPart("variable A", "1"),
        KeyPart("file requirements", "x"),
    ]
    made = [
        KeyPart("python", "3"),
        KeyPart("file target/bin/activate", "x"),
        KeyPart("installer 2", "y"),
    ]

    def mark(parts, path="/bin"):
        return result_mark(parts, [str(tmp_path / "target")], {"PATH": path}, str(tmp_path))

    assert mark(parts) == mark(parts + made)
    others = {mark(parts), mark(parts[1:]), mark(parts[::2]), mark(parts[:2]), mark(parts, "/x")}
    assert len(others) == 5


async def test_two_commands_with_one_target_run_one_after_the_other(clients):
    busy = clients.target / "busy"
    script = f"[ ! -e {busy} ] && touch {busy} && sleep 0.3 && rm {busy}"
    done = await at_once(clients, [f"{script} # {number}" for number in range(4)])
    assert [status for status, _, _ in done] == [0] * 4
    assert clients.lab.runs() == 4


async def test_what_a_killed_one_leaves_is_in_nobodys_way(clients):
    process = await clients.start(*clients.lab.command("exec sleep 600"))
    with trio.fail_after(20):
        while not clients.lab.runs():
            await trio.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    await process.wait()
    for child in children:
        child.kill()
    assert len(locks_of(clients.target)) == 1
    assert (await clients.run("exit 0"))[0] == 0
    assert clients.lab.runs() == 2
    assert locks_of(clients.target) == []


@pytest.mark.root
def test_where_no_lock_can_be_made_beside_a_target_it_is_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "folder"
    (folder / "target/inner").mkdir(parents=True)
    lock = folder / f".target.bootseer-{os.geteuid()}.lock"
    lock.symlink_to(tmp_path / "other")
    waited = []
    with locked([str(folder / "target"), str(folder / "target/inner")], waited.append):
        made = [path.name for path in tmp_path.iterdir() if path.name.endswith(".lock")]
        assert len(made) == 2  # nor in a target
        assert list((folder / "target").iterdir()) == [folder / "target/inner"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert waited == []


def test_a_lock_that_is_another_link_to_a_file_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    target, own = tmp_path / "target", tmp_path / "own"
    target.mkdir()
    own.write_text("kept")
    link = tmp_path / f".target.bootseer-{os.geteuid()}.lock"
    link.hardlink_to(own)
    with locked([str(target)], print) as turn:
        assert [path.suffix for path in (tmp_path / "tmp").iterdir()] == [".lock"]
        turn.leaves = "made"
    assert own.read_text() == "kept" and link.samefile(own)


def test_a_lock_that_another_node_has_removed_is_made_again(tmp_path, monkeypatch):
    flock, failed = fcntl.flock, []

    def stale(fd, how):
        if not failed:
            failed.append(fd)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", stale)
    (tmp_path / "target").mkdir()
    with locked([str(tmp_path / "target")], print) as turn:
        assert len(locks_of(tmp_path / "target")) == 1 and not turn.found


@pytest.mark.parametrize(
    ("count", "text"), [(0, ""), (1, "; 1 finding: bootseer"), (2, "; 2 findings: bootseer")]
)
def test_findings_are_counted(count, text):
    said = []
    captured = CaptureDone(key="k" * 64, files=1, bytes=5, findings=count)
    env_run._say_captured(captured, said.append)
    assert said[0].startswith(f"stored as {'k' * 12}: 5 B in 1 files{text}")
    assert said[0].endswith(f"show {'k' * 12}" if count else "files")
