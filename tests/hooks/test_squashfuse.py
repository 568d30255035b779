"""Images mounted by bootseer-squashfuse are what mksquashfs was given, and the program ends."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from bootseer_dev.material.images import squash
from hypothesis import given
from hypothesis import strategies as st

from bootseer._squashfs import ffi, lib
from bootseer.slurm import hidden_program
from bootseer.slurm.hidden_program import hidden_programs
from bootseer.slurm.squashfuse import program as squashfuse
from bootseer.slurm.squashfuse import readahead
from bootseer.squashfs.reader import Squashfs

pytestmark = pytest.mark.skipif(
    shutil.which("mksquashfs") is None or not os.path.exists("/dev/fuse"),
    reason="needs squashfs-tools and /dev/fuse",
)

GZIP, LZO, ZSTD = 1, 3, 6
CODE = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "from bootseer.slurm.squashfuse.program import main; sys.exit(main(sys.argv))"
)
PROGRAM = [sys.executable, "-IS", "-c", CODE, ":".join(p for p in sys.path if "site-packages" in p)]
WAIT_S = 10.0


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < until, what
        time.sleep(0.01)


@contextmanager
def mounted(image: Path, folder: Path, *options: str) -> Iterator[Path]:
    """Mount an image in the background, as a runtime does without -f."""
    mountpoint = folder / "mounted"
    mountpoint.mkdir(exist_ok=True)
    subprocess.run([*PROGRAM, *options, image, mountpoint], check=True, timeout=WAIT_S)
    try:
        assert os.path.ismount(mountpoint)
        yield mountpoint
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def fill(tree: Path, block_bytes: int) -> None:
    """Make a tree with everything in it that the format tells apart."""
    dice = random.Random(block_bytes)
    folders = ("empty", "deep/er/still", "many", "sizes")
    for folder in folders:
        (tree / folder).mkdir(parents=True)
    near = (0, 1, block_bytes - 1, block_bytes, block_bytes + 1, 3 * block_bytes + 77)
    for size in near:  # compressible and not
        (tree / f"sizes/random-{size}").write_bytes(dice.randbytes(size))
        (tree / f"sizes/text-{size}").write_bytes((b"some text %d " % size * size)[:size])
    with (tree / "sizes/sparse").open("wb") as file:
        file.seek(5 * block_bytes + 3)
        file.write(b"behind a hole")
    for number in range(1200):  # more than behind one header, and than a table's block holds
        (tree / f"many/file-{number:04}").write_bytes(b"%d" % number * (number % 7))
    (tree / "many" / ("n" * 255)).write_text("long")
    (tree / "many/naïve-\u4e2d").write_text("not ASCII")
    (tree / "deep/er/still/link").symlink_to("../../../sizes/sparse")
    (tree / "deep/long-link").symlink_to("x/" * 1500)
    os.link(tree / "sizes/sparse", tree / "deep/same")
    os.mkfifo(tree / "fifo", 0o640)
    os.mknod(tree / "device", stat.S_IFCHR | 0o600, os.makedev(1, 260))
    (tree / "sizes/text-1").chmod(0o4755)
    os.chown(tree / "sizes/random-1", 1234, 70000)
    os.setxattr(tree / "empty", "user.note", b"value")
    for name in ("sizes/random-0", "sizes/text-0"):  # the same, which is stored once
        os.setxattr(tree / name, "user.long", b"v" * 3000)
        os.setxattr(tree / name, "user.empty", b"")
    os.utime(tree / "empty", (1, 1_000_000_001))


def attributes(path: Path) -> dict[str, bytes]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:  # an image without any
        assert error.errno == errno.EOPNOTSUPP
        return {}
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}


def listed(folder: Path) -> dict[str, tuple[object, ...]]:
    """Describe everything below a folder."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        kind: object = b""
        if stat.S_ISLNK(status.st_mode):
            kind = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            kind = path.read_bytes()
        found[str(path.relative_to(folder))] = (
            *(status.st_mode, status.st_uid, status.st_gid, int(status.st_mtime)),
            *(size, status.st_nlink, status.st_rdev, kind),
            attributes(path),
        )
    return found


