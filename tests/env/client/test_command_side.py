"""The side of the command of `env run`: keys, signals, what is said, and who is asked."""

import io
import os
import select
import signal
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress

import pytest

from bootseer.env.client import messages
from bootseer.env.client.command import execute
from bootseer.env.client.command_key import keys_of
from bootseer.env.client.connection import ask_agent_for_image, connect_agent
from bootseer.env.client.options import RunOptions
from bootseer.env.client.run import run
from bootseer.env.client.target_lock import locked
from bootseer.env.client.temporary import temporary_name
from bootseer.env.client.terminal import tell
from bootseer.errors import ConfigError, Unavailable

HELLO = b'{"op": "hello"}\n'
RUN = b'{"op": "run", "why": "", "key": "abcdef"}\n'
SEEN = b'{"op": "seen", "key": "abcdef"}\n'


def restored(how):
    """The line with which a server says that it has restored the result."""
    return messages.FROM_SERVER.encode(messages.Restored(how, "ab" * 32, 1, 2, 3, 0.5)) + b"\n"


@contextmanager
def peers(serve):
    """Give what connects to one who has the store, each time another; all end with the block."""
    threads = []

    def connect():
        ours, theirs = socket.socketpair()

        def work():
            with theirs:
                serve(theirs)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return ours

    yield connect
    for thread in threads:
        thread.join()


def sends(*parts):
    """One who says hello, takes what is asked for, and sends one of these after each."""

    def serve(end):
        end.sendall(HELLO)
        with end.makefile("rb") as lines, suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                lines.readline()
                end.sendall(part)

    return serve


def ask(lab, target, serve, script="exit 7", **options):
    """Have an `env run` talk to one; returns its exit status and what it said."""
    said = []
    asked = RunOptions(lab.command(script), [str(target)], **options)
    with peers(serve) as connect:
        status = run(asked, connect, lab.environ, said.append)
    return status, "\n".join(said)


# The key.


def keys(folder, **more):
    asked = RunOptions(["make"], [str(folder / "target")], **more)
    return keys_of(asked, asked.targets, {"PATH": str(folder)}, str(folder), "")


def test_a_program_may_read_what_it_likes_where_files_are_named_for_it(tmp_path):
    (tmp_path / "file").touch()
    assert keys(tmp_path).unbounded == ("make",)
    assert keys(tmp_path, key_files=["file"]).unbounded == ()


def test_a_target_is_empty_until_there_is_something_in_it(tmp_path):
    none = keys(tmp_path)
    assert none.parts == none.as_empty
    (tmp_path / "target").mkdir()
    assert keys(tmp_path) == none
    (tmp_path / "target/file").touch()
    assert keys(tmp_path).as_empty == none.parts
    assert keys(tmp_path).parts != none.parts


def test_a_target_that_cannot_be_looked_at_has_no_key(tmp_path):
    (tmp_path / "target").touch()
    with pytest.raises(Unavailable, match="target cannot be read"):
        keys(tmp_path)


