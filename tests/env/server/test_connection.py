"""Whatever the other end says, the command runs once, and nothing is left open."""

import array
import fcntl
import gc
import json
import os
import socket
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
import trio
import trio.testing

from bootseer.env.client import messages
from bootseer.env.client.key import KeyPart, to_document
from bootseer.env.client.messages import CommandEnded, KeepWaiting, Notice, Restored
from bootseer.env.client.options import RunOptions
from bootseer.env.client.run import run
from bootseer.env.server.connection import MAX_FDS, ServerConnection
from bootseer.env.server.session import serve
from bootseer.env.snapshot import repository
from bootseer.errors import Closed, Corrupt
from bootseer.testing.fault_store import HangingStore

HELLO = b'{"op": "hello"}\n'


@contextmanager
def nothing_is_left_open():
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before


# The command's side.


def ask(lab, target, peer, script="exit 7"):
    """Have an `env run` talk to a peer in a thread; returns its exit status and what it said."""
    ours, theirs = socket.socketpair()
    said = []

    def serve():
        with theirs:
            peer(theirs)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        asked = RunOptions(lab.command(script), [str(target)])
        status = run(asked, lambda: ours, lab.environ, said.append)
    finally:
        thread.join()
    return status, "\n".join(said)


def sends(*parts):
    """A peer that says hello, takes what is asked for, and sends one of these after each."""

    def peer(end):
        end.sendall(HELLO)
        with end.makefile("rb") as lines, suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                lines.readline()
                end.sendall(part)

    return peer


GARBAGE = {
    "nothing": b"",
    "half a line": b'{"op": "res',
    "no JSON": b"hello\n",
    "no text": b"\xff\xfe\0\n",
    "no object": b"[1]\n",
    "too deep": b"[" * 100_000 + b"\n",
    "an error": b'{"error": "too many at once"}\n',
    "no line": b"x" * (3 << 20),
    "a line without an end": b"{" + b" " * (3 << 20),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_instead_of_hello(lab, tmp_path, garbage):
    def peer(end):
        with suppress(BrokenPipeError, ConnectionResetError):
            end.sendall(GARBAGE[garbage])

    with nothing_is_left_open():
        status, said = ask(lab, tmp_path / "target", peer)
    assert (status, lab.runs()) == (7, 1)
    assert "running the command without capturing it: " in said


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_instead_of_an_answer(lab, tmp_path, garbage):
    with nothing_is_left_open():
        status, said = ask(lab, tmp_path / "target", sends(GARBAGE[garbage]))
    assert (status, lab.runs()) == (7, 1)
    assert "running the command without capturing it: " in said
    if garbage == "an error":
        assert "too many at once" in said


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_after_the_command(lab, tmp_path, garbage):
    run_it = b'{"op": "run", "why": "", "key": "abcdef"}\n'
    with nothing_is_left_open():
        status, said = ask(lab, tmp_path / "target", sends(run_it, GARBAGE[garbage]), "exit 0")
    assert (status, lab.runs()) == (0, 1)
    assert "the result is not stored: " in said


ODD = {
    "an unknown word first": b'{"op": "dance"}\n{"op": "run", "why": "no"}\n',
    "no word first": b'{"op": ["run"]}\n{}\n{"op": "run", "why": "no"}\n',
    "progress of nothing": b'{"op": "progress"}\n{"op": "run", "why": "no"}\n',
    "nothing to say": b'{"op": "say"}\n{"op": "run", "why": {"a": 1}}\n',
    "no key": b'{"op": "run"}\n',
    "a key of another kind": b'{"op": "run", "why": null, "key": {"a": 1}}\n',
    "seen before it ran": b'{"op": "seen", "key": 5}\n',
    "a reason for restoring": b'{"op": "restored", "why": "no"}\n',
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_answer(lab, tmp_path, odd):
    with nothing_is_left_open():
        status, _ = ask(lab, tmp_path / "target", sends(ODD[odd]))
    assert (status, lab.runs()) == (7, 1)


RESTORED = Restored("there", "ab" * 32, 1, 2, 3, 0.5)


def test_what_is_restored_is_told(lab, tmp_path):
    status, said = ask(
        lab, tmp_path / "target", sends(messages.FROM_SERVER.encode(RESTORED) + b"\n")
    )
    assert (status, lab.runs()) == (0, 0)
    assert said.endswith(
        f"there already in 0.5 s, without running the command: {'ab' * 6}, 2 B in 1 files"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"how": 5},
        {"files": "x"},
        {"bytes": -1},
        {"took_s": float("nan")},
        {"files": 10**400},
    ],
    ids=str,
)
def test_after_a_restore_that_is_told_wrongly_the_command_runs(lab, tmp_path, change):
    answer = json.dumps({"op": "restored", **RESTORED._asdict(), **change}).encode() + b"\n"
    status, said = ask(lab, tmp_path / "target", sends(answer))
    assert (status, lab.runs()) == (7, 1)
    assert f"message of the server: field {next(iter(change))!r} is " in said


