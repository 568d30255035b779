"""What a job's process may do to the agent's socket: `python hostile_client.py CASE [SOCKET]`."""

import hashlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress

PATH = sys.argv[2] if len(sys.argv) > 2 else os.environ["BOOTSEER_SOCKET"]


def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(PATH)
    return connection


def ask(data):
    """Send bytes or a request; return the answer, empty when there is none."""
    if isinstance(data, dict):
        data = json.dumps(data).encode() + b"\n"
    answer = b""
    with connect() as connection:
        try:
            connection.sendall(data)
            while not answer.endswith(b"\n") and (part := connection.recv(65536)):
                answer += part
        except OSError:
            pass
    return answer


def event(**more):
    now = time.time_ns()
    return {"op": "event", "stage": "mark.x", "start_ns": now, "end_ns": now, **more}


def garbage():
    for data in (
        os.urandom(100_000) + b"\n",
        b"\n",
        b"null\n",
        b"[]\n",
        b'"finish"\n',
        b"{}\n",
        b'{"op": ["finish"]}\n',
        b'{"op": {"a": NaN}, "timeout_s": Infinity}\n',
        b'{"op": "wait", "timeout_s": 1e999}\n',
        b'{"op": "wait", "timeout_s": ' + b"9" * 5000 + b"}\n",
        b"[" * 200_000 + b"\n",
        b'{"op":"event","stage":"x","start_ns":-1,"end_ns":"x"}\n',
        b'{"op":"event","stage":"\xff"}\n',
        b'{"op":"event","event":null}\n',
        b"x" * 100_000_000 + b"\n",
    ):
        answer = ask(data)
        assert not answer or "error" in json.loads(answer), (data[:50], answer)


def images():
    """Image files that are none, more of them than a job may have, and paths that are none."""
    folder = tempfile.mkdtemp(dir="/shared")
    links = ("/etc/shadow", "/dev/zero", "/proc/self/mem", "/proc/self/fd/3", "loop", "/nosuch")
    for number, target in enumerate(links):
        os.symlink(target, f"{folder}/{number}")
    os.symlink("loop", f"{folder}/loop")
    os.mkfifo(f"{folder}/fifo")
    os.mkdir(f"{folder}/folder")
    with open(f"{folder}/sparse", "wb") as file:
        file.truncate(10 << 40)
    names = [*os.listdir(folder), *map(str, range(100, 140))]
    for name in names * 20:
        answer = json.loads(ask({"op": "image", "path": f"{folder}/{name}"}))
        assert answer == {"ok": True}, (name, answer)
    texts = ("", "x", "docker://x", "/a/../b", "/a\nb", "/\u202e", "/" * 5000)
    for path in (*texts, 7, None, [folder]):
        assert "error" in json.loads(ask({"op": "image", "path": path})), path
    time.sleep(3)


def hanging_image():
    assert b'"ok"' in ask({"op": "image", "path": "/shared/hanging/image"})
    time.sleep(2)


def imports():
    """Imports that never end, waits for what never comes, and leases that are none."""
    run = f"{os.environ['SLURM_CLUSTER_NAME']}.{os.environ['SLURM_JOB_ID']}"
    forged = {}
    for kind in ("/etc/shadow", "/proc/self/mem", "fifo", "folder", "sparse"):
        image = f"docker://{len(forged)}"
        key = hashlib.sha256(f"{run}\n{image}".encode()).hexdigest()
        lease = os.path.expanduser(f"~/.bootseer/image-imports/{key}/0001.json")
        os.makedirs(os.path.dirname(lease), mode=0o700)
        if kind.startswith("/"):
            os.symlink(kind, lease)
        elif kind == "sparse":
            with open(lease, "wb") as file:
                file.truncate(10 << 40)
        else:
            (os.mkfifo if kind == "fifo" else os.mkdir)(lease)
        forged[image] = connect()
        forged[image].sendall(json.dumps({"op": "await", "image": image}).encode() + b"\n")
    held = []
    for number in range(40):
        held.append(connect())
        request = {"op": ("announce", "await")[number % 2], "image": f"docker://x{number}"}
        held[-1].sendall(json.dumps(request).encode() + b"\n")
    for op in ("announce", "await"):
        for image in (
            "",
            "x",
            "/x",
            "bootseer://x",
            "docker://\n",
            "docker://" + "x" * 5000,
            7,
            None,
        ):
            assert b"error" in ask({"op": op, "image": image}), (op, image)
    for image, connection in forged.items():
        connection.settimeout(40)
        answer = json.loads(connection.recv(65536))
        assert answer["stored"] is False, (image, answer)


def flood():
    """Many connections: silent, in mid-line, waiting for ever, and gone again."""
    held = []
    for number in range(3000):
        try:
            connection = connect()
        except OSError:
            continue
        if number % 10:
            connection.close()
        elif len(held) < 300:
            held.append(connection)
            try:
                connection.sendall(
                    (b"", b'{"op":', b'{"op":"wait","timeout_s":3600}\n')[number % 3]
                )
            except OSError:
                continue
    print("held", flush=True)
    sys.stdin.read()


def finish():
    for request in ({"op": "finish", "timeout_s": 1}, {"op": "finish", "timeout_s": 1, "uid": 0}):
        assert b"only root" in ask(request)
    assert b'"ok"' in ask(event(source="prolog"))


EVIL = "[red]x[/red][/nonsense] [link=http://evil]\x1b]0;title\x07\x1b[31m\x9b31m\u202e\u2028 %s%n"


def forge():
    for stage in (EVIL, "a\nb", "../x", "", "x" * 65, "\udcff"):
        assert b"error" in ask(event(stage=stage)), stage
    for detail in ("a\nb", "a\0b", "x" * 1001):
        assert b"error" in ask(event(detail=detail)), detail
    for detail in (EVIL, "\udcff\ud800 half", "\U0001f600" * 1000):
        assert b'"ok"' in ask(event(detail=detail, status="fallback", rank=7)), detail
    assert b'"ok"' in ask(event(start_ns=0, end_ns=2**63 - 1, bytes=2**63 - 1))
    assert b'"ok"' in ask(event(start_ns=2**63 - 1, end_ns=0))
    assert b"error" in ask(event(start_ns=2**63, end_ns=0))


def many_events():
    answers = [ask(event(detail="\U0001f600" * 1000)) for _ in range(150)]
    assert b'"ok"' in answers[0]
    assert b"reached its limit of events" in answers[-1]
    assert b"limit of events" in ask(event(stage="mark.first-step"))


def nobody_answers():
    assert ask({"op": "status"}) == b""


def stop_publishers():
    """Stop every worker of ours that is about to publish; the first two are enough."""
    stopped = set()
    end = time.monotonic() + 25
    while time.monotonic() < end and len(stopped) < 2:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{entry}/comm", "rb") as file:
                if file.read() == b"bs-publish\n" and entry not in stopped:
                    os.kill(int(entry), signal.SIGSTOP)
                    stopped.add(entry)


globals()[sys.argv[1]]()
print("well done", flush=True)