@pytest.mark.parametrize("target", ["/", "//", "file/target"])
def test_a_target_that_cannot_be_a_folder_is_refused(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--target .*(is not allowed|cannot be made)"):
        run(RunOptions(["true"], [target]), pytest.fail, {}, pytest.fail)


def refuse(error):
    raise error


@pytest.mark.parametrize(
    ("connect", "why"),
    [
        (lambda: refuse(ConnectionRefusedError("nobody listens")), "nobody listens"),
        (lambda: refuse(Unavailable("no store")), "no store"),
        (None, "--key-file /none"),
    ],
)
def test_the_command_runs_where_no_key_can_tell(tmp_path, connect, why):
    said = []
    asked = RunOptions(["sh", "-c", "exit 3"], [str(tmp_path / "target")], key_files=["/none"])
    with peers(sends(b"")) as connect_peer:
        assert run(asked, connect or connect_peer, dict(os.environ), said.append) == 3
    assert f"without capturing it: {why}" in said[0]


# What is said.


def test_what_is_said_does_not_command_a_terminal(capsys):
    tell("a\x1b[2J\nb\u00e9")
    assert capsys.readouterr() == ("", "bootseer: a?[2J?b\u00e9\n")


def test_what_cannot_be_said_fails_nothing(monkeypatch):
    """Nor what Python would say at its end."""
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    try:
        monkeypatch.setattr("sys.stderr", full)
        tell("something")
        print("more", file=sys.stderr, flush=True)
    finally:
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


class Terminal(io.StringIO):
    """Shows what is flushed."""

    shown = ""

    def isatty(self):
        return True

    def flush(self):
        self.shown = self.getvalue()


PROGRESS = b'{"op": "progress", "done_bytes": 5000, "total_bytes": 7000000}\n'


def test_progress_is_shown_on_a_terminal(lab, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    status, said = ask(lab, tmp_path / "target", sends(PROGRESS + PROGRESS + RUN, SEEN), "exit 0")
    assert (status, "progress" in said) == (0, False)
    line = f"\rbootseer: {'unpacking 5 kB of 7 MB':<60}"
    assert terminal.shown == 2 * line
    assert terminal.getvalue() == 2 * line + "\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_without_progress_nothing_is_shown(lab, tmp_path, monkeypatch, is_terminal):
    shown = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    answer = b'{"op": "wait"}\n' + RUN if is_terminal else PROGRESS + RUN
    assert ask(lab, tmp_path / "target", sends(answer))[0] == 7
    assert shown.getvalue() == ""


def test_a_key_that_never_comes_again_is_told(lab, tmp_path):
    lab.environ["SLURM_JOB_ID"] = "310"
    _, said = ask(lab, tmp_path / "env-310", sends(RUN))
    assert "env-310 has the number of this job in it" in said


@pytest.mark.parametrize(
    ("variables", "files", "more"), [(1, 0, ""), (0, 1, ""), (0, 5, ""), (2, 4, " and 1 more")]
)
def test_some_of_what_the_key_does_not_tell_is_said(lab, tmp_path, variables, files, more):
    code = "import os"
    for number in range(variables):
        lab.environ[f"VARIANT_{number}"] = "1"
        code += f"; os.environ['VARIANT_{number}']"
    for number in range(files):
        (tmp_path / f"f{number}").touch()
        code += f"; open('{tmp_path}/f{number}').close()"
    script = f'{sys.executable} -c "{code}"'
    _, said = ask(lab, tmp_path / "target", sends(RUN, SEEN), script)
    (line,) = [line for line in said.splitlines() if "not in its key" in line]
    assert line.count('--key-extra "$VARIANT_') == variables
    assert line.count(f"--key-file {tmp_path}/f") == min(files, 5 - variables)
    assert line.endswith(f"{more} (bootseer env show has them)" if more else "")
    assert ("more" in line) == bool(more)


# Who is asked.


def test_who_goes_without_hearing_of_the_command_keeps_nothing(lab, tmp_path):
    def serve(end):
        end.sendall(HELLO)
        question = b""
        while not question.endswith(b"\n"):
            question += end.recv(1 << 16)
        end.sendall(RUN)
        select.select([end], [], [], 10)

    status, said = ask(lab, tmp_path / "target", serve, "exit 0")
    assert (status, lab.runs()) == (0, 1)
    assert "the result is not stored: no answer: " in said


@pytest.mark.parametrize("hello", [b"", HELLO])
def test_who_is_not_known_to_heed_locks_is_not_waited_for(lab, tmp_path, monkeypatch, hello):
    monkeypatch.setattr("bootseer.env.client.connection._SILENCE_S", 0.1)
    monkeypatch.setattr("bootseer.env.client.connection._STOP_S", 1000.0)

    def serve(end):
        end.sendall(hello)
        while end.recv(1 << 16):
            pass
        with pytest.raises(BrokenPipeError):
            end.sendall(b"x")
        (tmp_path / "gone").touch()

    # Before the command, and not when all is over.
    script = f"for n in $(seq 100); do [ -e {tmp_path}/gone ] && exit 7; sleep 0.02; done"
    assert ask(lab, tmp_path / "target", serve, script)[0] == 7


def test_what_comes_after_silence_is_taken_from_who_heeds_locks(lab, tmp_path, monkeypatch):
    """Else who restores would hang, and have the target."""
    monkeypatch.setattr("bootseer.env.client.connection._SILENCE_S", 0.1)
    monkeypatch.setattr("bootseer.env.client.connection._STOP_S", 1000.0)

    def serve(end):
        end.sendall(b'{"op": "hello", "locks": true}\n')
        while end.recv(1 << 16):
            pass
        end.sendall(bytes(4 << 20))
        (tmp_path / "ended").touch()

    assert ask(lab, tmp_path / "target", serve, f"[ -e {tmp_path}/ended ]")[0] == 0


def test_what_the_killed_have_left_is_gone_when_the_command_begins(lab, tmp_path):
    left = tmp_path / "target" / temporary_name("target")
    left.mkdir(parents=True)
    asked = RunOptions(lab.command(f"[ ! -e {left} ]"), [str(tmp_path / "target")])
    assert run(asked, lambda: refuse(OSError("nobody")), lab.environ, lambda text: None) == 0


@pytest.mark.root
def test_the_folder_above_a_target_need_not_be_readable(lab, place):
    above = place / "above"
    (above / "target").mkdir(parents=True)
    os.chown(above / "target", 1234, 1234)
    above.chmod(0o711)
    os.seteuid(1234)
    try:
        status, said = ask(lab, above / "target", sends(restored("there")))
    finally:
        os.seteuid(0)
    assert (status, lab.runs()) == (0, 0), said


@pytest.mark.parametrize(("how", "questions"), [("unpacked", 1), ("there", 1), ("mounted", 2)])
def test_what_others_see_as_well_is_asked_for_once(lab, tmp_path, monkeypatch, how, questions):
    """A mount is there for who has asked."""
    monkeypatch.setattr("bootseer.env.client.run.locked", locked)
    asked_first, waits = threading.Event(), threading.Event()
    asked = RunOptions(lab.command("exit 7"), [str(tmp_path / "target")])
    heard, done = [], []

    def serve(end):
        end.sendall(b'{"op": "hello", "image": "sha256:12"}\n')
        with end.makefile("rb") as lines:
            if line := lines.readline():
                heard.append(line)
                asked_first.set()
                assert waits.wait(10)
                end.sendall(restored(how))

    def say(text):
        if text.startswith("waiting"):
            waits.set()

    def one():
        done.append(run(asked, connect, lab.environ, say))

    with peers(serve) as connect:
        threads = [threading.Thread(target=one) for _ in range(2)]
        threads[0].start()
        assert asked_first.wait(10)
        threads[1].start()
        for thread in threads:
            thread.join()
    assert (done, lab.runs(), len(heard)) == ([0, 0], 0, questions)


# The agent.


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """Have an agent of a job that answers each who asks; tells what it was asked."""
    monkeypatch.chdir(tmp_path)
    asked = []
    with ExitStack() as opened:

        def start(answer):
            listener = opened.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind("agent")
            listener.listen()

            def work():
                end, _ = listener.accept()
                with end:
                    asked.append(end.recv(1 << 16))
                    end.sendall(answer)

            thread = threading.Thread(target=work)
            thread.start()
            opened.callback(thread.join)
            return asked

        yield start


@pytest.mark.parametrize(
    ("hello", "image"), [(HELLO, ""), (b'{"op": "hello", "image": "sha256:12"}\n', "sha256:12")]
)
def test_the_agent_says_which_image_it_is(agent, hello, image):
    asked = agent(hello)
    assert ask_agent_for_image("agent") == image
    assert asked == [b'{"op": "env"}\n']


@pytest.mark.parametrize("answer", [b"", b"what?\n", b'{"error": "too many"}\n'])
def test_an_agent_without_an_answer_is_told(agent, answer):
    agent(answer)
    with pytest.raises(Unavailable, match="does not answer at agent"):
        ask_agent_for_image("agent")


def test_no_agent_is_told(tmp_path):
    with pytest.raises(Unavailable, match=r"does not answer at .*/none"):
        ask_agent_for_image(str(tmp_path / "none"))


def test_an_agent_that_takes_nobody_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bootseer.env.client.connection._SILENCE_S", 0.1)
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind("agent")
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            for _ in range(100):
                waiting = opened.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect("agent")
        with pytest.raises(OSError, match=r"agent|unavailable|timed out"):
            connect_agent("agent")


# The command.


def test_a_signal_that_was_ignored_is_so_by_the_command():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert execute(["sh", "-c", "kill -HUP $$; exit 5"], os.environ) == 5
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
