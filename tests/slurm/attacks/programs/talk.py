"""What a process may say to an agent's control socket: `talk.py CASE [SOCKET]`; ends "well done".

The cases say what they do; each answer is either empty or a line of JSON.
"""

import array
import itertools
import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress

CASE = sys.argv[1]
PATH = sys.argv[2] if len(sys.argv) > 2 else os.environ["BOOTSEER_SOCKET"]
VALUES = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**64, -(2**70), 1.5, float("nan"), float("inf")),
    *(
        "",
        "x",
        "../../etc",
        "/etc/shadow",
        "a\nb",
        "a\0b",
        "\udcff",
        "\x1b[31m",
        "%s%n",
        "x" * 70_000,
    ),
    *([], [[]], {}, {"op": "finish"}, [1] * 1000, [None, {}], "bootseer://" + "y" * 500),
]
FIELDS = {
    "status": [],
    "event": ["stage", "start_ns", "end_ns", "status", "bytes", "rank", "detail", "source"],
    "wait": ["timeout_s"],
    "finish": ["timeout_s"],
    "serve": ["image"],
    "keep": ["image", "path"],
    "announce": ["image"],
    "await": ["image"],
    "env": ["op", "targets"],
    "mount": ["key", "folders", "read_only"],
    "cache": ["digest", "store"],
    "ready": ["detail"],
    "environment": ["key", "targets"],
}


def connect(timeout_s=10):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    connection.connect(PATH)
    return connection


def ask(data, fds=()):
    """Send bytes or a request; return the answer, empty when there is none."""
    if not isinstance(data, bytes):
        data = json.dumps(data).encode() + b"\n"
    answer = b""
    with connect() as connection:
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                connection.sendmsg([data[:1]], rights)
                data = data[1:]
            connection.sendall(data)
            while not answer.endswith(b"\n") and (part := connection.recv(65536)):
                answer += part
        except OSError:
            pass
    if answer:
        json.loads(answer)
    return answer


def alive():
    """It answers, once it has done with what it was busy with."""
    deadline = time.monotonic() + 60
    answer = b""
    while b'"job"' not in answer:
        assert time.monotonic() < deadline, "it does not answer any more"
        with suppress(BlockingIOError):  # it has not got to all who came before
            answer = ask({"op": "status"})


def types():
    """Every field of every operation with a value of every type."""
    requests = []
    for op, fields in FIELDS.items():
        now = time.time_ns()
        good = {"stage": "mark.x", "start_ns": now, "end_ns": now, "timeout_s": 0}
        for field, value in itertools.product(fields, VALUES):
            requests.append(
                {"op": op, **{k: v for k, v in good.items() if k in fields}, field: value}
            )
    requests += [{"op": value} for value in VALUES] + VALUES
    # At most a few at once: each `env` begins a worker.
    work = iter(requests)
    lock = threading.Lock()

    def some():
        while True:
            with lock:
                request = next(work, None)
            if request is None:
                return
            try:
                with connect(0.3) as connection:
                    connection.sendall(json.dumps(request).encode() + b"\n")
                    connection.recv(65536)
            except OSError:
                continue

    threads = [threading.Thread(target=some) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alive()


def shapes():
    """Lines that are no requests: huge, deep, cut short, not UTF-8, keys that occur twice."""
    for data in (
        b"x" * 50_000_000 + b"\n",
        b'{"op":"status","x":"' + b"y" * 300_000 + b'"}\n',
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
        b"[" * 1_000_000 + b"\n",
        b'{"op":"event","stage":"\xff\xfe"}\n',
        '{"op":"status"}'.encode("utf-16") + b"\n",
        b'{"op":"status","op":"finish","timeout_s":1}\n',
        b'{"op":"wait","timeout_s":-1e400}\n',
        b"{" * 5 + b"\n" * 1000,
        b"\0" * 100_000 + b"\n",
        b'{"op":"status"}',
        b'{"op":"status"}\n{"op":"finish","timeout_s":1}\n' * 100,
        b"1" * 100_000 + b"\n",
    ):
        ask(data)
    alive()


def descriptors():
    """Descriptors with each operation: files, folders, sockets, pipes, /dev/fuse, one's own end."""
    ends = socket.socketpair()
    things = [os.open(p, os.O_RDONLY) for p in ("/", "/dev/null", "/etc/passwd", "/proc/self/mem")]
    things += [os.memfd_create("x"), *os.pipe(), *(end.fileno() for end in ends)]
    with suppress(OSError):
        things.append(os.open("/dev/fuse", os.O_RDWR))
    ends[0].sendmsg(
        [b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ends[1].fileno()]))]
    )
    for op in FIELDS:
        for count in (1, len(things), 200):
            ask({"op": op, "timeout_s": 0}, (things * 200)[:count])
    alive()


def connections():
    """A thousand connections, each in the middle of a line, and then one that is whole."""
    held = []
    for _ in range(1000):
        try:
            connection = connect(1)
            connection.sendall(b'{"op":')
            held.append(connection)
        except OSError:
            continue
    for connection in held:
        connection.close()
    alive()


def slow():
    """One byte a second, in many connections; others are answered meanwhile."""
    held = [connect() for _ in range(30)]
    for byte in b'{"op"':
        for connection in held:
            try:
                connection.send(bytes([byte]))
            except OSError:
                continue
        alive()
        time.sleep(1)


def conversations():
    """`env` conversations: rubbish, half lines, wrong fields, descriptors of no folders."""
    things = [os.open("/dev/null", os.O_RDONLY), os.open("/", os.O_RDONLY)]
    wishes = [{"targets": value, "parts": value, "places": value, "key": value} for value in VALUES]
    for number, wish in enumerate([b"\xff\n", b"{\n", b"[]\n", b"x" * 100_000, *wishes]):
        with connect(3) as connection:
            connection.sendall(b'{"op":"env"}\n')
            try:
                connection.recv(65536)
                data = wish if isinstance(wish, bytes) else json.dumps(wish).encode() + b"\n"
                rights = array.array("i", things * (number % 20))
                connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                connection.recv(65536)
            except OSError:
                continue
    alive()


def refused():
    """Of another user's agent nothing is to be had, whatever is asked."""
    for op in FIELDS:
        try:
            assert ask({"op": op, "timeout_s": 1, "uid": 0, "image": "bootseer://x"}) == b"", op
        except (PermissionError, FileNotFoundError, ConnectionRefusedError):
            continue


globals()[CASE]()
print("well done", flush=True)