@pytest.mark.parametrize("block_bytes", [4096, 128 << 10, 1 << 20])
@pytest.mark.parametrize("compressor", ["gzip", "lzo", "lz4", "zstd"])
def test_a_mounted_image_is_what_it_was_made_of(
    tmp_path: Path, compressor: str, block_bytes: int
) -> None:
    tree = tmp_path / "tree"
    fill(tree, block_bytes)
    more = ("-comp", compressor, "-b", str(block_bytes))
    image = squash(tree, tmp_path / "image", *more)
    with mounted(image, tmp_path) as mountpoint:
        assert listed(mountpoint) == listed(tree)
        assert (
            os.stat(mountpoint / "deep/same").st_ino == os.stat(mountpoint / "sizes/sparse").st_ino
        )
        assert not (mountpoint / "many/nothing").exists()
        with pytest.raises(OSError, match="Read-only"):
            (mountpoint / "new").touch()


@pytest.mark.parametrize("above", ["one", "a/b/c"])
def test_an_image_below_folders_is_open_to_its_owner(tmp_path: Path, above: str) -> None:
    """As the lower layer of a container: it shows what unpacking would make, and ends with it."""
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    for name, mode in (("closed/secret", 0), ("closed/program", 0o011)):
        (tree / name).write_text(name)
        (tree / name).chmod(mode)
    (tree / "closed").chmod(0o500)
    (tree / "link").symlink_to("closed")
    image = squash(tree, tmp_path / "image")
    (tmp_path / "mounted").mkdir()
    script = (
        '"$@" || exit 1; cd "$0"; find . | sort;'
        'find . -printf "%P %y %m %i\\n"; ls nothing 2>&1; ls one/nothing a/nothing 2>&1'
    )
    argv = [*PROGRAM, "-o", f"uid=0,bootseer_above=/{above}", str(image), str(tmp_path / "mounted")]
    shell = ["unshare", "-m", "sh", "-c", script, str(tmp_path / "mounted"), *argv]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=WAIT_S)
    folders = [above[:at] for at, c in enumerate(above) if c == "/"] + [above]
    inside = ["", "/closed", "/closed/program", "/closed/secret", "/link"]
    names = [*folders[:-1], *(above + name for name in inside)]
    listed, found = done.stdout.splitlines(), {}
    assert listed[: len(names) + 1] == sorted([".", *(f"./{name}" for name in names)])
    for line in listed[len(names) + 1 :]:
        words = line.rsplit(" ", 3)
        if len(words) == 4 and words[1] in "dfl":
            found[words[0]] = (words[1], int(words[2], 8), words[3])
    assert found[f"{above}/closed"][:2] == ("d", 0o700)
    assert found[f"{above}/closed/secret"][:2] == ("f", 0o400)
    assert found[f"{above}/closed/program"][:2] == ("f", 0o511)
    assert len({number for *_, number in found.values()}) == len(found)
    assert (
        listed.count(
            f"ls: cannot access '{above.split('/')[0]}/nothing': No such file or directory"
        )
        == 1
    )
    wait_until(lambda: not serving(image), "the server is left")


def serving(image: Path) -> list[str]:
    return subprocess.run(
        ["pgrep", "-f", f"bootseer_above.*{image}"], capture_output=True, text=True
    ).stdout.split()


