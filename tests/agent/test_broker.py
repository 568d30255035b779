"""What has root's rights for a job: what it does for a supervisor that somebody has taken over."""

import errno
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from bootseer_dev.cluster.poll import wait_until

from bootseer.agent.broker import mount_requests
from bootseer.agent.broker import processes as processes_module
from bootseer.agent.broker.mounts import MAX_IMAGES, MAX_OVERLAYS
from bootseer.agent.broker.processes import MAX_WORKERS, STOP_CHECKS, Processes
from bootseer.agent.broker.user_slots import MAX_OF_USER, UserSlots
from bootseer.agent.messages.broker import (
    SERVERS,
    VERBS,
    ClearOverlays,
    CreateOverlay,
    FinishJob,
    KillWorker,
    LocateProcess,
    MountKind,
    MountRoot,
    Role,
    SetReadAhead,
    ShowOverlay,
    StartImageServer,
    StartWorker,
    Unmount,
    WatchResidency,
)
from bootseer.agent.node import spawn
from bootseer.agent.supervisor.images.residency_client import ResidencyClient
from bootseer.errors import Closed, Corrupt, Denied, NotFound, Unavailable
from bootseer.fuse.mountinfo import read_mounts
from bootseer.image.hot.residency import PAGE_BYTES, KernelResidency
from bootseer.ipc.request import MAX_DESCRIPTORS
from bootseer.ipc.request_client import RequestClient, encode_request

pytestmark = [pytest.mark.root, pytest.mark.leaves_open]  # a broker has its slots until it ends
MOST = (1 << 63) - 1
HANGING = Path(__file__).parents[1] / "slurm/hanging_fuse.py"


def child():
    """Start a process that ends when it is killed."""
    return os.posix_spawn("/bin/sleep", ["sleep", "600"], {})


# What it is asked for.


@pytest.mark.parametrize("handle", [0, 1, -1, MOST, pytest.param(os.getpid(), id="this")])
def test_a_process_that_is_not_the_jobs_is_not_killed(broker, handle):
    reply, _ = broker.ask(KillWorker(handle), number=1 << 63)
    assert isinstance(reply.error, NotFound)
    assert reply.number == 1 << 63


@pytest.mark.parametrize("role", [-1, len(Role), MOST])
def test_an_unknown_role_is_not_started(broker, role):
    reply, fds = broker.ask(StartWorker(role))
    assert isinstance(reply.error, NotFound) and not fds


