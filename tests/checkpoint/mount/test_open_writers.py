"""Which processes have a file open to write, as /proc tells; see test_closing for how they end."""

import os
import pwd
import signal
import subprocess
import threading

import pytest
import trio

from bootseer.checkpoint.mount import open_writers as open_writers_module
from bootseer.checkpoint.mount.open_writers import (
    SCANS_AT_ONCE,
    CloseKind,
    OpenWriters,
    ProcessScan,
)

HELD, LAST, UNKNOWN = (
    ProcessScan(each) for each in (CloseKind.HELD, CloseKind.LAST, CloseKind.UNKNOWN)
)
CLOSED = ProcessScan(CloseKind.LAST, by_opener=True)
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.touch(0o666)
    return path


@pytest.fixture
def inode(path):
    return path.stat().st_ino


@pytest.fixture
def start(path):
    """Start a process that does nothing, with the file open or not; all end with the test."""
    processes = []

    def start(mode=None, **options):
        file = os.open(path, mode) if mode is not None else subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                ["sleep", "60"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.DEVNULL,
                **options,
            )
        finally:
            if mode is not None:
                os.close(file)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def writers_of(process):
    return OpenWriters(process.pid, trio.CapacityLimiter(SCANS_AT_ONCE))


def ended(process):
    """Have a process at its end, of which its parent has not heard."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(os.O_WRONLY, HELD), (os.O_RDWR, HELD), (os.O_RDONLY, CLOSED), (None, CLOSED)],
)
async def test_only_who_can_write_a_file_holds_it(start, inode, mode, expected):
    writers = writers_of(start(mode))
    for _ in range(3):
        assert await writers.scan(inode) == expected
        if expected is CLOSED:
            break
    assert await writers.scan(inode + 1) == (CLOSED if expected is HELD else UNKNOWN)


async def test_a_file_is_held_by_processes_that_were_begun_since(start, inode):
    opener = start()
    writers = writers_of(opener)
    child = start(os.O_WRONLY)
    assert await writers.scan(inode) == ProcessScan(CloseKind.HELD, by_opener=True)
    opener.kill()
    opener.wait()
    assert await writers.scan(inode) == HELD
    child.kill()
    child.wait()
    assert await writers.scan(inode) == LAST


async def test_what_an_older_process_has_does_not_count(start, inode):
    start(os.O_WRONLY)
    writers = writers_of(start())
    start()
    assert await writers.scan(inode) == CLOSED


@pytest.mark.root
async def test_what_another_user_s_process_has_does_not_count(start, inode):
    writers = writers_of(start())
    start(os.O_WRONLY, user=NOBODY.pw_uid, group=NOBODY.pw_gid, extra_groups=[])
    assert await writers.scan(inode) == CLOSED


@pytest.mark.parametrize(
    ("since", "now", "counts"),
    [
        (-1, 0, True),
        (-1, 5, True),
        (0, 1, False),
        (5, 5, False),
        (-1, -1, False),
        (5, 0, True),  # numbers have gone round
        (5, -3, False),
        (0, -1, False),
        (-1, -2, True),
    ],
)
async def test_which_process_was_begun_since(start, inode, monkeypatch, since, now, counts):
    process = start(os.O_WRONLY)
    opener = start()
    monkeypatch.setattr(open_writers_module, "_last_pid", lambda: process.pid + since)
    writers = writers_of(opener)
    monkeypatch.setattr(open_writers_module, "_last_pid", lambda: process.pid + now)
    assert await writers.scan(inode) == (
        ProcessScan(CloseKind.HELD, by_opener=True) if counts else CLOSED
    )


@pytest.mark.parametrize("is_reaped", [False, True])
async def test_a_process_that_has_ended_tells_nothing_of_how(start, inode, is_reaped):
    process = start(os.O_WRONLY)
    writers = writers_of(process)
    ended(process)
    if is_reaped:
        process.wait()
    assert await writers.scan(inode) == LAST
    assert await writers.scan(inode) == UNKNOWN


async def test_a_thread_stands_for_its_process(path, inode):
    threads = []

    def begin():
        threads.append(OpenWriters(threading.get_native_id(), trio.CapacityLimiter(SCANS_AT_ONCE)))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    (writers,) = threads
    with path.open("wb"):
        assert await writers.scan(inode) == HELD
    assert await writers.scan(inode) == CLOSED


async def test_nothing_is_known_of_who_is_in_another_namespace(inode):
    assert await OpenWriters(0, trio.CapacityLimiter(SCANS_AT_ONCE)).scan(inode) == UNKNOWN


async def test_a_descriptor_that_is_closed_meanwhile_is_passed_over(start, inode, monkeypatch):
    process = start(os.O_WRONLY)
    read = open_writers_module._read
    gone = [f"/proc/{process.pid}/fdinfo/0"]

    def read_late(path):
        if path in gone:
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(open_writers_module, "_read", read_late)
    assert await writers_of(process).scan(inode) == HELD
    gone.append(f"/proc/{process.pid}/fdinfo/1")
    assert await writers_of(process).scan(inode) == CLOSED


@pytest.mark.parametrize("is_refused", [True, False])
async def test_what_may_not_be_looked_at_is_unknown(start, inode, monkeypatch, is_refused):
    """Or not told by a kernel before 5.14."""
    process = start(os.O_WRONLY)
    writers = writers_of(process)
    read = open_writers_module._read

    def read_less(path):
        if "/fdinfo/" not in path:
            return read(path)
        if is_refused:
            raise PermissionError(path)
        return read(path).partition(b"ino:")[0]

    monkeypatch.setattr(open_writers_module, "_read", read_less)
    assert await writers.scan(inode) == UNKNOWN
    monkeypatch.undo()
    assert await writers.scan(inode) == HELD


@pytest.mark.parametrize(
    ("error", "expected"), [(PermissionError, UNKNOWN), (FileNotFoundError, CLOSED)]
)
async def test_whose_descriptors_cannot_be_listed_is_unknown_or_has_ended(
    start, inode, monkeypatch, error, expected
):
    process = start(os.O_WRONLY)
    writers = writers_of(process)
    list_folder = os.listdir

    def refuse(path):
        if path == f"/proc/{process.pid}/fd":
            raise error(path)
        return list_folder(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert await writers.scan(inode) == expected


async def test_a_look_that_does_not_end_is_left_alone(start, inode, monkeypatch, autojump_clock):
    """The clock jumps, for it knows nothing of threads."""
    writers = writers_of(start(os.O_WRONLY))
    may_end, has_ended = threading.Event(), threading.Event()
    look = writers._scan

    def look_late(*arguments):
        may_end.wait(20)
        has_ended.set()
        return look(*arguments)

    monkeypatch.setattr(writers, "_scan", look_late)
    assert await writers.scan(inode) == UNKNOWN
    assert trio.current_time() == 5
    assert not has_ended.is_set()
    may_end.set()
    has_ended.wait(20)


def test_a_process_is_looked_at_through_a_thread_that_has_its_memory(monkeypatch):
    """The first may have ended before the others."""
    memory = {"10": b"0 0 0", "11": b"0 0 0", "12": b"9 0 0"}

    def read(path):
        name = path.split("/")[2]
        if name not in memory:
            raise FileNotFoundError(path)
        return memory[name]

    monkeypatch.setattr(open_writers_module, "_read", read)
    monkeypatch.setattr(os, "listdir", lambda path: ["99", *memory])
    assert open_writers_module._alive_thread(10) == 12
    assert open_writers_module._alive_thread(12) == 12
    memory["12"] = b"0 0 0"
    assert open_writers_module._alive_thread(10) is None


def test_a_process_that_a_signal_ends_is_told_while_it_is_in_its_exit(monkeypatch):
    """As its threads show it, some of which still have their memory or are through."""
    threads = {
        "10": ("Z", 0x4, signal.SIGKILL),
        "11": ("D", 0x4, 0),
        "12": ("S", 0x0, signal.SIGTERM),
    }

    def read(path):
        name = path.split("/")[-2]
        if path.endswith("statm"):
            return b"9 0 0" if name == "98" else b"0 0 0"
        if name not in threads:
            raise FileNotFoundError(path)
        state, flags, code = threads[name]
        words = [state, *"1234", "5", str(flags), *["0"] * 42, str(int(code))]
        return f"{name} (a) b) {' '.join(words)}\n".encode()

    monkeypatch.setattr(open_writers_module, "_read", read)
    monkeypatch.setattr(os, "listdir", lambda path: ["98", "99", *threads])
    exits = open_writers_module._exits_by_signal
    assert exits(10) is True
    threads["10"] = ("Z", 0x4, 0)
    assert exits(10) is False
    threads["10"] = ("D", 0x4, 0x80 | signal.SIGSEGV)
    assert exits(10) is True
    threads["10"] = ("D", 0x4, 3 << 8)  # exit(3)
    assert exits(10) is False
    threads["11"] = ("S", 0x0, 0)
    assert exits(10) is False
    threads["10"] = ("X", 0x4, signal.SIGKILL)
    assert exits(10) is None