@pytest.mark.parametrize(
    "more", [("-noI", "-noD", "-noF", "-noX"), ("-no-xattrs", "-no-fragments")]
)
def test_parts_of_an_image_may_be_uncompressed_or_missing(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    tree = tmp_path / "tree"
    fill(tree, 4096)
    if "-no-xattrs" in more:
        for path in tree.rglob("*"):
            for name in os.listxattr(path, follow_symlinks=False):
                os.removexattr(path, name, follow_symlinks=False)
    image = squash(tree, tmp_path / "image", *more, "-b", "4096")
    with mounted(image, tmp_path) as mountpoint:
        assert listed(mountpoint) == listed(tree)


def test_threads_read_any_part_at_any_time(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    dice = random.Random(1)
    content = b"".join(dice.randbytes(64) * dice.randrange(1, 60) for _ in range(20_000))
    (tree / "large").write_bytes(content)
    image = squash(tree, tmp_path / "image", "-comp", "zstd")
    with mounted(image, tmp_path) as mountpoint:

        def read(seed: int) -> None:
            own = random.Random(seed)
            fd = os.open(mountpoint / "large", os.O_RDONLY)
            try:
                for _ in range(300):
                    at, size = own.randrange(len(content)), own.choice([1, 4096, 200_000])
                    if own.random() < 0.1:
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    assert os.pread(fd, size, at) == content[at : at + size]
            finally:
                os.close(fd)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))


def test_holes_are_read_in_any_order(tmp_path: Path) -> None:
    """All of a file's holes are stored at one place, and the last is shorter."""
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree/holes").open("wb") as file:
        file.truncate(3 * (128 << 10) + 5000)
    image = squash(tmp_path / "tree", tmp_path / "image", "-no-fragments")
    with mounted(image, tmp_path) as mountpoint, (mountpoint / "holes").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # a page at a time
        for at in (3 * (128 << 10) + 4096, 8192, 128 << 10):
            assert os.pread(file.fileno(), 10, at) == bytes(10)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    (folder / "tree/old").mkdir(parents=True)
    (folder / "tree/file").write_text("content")
    return squash(folder / "tree", folder / "image")


def test_owners_and_an_offset_can_be_given(tmp_path: Path, small: Path) -> None:
    behind = tmp_path / "behind"
    behind.write_bytes(b"a program before the image".ljust(512, b"\0") + small.read_bytes())
    with mounted(behind, tmp_path, "-o", "uid=123,gid=456,offset=512,allow_other") as mountpoint:
        status = (mountpoint / "file").stat()
        assert (status.st_uid, status.st_gid) == (123, 456)
        assert (mountpoint / "file").read_text() == "content"


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the real one is called with, by a program in its place."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "squashfuse").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\n')
    (folder / "squashfuse").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return tmp_path / "called"


@pytest.mark.parametrize("options", [["-s"], ["-o", "subdir=/x"], ["-o", "uid=me"], ["--help"]])
def test_other_options_are_left_to_the_real_one(
    small: Path, tmp_path: Path, real: Path, options: list[str]
) -> None:
    argv = [*options, str(small), str(tmp_path)]
    subprocess.run([*PROGRAM, *argv], check=True, timeout=WAIT_S)
    assert real.read_text().splitlines() == argv
    assert not os.path.ismount(tmp_path)


@pytest.mark.parametrize("kind", ["xz", "text", "short", "damaged", "missing"])
def test_other_images_are_left_to_the_real_one(
    small: Path, tmp_path: Path, real: Path, kind: str
) -> None:
    image, mountpoint = tmp_path / "given", tmp_path / "mountpoint"
    mountpoint.mkdir()
    data = small.read_bytes()
    if kind == "xz":
        squash(small.parent / "tree", image, "-comp", "xz")
    elif kind == "text":
        image.write_bytes(b"no image" * 100)
    elif kind == "short":
        image.write_bytes(data[: int.from_bytes(data[40:48], "little") - 1])
    elif kind == "damaged":  # a table, which is read after the mount
        image.write_bytes(data[:96] + bytes(len(data) - 96))
    done = subprocess.run(
        [*PROGRAM, "-f", image, mountpoint], capture_output=True, text=True, timeout=WAIT_S
    )
    assert real.read_text().splitlines() == ["-f", str(image), str(mountpoint)]
    assert f"{image} is left to {tmp_path}/bin/squashfuse: " in done.stderr
    assert not os.path.ismount(mountpoint)


def test_without_the_real_one_it_says_so(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hidden_program, "_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert squashfuse.main(["squashfuse", "--version"]) == 1
    assert "there is no squashfuse to leave this to (an option is not supported)" in (
        capsys.readouterr().err
    )


def test_it_does_not_call_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "squashfuse").symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert str(tmp_path / "squashfuse") not in list(hidden_programs("squashfuse", str(program)))
    assert str(tmp_path / "squashfuse") in list(hidden_programs("squashfuse", "/usr/bin/python3"))