@pytest.mark.parametrize(
    ("request_", "right"),
    [(WatchResidency(), 1), (ShowOverlay(1), 2), (MountRoot(), 3)],
)
def test_as_many_descriptors_come_as_a_request_takes(broker, request_, right, tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with open(tmp_path / "file", "rb") as file:
        for count in {0, 1, 2, 3, MAX_DESCRIPTORS} - {right}:
            reply, fds = broker.ask(request_, [file.fileno()] * count)
            assert isinstance(reply.error, Corrupt) and not fds


@pytest.mark.parametrize(
    "request_", [ClearOverlays(), KillWorker(5), WatchResidency(), FinishJob()]
)
def test_descriptors_of_a_request_are_closed(broker, request_):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            for _ in range(3):
                broker.ask(request_, [theirs.fileno()] * 3)
        ours.settimeout(20)
        assert ours.recv(1) == b""


def test_nothing_that_came_with_a_request_is_a_workers(broker, monkeypatch):
    seen = []

    def exactly(fds, count):
        seen.extend(fcntl.fcntl(fd, fcntl.F_GETFD) for fd in fds)
        raise Unavailable("seen")

    monkeypatch.setattr("bootseer.agent.broker.broker.exactly", exactly)
    with open(__file__) as file:
        os.set_inheritable(file.fileno(), True)
        broker.ask(WatchResidency(), [file.fileno()] * 2)
    assert seen == [fcntl.FD_CLOEXEC] * 2


BEYOND = (-1, ~MOST, MOST, max(MAX_IMAGES, MAX_OVERLAYS) + 1)


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("mount", list(MountKind))
def test_mounts_that_a_job_cannot_have_are_left_alone(broker, mount, number):
    for request in (Unmount(mount, number), ShowOverlay(number), CreateOverlay(number, 1, 0)):
        with open(__file__) as file:
            reply, _ = broker.ask(request, [file.fileno()] * (2 * isinstance(request, ShowOverlay)))
        assert isinstance(reply.error, NotFound), request
    reply, _ = broker.ask(SetReadAhead(mount, number, 128))
    assert reply.error is None or isinstance(reply.error, NotFound)


@pytest.mark.parametrize("mount", [-1, len(MountKind), MOST])
def test_unknown_kinds_of_mounts_are_refused(broker, mount):
    for request in (Unmount(mount, 0), SetReadAhead(mount, 0, 128)):
        reply, _ = broker.ask(request)
        assert isinstance(reply.error, NotFound)


@pytest.mark.parametrize("number", [0, -1, MAX_IMAGES + 1, MOST])
def test_images_are_mounted_where_there_is_a_place_for_one(broker, number):
    before = os.listdir(broker.folder.path)
    reply, fds = broker.ask(StartImageServer(number, 0))
    assert isinstance(reply.error, Unavailable) and not fds
    assert os.listdir(broker.folder.path) == before


@pytest.mark.fuse
def test_an_image_is_mounted_once_and_anew_when_it_has_gone(broker):
    path = broker.folder.image_mount(3)
    for _ in range(2):
        reply, (channel,) = broker.ask(StartImageServer(3, 0))
        assert reply.error is None
        assert is_mounted(path)
        again, fds = broker.ask(StartImageServer(3, 0))
        assert isinstance(again.error, Unavailable) and not fds
        assert is_mounted(path)
        os.close(channel)
        assert broker.ask(Unmount(MountKind.IMAGE, 3))[0].error is None
        assert not is_mounted(path) and not os.path.exists(path)
        assert broker.ask(KillWorker(reply.value))[0].error is None


def is_mounted(path):
    return any(mount.mountpoint == path for mount in read_mounts())


def test_nothing_is_left_of_an_image_that_cannot_be_mounted(broker, monkeypatch):
    def fails(*_):
        raise Unavailable("no /dev/fuse")

    monkeypatch.setattr("bootseer.fuse.root_mounts.attach", fails)
    for _ in range(2):
        reply, fds = broker.ask(StartImageServer(3, 0))
        assert str(reply.error) == "no /dev/fuse" and not fds
    assert not os.path.exists(broker.folder.image_mount(3))


@pytest.mark.fuse
def test_nothing_is_left_of_an_image_without_a_server(broker, monkeypatch):
    def fails(*_):
        raise Unavailable("too many processes")

    monkeypatch.setattr(broker.processes, "start", fails)
    path = broker.folder.image_mount(3)
    for _ in range(2):
        reply, fds = broker.ask(StartImageServer(3, 0))
        assert str(reply.error) == "too many processes" and not fds
        assert not is_mounted(path) and not os.path.exists(path)


@pytest.mark.parametrize("count", [0, -1, MAX_OVERLAYS + 1, MOST])
def test_overlays_are_counted(broker, count):
    reply, _ = broker.ask(CreateOverlay(1, count, 0))
    assert isinstance(reply.error, Unavailable)


def test_a_missing_mount_cannot_be_unmounted_or_shown(broker, tmp_path):
    for mount in (MountKind.ROOT, MountKind.ENVIRONMENT):
        reply, _ = broker.ask(Unmount(mount, 1))
        assert isinstance(reply.error, Unavailable)
    reply, _ = broker.ask(Unmount(MountKind.IMAGE, 1))
    assert reply.error is None


def test_nothing_is_shown_in_the_nodes_namespace_or_on_anothers_folder(broker, tmp_path):
    (tmp_path / "mine").mkdir()
    os.chown(tmp_path / "mine", broker.job.uid, -1)
    namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    for target, why in ((tmp_path, "folder owned by the user"), (tmp_path / "mine", "node's own")):
        folder = os.open(target, os.O_PATH)
        reply, _ = broker.ask(ShowOverlay(1), [folder, namespace])
        assert isinstance(reply.error, Denied) and why in str(reply.error)
        os.close(folder)
    os.close(namespace)


@pytest.mark.parametrize("pid", [0, -1, 1, MOST])
def test_processes_of_other_users_are_not_located(broker, pid):
    reply, fds = broker.ask(LocateProcess(pid))
    assert reply.value == 1 and not fds
    reply, fds = broker.ask(LocateProcess(os.getpid()))  # root's
    assert reply.value == 1 and not fds


CHROOTED = """
import ctypes, os, sys, time
libc, PR_SET_DUMPABLE = ctypes.CDLL(None), 4
os.chroot(sys.argv[1])
os.setgid(65534), os.setuid(65534)
libc.prctl(PR_SET_DUMPABLE, 1)
print("there", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hanging(tmp_path):
    """A file system whose server does not say what its root folder is."""
    mount = tmp_path / "hanging"
    mount.mkdir()
    argv = [sys.executable, str(HANGING), str(mount), "getattr", "allow_other"]
    server = subprocess.Popen(argv)
    try:
        wait_until(lambda: any(m.mountpoint == str(mount) for m in read_mounts()), "the mount")
        yield mount
    finally:
        server.kill()
        server.wait()
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_nothing_waits_for_the_server_of_a_process_root_or_a_target(broker, hanging):
    argv = [sys.executable, "-P", "-c", CHROOTED, str(hanging)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as there:
        assert there.stdout.readline()
        target = os.open(hanging, os.O_PATH)
        namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        try:
            for _ in range(100):  # more than can be under way at once
                reply, _ = broker.ask(LocateProcess(there.pid))
                assert (reply.error, reply.value) == (None, 1)
            reply, _ = broker.ask(ShowOverlay(1), [target, namespace])
            assert isinstance(reply.error, Denied)
        finally:
            os.close(target)
            os.close(namespace)
            there.kill()


def test_a_process_is_located(broker):
    for root, value in (("/", 0), ("/var", 1)):
        argv = [sys.executable, "-P", "-c", CHROOTED, root]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as there:
            assert there.stdout.readline()
            reply, fds = broker.ask(LocateProcess(there.pid))
            assert (reply.error, reply.value, fds) == (None, value, [])
            there.kill()


def test_an_unexpected_error_ends_its_request_alone(broker, monkeypatch, capsys):
    def fails():
        raise RuntimeError("something unforeseen")

    monkeypatch.setattr(broker.broker.mounts, "clear", fails)
    for _ in range(200):  # more than can be under way at once
        reply, _ = broker.ask(ClearOverlays())
        assert isinstance(reply.error, Unavailable)
        assert str(reply.error) == "internal error: RuntimeError"
    assert isinstance(broker.ask(KillWorker(5))[0].error, NotFound)
    monkeypatch.undo()
    assert broker.ask(ClearOverlays())[0].error is None


def test_an_unexpected_error_that_cannot_be_logged_ends_its_request_alone(broker, monkeypatch):
    def fails(*_):
        raise RuntimeError("something unforeseen")

    def full():
        raise OSError(errno.ENOSPC, "/run is full")

    monkeypatch.setattr("traceback.print_exc", full)
    monkeypatch.setattr(broker.processes, "start", fails)
    for _ in range(2):  # in the first thread
        assert isinstance(broker.ask(StartWorker(0))[0].error, Unavailable)


def test_a_users_jobs_have_so_many_processes_together(tmp_path):
    """Whatever becomes of a broker; but not those of other users."""
    slots = [UserSlots(str(tmp_path / "users"), 1001) for _ in range(2)]
    taken = [slots[number % 2].take() for number in range(MAX_OF_USER)]
    assert sorted(taken) == list(range(MAX_OF_USER))
    for one in slots:
        with pytest.raises(Unavailable, match="workers on this node"):
            one.take()
    UserSlots(str(tmp_path / "users"), 1002).take()
    slots[0].give(taken[0])
    assert slots[1].take() == taken[0]
    os.close(slots[0]._fd)  # as at the end of its process
    assert len({slots[1].take() for _ in range(MAX_OF_USER // 2 - 1)}) == MAX_OF_USER // 2 - 1


def test_a_process_that_is_killed_leaves_its_slot(serving):
    processes, _ = serving
    for _ in range(2 * MAX_OF_USER):
        processes.kill(start(processes, Role.PUBLISH))


# Its end.


@pytest.mark.parametrize("garbage", [b"x", b"\xff" * 20, bytes(4096), bytes(12) + b"x" * 9])
def test_an_invalid_request_ends_the_broker(broker, garbage, capsys):
    broker.end.send(garbage)
    assert broker.end.recv(100) == b""
    assert broker.result() is False
    assert "closed the connection" in capsys.readouterr().err


@pytest.mark.parametrize("is_finished", [True, False])
def test_run_returns_whether_the_job_had_ended(broker, is_finished):
    broker.ask(FinishJob() if is_finished else ClearOverlays())
    broker.end.close()
    assert broker.result() is is_finished


def test_an_unread_answer_is_ignored(broker):
    broker.ask(FinishJob())
    broker.end.send(encode_request(VERBS, 2, KillWorker(5)))
    wait_until(lambda: unread(broker.end), "the answer is there")
    broker.end.close()
    assert broker.result() is True


def unread(end):
    try:
        return end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


# Pages.


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(random.Random(1).randbytes(3000 * PAGE_BYTES + 5))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        yield file


def watched(broker, fd):
    reply, (end,) = broker.ask(WatchResidency(), [fd])
    assert reply.error is None
    return ResidencyClient(socket.socket(fileno=end), reply.value)


def all_of(pages, most):
    """List all that a recorder would hear of."""
    found = []
    while True:
        some = pages.newly_resident(most)
        found += some
        if len(some) < most:
            return found


@pytest.mark.parametrize("most", [1, 16_384])
def test_pages_are_reported_as_by_a_local_watch(broker, file, monkeypatch, most):
    monkeypatch.setattr("bootseer.agent.broker.residency_server.RANGES", 50)
    local, told = KernelResidency(os.dup(file.fileno())), watched(broker, file.fileno())
    size_bytes = os.fstat(file.fileno()).st_size
    assert told.size_bytes == local.size_bytes == size_bytes
    assert all_of(told, most) == all_of(local, most)
    for pages in (range(0, 400, 2), range(1000, 1020), [2999, 3000]):
        for page in pages:
            os.pread(file.fileno(), 1, page * PAGE_BYTES)
        found = all_of(told, most)
        assert found == all_of(local, most)
        assert len(found) >= 1
    told.close()
    local.close()


class StillPages:
    """Pages that stay as they are: those of a real file are in use once they were looked at."""

    def __init__(self, pages):
        self.size_bytes = len(pages) * PAGE_BYTES
        self._pages = pages

    def active(self, start, stop):
        return self._pages and self._pages[start // PAGE_BYTES : -(-stop // PAGE_BYTES)]

    def close(self):
        pass


def test_active_pages_are_reported(broker, monkeypatch):
    monkeypatch.setattr("bootseer.agent.broker.residency_server.PAGES", 7)
    chance = random.Random(1)
    pages = StillPages(bytes(chance.choices((0, 1), k=3000)))
    monkeypatch.setattr("bootseer.agent.broker.broker.KernelResidency", opened_as(pages))
    told = watched(broker, 0)
    for _ in range(50):
        start = chance.randrange(pages.size_bytes)
        stop = min(pages.size_bytes, start + chance.randrange(1, 40 * PAGE_BYTES))
        assert told.active(start, stop) == pages.active(start, stop)
    assert told.active(0, pages.size_bytes) == pages.active(0, pages.size_bytes)
    pages._pages = None  # a kernel that does not say
    assert told.active(0, 10 * PAGE_BYTES) is None
    told.close()


def opened_as(pages):
    def open_(fd):
        os.close(fd)
        return pages

    return open_


def test_a_real_files_pages_are_watched(broker, file):
    told = watched(broker, file.fileno())
    os.pread(file.fileno(), 10 * PAGE_BYTES, 0)
    found = told.active(PAGE_BYTES, 5 * PAGE_BYTES)
    assert found is None or len(found) == 4
    told.close()


def test_a_file_that_cannot_be_watched_is_reported(broker, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    reply, fds = broker.ask(WatchResidency(), [folder])
    os.close(folder)
    assert isinstance(reply.error, Unavailable) and not fds
    assert "not a regular file" in str(reply.error)


def test_a_job_watches_so_many_files_and_no_more(broker, file, monkeypatch):
    monkeypatch.setattr("bootseer.agent.broker.broker._MAX_WATCHED", 2)
    pages = [watched(broker, file.fileno()) for _ in range(2)]
    reply, fds = broker.ask(WatchResidency(), [file.fileno()])
    assert isinstance(reply.error, Unavailable) and not fds
    for one in pages:
        one.close()


@pytest.mark.parametrize(
    "asked", [b"x", bytes(17), *(a.to_bytes(8, "little") + b"\0" * 8 for a in (1, 1 << 63))]
)
def test_ranges_that_make_no_sense_end_the_watch(broker, file, asked):
    pages = watched(broker, file.fileno())
    pages._end.send(asked)
    assert pages._end.recv(100) == b""
    with pytest.raises(Unavailable):
        pages.newly_resident(1)
    pages.close()


@pytest.mark.parametrize("stop", [3000 * PAGE_BYTES + 6, 1 << 63])
def test_ranges_beyond_the_file_end_the_watch(broker, file, stop):
    pages = watched(broker, file.fileno())
    with pytest.raises(Unavailable):
        pages.active(0, stop)
    pages.close()


def test_an_answer_that_comes_too_late_is_not_taken_for_another():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pages = ResidencyClient(ours, 10 * PAGE_BYTES)
    ours.settimeout(0.01)
    with theirs, pytest.raises(Unavailable):
        pages.active(0, PAGE_BYTES)
    with pytest.raises(Unavailable):
        pages.newly_resident(1)


# Processes.


def test_kill_waits_for_the_end(broker):
    pid = child()
    handle = broker.processes.adopt(pid)
    assert broker.ask(KillWorker(handle))[0].error is None
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)
    assert isinstance(broker.ask(KillWorker(handle))[0].error, NotFound)


def test_a_worker_runs_as_the_user_and_ends_when_killed(broker):
    reply, (channel,) = broker.ask(StartWorker(Role.PUBLISH))
    assert reply.error is None
    pid = broker.processes._children[reply.value].pid
    wait_until(lambda: os.stat(f"/proc/{pid}").st_uid == broker.job.uid, "it is the user's")
    assert broker.ask(KillWorker(reply.value))[0].error is None
    assert state(pid) == "gone"
    with socket.socket(fileno=channel) as end:
        end.settimeout(20)
        assert end.recv(1) == b""


@pytest.fixture
def serving(monkeypatch, tmp_path):
    """Processes of a job, which are not those that they should be."""
    begun = []

    def begin_worker(folder, job, role, connection=None):
        ours, theirs = socket.socketpair()
        theirs.close()
        begun.append(child())
        return begun[-1], ours

    monkeypatch.setattr(spawn, "spawn_worker", begin_worker)
    monkeypatch.setattr(processes_module, "register_servers", lambda folder, pids: None)
    yield Processes(None, None, UserSlots(str(tmp_path), 1)), begun
    for pid in begun:
        if state(pid) != "gone":
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def state(pid):
    """Say what a child is doing; it is not reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def start(processes, role, connection=None):
    handle, end = processes.start(role, connection)
    end.close()
    return handle


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == "T", "it is stopped")