@pytest.mark.parametrize("fields", [{}, {"key": [1]}, {"key": "a", "files": [], "findings": "x"}])
def test_what_is_told_of_a_capture_cannot_fail_it(lab, tmp_path, fields):
    answer = json.dumps({"op": "seen", **fields}).encode() + b"\n"
    run_it = b'{"op": "run", "why": ""}\n'
    status, said = ask(lab, tmp_path / "target", sends(run_it, answer), "exit 0")
    assert (status, lab.runs()) == (0, 1)
    assert ("field 'key' is not acceptable" in said) == (fields.get("key") == [1])


@pytest.mark.parametrize("when", ["at first", "then", "after the command"])
def test_silence(lab, tmp_path, monkeypatch, when):
    monkeypatch.setattr("bootseer.env.client.connection._SILENCE_S", 0.1)
    done = threading.Event()

    def peer(end):
        if when != "at first":
            end.sendall(HELLO)
        if when == "after the command":
            end.sendall(b'{"op": "run", "why": ""}\n')
        done.wait(20)

    with nothing_is_left_open():
        said = []
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=peer, args=[theirs])
        thread.start()
        asked = RunOptions(lab.command("exit 0"), [str(tmp_path / "target")])
        status = run(asked, lambda: ours, lab.environ, said.append)
        done.set()
        thread.join()
        theirs.close()
    assert (status, lab.runs()) == (0, 1)
    assert "no answer within 0.1 s" in said[-1]


def test_after_silence_nothing_is_done_there_when_the_command_begins(lab, tmp_path, monkeypatch):
    monkeypatch.setattr("bootseer.env.client.connection._SILENCE_S", 0.1)

    def peer(end):
        end.sendall(b'{"op": "hello", "locks": true}\n')
        while end.recv(1 << 16):
            pass
        time.sleep(0.2)
        (tmp_path / "ended").touch()

    status, said = ask(lab, tmp_path / "target", peer, f"[ -e {tmp_path}/ended ]")
    assert (status, lab.runs()) == (0, 1)
    assert "no answer within 0.1 s" in said


def test_nobody_there(lab, tmp_path):
    def connect():
        raise ConnectionRefusedError("nobody listens")

    said = []
    asked = RunOptions(lab.command("exit 7"), [str(tmp_path / "target")])
    assert run(asked, connect, lab.environ, said.append) == 7
    assert lab.runs() == 1
    assert "nobody listens" in said[0]


def test_who_answers_and_goes_at_once_is_heard(lab, tmp_path):
    """The answer may be there before all of the question has been sent."""
    answer = messages.FROM_SERVER.encode(RESTORED) + b"\n"

    class Hasty(socket.socket):
        def sendmsg(self, *args):
            sent = super().sendmsg(*args)
            theirs.recv(1 << 20)
            theirs.sendall(answer)
            theirs.close()
            return sent

    ours, theirs = socket.socketpair()
    hasty = Hasty(fileno=ours.detach())
    theirs.sendall(HELLO)
    asked = RunOptions(lab.command("exit 7"), [str(tmp_path / "target")])
    assert run(asked, lambda: hasty, lab.environ, lambda text: None) == 0
    assert lab.runs() == 0


def test_of_the_command_variables_that_findings_need_are_told_and_no_others(lab, tmp_path):
    questions = []

    def peer(end):
        end.sendall(HELLO)
        with end.makefile("rb") as lines:
            questions.append(json.loads(lines.readline()))

    lab.environ = {"PATH": os.environ["PATH"], "TMPDIR": "/elsewhere", "WORD": "secret"}
    ask(lab, tmp_path / "target", peer)
    (question,) = questions
    assert question["environ"] == {"TMPDIR": "/elsewhere"}
    assert (question["names"], question["stays"]) == (["target"], False)