def start(image: Path, mountpoint: Path) -> subprocess.Popen[bytes]:
    mountpoint.mkdir(exist_ok=True)
    process = subprocess.Popen([*PROGRAM, "-f", image, mountpoint])
    wait_until(lambda: os.path.ismount(mountpoint), "it is not mounted")
    return process


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_unmounts_and_ends_it(small: Path, tmp_path: Path, number: int) -> None:
    process = start(small, tmp_path / "m")
    fd = os.open(tmp_path / "m/file", os.O_RDONLY)  # even while it is in use
    process.send_signal(number)
    assert process.wait(WAIT_S) == 0
    assert not os.path.ismount(tmp_path / "m")
    with suppress(OSError):
        os.close(fd)


def test_it_ends_when_it_is_unmounted(small: Path, tmp_path: Path) -> None:
    process = start(small, tmp_path / "m")
    subprocess.run(["umount", tmp_path / "m"], check=True)
    assert process.wait(WAIT_S) == 0


CONTAINER = """
"$@" & echo $! > pid
until mountpoint -q mounted; do sleep 0.01; done
cd mounted && pivot_root . old
echo inside
read end
"""


@pytest.mark.parametrize(
    "numbers", [[signal.SIGHUP], [signal.SIGHUP, signal.SIGKILL], [signal.SIGKILL]]
)
def test_it_ends_when_its_mount_is_its_own_root(
    small: Path, tmp_path: Path, numbers: list[int]
) -> None:
    """As in Enroot's containers: whatever it then asks of a path, nobody answers; not even a kill
    would end it."""
    (tmp_path / "mounted").mkdir()
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", CONTAINER, "sh"]
    with subprocess.Popen(
        [*inside, *PROGRAM, "-f", small, "mounted"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"inside\n"
        server = int((tmp_path / "pid").read_text())
        for number in numbers:
            with suppress(ProcessLookupError):  # the signal before may have ended it already
                os.kill(server, number)
            time.sleep(0.001)
        try:
            wait_until(lambda: has_ended(server), "the server has not ended")
        finally:
            shell.kill()


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_user_without_rights_mounts_in_a_namespace_of_their_own(
    small: Path, tmp_path: Path
) -> None:
    shared = Path("/var/tmp") / f"bootseer-squashfuse-{os.getpid()}"
    shared.mkdir(mode=0o755)
    try:
        shutil.copy(small, shared / "image")
        (shared / "m").mkdir()
        os.chown(shared / "m", 12345, 12345)
        subprocess.run(["mknod", "--mode=666", shared / "fuse", "c", "10", "229"], check=True)
        inner = '"$1" -IS -c "$2" "$3" image m && cat m/file && stat -c %u m/file'
        user = "setpriv --reuid=12345 --regid=12345 --clear-groups"
        outer = f'mount --bind fuse /dev/fuse && {user} unshare -Urm sh -c "$0" sh "$@"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", outer, inner, PROGRAM[0], PROGRAM[3], PROGRAM[4]],
            cwd=shared,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.stdout.startswith("content0\n"), done.stderr
    finally:
        shutil.rmtree(shared)


def unlzo(data: bytes, capacity: int) -> bytes | int:
    out = ffi.new("uint8_t[]", capacity + 1)
    got: int = lib.sq_decompress(LZO, data, len(data), out, capacity)
    return got if got < 0 else bytes(ffi.buffer(out, got))


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 400)), max_size=30))
def test_lzo_is_decompressed(parts: list[tuple[bytes, int]]) -> None:
    import lzallright

    content = b"".join(part * count for part, count in parts)[: 1 << 20]
    packed = bytes(lzallright.LZOCompressor().compress(content))
    assert unlzo(packed, len(content)) == content
    if content:
        assert unlzo(packed, len(content) - 1) == -5  # EIO: it has no space
    assert unlzo(packed[:-1], len(content)) == -5


