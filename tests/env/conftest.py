"""Snapshots of folders, made as a capture makes them."""

import os
import shutil
import socket
import stat
import subprocess
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import SimpleNamespace

import lz4.block
import pytest
import trio
from click.testing import CliRunner

from bootseer import config
from bootseer.cli.env.env import env
from bootseer.core.event import StageReport
from bootseer.env.capture import capture
from bootseer.env.capture.upload import Provenance, publish_snapshot
from bootseer.env.client.command_key import keys_of
from bootseer.env.client.inputs.digest import file_digest
from bootseer.env.client.key import KeyFacts
from bootseer.env.client.messages import Hello
from bootseer.env.client.options import RunOptions
from bootseer.env.client.run import run
from bootseer.env.client.scan import scan
from bootseer.env.client.target_lock import LockedTargets
from bootseer.env.restore.atomic import RestoreTarget, restore
from bootseer.env.server.connection import ServerConnection
from bootseer.env.server.session import serve
from bootseer.env.server.session_context import SessionContext
from bootseer.env.snapshot import index, repository
from bootseer.env.snapshot.chunks import CHUNK_BYTES, split
from bootseer.env.snapshot.index import BLOCK_BYTES, ContentPlace
from bootseer.env.snapshot.manifest import Finding
from bootseer.errors import BootseerError
from bootseer.squashfs.superblock import BLOCK_RAW
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore

WHEN_NS = 1_600_000_000_123_456_789


@dataclass
class Snapshot:
    """What is stored of a snapshot, as bytes that anybody could have changed."""

    tree: dict
    index: bytes
    stored: bytes
    outside: tuple = ()
    chunk_bytes: int = CHUNK_BYTES

    def opened(self):
        decoded = index.decode(self.index, "index", self.outside)
        return decoded, split(decoded, self.chunk_bytes)

    def read(self, chunk):
        return self.stored[chunk.start : chunk.stop]

    def restore(self, *paths, read=None, **options):
        """Restore it from what is stored to paths, one for each of its folders."""
        found, table = self.opened()
        targets = [RestoreTarget(os.open(p.parent, os.O_RDONLY), p.name) for p in paths]
        try:
            restore(found, table, read or self.read, targets, **options)
        finally:
            for target in targets:
                os.close(target.parent)


def snapshot_of(tree, read, *, chunk_bytes=CHUNK_BYTES, deleted=()):
    """Take a snapshot of a tree, with blocks as mksquashfs stores them."""
    places, stored = {}, bytearray(96)
    for path in sorted(tree):
        if tree[path].kind == "file" and not tree[path].same_as:
            data = b"".join(map(bytes, read(path)))
            blocks = [
                block_of(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)
            ]
            places[path] = ContentPlace(len(stored), tuple(length for length, _ in blocks))
            stored += b"".join(block for _, block in blocks)
    return Snapshot(
        tree=tree,
        index=index.encode(tree, places, deleted),
        stored=bytes(stored),
        outside=tuple(p for p, n in tree.items() if index.leads_out(p, n.target)),
        chunk_bytes=chunk_bytes,
    )


def block_of(data):
    """Return a block's stored length, as squashfs has it, and its bytes."""
    packed = lz4.block.compress(data, store_size=False)
    return (len(packed), packed) if len(packed) < len(data) else (len(data) | BLOCK_RAW, data)


def ownerless(tree):
    return {path: node._replace(uid=0, gid=0) for path, node in tree.items()}


@pytest.fixture
def take():
    """Take a snapshot of a folder with the folders 0, 1 and so on in it."""

    def take(folder, **options):
        def read(path):
            with open(os.path.join(os.fsencode(folder), path), "rb") as file:
                while chunk := file.read(10_000):
                    yield chunk

        tree = ownerless(scan(str(folder)))
        return snapshot_of(tree, read, **options)

    return take


@pytest.fixture
def look():
    """See what a folder holds, owners aside."""
    return lambda folder: ownerless(scan(str(folder)))


@pytest.fixture
def written():
    """Make a snapshot of a tree that is nowhere, of files with content by path."""

    def written(tree, content, **options):
        return snapshot_of(tree, lambda path: [content[path]], **options)

    return written