def test_a_target_that_cannot_be_opened(lab, tmp_path, monkeypatch):
    """The command runs, as it would without; it may do something about it."""
    original = os.open

    def denied(path, *args, **options):
        if str(path).endswith("target"):
            raise PermissionError(13, "Permission denied", path)
        return original(path, *args, **options)

    monkeypatch.setattr("bootseer.env.client.command_key.scan_folder", lambda path: ({},))
    monkeypatch.setattr("bootseer.env.client.command_key._base", lambda path: "empty")
    monkeypatch.setattr("bootseer.env.client.targets.os.open", denied)
    with nothing_is_left_open():
        status, said = ask(lab, tmp_path / "target", sends(b""))
    assert (status, lab.runs()) == (7, 1)
    assert "Permission denied" in said


# The store's side.


PARTS = (KeyPart("command", "true"), KeyPart("target /t", "empty"))


class Asking:
    """One who asks, byte by byte."""

    def __init__(self, lab, folder):
        self.lab = lab
        self.folder = folder
        self.message = {
            "op": "env",
            "key": to_document(PARTS),
            "as_empty": to_document(PARTS),
            "targets": ["/t"],
            "names": ["t"],
            "mode": "auto",
            "read_only": False,
            "force": False,
            "captures": True,
            "waits": True,
            "wait_s": 0,
            "environ": {},
        }

    async def say(self, *parts, fds=2, path=None):
        """Send parts to a session, the first with descriptors; returns its answers."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        answers = []
        opened = [os.open(path or self.folder, os.O_RDONLY) for _ in range(fds)]
        try:
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.serve, theirs)
                    with trio.socket.from_stdlib_socket(ours) as end:
                        for number, part in enumerate(parts):
                            rights = (
                                socket.SOL_SOCKET,
                                socket.SCM_RIGHTS,
                                array.array("i", opened),
                            )
                            if number == 0 and part:
                                sent = await end.sendmsg([part], [rights] if fds else [])
                                part = part[sent:]
                            with suppress(BrokenPipeError):
                                while part:
                                    part = part[await end.send(part) :]
                            if number + 1 < len(parts) or parts[-1].endswith(b"\n"):
                                answers.append(await end.recv(1 << 16))
                        end.shutdown(socket.SHUT_WR)
                        with suppress(ConnectionResetError):  # it has not read all
                            while data := await end.recv(1 << 16):
                                answers.append(data)
        finally:
            for fd in opened:
                os.close(fd)
        return [json.loads(line) for line in b"".join(answers).splitlines()]

    async def serve(self, end):
        connection = ServerConnection(end)
        try:
            await serve(connection, self.lab.context())
        finally:
            connection.close()

    def line(self, **changes):
        return json.dumps({**self.message, **changes}).encode() + b"\n"


@pytest.fixture
def asking(lab, tmp_path):
    (tmp_path / "t").mkdir()
    return Asking(lab, tmp_path)


async def warm(asking):
    """Have trio open all that it keeps open."""
    await asking.say(asking.line())


async def test_a_good_question_is_answered(asking):
    (answer,) = await asking.say(asking.line())
    assert (answer["op"], answer["why"]) == ("run", "")
    assert await asking.lab.store.list("env/claims") == []


@pytest.mark.parametrize("garbage", list(GARBAGE)[2:])
async def test_garbage_is_no_question(asking, garbage, monkeypatch):
    monkeypatch.setattr("bootseer.env.server.connection.MAX_LINE_BYTES", 1 << 20)
    await warm(asking)
    with nothing_is_left_open():
        answers = await asking.say(GARBAGE[garbage])
    assert [answer["op"] for answer in answers if answer["why"]] == ["run"]


@pytest.mark.parametrize("part", [b"", b'{"op": "en'])
async def test_who_goes_gets_no_answer(asking, part):
    await warm(asking)
    with nothing_is_left_open():
        assert await asking.say(part) == []


async def test_targets_are_locked_until_nothing_is_done_there(lab, asking, tmp_path):
    lab.store = HangingStore(lab.store)
    ours, theirs = socket.socketpair()
    held = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    fds = [os.open(tmp_path / "t", os.O_RDONLY) for _ in range(2)]
    socket.send_fds(ours, [b'{"op": "locks"}\n'], [held])
    socket.send_fds(ours, [asking.line()], fds)
    for fd in (held, *fds):
        os.close(fd)
    with trio.fail_after(10), (tmp_path / "lock").open() as lock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.serve, theirs)
            while [name for name, _ in lab.stages] != ["env.find"]:
                await trio.sleep(0.01)
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours.close()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def question(asking, *, locks=None, then=b"", **changes):
    """Ask a session that is one of a nursery's tasks; returns our end."""
    ours, theirs = socket.socketpair()
    fds = [os.open(asking.folder, os.O_RDONLY) for _ in range(2)]
    if locks is not None:
        socket.send_fds(ours, [b'{"op": "locks"}\n'], [locks])
    socket.send_fds(ours, [asking.line(**changes)], fds)
    if then:
        ours.sendall(then)
    for fd in fds:
        os.close(fd)
    ours.setblocking(False)
    return trio.socket.from_stdlib_socket(ours), theirs


