"""The control socket: who is heard, and that nobody can keep root out."""

import array
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial

import pytest
import trio
import trio.testing

from bootseer.agent.messages.control import (
    MAX_LINE_BYTES,
    Done,
    Finish,
    GetStatus,
    ImagePath,
    Readiness,
    ServeImage,
    WaitReady,
)
from bootseer.agent.node import control_client, control_socket, log
from bootseer.agent.supervisor import containment, control_server
from bootseer.errors import (
    Closed,
    ConfigError,
    Corrupt,
    Denied,
    NoSpace,
    NotFound,
    Unavailable,
    UnknownImage,
)

pytestmark = [pytest.mark.root]

USER, OTHER = 65534, 65533


@pytest.fixture
def path():
    # pytest's own folders are closed to other users.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield f"{folder}/agent.sock"


@pytest.fixture
async def asked(path, nursery):
    """A served socket; the requests that arrived, with the uid of who asked."""
    requests = []

    def answered(answer):
        pass

    async def handle(request, peer):
        requests.append((request, peer.uid))
        match request:
            case WaitReady():
                await trio.sleep_forever()
            case ServeImage():
                return ImagePath("x" * 2_000_000)
        return Done()

    with control_socket.listen(path, USER) as listener:
        listener.setblocking(False)
        nursery.start_soon(control_server.serve, listener, USER, handle, answered)
        yield requests
        nursery.cancel_scope.cancel()


async def ask(path, request, answer=Done, deadline_s=5.0):
    call = partial(control_client.ask, path, request, answer, deadline_s)
    return await trio.to_thread.run_sync(call)


def test_the_path_is_there_once_connecting_succeeds(path, monkeypatch):
    seen = []

    class Socket(socket.socket):
        def listen(self, *arguments):
            seen.append(os.path.exists(path))
            super().listen(*arguments)

    monkeypatch.setattr(socket, "socket", Socket)
    with control_socket.listen(path, USER):
        assert seen == [False]
        info = os.stat(path)
        assert (info.st_mode & 0o777, info.st_uid) == (0o600, USER)
        control_client.tell(path, GetStatus())


CLIENT = """
import os, socket, sys, time
path, uid, count, text = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4].encode()
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
held, answer = [], b""
for _ in range(count):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    try:
        connection.connect(path)
        connection.sendall(text)
    except OSError as error:
        print(error.errno)
        continue
    held.append(connection)
print("held", flush=True)
if count == 1 and held:
    try:
        print(held[0].recv(65536), flush=True)
    except OSError as error:
        print(error.errno, flush=True)
sys.stdin.read()
"""


def client(path, uid, count, text):
    argv = [sys.executable, "-I", "-c", CLIENT, path, str(uid), str(count), text]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


LONG = '{"op": "serve", "image": "x"}\n'


@pytest.mark.parametrize("text", ["", '{"op":', '{"op": "wait", "timeout_s": 9}\n', LONG])
async def test_root_is_answered_however_many_the_user_holds(path, asked, text):
    with client(path, USER, 400, text) as flood:
        while await trio.to_thread.run_sync(flood.stdout.readline) != "held\n":
            pass
        began_s = time.monotonic()
        for _ in range(5):
            assert await ask(path, GetStatus()) == Done()
        assert time.monotonic() - began_s < 2
        flood.stdin.close()
    assert sum(uid == USER for _, uid in asked) <= 400


@pytest.mark.parametrize(("uid", "heard"), [(USER, True), (OTHER, False)])
@pytest.mark.parametrize("mode", [0o600, 0o777])
async def test_only_its_user_is_answered_with_any_socket_mode(path, asked, uid, heard, mode):
    os.chmod(path, mode)  # its user may do that
    with client(path, uid, 1, '{"op": "status"}\n') as peer:
        said = await trio.to_thread.run_sync(peer.stdout.readline)
        said += await trio.to_thread.run_sync(peer.stdout.readline)
        peer.stdin.close()
    assert ("ok" in said) == heard
    assert [uid for _, uid in asked] == [uid] * heard


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"[]\n",
        b"null\n",
        b"\xff\xfe\n",
        b"{" * 100_000 + b"\n",
        b"[" * 100_000 + b"\n",
        b'{"a": ' + b"9" * 5000 + b"}\n",
        b"{}\n",
        b'{"op": "x"}\n',
        b'{"op": ["finish"]}\n',
        b'{"op": "wait"}\n',
        b'{"op": "wait", "timeout_s": NaN}\n',
        b'{"op": "serve", "image": 5}\n',
        b"x" * (MAX_LINE_BYTES + 1),
    ],
)
async def test_an_invalid_request_is_refused(path, asked, data):
    with trio.fail_after(5), trio.socket.socket(trio.socket.AF_UNIX) as connection:
        await connection.connect(path)
        stream = trio.SocketStream(connection)
        try:
            await stream.send_all(data)
            answer = b"".join([part async for part in stream])
            assert b'"error":"' in answer or len(data) > MAX_LINE_BYTES
        except (OSError, trio.BrokenResourceError):
            assert len(data) > MAX_LINE_BYTES  # closed with something unread
    assert asked == []