def go_on(pid):
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: state(pid) != "T", "it goes on")


@pytest.mark.parametrize("role", SERVERS)
def test_a_mount_server_found_stopped_repeatedly_is_killed(serving, role):
    processes, begun = serving
    handle = start(processes, role, connection=0)
    (pid,) = begun
    for _ in range(STOP_CHECKS - 1):
        stop(pid)
        processes.kill_stopped()
        assert state(pid) == "T"
        go_on(pid)
        processes.kill_stopped()  # between them it was found at work
    stop(pid)
    processes.kill_stopped()
    wait_until(lambda: state(pid) == "Z", "it is killed, and not reaped yet")
    processes.kill_stopped()
    processes.kill(handle)
    assert state(pid) == "gone"
    processes.kill_stopped()


def test_continued_servers_and_other_workers_are_not_killed(serving):
    processes, begun = serving
    start(processes, Role.SERVE_IMAGE, connection=0)
    start(processes, Role.PUBLISH)
    stop(begun[0])
    processes.kill_stopped()
    go_on(begun[0])
    stop(begun[1])
    for _ in range(3 * STOP_CHECKS):
        processes.kill_stopped()
    assert state(begun[0]) in ("R", "S")
    assert state(begun[1]) == "T"


def test_image_servers_outlive_the_broker_and_are_registered(serving, monkeypatch):
    registered = []
    monkeypatch.setattr(
        processes_module, "register_servers", lambda folder, pids: registered.append(pids)
    )
    processes, begun = serving
    begun.append(child())
    processes.adopt(begun[0], Role.SERVE_IMAGE)
    for role, connection in (
        (Role.SERVE_IMAGE, 0),
        (Role.SERVE_CHECKPOINT, 0),
        (Role.PUBLISH, None),
    ):
        start(processes, role, connection)
    assert registered == [begun[:1], begun[:2]]
    processes.end()
    wait_until(lambda: [state(pid) for pid in begun[2:]] == ["Z", "Z"], "the others are killed")
    assert [state(pid) in ("R", "S") for pid in begun[:2]] == [True, True]


