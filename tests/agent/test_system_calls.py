"""System calls of confined processes: the dangerous ones are refused, and ordinary work goes on."""

import functools
import http.server
import json
import platform
import subprocess
import sys
import threading

import pytest

from bootseer.agent.node.privileges import Confinement

pytestmark = [pytest.mark.root]

PROFILES = {
    "plain": Confinement.PLAIN,
    "network": Confinement.NETWORK,
    "pin": Confinement.PIN,
    "pin and network": Confinement.PIN | Confinement.NETWORK,
    "tool": Confinement.EXEC,
    "starter": Confinement.EXEC | Confinement.FORK,
    "supervisor": Confinement.SERVE,
    "peers": Confinement.SERVE | Confinement.NETWORK,
}
DANGEROUS = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "pidfd_send_signal",
    "process_madvise",
    "kcmp",
    "tkill",
    "mount",
    "umount2",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "pivot_root",
    "chroot",
    "setns",
    "unshare",
    "open_by_handle_at",
    "setuid",
    "setgid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setfsuid",
    "setfsgid",
    "setgroups",
    "capset",
    "personality",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "fanotify_init",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "sethostname",
    "setdomainname",
    "settimeofday",
    "clock_settime",
    "adjtimex",
    "clock_adjtime",
    "syslog",
    "quotactl",
]
RUNNING = ["execve", "execveat"]
FORKING = {"x86_64": ["fork", "vfork"]}.get(platform.machine(), [])
KEYRING = ["keyctl", "add_key", "request_key"]
SERVING = ["accept4", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]
ELSEWHERE = {"x86_64": ["iopl", "ioperm", "modify_ldt"]}.get(platform.machine(), [])
UNKNOWN = [
    "clone3",
    "shmget",
    "msgget",
    "semget",
    "mq_open",
    "io_setup",
    "inotify_init1",
    "mknodat",
    "pidfd_open",
    "vmsplice",
    "mlockall",
    "remap_file_pages",
    "setsid",
]

PREPARE = """
import ctypes, errno, json, os, sys
from bootseer.agent.node.privileges import Confinement, confine, confine_system_calls
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
becomes, profile, calls = json.loads(sys.argv[1])

def call(*numbers):
    ctypes.set_errno(0)
    result = libc.syscall(*map(ctypes.c_long, numbers))
    return errno.errorcode.get(ctypes.get_errno(), "") if result < 0 else "did it"

if becomes:
    confine("nobody", 65534, 65534, os.getppid(), keep=(), profile=Confinement(profile))
else:  # root's own rights are left: what is refused is refused by the filter
    confine_system_calls(Confinement(profile))
"""
TABLE = (
    PREPARE + "print(json.dumps([call(*numbers) for numbers in calls]), flush=True)\nos._exit(0)"
)


@functools.cache
def numbers():
    """Return the numbers of system calls by name, as the C compiler has them."""
    argv = ["cc", "-E", "-dM", "-"]
    text = subprocess.run(
        argv, input="#include <sys/syscall.h>", capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split() for line in text.splitlines() if line.startswith("#define __NR_")]
    return {name.removeprefix("__NR_"): int(value) for _, name, value in lines if value.isdigit()}


def answers(profile, calls, *, becomes=True):
    """Make system calls, (name or number, arguments...), in a confined process."""
    table = [(numbers().get(name, name), *rest) for name, *rest in calls]
    known = [row for row in table if isinstance(row[0], int)]
    assert known == table, [row for row in table if row not in known]
    request = json.dumps([becomes, PROFILES[profile], table])
    argv = [sys.executable, "-I", "-c", TABLE, request]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def refused(profile, names, how, *, becomes):
    calls = [(name, 0, 0, 0, 0, 0, 0) for name in names]
    found = answers(profile, calls, becomes=becomes)
    return {name: said for name, said in zip(names, found, strict=True) if said != how}


@pytest.mark.parametrize("becomes", [True, False], ids=["user", "root"])
@pytest.mark.parametrize("profile", PROFILES)
def test_dangerous_calls_are_refused(profile, becomes):
    names = [*DANGEROUS, *ELSEWHERE]
    flags = PROFILES[profile]
    names += [] if Confinement.EXEC in flags else RUNNING
    names += [] if Confinement.FORK in flags else FORKING
    names += [] if Confinement.NETWORK in flags else KEYRING
    assert not refused(profile, names, "EPERM", becomes=becomes)