@given(st.binary(max_size=300))
def test_rubbish_is_no_lzo_or_fits(data: bytes) -> None:
    got = unlzo(data, 1000)
    assert got == -5 if isinstance(got, int) else len(got) <= 1000


@pytest.mark.parametrize("compressor", [2, 4, 7, 0, -1])
def test_another_compressor_is_refused(compressor: int) -> None:
    assert lib.sq_decompress(compressor, b"data", 4, ffi.new("uint8_t[10]"), 10) == -95


READ_AHEAD = """
import os, sys, json
from bootseer.slurm.squashfuse import readahead
root = os.open(sys.argv[2], os.O_PATH)
print(readahead.read_files(sys.argv[1], root, json.loads(sys.argv[3])))
"""


def read_ahead(image: Path, mountpoint: Path, bounds: Sequence[int]) -> int:
    """Read ahead in a process of its own, as a program does; returns how many bytes."""
    argv = [sys.executable, "-P", "-c", READ_AHEAD, image, mountpoint, json.dumps(bounds)]
    done = subprocess.run(argv, check=True, timeout=WAIT_S, capture_output=True, text=True)
    return int(done.stdout)


def stored(image: Path) -> dict[str, list[tuple[int, int, int]]]:
    """List where each file's blocks are stored: start, end, and length of their content."""
    with Squashfs(image) as squashfs:
        return {
            path.decode().lstrip("/"): [
                (part.start, part.stop, size) for part, size in squashfs.stored(inode)
            ]
            for path, inode in squashfs.walk()
            if inode.is_file
        }


@pytest.fixture
def simple(tmp_path: Path) -> Path:
    """An image of three files of several blocks, and small ones that share a block."""
    tree = tmp_path / "simple"
    (tree / "deep/er").mkdir(parents=True)
    dice = random.Random(5)
    for name in ("one", "deep/two", "deep/er/three"):
        (tree / name).write_bytes(dice.randbytes(5 * 4096))
    for number in range(4):
        (tree / f"small-{number}").write_bytes(b"%d" % number * 100)
    return squash(tree, tmp_path / "simple.sqsh", "-b", "4096")


def test_the_blocks_of_hot_ranges_are_read_ahead_once(simple: Path, tmp_path: Path) -> None:
    places = stored(simple)
    one, two = places["one"], places["deep/two"]
    with mounted(simple, tmp_path) as mountpoint:
        assert read_ahead(simple, mountpoint, [two[1][0], two[1][1] + 100]) == 4096
        assert read_ahead(simple, mountpoint, [two[1][0] + 1, two[2][1] - 1]) == 0
        middle = two[1][0] + 100
        halves = [middle, two[1][1], two[1][0], middle]
        assert read_ahead(simple, mountpoint, halves) == 4096
        twice = [one[0][0], one[2][1], one[1][0], one[1][1], two[4][0], two[4][1]]
        assert read_ahead(simple, mountpoint, twice) == 4 * 4096
        behind = max(part[1] for parts in places.values() for part in parts)
        size = simple.stat().st_size
        assert read_ahead(simple, mountpoint, [behind, size]) == 400, "a block of four files"
        everything = 15 * 4096 + 400
        assert read_ahead(simple, mountpoint, [0, size]) == everything
        assert read_ahead(simple, mountpoint, [size, 1 << 62, 5, 3]) == 0
        assert read_ahead(simple, mountpoint, []) == 0


def test_what_is_read_ahead_is_read_from_no_other_mount(simple: Path, tmp_path: Path) -> None:
    with mounted(simple, tmp_path) as mountpoint:
        other = mountpoint / "deep"
        subprocess.run(["mount", "-t", "tmpfs", "other", other], check=True)
        try:
            (other / "two").write_bytes(bytes(5 * 4096))
            assert read_ahead(simple, mountpoint, [0, 1 << 62]) == 5 * 4096 + 400
        finally:
            subprocess.run(["umount", other], check=True)


