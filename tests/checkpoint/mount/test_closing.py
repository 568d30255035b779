"""How writers end, and what is in the store then: real processes on a real mount."""

import errno
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from bootseer_dev.files import checkpoint_mount
from bootseer_dev.files.served import served

from bootseer.fuse.root_mounts import MountOptions

pytestmark = [pytest.mark.root, pytest.mark.fuse]

WHO = pwd.getpwnam("nobody")
UNIT = 65536
_numbers = count()
OLD, NEW = b"as it was", b"first second"

# Each opens `path`, and has written b"first " when it comes to what makes it a case.
MAP = """
import ctypes
def mapped(file, size):  # Python's own mapping keeps a copy of the descriptor
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 6
    return libc.mmap(0, size, 3, 1, file, 0)
"""
BEGIN = (
    MAP
    + """
import os, resource, signal, socket, subprocess, sys, threading, time
path = sys.argv[1]
def die(number=signal.SIGKILL):
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
    signal.pause()
def fork(child):
    pid = os.fork()
    if pid == 0:
        try: child()
        finally: os._exit(0)
    return pid
file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR)
os.write(file, b"first ")
def second(): os.write(file, b"second")
"""
)

PUBLISHED = {
    "it closes": "second(); os.close(file)",
    "it closes and is killed": "second(); os.close(file); die()",
    "it ends": "second()",
    "it ends with an error": "second(); os._exit(1)",
    "an exception ends it": "second(); raise RuntimeError",
    "a thread ends it": """
second(); threading.Thread(target=lambda: os._exit(3)).start(); time.sleep(60)""",
    "it turns into another program": "second(); os.execv('/bin/true', ['true'])",
    "the program that it turns into closes": """
os.dup2(file, 1); os.close(file)
os.execv('/bin/sh', ['sh', '-c', 'printf second; exit 1'])""",
    "a copy is closed first": "os.close(os.dup(file)); second(); os.close(file)",
    "a child that has it is killed": "os.waitpid(fork(die), 0); second(); os.close(file)",
    "a child that has it not is killed": """
subprocess.run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 9)'])
second(); os.close(file)""",
    "a child that has not written is killed later": """
ready, go = os.pipe()
pid = fork(lambda: (os.read(ready, 1), die()))
second(); os.close(file); os.write(go, b"x"); os.waitpid(pid, 0)""",
    "a child goes on when it is killed": """
ready, go = os.pipe()
fork(lambda: (os.close(go), os.read(ready, 1), second(), os.close(file)))
os.close(ready); die()""",
    "one of two who opened it is killed": """
def other():
    other = os.open(path, os.O_WRONLY)
    os.pwrite(other, b'second', 6)
    die()
os.waitpid(fork(other), 0)
os.close(file)""",
    "who opened it too closes and it is killed": """
def other():
    mine = os.open(path, os.O_WRONLY)
    os.close(file)
    os.pwrite(mine, b'second', 6)
    os.close(mine)
os.waitpid(fork(other), 0)
die()""",
    "a mapping writes to it after it is closed": """
os.write(file, b'......')
memory = mapped(file, 12); os.close(file)
ctypes.memmove(memory + 6, b'second', 6)""",
    "it may not be looked at and is killed": """
ctypes.CDLL(None).prctl(4, 0)
second(); die()""",
}

LATER = {
    "a child goes on when it is killed",
    "a mapping writes to it after it is closed",
    "it may not be looked at and is killed",
}
"""Published only when nobody has the file open any more, for which nobody waits."""