@pytest.fixture
def source(tmp_path):
    """A folder with all that a snapshot can hold."""
    root = tmp_path / "source"
    (root / "0/lib/deep").mkdir(parents=True)
    (root / "0/empty folder").mkdir()
    base = root / "0"
    (base / "lib/a.py").write_bytes(b"a = 1\n")
    (base / "lib/empty").touch()
    (base / "lib/deep/frame").write_bytes(os.urandom(65536))
    (base / "lib/deep/large").write_bytes(os.urandom(300_000) + bytes(300_000))
    (base / "lib/deep/sparse").touch()
    os.truncate(base / "lib/deep/sparse", 200_000)
    (base / "lib/deep/zero").write_bytes(b"\0")
    os.link(base / "lib/a.py", base / "lib/deep/same.py")
    os.link(base / "lib/deep/large", base / "zz")
    (base / "link").symlink_to("lib/deep")
    (base / "lib/deep/up").symlink_to("../../lib/a.py")
    (base / "lib/deep/far").symlink_to("../" * 2 + "lib/" + "n/" * 70 + "none")
    (base / "lib/out").symlink_to("/none/such")
    for name in (b"a\nb", b"\xff\xfe", "\u00e9\U0001f600".encode(), b"n" * 255, b" ", b"-rf"):
        (base / os.fsdecode(name)).write_bytes(name)
    (base / os.fsdecode(b"m" * 255)).symlink_to("lib")
    for number in range(200):
        (base / f"lib/file{number}").write_bytes(b"%d" % number * 99)
    (base / "lib/file1").chmod(0)
    (base / "lib/a.py").chmod(0o444)
    (base / "lib/file2").chmod(0o755)
    for number, path in enumerate([*sorted(root.rglob("*")), root]):
        when_ns = WHEN_NS + 1000 * number
        if path.name == "file3":
            when_ns = -1_500_000_000
        elif path.name == "file4":
            when_ns = 9_000_000_000_000_000_000
        elif path.name == "file5":
            when_ns = 1_500_000_000 * 10**9
        os.utime(path, ns=(0, when_ns), follow_symlinks=False)
    (base / "lib/deep").chmod(stat.S_ISVTX | 0o777)
    (base / "empty folder").chmod(0o500)
    return root


@pytest.fixture
def attributes(source):
    """The same with extended attributes."""
    try:
        os.setxattr(source / "0/lib/empty", "user.note", b"\0new\nline")
    except OSError as error:
        pytest.skip(f"no extended attributes in {source}: {error.strerror}")
    os.setxattr(source / "0/lib", "user.folder", b"f" * 900)
    os.setxattr(source / "0/lib/a.py", "user.b", b"")
    os.setxattr(source / "0/lib/a.py", "user.a", b"1")
    os.setxattr(source / "0/lib/deep/large", "user.large", b"2")
    return source


class Installed:
    """Commands whose results are captured, as `bootseer env run` does it, in a store of files."""

    def __init__(self, tmp_path):
        self.root = tmp_path / "store"
        self.store = LocalStore(self.root)
        self.target = tmp_path / "target"
        self.scratch = str(tmp_path)

    def words(self, script):
        return ["sh", "-c", script.replace("TARGET", str(self.target))]

    def run(self, script, *, keep=False):
        """Capture what a shell script makes; returns its snapshot."""
        return self.run_words(self.words(script), keep=keep)

    def run_words(self, words, *, keep=False):
        if not keep:
            shutil.rmtree(self.target, ignore_errors=True)
        self.target.mkdir(exist_ok=True)
        targets = [str(self.target)]
        asked = RunOptions(command=words, targets=targets)
        parts = keys_of(asked, targets, os.environ, os.getcwd(), "").parts
        before = capture.scan_before(targets[0])
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        made = capture.scan_after(targets, [before], os.geteuid())
        story = Provenance(tuple(parts), (targets[0],), (before.base,), "ada", "n1", 1234)
        found = [Finding("home", "/x\x1b[2J", "a home folder")]

        async def keep_it():
            await repository.note_run(self.store, targets, parts)
            return await publish_snapshot(self.store, made, story, found, self.scratch)

        return trio.run(keep_it)

    def used(self, snapshot, when_ns):
        """Have a snapshot be used last, and captured, at some time."""
        path = self.root / "env/used" / snapshot.key
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, ns=(when_ns, when_ns))
        manifest = self.root / repository.manifest_object(snapshot.key)
        manifest.write_bytes(replace(snapshot, captured_ns=min(when_ns, 10**18)).encode())

    def damage(self, name, at=-9):
        """Change a byte of an object."""
        path = self.root / name
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)