async def answer_of(end):
    data = b""
    while not data.endswith(b"\n"):
        part = await end.recv(1)
        assert part, "nobody is there any more"
        data += part
    return json.loads(data)


@pytest.mark.parametrize("op", ["run", "restored"])
async def test_targets_are_let_go_before_the_command_goes_on(lab, asking, tmp_path, nursery, op):
    if op == "restored":
        await asking.say(asking.line(), b'{"op": "ran", "status": 0, "took_ms": 1}\n')
    held = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    end, theirs = await question(asking, locks=held)
    os.close(held)
    with trio.fail_after(10), (tmp_path / "lock").open() as lock, end:
        nursery.start_soon(asking.serve, theirs)
        assert (await answer_of(end))["op"] == op
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_a_session_ends_with_its_answer_where_nothing_is_kept(asking):
    """Though the command's side stays until its command has ended."""
    end, theirs = await question(asking, captures=False)
    with trio.fail_after(10), end:
        await asking.serve(theirs)
        assert (await answer_of(end))["why"] == "--no-capture is given"


async def test_what_is_said_early_is_heard_in_its_turn(asking, monkeypatch):
    """It does not look as if somebody had gone."""
    original, goes_on = asking.lab.context().stage, trio.Event()

    @asynccontextmanager
    async def stage(name):
        async with original(name) as said:
            await goes_on.wait()
            yield said

    monkeypatch.setattr(asking.lab, "stage", stage)
    ran = json.dumps({"op": "ran", "status": 3, "took_ms": 1}).encode() + b"\n"
    end, theirs = await question(asking, then=ran)
    with trio.fail_after(10), end:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.serve, theirs)
            await trio.testing.wait_all_tasks_blocked()
            goes_on.set()
            assert (await answer_of(end))["op"] == "run"
            assert (await answer_of(end))["why"] == "the command failed with 3"


async def test_descriptors_that_nobody_has_asked_for_are_closed(asking, nursery):
    end, theirs = await question(asking)
    with trio.fail_after(10), end, open("/dev/null") as more:
        nursery.start_soon(asking.serve, theirs)
        await answer_of(end)
        ran = json.dumps({"op": "ran", "status": 0, "took_ms": 1}).encode() + b"\n"
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [more.fileno()]))
        await end.sendmsg([ran], [rights])
        assert (await answer_of(end))["op"] == "seen"


async def test_of_what_was_read_names_that_are_no_names_are_left_out(asking):
    names = ["", "A", "n" * 249, "n" * 250, "a\x1b"]
    ran = {"op": "ran", "status": 0, "took_ms": 1, "variables": names, "files": ["/a"]}
    await asking.say(asking.line(), json.dumps(ran).encode() + b"\n")
    (listed,) = await repository.list_snapshots(asking.lab.store)
    found = [(finding.kind, finding.path) for finding in listed.snapshot.findings]
    kind = "variable not in the key"
    assert found[:3] == [(kind, "A"), (kind, "n" * 249), ("file not in the key", "/a")]
    assert 'add --key-extra "$A"' in listed.snapshot.findings[0].detail
    assert not any("a\x1b" in path or path == "n" * 250 for _, path in found)


@pytest.mark.parametrize("fds", [0, 1, 3, MAX_FDS, MAX_FDS + 8])
async def test_another_number_of_descriptors(asking, fds):
    await warm(asking)
    with nothing_is_left_open():
        (answer,) = await asking.say(asking.line(), fds=fds)
    assert "do not come with their descriptors" in answer["why"]