@pytest.mark.parametrize("becomes", [True, False], ids=["user", "root"])
@pytest.mark.parametrize("profile", PROFILES)
def test_other_calls_are_as_if_the_kernel_had_none(profile, becomes):
    names = [*UNKNOWN, *(() if Confinement.PIN in PROFILES[profile] else ("mlock", "mlock2"))]
    names += () if Confinement.SERVE in PROFILES[profile] else SERVING
    names += () if profile == "peers" else ("listen",)
    assert not refused(profile, names, "ENOSYS", becomes=becomes)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 is x86's")
def test_numbers_of_another_abi_are_refused():
    x32 = 0x40000000
    assert answers("plain", [(x32 | numbers()["getpid"],), (x32 | 520,)]) == ["ENOSYS"] * 2


SIGCHLD, THREAD, NEW_USER, NEW_NET = 17, 0x10000, 0x10000000, 0x40000000
UNIX, INET, NETLINK, INET6, PACKET, VSOCK, STREAM, RAW, ROUTE, AUDIT = (
    1,
    2,
    16,
    10,
    17,
    40,
    1,
    3,
    0,
    9,
)
SET_PDEATHSIG, SET_DUMPABLE, SET_MM, SET_PTRACER, SET_SECCOMP = 1, 4, 35, 0x59616D61, 22
HIGH = 1 << 32


@pytest.mark.parametrize("profile", ["plain", "network", "pin", "tool"])
def test_neither_processes_nor_namespaces_are_made(profile):
    calls = [
        ("clone", SIGCHLD),
        ("clone", NEW_USER | SIGCHLD),
        ("clone", THREAD | NEW_NET),
        ("clone", HIGH | SIGCHLD),
        ("clone", 0x4100 | SIGCHLD),  # as vfork does it
    ]
    assert answers(profile, calls) == ["EPERM"] * len(calls)


def test_a_starter_makes_no_namespaces():
    calls = [("clone", flags | SIGCHLD) for flags in (NEW_USER, NEW_NET, 0x20000, 0x02000000)]
    assert answers("starter", calls) == ["EPERM"] * 4


def test_sockets_are_those_of_the_profile():
    families = [
        ("socket", UNIX, STREAM, 0),
        ("socket", INET, STREAM, 0),
        ("socket", INET6, STREAM, 0),
        ("socket", NETLINK, RAW, ROUTE),
    ]
    never = [
        ("socket", NETLINK, RAW, AUDIT),
        ("socket", PACKET, RAW, 0),
        ("socket", VSOCK, STREAM, 0),
        ("socketpair", INET, STREAM, 0, 0),
    ]
    for profile, allowed in (("plain", 1), ("pin", 1), ("network", 4), ("tool", 0)):
        found = answers(profile, [*families, *never])
        expected = ["did it"] * allowed + ["EPERM"] * (len(families) + len(never) - allowed)
        assert found == expected, profile


def test_a_worker_stays_undumpable_and_dies_with_its_parent():
    calls = [
        ("prctl", SET_DUMPABLE, 1),
        ("prctl", HIGH | SET_DUMPABLE, 1),
        ("prctl", SET_PTRACER, 1),
        ("prctl", SET_PDEATHSIG, 0),
        ("prctl", SET_MM, 0),
    ]
    assert answers("network", calls) == ["EPERM"] * len(calls)
    assert answers("tool", calls) == ["EPERM"] * len(calls)
    assert answers("plain", [("prctl", SET_SECCOMP, 2), ("prctl", 12345)]) == ["EINVAL"] * 2


def test_a_worker_cannot_signal_or_limit_other_processes():
    calls = [
        *(("kill", pid, 0) for pid in (1, 0, -1)),
        ("tgkill", 1, 1, 0),
        ("rt_sigqueueinfo", 1, 0, 0),
        ("prlimit64", 1, 7, 0, 0),
        ("ioctl", 0, 0x5412, 0),
        ("ioctl", HIGH, HIGH | 0x541C, 0),
    ]
    assert answers("network", calls) == ["EPERM"] * len(calls)