@pytest.fixture
def installed(tmp_path):
    return Installed(tmp_path)


@pytest.fixture
def call(installed, monkeypatch):
    """Call `bootseer env` on that store; returns exit code and output, or raises its error."""
    monkeypatch.delenv("BOOTSEER_SOCKET", raising=False)
    values = {"store.url": installed.root.as_uri(), "env.scratch_dir": installed.scratch}
    monkeypatch.setattr(config, "load", lambda: config.Config(values))

    def call(*words, **settings):
        values.update({f"env.{name}": value for name, value in settings.items()})
        result = CliRunner().invoke(env, [str(word) for word in words], catch_exceptions=False)
        return result.exit_code, result.output

    return call


@pytest.fixture
def says(call):
    def says(*words, **settings):
        code, output = call(*words, **settings)
        assert code == 0, output
        return output

    return says


@dataclass
class Ran:
    """What became of an `env run`.

    Attributes:
        status: its exit status.
        said: lines for people.
    """

    status: int
    said: list

    @property
    def text(self):
        return "\n".join(self.said)


class Lab:
    """`env run` in threads of this process, each with a session that has the store.

    Attributes:
        store: of all.
        stages: names of stages, with what was said of them.
        mounter: mounts snapshots, None for nobody.
        counts: a file to which commands add a line each time they run.
    """

    def __init__(self, folder):
        self.store = MemoryStore()
        self.stages = []
        self.mounter = None
        self.counts = folder / "counts"
        self.scratch = folder / "scratch"
        self.scratch.mkdir(exist_ok=True)
        self.environ = dict(os.environ)

    def runs(self):
        """How often commands have run."""
        return len(self.counts.read_text().split()) if self.counts.exists() else 0

    def command(self, script):
        """A command that counts."""
        return ("sh", "-c", f"echo x >> {self.counts}\n{script}")

    def context(self, store=None, **changes):
        found = SessionContext(
            store=store or self.store,
            user="user",
            home="/home/user",
            node="node",
            nodes=1,
            shared=(),
            scratch=str(self.scratch),
            stage=self.stage,
            mounter=self.mounter,
            keep_days=0,
            quota_bytes=0,
        )
        return replace(found, **changes)

    @asynccontextmanager
    async def stage(self, name):
        report, said = StageReport(0), {}
        self.stages.append((name, said))
        try:
            yield report
        except BootseerError as error:
            said["error"] = error
            raise
        finally:
            said |= {k: v for k, v in asdict(report).items() if v != getattr(StageReport(0), k)}

    def errors(self):
        return {name: str(said["error"]) for name, said in self.stages if "error" in said}

    async def serve(self, end, context=None):
        """Have the store's side of a conversation."""
        talk = ServerConnection(end)
        try:
            await talk.send(Hello(locks=True))
            await serve(talk, context or self.context())
        finally:
            talk.close()

    async def run(self, script, *targets, context=None, waits=True, **options):
        """Have the result of a shell script in targets."""
        asked = RunOptions(
            self.command(script), [str(target) for target in targets], waits=waits, **options
        )
        return await self.ask(asked, context)

    async def ask(self, asked, context=None):
        ours, theirs = socket.socketpair()
        said = []
        work = partial(run, asked, lambda: ours, self.environ, said.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.serve, theirs, context)
            status = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        return Ran(status, said)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr("bootseer.env.client.command_key.gather", facts)
    monkeypatch.setattr("bootseer.env.server.session._PAUSES_S", (0.01, 0.01))
    # Only a main thread may set handlers.
    quiet = SimpleNamespace(
        signal=lambda *_: None, getsignal=lambda _: None, SIG_IGN=1, SIGTERM=15, SIGHUP=1, SIGINT=2
    )
    monkeypatch.setattr("bootseer.env.client.command.signal", quiet)
    # As on nodes of their own, that have the same target each.
    monkeypatch.setattr(
        "bootseer.env.client.run.locked", lambda *_, **__: nullcontext(LockedTargets([], ""))
    )
    return Lab(tmp_path)


def facts(command, targets, *, extra, key_files, image_digest, **_):
    """Facts of a command, without looking for Pythons and installers."""
    files = {f"file {path}": str(file_digest(path)) for path in key_files}
    return KeyFacts(
        tuple(command), targets, files=files, extra=tuple(extra), image_digest=image_digest
    )