DISCARDED = {
    "SIGKILL": "die()",
    "SIGTERM": "die(signal.SIGTERM)",
    "SIGINT": "die(signal.SIGINT)",
    "it aborts": "os.abort()",
    "a core is dumped": """
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
ctypes.string_at(0)""",
    "the kernel kills it": """
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
while True: pass""",
    "other threads have not written": """
for _ in range(8): threading.Thread(target=time.sleep, args=(60,)).start()
die()""",
    "its first thread is gone": """
first = threading.get_native_id()
def is_gone(): return " Z " in open(f"/proc/self/task/{first}/stat").read()
def wait():
    while not is_gone(): pass
    die()
threading.Thread(target=wait).start()
ctypes.CDLL(None).pthread_exit(None)""",
    "after a copy was closed": "os.close(os.dup(file)); second(); die()",
    "after a child has closed it": "os.waitpid(fork(second), 0); die()",
    "a child after it has closed it": """
ready, go = os.pipe()
pid = fork(lambda: (os.read(ready, 1), second(), die()))
os.close(file); os.write(go, b"x"); os.waitpid(pid, 0); die()""",
    "the program that it turned into": """
os.dup2(file, 1); os.close(file)
os.execv('/bin/sh', ['sh', '-c', 'printf second; kill -9 $$'])""",
    "after it was made durable": "second(); os.fsync(file); die()",
    "a child that has written and closed a copy": """
ready, go = os.pipe()
def child():
    os.read(ready, 1)
    second()
    os.close(os.dup(file))
    die()
pid = fork(child)
os.close(file); os.write(go, b"x"); os.waitpid(pid, 0); die()""",
}


class Mount:
    """A mount, and the directory whose tree it shows."""

    def __init__(self, folder: Path, store: Path, server: subprocess.Popen) -> None:
        self.folder = folder
        self.store = store
        self.server = server

    def run(self, script: str, name: str, *arguments: str) -> int:
        """Run a program of the user's; returns how it ended."""
        argv = [sys.executable, "-P", "-c", script, str(self.folder / name), *arguments]
        return self.start(argv).wait(60)

    def start(self, argv, **options) -> subprocess.Popen:
        return subprocess.Popen(
            argv,
            user=WHO.pw_uid,
            group=WHO.pw_gid,
            extra_groups=[],
            cwd=self.store.parent,
            stderr=subprocess.DEVNULL,
            **options,
        )

    def content(self, name: str) -> bytes | None:
        """Read a file through the mount."""
        with self.start(["cat", self.folder / name], stdout=subprocess.PIPE) as process:
            found = process.stdout.read()
        return found if process.returncode == 0 else None

    def stored(self, name: str) -> bytes | None:
        """Read a small file where it is stored."""
        path = self.store / name
        return path.read_bytes() if path.exists() else None

    def wait_for(self, name: str, is_there: Callable[[bytes | None], bool]) -> bytes | None:
        """Wait until what is stored of a file is what it should be."""
        limit = time.monotonic() + 30
        while not is_there(found := self.stored(name)):
            assert time.monotonic() < limit, found
        return found

    def lost(self) -> tuple[str, str]:
        """Wait until a file is lost, and return its name and why."""
        for line in self.server.stdout:
            name, said, reason = line.partition(" is lost: ")
            if said:
                return name, reason
        raise AssertionError("the server has ended")


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    number = tmp_path_factory.getbasetemp().name
    folder, place = Path(f"/run/bootseer-{number}"), Path(f"/var/tmp/bootseer-{number}")
    store = place / "store"
    folder.mkdir()
    store.mkdir(parents=True)
    for path in (place, store):
        os.chown(path, WHO.pw_uid, WHO.pw_gid)
    write = json.dumps({"unit_bytes": UNIT})
    program = ["-m", checkpoint_mount.MODULE, "--url", store.as_uri(), "--write", write]
    try:
        with served(program, folder, "nobody", MountOptions(checks_modes=False)) as server:
            yield Mount(folder, store, server)
    finally:
        shutil.rmtree(place)
        folder.rmdir()


@pytest.fixture(params=[None, OLD], ids=["new", "old"])
def before(request):
    """What is at the name before."""
    return request.param


@pytest.fixture
def name(mount, before):
    name = f"file {next(_numbers)}"
    if before is not None:
        script = "import sys; open(sys.argv[1], 'wb').write(sys.argv[2].encode())"
        assert mount.run(script, name, before.decode()) == 0
    return name