def test_filters_can_only_be_added_where_less_may_be_known_later():
    get_sizes, set_filter, thread_sync, new_listener = 3, 1, 1, 8
    calls = [
        ("seccomp", set_filter, thread_sync, 0),
        ("seccomp", set_filter, new_listener, 0),
        ("seccomp", get_sizes, 0, 0),
    ]
    assert answers("network", calls) == ["EFAULT", "EPERM", "EPERM"]
    assert answers("plain", calls) == ["EPERM"] * 3


LATER = (
    PREPARE
    + """
import socket, subprocess, threading
socket.socket(socket.AF_INET).close()
stop = threading.Event()
said = []
def waits():
    stop.wait()
    try:
        socket.socket(socket.AF_INET)
    except PermissionError:
        said.append("refused")
thread = threading.Thread(target=waits)
thread.start()
confine_system_calls(Confinement.PLAIN)
stop.set()
thread.join()
print(json.dumps(said))
"""
)


def test_less_is_less_in_all_threads():
    request = json.dumps([True, Confinement.NETWORK, []])
    argv = [sys.executable, "-I", "-c", LATER, request]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == ["refused"]


WORK = (
    PREPARE
    + """
import grp, mmap, pwd, signal, socket, subprocess, tempfile, threading
import trio

assert pwd.getpwnam("nobody").pw_uid == 65534
grp.getgrall()
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/a"
    with open(path, "wb") as file:
        file.write(bytes(8192))
        os.posix_fallocate(file.fileno(), 0, 16384)
        os.fsync(file.fileno())
    os.setxattr(path, "user.x", b"1")
    os.rename(path, f"{folder}/b")
    os.link(f"{folder}/b", path)
    os.symlink("b", f"{folder}/c")
    os.utime(path)
    os.chmod(path, 0o600)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        pages[0] = 1
        pages.flush()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    assert sorted(os.listdir(folder)) == ["a", "b", "c"]
fd = os.memfd_create("x")
os.write(fd, b"abc")
callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: n + 1)
assert callback(1) == 2

async def work():
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(trio.to_thread.run_sync, threading.get_ident)
        ours, theirs = trio.socket.socketpair()
        await ours.send(b"x")
        assert await theirs.recv(1) == b"x"
        await trio.sleep(0.001)
        with trio.open_signal_receiver(signal.SIGUSR1) as received:
            signal.raise_signal(signal.SIGUSR1)
            async for _ in received:
                break
trio.run(work)
for start in (os.fork, lambda: subprocess.run(["true"]), lambda: os.execv("/bin/true", ["true"]),
              lambda: os.posix_spawn("/bin/true", ["true"], {})):
    try:
        start()
    except OSError as error:
        assert error.errno in (errno.EPERM, errno.ENOSYS), error
    else:
        raise AssertionError(start)
import pyarrow, hdfs_native, blake3
"""
)


@pytest.mark.parametrize("profile", ["plain", "network", "pin"])
def test_ordinary_work_is_allowed(profile):
    argv = [sys.executable, "-I", "-c", WORK, json.dumps([True, PROFILES[profile], []])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


STORES = (
    PREPARE
    + """
import socket
from pyarrow.fs import FileType, S3FileSystem
port = calls[0][0]
assert socket.getaddrinfo("localhost", port)
s3 = S3FileSystem(anonymous=True, scheme="http", endpoint_override=f"127.0.0.1:{port}", region="x")
assert s3.get_file_info("bucket/key").type == FileType.NotFound
os._exit(0)
"""
)


class Empty(http.server.BaseHTTPRequestHandler):
    """A server that has nothing."""

    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815 (http.server looks for it)

    def log_message(self, *about):
        pass


def test_the_library_of_object_stores_reaches_a_server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            request = json.dumps([True, Confinement.NETWORK, [[server.server_port]]])
            argv = [sys.executable, "-I", "-c", STORES, request]
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        finally:
            server.shutdown()
    assert (done.returncode, done.stderr) == (0, "")
