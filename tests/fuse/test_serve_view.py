"""Mounts made by root and served by an unprivileged process: who may look, and how they end."""

from __future__ import annotations

import errno
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from bootseer_dev.files import memory_view, odd_view
from bootseer_dev.files.served import served

from bootseer.errors import Unavailable
from bootseer.fuse.mountinfo import find_mount
from bootseer.fuse.root_mounts import MountOptions, attach, detach, set_read_ahead
from bootseer.fuse.serve_view import serve, serve_fd
from bootseer.fuse.view import Attributes

USER = "nobody"
WHO = pwd.getpwnam(USER)
MEMORY = ["-m", memory_view.MODULE]
ODD = ["-m", odd_view.MODULE]
# Longer than the drain of a mount that ends.
SOON_S = 20

pytestmark = [pytest.mark.root, pytest.mark.fuse]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    # pytest's own folders are closed to users.
    folder = Path(f"/run/bootseer-mount-{os.getpid()}")
    folder.mkdir()
    yield folder
    detach(folder)
    folder.rmdir()


def as_user(
    script: str, path: Path, uid: int = WHO.pw_uid, gid: int = WHO.pw_gid
) -> subprocess.Popen[str]:
    """Start Python code as somebody; it ends with an errno, or 0."""
    guarded = f"import os, sys\ntry: {script}\nexcept OSError as error: sys.exit(error.errno)"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", guarded, path],
        user=uid,
        group=gid,
        extra_groups=[],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )


def outcome(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=SOON_S)
    return process.returncode


LIST = "os.listdir(sys.argv[1])"
READ = "open(sys.argv[1], 'rb', buffering=0).read(10)"