async def test_descriptors_that_come_along_are_dropped(path, asked):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with trio.socket.socket(trio.socket.AF_UNIX) as connection:
            await connection.connect(path)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
            await connection.sendmsg([b'{"op": "status"}\n'], rights)
            assert b"ok" in await connection.recv(100)
    await trio.testing.wait_all_tasks_blocked()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_answered_is_called_once_the_answer_is_sent():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    answer, told = Readiness(True, "here"), []

    async def handle(request, uid):
        return answer

    def answered(it):
        told.append((it, theirs.recv(1000, socket.MSG_DONTWAIT)))

    with trio.socket.from_stdlib_socket(ours) as connection, theirs:
        theirs.send(b'{"op": "status"}\n')
        await control_server._converse(connection, 0, handle, answered)
    assert told == [(answer, b'{"ready":true,"detail":"here"}\n')]
    assert told[0][0] is answer


async def test_answered_is_called_though_the_peer_has_gone():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    told = []

    async def handle(request, uid):
        theirs.close()
        return Done()

    with trio.socket.from_stdlib_socket(ours) as connection:
        theirs.send(b'{"op": "status"}\n')
        with pytest.raises(Closed):
            await control_server._converse(connection, 0, handle, told.append)
    assert told == [Done()]


@pytest.mark.parametrize("answer", [b"", b"\n", b"[]\n", b"5\n", b"\xff\n", b"[" * 99999 + b"\n"])
def test_an_invalid_answer_raises_unavailable(path, answer):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        pid = os.fork()
        if pid == 0:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(answer)
            os._exit(0)
        with pytest.raises(Unavailable):
            control_client.ask(path, GetStatus(), Done, 5)
        os.waitpid(pid, 0)


def test_a_full_queue_is_waited_for_until_the_deadline(path):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(path)
        server.listen(0)
        first.connect(path)
        began_s = time.monotonic()
        with pytest.raises(Unavailable):
            control_client.ask(path, GetStatus(), Done, 0.3)
        assert 0.25 < time.monotonic() - began_s < 2
    os.unlink(path)
    with pytest.raises(NotFound):
        control_client.ask(path, GetStatus(), Done, 0.3)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ConfigError("x is no URI"), ConfigError),
        (Corrupt("x is not a number"), Corrupt),
        (Denied("only root"), Denied),
        (NoSpace("full"), Unavailable),
        (NotFound("no such key"), Unavailable),  # who asks takes NotFound for an agent's absence
        (UnknownImage("no such image"), UnknownImage),
    ],
)
async def test_the_client_gets_the_error_of_a_wrong_request(path, nursery, raised, told):
    async def handle(request, peer):
        raise raised

    with control_socket.listen(path, USER) as listener:
        listener.setblocking(False)
        nursery.start_soon(control_server.serve, listener, USER, handle, lambda answer: None)
        with pytest.raises(told, match=f"refused: {raised}") as found:
            await ask(path, GetStatus())
        nursery.cancel_scope.cancel()
    assert type(found.value) is told


async def test_an_unexpected_error_ends_the_request_alone(path, nursery, capsys, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    log.set_up(is_debugging=False)

    async def handle(request, peer):
        if isinstance(request, Finish):
            raise UnicodeEncodeError("utf-8", "\udce4\x1b[31m", 0, 1, "surrogates not allowed")
        return Done()

    before = containment.count()
    with control_socket.listen(path, USER) as listener:
        listener.setblocking(False)
        nursery.start_soon(control_server.serve, listener, USER, handle, lambda answer: None)
        for _ in range(2):
            with pytest.raises(Unavailable, match="internal error"):
                await ask(path, Finish(1.0))
            assert await ask(path, GetStatus()) == Done()
        nursery.cancel_scope.cancel()
    assert containment.count() == before + 2
    told = capsys.readouterr().err
    assert "unexpected error in a request on the control socket" in told
    assert "Traceback" in told and "\x1b" not in told


async def test_a_task_that_fails_ends_no_other(nursery):
    told = []

    async def fail():
        raise RecursionError("deep")

    await containment.contained("image.mount", told.append, fail)
    assert told == ["image.mount ended: internal error RecursionError; see agent.log"]
    with trio.CancelScope() as scope:
        scope.cancel()
        await containment.contained("image.mount", told.append, trio.sleep_forever)
    assert len(told) == 1