def test_a_damaged_image_is_not_read_ahead(simple: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sqsh"
    with mounted(simple, tmp_path) as mountpoint:
        for cut in (100, simple.stat().st_size // 2):
            damaged.write_bytes(simple.read_bytes()[:cut])
            with pytest.raises(subprocess.CalledProcessError):
                read_ahead(damaged, mountpoint, [0, 1 << 62])


class Agent:
    """Answers what is hot of an image; takes an event if something is."""

    def __init__(
        self,
        path: Path,
        bounds: Sequence[int],
        on_request: Callable[[dict[str, object]], None] = lambda request: None,
    ) -> None:
        self.path = path
        self._on_request = on_request
        self.asked: list[dict[str, object]] = []
        self._answers = ({"bounds": bounds}, {"ok": True})[: 2 if bounds else 1]
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(WAIT_S)
        self.thread = threading.Thread(target=self._answer)
        self.thread.start()

    def _answer(self) -> None:
        with self._listener:
            for answer in self._answers:
                end, _ = self._listener.accept()
                with end:
                    self.asked.append(json.loads(end.makefile("rb").readline()))
                    self._on_request(self.asked[-1])
                    with suppress(OSError):  # nobody waits for the second
                        end.sendall(json.dumps(answer).encode() + b"\n")


@pytest.mark.parametrize("is_foreground", [True, False])
def test_in_a_job_hot_files_are_read_ahead_and_the_agent_is_told(
    simple: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_foreground: bool
) -> None:
    (one, *_) = stored(simple)["one"]
    agent = Agent(tmp_path / "agent.sock", [one[0], one[1]])
    monkeypatch.setenv("BOOTSEER_SOCKET", str(agent.path))
    monkeypatch.setenv("BOOTSEER_IMAGE", str(tmp_path / "link.sqsh"))
    (tmp_path / "link.sqsh").symlink_to(simple)
    if is_foreground:
        (tmp_path / "other").mkdir()
        server = start(simple, tmp_path / "other")
        agent.thread.join()
        server.terminate()
        assert server.wait(WAIT_S) == 0
    else:
        with mounted(simple, tmp_path):
            agent.thread.join()
    ranges, event = agent.asked
    assert ranges["path"] == str(tmp_path / "link.sqsh"), "as the agent knows it"
    assert event["stage"] == "image.decompress" and event["bytes"] == 4096


def test_without_an_agent_or_hot_ranges_nothing_is_read_ahead(
    simple: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process was started"))
    monkeypatch.delenv("BOOTSEER_SOCKET", raising=False)
    readahead.start(str(simple), str(tmp_path), "")
    monkeypatch.undo()
    agent = Agent(tmp_path / "agent.sock", [])
    readahead._read_hot_files(str(agent.path), str(simple), -1)
    agent.thread.join()
    assert [request["op"] for request in agent.asked] == ["hot"]


SHOW_CONTAINER = """
"$@" || exit 1
until [ -e "$0.asked" ]; do sleep 0.01; done
for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ] || continue
    cat "$process/comm"
done 2>/dev/null
"""


def test_what_is_read_ahead_takes_no_process_in_the_container(
    simple: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `enroot list` names that process, and Pyxis has tasks join its namespaces."""
    (one, *_) = stored(simple)["one"]
    mountpoint = tmp_path / "mounted"
    mountpoint.mkdir()

    def show_asked(request: dict[str, object]) -> None:
        if request["op"] == "hot":
            Path(f"{mountpoint}.asked").touch()
            shell.wait(WAIT_S)

    agent = Agent(tmp_path / "agent.sock", [one[0], one[1]], show_asked)
    monkeypatch.setenv("BOOTSEER_SOCKET", str(agent.path))
    options = ["-o", "uid=0,bootseer_above=/one", str(simple), str(mountpoint)]
    argv = ["unshare", "-m", "sh", "-c", SHOW_CONTAINER, str(mountpoint), *PROGRAM, *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        shown = shell.stdout.read().splitlines()
    assert set(shown) == {"sh"}
    agent.thread.join()
    assert agent.asked[1]["bytes"] == 4096, "though the container has ended"
    wait_until(lambda: not serving(simple), "the server is left")