class TestWhoMayLook:
    @pytest.mark.parametrize(
        ("uid", "gid", "expected"),
        [
            (WHO.pw_uid, WHO.pw_gid, 0),
            (pwd.getpwnam("daemon").pw_uid, WHO.pw_gid, errno.EACCES),
            (WHO.pw_uid, pwd.getpwnam("daemon").pw_gid, errno.EACCES),
            (0, 0, errno.EACCES),
        ],
        ids=["the user", "another user", "the user in another group", "root"],
    )
    def test_only_the_user(self, folder: Path, uid: int, gid: int, expected: int) -> None:
        with served(MEMORY, folder, USER):
            assert outcome(as_user(LIST, folder, uid, gid)) == expected

    def test_everybody_if_asked_for(self, folder: Path) -> None:
        with served(ODD, folder, USER, MountOptions(for_all=True)):
            assert outcome(as_user(LIST, folder, 0, 0)) == 0
            assert os.listdir(folder) == []

    def test_the_server_has_no_rights(self, folder: Path) -> None:
        with served(MEMORY, folder, USER) as server:
            status = Path(f"/proc/{server.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert set(fields["Uid"].split()) == {str(WHO.pw_uid)}
        assert set(fields["Gid"].split()) == {str(WHO.pw_gid)}
        assert {int(fields[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Amb")} == {0}


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("script", "number"),
        [
            ("os.symlink('x', sys.argv[1])", errno.EPERM),
            ("os.link(os.path.dirname(sys.argv[1]) + '/file', sys.argv[1])", errno.EPERM),
            ("os.mkfifo(sys.argv[1])", errno.EPERM),
            ("os.setxattr(os.path.dirname(sys.argv[1]) + '/file', 'user.x', b'x')", errno.ENOTSUP),
            ("os.truncate(os.path.dirname(sys.argv[1]) + '/file', 1 << 40)", errno.ENOSPC),
            ("open(sys.argv[1] + 'x' * 255, 'w')", errno.ENAMETOOLONG),
        ],
    )
    def test_with_the_errno_that_posix_has_for_it(
        self, folder: Path, script: str, number: int
    ) -> None:
        with served(MEMORY, folder, USER):
            assert outcome(as_user("open(sys.argv[1], 'w')", folder / "file")) == 0
            assert outcome(as_user(script, folder / "new")) == number


class TestHowItIsMounted:
    def test_as_asked_for(self, folder: Path) -> None:
        with served(MEMORY, folder, USER, MountOptions(name="a,b", read_only=True), 4096):
            mount = find_mount(str(folder))
            assert mount is not None
            assert (mount.kind, mount.source) == ("fuse.bootseer", "a,b")
            assert "default_permissions" in mount.options
            assert "allow_other" not in mount.options
            read_ahead = Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb")
            assert read_ahead.read_text() == "4096\n"
            (line,) = [li for li in Path("/proc/mounts").read_text().splitlines() if "a,b" in li]
            assert {"nosuid", "nodev", "ro"} <= set(line.split()[3].split(","))
            make = as_user("open(sys.argv[1], 'w')", folder / "new")
            assert outcome(make) == errno.EROFS

    def test_on_a_folder_that_is_open(self, folder: Path) -> None:
        below = folder / "theirs"
        below.mkdir()
        opened = os.open(below, os.O_PATH)
        below.rename(folder / "moved")
        below.symlink_to("/usr")  # whoever may write the folder above can do that
        connection = attach(opened, WHO.pw_uid, WHO.pw_gid, MountOptions())
        os.close(opened)
        os.close(connection)
        assert find_mount("/usr") is None
        assert find_mount(str(folder / "moved")) is not None
        detach(folder / "moved")
        below.unlink()
        (folder / "moved").rmdir()

    @pytest.mark.parametrize("what", ["link", "file", "nothing"])
    def test_on_a_folder_only(self, folder: Path, what: str) -> None:
        place = folder / "place"
        if what == "link":
            place.symlink_to("/usr")
        elif what == "file":
            place.touch()
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(Unavailable, match="cannot mount at"):
            attach(place, 0, 0, MountOptions())
        assert len(os.listdir("/proc/self/fd")) == before
        place.unlink(missing_ok=True)

    async def test_a_mount_detached_before_serving_is_not_served(self, folder: Path) -> None:
        connection = attach(folder, 0, 0, MountOptions())
        detach(folder)
        with pytest.raises(Unavailable, match="before it was served"):
            await serve_fd(memory_view.MemoryView(0, 0), connection)


WAITING = 300
CLOSE = """
import os, sys, threading
def close(number):
    file = os.open(f"{sys.argv[1]}/{number}", os.O_CREAT | os.O_WRONLY)
    opened.wait()
    os.close(file)
    closed.release()
opened, closed = threading.Barrier(WAITING), threading.Semaphore(0)
for number in range(WAITING):
    threading.Thread(target=close, args=(number,)).start()
for _ in range(WAITING):
    closed.acquire()
"""


class Slow(memory_view.MemoryView):
    """Files are closed when all are being closed and somebody has looked for "other"."""

    def __init__(self) -> None:
        super().__init__(os.getuid(), os.getgid())
        self.closing = 0
        self.all_closing, self.go_on = trio.Event(), trio.Event()

    async def flush(self, handle: int) -> None:
        self.closing += 1
        if self.closing == WAITING:
            self.all_closing.set()
        await self.go_on.wait()

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        if name == b"other":
            self.go_on.set()
        return await super().lookup(parent, name)


async def test_others_are_answered_while_many_wait_in_close(folder: Path) -> None:
    view = Slow()

    async def look() -> None:
        await view.all_closing.wait()
        await trio.run_process(["test", "!", "-e", folder / "other"])

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, view, folder, MountOptions())
            async with trio.open_nursery() as users:
                users.start_soon(look)
                script = CLOSE.replace("WAITING", str(WAITING))
                await trio.run_process([sys.executable, "-P", "-c", script, folder])
            nursery.cancel_scope.cancel()


class TestHowItEnds:
    def test_by_an_unmount(self, folder: Path) -> None:
        with served(MEMORY, folder, USER) as server:
            subprocess.run(["umount", folder], check=True)
            assert server.wait(SOON_S) == 0
            assert find_mount(str(folder)) is None

    def test_a_killed_server_leaves_errors_until_it_is_detached(self, folder: Path) -> None:
        with served(MEMORY, folder, USER) as server:
            server.kill()
            server.wait(SOON_S)
            assert outcome(as_user(LIST, folder)) == errno.ENOTCONN
            detach(folder)
            assert outcome(as_user(LIST, folder)) == 0
            assert find_mount(str(folder)) is None

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    def test_a_server_that_ends_in_mid_read_lets_its_readers_go(
        self, folder: Path, number: signal.Signals
    ) -> None:
        with served(ODD, folder, USER) as server:
            reader = as_user(READ, folder / "never")
            wait_for(server, f"read {odd_view.NEVER}")
            server.send_signal(number)
            assert outcome(reader) in (errno.ENOTCONN, errno.ECONNABORTED)
            assert server.wait(SOON_S) == (0 if number == signal.SIGTERM else -number)
            assert outcome(as_user(LIST, folder)) == errno.ENOTCONN

    def test_detaching_lets_readers_and_the_server_go(self, folder: Path) -> None:
        with served(ODD, folder, USER) as server:
            reader = as_user(READ, folder / "never")
            wait_for(server, f"read {odd_view.NEVER}")
            detach(folder)
            assert outcome(reader) in (errno.ENOTCONN, errno.ECONNABORTED)
            assert server.wait(SOON_S) == 0
            assert find_mount(str(folder)) is None

    def test_others_mounts_are_not_detached(self, folder: Path) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
        try:
            detach(folder)
            assert find_mount(str(folder)) is not None
        finally:
            subprocess.run(["umount", folder], check=True)
        detach(folder)
        set_read_ahead(folder, 1)  # nothing is mounted: nothing is set


class TestWhatIsPushed:
    def test_is_read_without_asking(self, folder: Path) -> None:
        with served(ODD, folder, USER) as server:
            script = "sys.exit(open(sys.argv[1], 'rb').read() != sys.stdin.buffer.read())"
            compared = subprocess.run(
                [sys.executable, "-P", "-c", f"import sys; {script}", folder / "pushed"],
                input=odd_view.CONTENT,
                user=WHO.pw_uid,
                group=WHO.pw_gid,
                extra_groups=[],
                cwd="/",
            )
            assert compared.returncode == 0
            server.terminate()
            assert server.stdout is not None
            assert server.stdout.read().split("\n") == [*["stored True"] * 3, "stored False", ""]

    def test_may_wait_for_a_read_that_is_answered_while_the_mount_ends(self, folder: Path) -> None:
        with served(ODD, folder, USER) as server:
            reader = as_user(READ, folder / "late")
            wait_for(server, f"pushes {odd_view.LATE}")
            server.terminate()
            outcome(as_user("os.path.exists(sys.argv[1])", folder / "now"))
            assert outcome(reader) == 0
            assert server.wait(SOON_S) == 0

    def test_is_let_go_by_detaching(self, folder: Path) -> None:
        with served(ODD, folder, USER) as server:
            reader = as_user(f"assert {READ} == bytes(range(10))", folder / "stuck")
            wait_for(server, f"pushes {odd_view.STUCK}")
            server.kill()
            detach(folder)
            # What was being pushed can be there before the reader is let go.
            assert outcome(reader) in (0, errno.ENOTCONN, errno.ECONNABORTED)
            assert server.wait(SOON_S) == -signal.SIGKILL


def wait_for(server: subprocess.Popen[str], line: str) -> None:
    assert server.stdout is not None
    assert line in iter(lambda: server.stdout.readline().rstrip("\n"), "")