async def test_descriptors_that_are_no_folders(asking, tmp_path):
    (tmp_path / "file").touch()
    await warm(asking)
    with nothing_is_left_open():
        (answer,) = await asking.say(asking.line(), path=tmp_path / "file")
    assert "a target is no folder" in answer["why"]


WRONG = [
    *({"names": [name]} for name in ("", ".", "..", "a/b", "/", "a\0b", "a\nb", "n" * 256, 5)),
    *({"targets": targets} for targets in ([], ["/t", "/u"], "/t", None, ["/t\n"])),
    *({"mode": mode} for mode in ("", "automatic", None, 5)),
    *({"wait_s": wait_s} for wait_s in (-1, 86_401, "1", None, 0.5)),
    *({name: "yes"} for name in ("read_only", "force", "captures", "waits", "stays")),
    *({"key": key} for key in (None, {}, to_document(PARTS) | {"key": "0" * 64}, [1])),
    {"as_empty": None},
    {"environ": {"TMPDIR": 5}},
    {"environ": []},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:40])
async def test_a_question_with_something_wrong_in_it(asking, wrong):
    (answer,) = await asking.say(asking.line(**wrong))
    assert answer["op"] == "run"
    assert "message" in answer["why"]


@pytest.mark.parametrize(
    "wrong", [{}, {"status": -1}, {"status": 256}, {"status": "0"}, {"status": 0, "took_ms": -1}]
)
async def test_what_is_told_of_the_command_is_wrong(asking, wrong):
    ran = json.dumps({"op": "ran", **wrong}).encode() + b"\n"
    first, second = await asking.say(asking.line(), ran)
    assert (first["op"], first["why"]) == ("run", "")
    assert second["why"]
    assert await asking.lab.store.list("env") != []
    assert await asking.lab.store.list("env/snapshots") == []
    assert await asking.lab.store.list("env/claims") == []


# Both.


async def test_half_a_message_is_followed_by_nothing():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection = ServerConnection(ours)
    with trio.move_on_after(0.05):
        await connection.send(Notice("x" * (1 << 20)))
    with pytest.raises(Closed):
        await connection.send(KeepWaiting())
    data = b""
    while part := theirs.recv(1 << 16):
        data += part
    assert b"\n" not in data
    theirs.close()


async def test_what_was_given_up_before_it_began_is_followed_by_others():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ours.send(b" " * 4096)
    connection, other = ServerConnection(ours), trio.socket.from_stdlib_socket(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.send, Notice("lost"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send, Notice("said"))
            assert await answer_of(other) == {"op": "say", "text": "said"}
    connection.close()


async def test_a_conversation_that_was_ended_here_is_over():
    ours, theirs = socket.socketpair()
    connection = ServerConnection(ours)
    connection.close()
    with pytest.raises(Closed):
        await connection.send(KeepWaiting())
    with pytest.raises(Closed):
        await connection.receive()
    await connection.gone()
    theirs.close()


async def test_messages_of_several_do_not_mix():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection, other = ServerConnection(ours), trio.socket.from_stdlib_socket(theirs)
    found = []
    with other:
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(connection.send, Notice(str(number) * 50_000))
            for _ in range(5):
                found.append(set((await answer_of(other))["text"]))
    assert sorted(map(len, found)) == [1] * 5
    connection.close()


async def test_a_line_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setattr("bootseer.env.server.connection.MAX_LINE_BYTES", 1000)
    ours, theirs = socket.socketpair()
    connection = ServerConnection(ours)
    longest = CommandEnded(0, 1, ("x" * 925,))
    line = messages.FROM_CLIENT.encode(longest) + b"\n"
    assert 985 < len(line) <= 1000
    theirs.sendall(line)
    assert await connection.receive() == (longest, [])
    theirs.sendall(b"x" * 1001)
    with pytest.raises(Corrupt, match="too long"):
        await connection.receive()
    connection.close()
    theirs.close()


async def test_more_descriptors_than_a_message_may_have_are_closed():
    ours, theirs = socket.socketpair()
    connection = ServerConnection(ours)
    with open("/dev/null") as file:
        for count in (MAX_FDS, 1):
            socket.send_fds(theirs, [b" "], [file.fileno()] * count)
    with pytest.raises(Corrupt, match="too long"):
        await connection.receive()
    connection.close()
    theirs.close()
