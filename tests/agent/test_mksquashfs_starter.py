"""Workers, and the mksquashfs that packs for one: their user cannot get into them."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bootseer.agent.workers import mksquashfs_starter
from bootseer.errors import Unavailable

pytestmark = [pytest.mark.root]

USER = 65534

# Packs a file, and waits within for a line of what to do.
WORKER = """
import os, sys
from pathlib import Path
from bootseer.agent.node.privileges import confine
from bootseer.agent.workers import mksquashfs_starter
from bootseer.squashfs.writer import PackOptions, pack

output = os.open(sys.argv[1], os.O_RDWR)
start, fd = mksquashfs_starter.start("nobody", 65534, 65534)
confine("nobody", 65534, 65534, os.getppid(), keep=[fd, output])
for line in sys.stdin:
    try:
        with pack(Path(f"/proc/self/fd/{output}"), PackOptions(), None, [output], start) as packer:
            packer.flush()
            print("packing", flush=True)
            if sys.stdin.readline() == "give up\\n":
                raise KeyError
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    else:
        print("packed", flush=True)
"""

# What the same user tries, on a process of its own, and on others.
ATTACK = """
import ctypes, json, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
PIDFD_OPEN, PIDFD_GETFD, ATTACH, SEIZE, DETACH = 434, 438, 16, 0x4206, 17

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result

def trace(request, pid):
    check(libc.ptrace(request, pid, None, None))
    os.waitpid(pid, 0x40000000) if request == ATTACH else None
    libc.ptrace(DETACH, pid, None, None)

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

def read_memory(pid):
    # The same in both, if it is the same program; what matters is whether it is looked for.
    here = ctypes.create_string_buffer(8)
    mine, its = Vector(ctypes.addressof(here), 8), Vector(ctypes.addressof(here), 8)
    result = libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0)
    if result < 0 and ctypes.get_errno() == 14:  # EFAULT: allowed, and nothing was there
        return
    check(result)

def take_descriptor(pid):
    handle = check(libc.syscall(PIDFD_OPEN, pid, 0))
    os.close(check(libc.syscall(PIDFD_GETFD, handle, 0, 0)))

tries = {
    "attach": lambda pid: trace(ATTACH, pid),
    "seize": lambda pid: trace(SEIZE, pid),
    "mem": lambda pid: open(f"/proc/{pid}/mem", "rb").close(),
    "mem, to write": lambda pid: open(f"/proc/{pid}/mem", "r+b").close(),
    "process_vm_readv": read_memory,
    "pidfd_getfd": take_descriptor,
    "fd": lambda pid: os.listdir(f"/proc/{pid}/fd"),
    "fd/1": lambda pid: os.open(f"/proc/{pid}/fd/1", os.O_RDONLY),
    "environ": lambda pid: open(f"/proc/{pid}/environ", "rb").read(),
    "maps": lambda pid: open(f"/proc/{pid}/maps", "rb").read(1),
    "exe": lambda pid: os.readlink(f"/proc/{pid}/exe"),
    "cwd": lambda pid: os.listdir(f"/proc/{pid}/cwd"),
    "ns": lambda pid: os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY),
}

def attack(pid):
    done = []
    for name, action in tries.items():
        try:
            action(pid)
            done.append(name)
        except OSError:
            pass
    return done

own = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
os.set_blocking(0, True)
print(json.dumps([list(tries), attack(own.pid), *(attack(int(pid)) for pid in sys.argv[1:])]))
os.kill(own.pid, 9)  # who traces it would take a stop for its end
"""


@pytest.fixture
def output(tmp_path):
    path = tmp_path / "image"
    path.touch(0o600)
    os.chown(path, USER, USER)
    return path


class Worker:
    """A worker that packs."""

    def __init__(self, output):
        argv = [sys.executable, "-I", "-c", WORKER, str(output)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def say(self, line):
        self.process.stdin.write(f"{line}\n")
        return self

    def hear(self):
        assert select.select([self.process.stdout], [], [], 60)[0]
        return self.process.stdout.readline().strip()

    def pack(self):
        """Have it begin to pack; returns the starter and mksquashfs."""
        assert self.say("pack").hear() == "packing"
        (starter,) = psutil.Process(self.process.pid).children()
        poll(starter.children)
        (mksquashfs,) = starter.children()
        poll(lambda: "memfd" in os.readlink(f"/proc/{mksquashfs.pid}/exe"))
        poll(lambda: status(mksquashfs.pid)["Threads"] != "1")  # it works
        return starter, mksquashfs


def poll(is_so):
    """Wait until something is so."""
    while not is_so():
        os.sched_yield()


@pytest.fixture
def worker(output):
    worker = Worker(output)
    yield worker
    worker.process.stdin.close()
    worker.process.kill()
    worker.process.wait()
    worker.process.stdout.close()


def status(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t") for line in lines)


def test_the_packed_image_is_complete(worker, output):
    for _ in range(2):
        worker.pack()
        assert worker.say("go on").hear() == "packed"
    said = subprocess.run(["unsquashfs", "-s", output], capture_output=True, text=True, check=True)
    assert "zstd" in said.stdout


def test_their_user_can_trace_none_of_them(worker):
    starter, mksquashfs = worker.pack()
    pids = [worker.process.pid, starter.pid, mksquashfs.pid]
    argv = ["/usr/bin/python3", "-I", "-c", ATTACK, *map(str, pids)]
    done = subprocess.run(
        argv, user=USER, group=USER, extra_groups=[], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    tries, own, *others = json.loads(done.stdout)
    assert own == tries  # these would be successes
    assert others == [[], [], []]


def test_mksquashfs_has_no_rights_and_no_descriptors_of_others(worker):
    _, mksquashfs = worker.pack()
    found = status(mksquashfs.pid)
    assert found["Uid"].split() == found["Gid"].split() == [str(USER)] * 4
    assert (found["Seccomp"], found["NoNewPrivs"]) == ("2", "1")
    kinds = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {int(found[kind], 16) for kind in kinds} == {0}
    folder = Path(f"/proc/{mksquashfs.pid}/fd")
    opened = {int(fd.name): os.readlink(fd) for fd in folder.iterdir()}
    packed = {name for name in opened.values() if name.endswith("/image")}
    assert opened.pop(0).startswith("pipe:")
    assert opened.pop(1) == "/dev/null"
    assert opened.pop(2).startswith("/memfd:mksquashfs")
    assert set(opened.values()) == packed
    environment = Path(f"/proc/{mksquashfs.pid}/environ").read_bytes()
    assert environment == b"LC_ALL=C\0"


def test_mksquashfs_ends_when_the_block_is_left(worker):
    _, mksquashfs = worker.pack()
    assert worker.say("give up").hear().startswith("KeyError")
    assert not mksquashfs.is_running()
    worker.pack()
    assert worker.say("go on").hear() == "packed"


@pytest.mark.parametrize("which", ["worker", "starter"])
def test_mksquashfs_dies_with_the_worker_and_the_starter(worker, which):
    starter, mksquashfs = worker.pack()
    if which == "worker":
        worker.process.kill()
    else:
        starter.kill()
        assert worker.say("go on").hear().startswith("Unavailable mksquashfs ended by signal 9")
    gone, alive = psutil.wait_procs([mksquashfs], timeout=10)
    assert gone and not alive


def test_a_failure_of_mksquashfs_is_reported(worker):
    _, mksquashfs = worker.pack()
    mksquashfs.send_signal(signal.SIGKILL)
    assert worker.say("go on").hear().startswith("Unavailable mksquashfs ended by signal 9")


def test_the_starter_refuses_kernels_that_allow_tracing(monkeypatch, tmp_path):
    setting = tmp_path / "suid_dumpable"
    setting.write_text("1\n")
    monkeypatch.setattr(mksquashfs_starter, "_SUID_DUMPABLE", str(setting))
    start, fd = mksquashfs_starter.start("nobody", USER, USER)
    assert fd is None
    with pytest.raises(Unavailable, match=r"fs\.suid_dumpable"):
        start(["-"], 0, 2, [])


def test_a_missing_mksquashfs_is_reported(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    start, fd = mksquashfs_starter.start("nobody", USER, USER)
    assert fd is None
    with pytest.raises(Unavailable, match="squashfs-tools"):
        start(["-"], 0, 2, [])