def test_a_job_has_so_many_processes_and_no_more(monkeypatch, tmp_path):
    processes = Processes(None, None, UserSlots(str(tmp_path), 1))
    pids = iter(range(1, 1000))

    def begin(*_):
        ours, theirs = socket.socketpair()
        theirs.close()
        return next(pids), ours

    monkeypatch.setattr(spawn, "spawn_worker", begin)
    for _ in range(MAX_WORKERS):
        start(processes, Role.PUBLISH)
    with pytest.raises(Unavailable, match="may have only"):
        processes.start(Role.PUBLISH)


# Mounts for slurmstepd.


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (b"", errno.EPROTO),
        (b"x" * 7, errno.EPROTO),
        (b"x" * 100, errno.EPROTO),
        (mount_requests.REQUEST.pack(len(MountKind), 0), errno.EPROTO),
        (mount_requests.REQUEST.pack(MountKind.IMAGE, 1 << 31), errno.EPROTO),
        (mount_requests.REQUEST.pack(MountKind.IMAGE, 1), errno.ENOENT),
    ],
)
def test_missing_mounts_are_refused(broker, request_, error):
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.settimeout(20)
            asking.connect(broker.folder.mounts)
            asking.send(request_)
            answer, fds, _, _ = socket.recv_fds(asking, 100, 4)
        assert mount_requests.REPLY.unpack(answer) == (error,) and not fds