@pytest.mark.parametrize("case", PUBLISHED)
def test_what_a_process_has_closed_is_published(mount, name, case):
    mount.run(BEGIN + PUBLISHED[case], name)
    if case in LATER:
        mount.wait_for(name, lambda found: found == NEW)
    assert mount.stored(name) == NEW
    assert mount.content(name) == NEW


@pytest.mark.parametrize("case", DISCARDED)
def test_what_a_killed_process_wrote_is_not(mount, name, before, case):
    status = mount.run(BEGIN + DISCARDED[case], name)
    assert status < 0 or "pthread_exit" in DISCARDED[case]
    assert mount.content(name) == before
    found, reason = mount.lost()
    assert found == name
    assert "killed" in reason
    assert mount.stored(name) == before


def test_processes_that_are_killed_together_leave_nothing(mount, name, before):
    script = "os.setsid(); fork(signal.pause); fork(signal.pause); os.killpg(0, signal.SIGKILL)"
    assert mount.run(BEGIN + script, name) == -signal.SIGKILL
    assert mount.lost()[0] == name  # when the last of them is gone
    assert mount.content(name) == mount.stored(name) == before


PASS = """
import os, socket, sys
ours, theirs = socket.socketpair()
if os.fork() == 0:
    _, (got,), _, _ = socket.recv_fds(theirs, 1, 1)
    theirs.recv(1)
    try: os.write(got, b"second")
    except OSError as error: os._exit(error.errno)
    os._exit(0)
pid = os.fork()
if pid == 0:
    file = os.open(sys.argv[1], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.write(file, b"first ")
    socket.send_fds(ours, [b"x"], [file])
    os.kill(os.getpid(), 9)
os.waitpid(pid, 0)
ours.send(b"go on")
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_an_older_process_that_got_the_file_of_a_killed_one_gets_an_error(mount, name, before):
    assert mount.run(PASS, name) == errno.EIO
    assert mount.lost()[0] == name
    assert mount.content(name) == mount.stored(name) == before


def test_a_file_is_published_when_close_returns(mount):
    script = BEGIN + "second(); os.close(file); print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-P", "-c", script, str(mount.folder / "closed")]
    with mount.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert mount.stored("closed") == NEW
        process.stdin.close()


@pytest.mark.parametrize(
    "held", ["copy = os.dup(file)", "fork(lambda: sys.stdin.read())"], ids=["a copy", "a child"]
)
def test_a_file_that_is_open_elsewhere_is_not_published_yet(mount, held):
    name = f"file {next(_numbers)}"
    go_on = "second(); os.close(file); print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-P", "-c", f"{BEGIN}{held}\n{go_on}", str(mount.folder / name)]
    with mount.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert mount.stored(name) is None
        assert mount.content(name) == NEW
        process.stdin.close()
    mount.wait_for(name, lambda found: found == NEW)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ('printf output >"$0"; exit 1', b"output"),
        ('printf out | cat >"$0"; false', b"out"),
        ('{ printf one; printf two; } >"$0"', b"onetwo"),
        ("sh -c 'printf output; exit 3' >\"$0\"", b"output"),
        ("sh -c 'printf output; kill -9 $$' >\"$0\"; :", OLD),
        ("{ printf one; sh -c 'kill -9 $$'; printf two; } >\"$0\"", b"onetwo"),
        ('printf more >>"$0"', OLD + b"more"),
    ],
)
@pytest.mark.parametrize("before", [OLD])
def test_a_shell_s_output(mount, name, command, expected):
    mount.start(["bash", "-c", command, str(mount.folder / name)]).wait(60)
    assert mount.content(name) == expected
    if "kill" in command and expected == OLD:
        assert mount.lost()[0] == name


def test_a_killed_writer_s_file_can_be_written_again(mount):
    assert mount.run(BEGIN + "die()", "again") == -signal.SIGKILL
    assert mount.lost()[0] == "again"
    assert mount.run(BEGIN + "second()", "again") == 0
    assert mount.stored("again") == NEW