def test_a_silent_client_does_not_block_others(broker):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(broker.folder.mounts)
        began_s = time.monotonic()
        test_missing_mounts_are_refused(broker, b"x", errno.EPROTO)
        assert time.monotonic() - began_s < 5


# The supervisor's end.


async def test_concurrent_requests_each_get_their_answer(broker, file):
    client = RequestClient(broker.end, VERBS, "broker")
    sizes = []

    async def watch():
        reply, fds = await client.ask(WatchResidency(), [file.fileno()])
        for fd in fds:
            assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            os.close(fd)
        sizes.append(reply.value)

    async def kill():
        with pytest.raises(NotFound):
            await client.do(KillWorker(5))

    async with trio.open_nursery() as outer:
        outer.start_soon(client.run)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(watch)
                for _ in range(2000):  # more than the socket holds
                    nursery.start_soon(kill)
        outer.cancel_scope.cancel()
    assert sizes == [os.fstat(file.fileno()).st_size] * 20


async def test_requests_fail_immediately_once_the_broker_has_ended(broker):
    client = RequestClient(broker.end, VERBS, "broker")
    broker.end.send(b"garbage")
    with trio.fail_after(5), pytest.raises(Closed):
        await client.run()
    with trio.fail_after(5), pytest.raises(Closed):
        await client.do(ClearOverlays())


async def test_an_answer_without_a_waiting_task_is_dropped(broker, file):
    client = RequestClient(broker.end, VERBS, "broker")
    with pytest.raises(Unavailable, match="not answered within"):
        await client.ask(WatchResidency(), [file.fileno()], answer_s=0.01)  # nobody reads yet
    open_before = set(os.listdir("/proc/self/fd"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        assert (await client.do(ClearOverlays())).error is None
        nursery.cancel_scope.cancel()
    with trio.fail_after(10):  # the broker's end, too, closes once the other has been dropped
        while any(map(is_socket, set(os.listdir("/proc/self/fd")) - open_before)):
            await trio.sleep(0.01)


def is_socket(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False
