"""Every decoder of bytes that a user can write: what to feed it, and what it may raise.

An input is a file before it is sealed: lengths and checksums that a format has are added here, or a
fuzzer would never get past them. `make fuzz` and test_decoders.py share the table.
"""

import hashlib
import io
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import lz4.frame
import trio
import xxhash
from blake3 import blake3

from bootseer.agent.node.channel import Channel
from bootseer.agent.supervisor import control_server
from bootseer.cache.link import serve_keeper
from bootseer.checkpoint import landing
from bootseer.core import event, hotset, image, pack, plan, reads, squashfs, stripe, table, trace
from bootseer.core.fields import open_document
from bootseer.core.ranges import ByteRange
from bootseer.core.relocate import relocate_directories, relocate_xattrs
from bootseer.core.treerows import BLOCK_BYTES
from bootseer.env import archive as env_archive
from bootseer.env import catalog, frames, index, key, snapshot
from bootseer.env.talk import Talk
from bootseer.env.tree import Node
from bootseer.env.wish import read_wish
from bootseer.errors import BootseerError, Closed, ConfigError, Corrupt, NotFound, Unavailable
from bootseer.fuse.fastpath import Tree
from bootseer.image import tar
from bootseer.image.blob import Blob, Budget, ByteStream, Layer
from bootseer.image.compressor import decompressor
from bootseer.image.manifest import open_image
from bootseer.image.squashfs import Squashfs
from bootseer.startup import collect
from bootseer.store.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.testing.stored_image import manifest_of
from bootseer.units import MIB

DIGEST = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Decoder:
    """A decoder.

    Attributes:
        name: of it.
        seeds: returns good inputs.
        run: seals an input, decodes it, and uses what comes out.
        allowed: what it may raise.
        words: that a fuzzer would hardly guess.
    """

    name: str
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], object]
    allowed: tuple[type[BootseerError], ...] = (Corrupt,)
    words: tuple[bytes, ...] = ()

    def try_one(self, data: bytes) -> bool:
        """Run it with an input; returns whether that was accepted.

        Raises:
            Exception: one that is not allowed.
        """
        try:
            self.run(data)
        except self.allowed:
            return False
        return True


# Tables: JSON, a zero, rows.


def opened_table(data: bytes) -> bytes:
    """Return the input that `sealed_table` makes this table of."""
    length = struct.unpack_from("<I", data, 12)[0]
    return data[16 : 16 + length] + b"\0" + data[16 + length : -32]


def sealed_table(magic: bytes, version: int, row_bytes: int, data: bytes) -> bytes:
    text, _, rows = data.partition(b"\0")
    rows = rows[: len(rows) // row_bytes * row_bytes]
    body = struct.pack("<8sHHI", magic, version, row_bytes, len(text)) + text + rows
    return body + hashlib.sha256(body).digest()


def table_decoder(name, module, row_bytes, samples, decode):
    def run(data):
        sealed = sealed_table(module.MAGIC, module.VERSION, row_bytes, data)
        found = decode(sealed)
        if hasattr(found, "encode"):
            assert decode(found.encode()) == found

    return Decoder(name, lambda: [opened_table(s) for s in samples()], run)


def _traces():
    touches = tuple(trace.Touch(n * 8192, n * 8192 + 4096, n * 10) for n in range(20))
    one = trace.Trace("sqfs1-a", 1 << 30, "run", 5, "node", trace.COMPLETE, touches)
    return [one, replace(one, kind=trace.MISSED, touches=(), run="other")]


def _hot_sets():
    return [hotset.merge("sqfs1-a", _traces())]


def _image():
    return manifest_of(random.Random(1).randbytes(20_000))


def _pack():
    made = _image()
    digest = image.image_digest(made.encode())
    return pack.HotPack(digest, "sqfs1-test", 4096, MIB, 3 * 4096, (0, 2, 1))


def _decode_pack(data):
    found = pack.decode(data, "pack")
    with suppress(Corrupt):
        pack.check_fits(found, _image(), image.image_digest(_image().encode()), "pack")
    if found.parts < 1000:
        [found.part_range(i) for i in range(found.parts)]
    return found


def _decode_image(data):
    found = image.decode(data, "image", image.image_digest(data))
    [found.block_range(i) for i in range(found.blocks)]
    found.matches(0, b"")
    # Digests are compared as bytes: a decoded one refers to its file.
    return replace(found, digests=bytes(found.digests))


def _layout():
    units = tuple(stripe.Unit(n % 3, n // 3 * 4096, n << 70 | n) for n in range(9))
    return stripe.Layout(9 * 4096 - 5, 4096, "0123456789abcdef" * 2, 3, units, "../old")


def _decode_stripe(data):
    """Repair the digest in its header, and decode it."""
    header, rows = table.open_table(stripe.MAGIC, stripe.VERSION, 26, data, "stripe")
    with suppress(Exception):
        units = [stripe.Unit(p, o, a | b << 64) for p, o, a, b in struct.iter_unpack("<HQQQ", rows)]
        there = stripe.Layout(header["size_bytes"], header["unit_bytes"], "", 0, tuple(units))
        header["digest"] = there.digest
        data = table.close_table(stripe.MAGIC, stripe.VERSION, header, 26, bytes(rows))
    found = stripe.decode(data, "stripe")
    found.part_bytes()
    return found


def _frames():
    return [frames.Frame(0, 900, 0, 100, bytes(32)), frames.Frame(900, 8 * MIB, 100, 70_000, b"")]


TABLES = [
    table_decoder("trace", trace, 20, lambda: [t.encode() for t in _traces()],
                  lambda data: trace.decode(data, "trace")),
    table_decoder("hotset", hotset, 24, lambda: [t.encode() for t in _hot_sets()],
                  lambda data: hotset.decode(data, "hotset")),
    table_decoder("pack", pack, 4, lambda: [_pack().encode()], _decode_pack),
    table_decoder("image", image, 32, lambda: [_image().encode()], _decode_image),
    table_decoder("stripe", stripe, 26, lambda: [_layout().encode()], _decode_stripe),
    table_decoder("frames", frames, struct.calcsize("<QIQI32s"),
                  lambda: [frames.encode(_frames())], lambda data: frames.decode(data, "frames")),
]  # fmt: skip


# The index of a snapshot: numbers of inodes, entries and blocks, and bytes of what is deleted.

_COUNTS = struct.Struct("<4H")
FOLDER = Node("folder", 0o755, 0, 0, mtime_ns=7)


def _file(size_bytes, **more):
    return Node("file", 0o644, 0, 0, size_bytes=size_bytes, digest=bytes(32), **more)


def index_seeds():
    tree = {
        b"": FOLDER,
        b"0": FOLDER,
        b"0/a": _file(BLOCK_BYTES + 1, xattrs=((b"user.key", b"value"), (b"user.b", b""))),
        b"0/b": FOLDER,
        b"0/b/c": _file(3),
        b"0/b/d": FOLDER,
        b"0/e": FOLDER._replace(mode=0o1777),
        b"0/l": Node("link", 0o777, 0, 0, target=b"b/c"),
        b"0/n": _file(3, same_as=b"0/b/c"),
        b"1": FOLDER,
    }
    places = {b"0/a": index.Place(96, (100, 0), 512), b"0/b/c": index.Place(500, (3,), 300_000)}
    seeds = []
    for one, gone in ((tree, [b"0/x", b"0/y/z"]), ({b"": FOLDER}, [])):
        used = {path: place for path, place in places.items() if path in one}
        encoded = index.encode(one, used, gone)
        rows, left = index._sections(encoded, "")
        counts = _COUNTS.pack(*rows.counts[:3], len(left))
        seeds.append(b"".join([counts, *rows, left]))
    return seeds


def sealed_index(data: bytes) -> bytes:
    counts = _COUNTS.unpack(data[: _COUNTS.size].ljust(_COUNTS.size, b"\0"))
    rest = data[_COUNTS.size :]
    header, at = {}, 0
    for name, count, unit in zip(
        ("inodes", "entries", "blocks"), counts, (88, 12, 4), strict=False
    ):
        header[name] = min(count, (len(rest) - at) // unit)
        at += header[name] * unit
    left = rest[at:]
    header["deleted"] = min(counts[3], len(left))
    gone = left[len(left) - header["deleted"] :]
    strings = left[: len(left) - header["deleted"]]
    header["strings"] = len(strings)
    padded = [part + bytes(-len(part) % 4) for part in (strings, gone)]
    rows = rest[:at] + b"".join(padded)
    return table.close_table(index.MAGIC, index.VERSION, header, 4, rows)


def run_index(data):
    sealed = sealed_index(data)
    accepted = []
    with suppress(Corrupt):
        Tree(index.open_rows(sealed, "index"), 1 << 62, 1, 1)
        accepted.append("mount")
    try:
        with patch.object(index, "leads_out", return_value=False):
            found = index.decode(sealed, "index")
    except Corrupt as error:
        assert not accepted or "cannot be deleted" in str(error) or "deleted paths" in str(error)
        raise
    assert accepted, "decoded, and not mounted"
    outside = [path for path, node in found.tree.items() if node.kind == "link"]
    again = index.decode(index.encode(found.tree, found.places, found.deleted), "", outside)
    assert (again.tree, again.places, again.deleted) == (found.tree, found.places, found.deleted)
    if all(node.size_bytes < MIB for node in found.tree.values()):
        env_archive.plan(found.tree)


# JSON.


def documents(name, samples, decode, allowed=(Corrupt,)):
    return Decoder(
        name,
        lambda: [s if isinstance(s, bytes) else json.dumps(s).encode() for s in samples()],
        decode,
        allowed,
    )


def _plan():
    known = plan.PlannedImage("/images/a.sqsh", "sqfs1-a", 1 << 30, 1 << 20, 5, 6)
    run = plan.PlannedRun("run", 7, "cold", 8)
    return plan.WarmPlan("user", "key", (known, replace(known, path="env://key")), (run,))


def run_plan(data):
    found = plan.decode(data, "plan", "user", "key")
    assert plan.decode(found.encode(), "plan", "user", "key") == found


def _reads():
    file = reads.FileReads("a/step-12/b", (1,), (ByteRange(0, 9), ByteRange(20, 30)))
    return reads.NodeReads("user", "key", 2, 1, (file, file))


def run_reads(data):
    found = reads.decode(data, "reads", "user", "key")
    assert reads.decode(found.encode(), "reads", "user", "key") == found
    for file in found.files[:100]:
        reads.numbered(file.path)
        reads.newest_components(file.path, lambda folder: ["step-3", "step-20"])
        reads.expand(file, lambda folder: ["step-3", "step-20"])


def _event():
    return event.Event("image.prefetch", 1, 2, "agent", event.OK, 3, -1, "it").document()


def run_event(data):
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    found = event.from_json(value, "event")
    assert event.from_json(found.document(), "event") == found
    collect._row(found)


def parts():
    return (key.Part("command", "pip install x", "what is run"), key.Part("python", "3.11", ""))


def sealed_key(data, *above):
    """Repair the key of a document of a key, which may be a part of the one that this is."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data, None
    for name in above or (None,):
        part = document.get(name) if name and isinstance(document, dict) else document
        with suppress(Exception):
            part["key"] = key.key_of(key.Part(**item) for item in part["parts"])
            if name == "parts":
                document["key"] = part["key"]
    with suppress(ValueError):
        return json.dumps(document).encode(), document
    return data, None


def run_key(data):
    _, document = sealed_key(data)
    found = key.from_document(document, "key")
    assert key.from_document(key.to_document(found), "key") == found


def _snapshot():
    return snapshot.Snapshot(
        key=key.key_of(parts()), parts=parts(), targets=("/venv", "/x/y"),
        bases=(snapshot.EMPTY, DIGEST), capture="0123456789abcdef", digest=DIGEST, image=DIGEST,
        image_bytes=4096, index=DIGEST, frames=DIGEST, frames_bytes=9, files=3, content_bytes=5,
        outside=("302f6c",), findings=(snapshot.Finding("owner", "/venv/a", "somebody's"),),
        captured_ns=5, captured_by="user", node="node", command_ms=7,
    )  # fmt: skip


def run_snapshot(data):
    sealed, document = sealed_key(data, "parts")
    wanted = document.get("key") if isinstance(document, dict) else ""
    found = snapshot.decode(sealed, "snapshot", wanted if isinstance(wanted, str) else "")
    assert snapshot.decode(found.encode(), "snapshot", found.key) == found
    assert isinstance(found.is_whole, bool)
    for path in found.outside_paths:
        assert isinstance(path, bytes)


def _wish():
    listed = key.to_document(parts())
    return {"targets": ["/venv"], "names": ["venv"], "mode": "auto", "environ": {"TMPDIR": "/tmp"},
            "key": listed, "as_empty": listed, "read_only": False, "refresh": True,
            "captures": True, "waits": False, "wait_s": 5}  # fmt: skip


@cache
def _folder():
    return os.open("/", os.O_RDONLY)


def run_wish(data):
    _, document = sealed_key(data, "key", "as_empty")
    if isinstance(document, dict):
        targets = document.get("targets")
        count = len(targets) if isinstance(targets, list) else 1
        assert read_wish(document, [_folder()] * 2 * count).key


def run_document(data):
    fields = open_document(data, "claim", "bootseer env claim", 1)
    fields.text("who", 300)
    fields.text("token", 64)
    fields.count("until_ns")


async def _from_store(data):
    store = MemoryStore()
    await publish(store, catalog._last_object(["/venv"]), data)
    await publish(store, catalog._FIGURES, data)
    await catalog.read_figures(store)
    await catalog.read_run(store, ["/venv"])


def run_catalog(data):
    trio.run(_from_store, sealed_key(data)[0])


def run_key_file(data):
    with in_memory(data) as path:
        catalog._key_in(path)


def run_journal(data):
    """The numbers of pieces, a line for each time that they were on the disk."""
    for line in data.splitlines(keepends=True)[:50]:
        pieces = landing._pieces(line, 2000)
        assert pieces is None or (set(pieces) <= set(range(2000)) and len(pieces) <= 2000)


def run_landing(data):
    """A journal beside a file that an export goes on with; a line that is good is kept."""
    with tempfile.TemporaryDirectory(dir=_shm()) as folder:
        path = os.path.join(folder, "file")
        for beside, size in zip(
            landing._beside(path), (landing.JOURNAL_LEAST_BYTES, 0), strict=True
        ):
            with open(beside, "wb") as file:
                file.truncate(size)
                if not size:
                    file.write(data)
        landed = landing.Landing(path, landing.JOURNAL_LEAST_BYTES, MIB, {"a": "b"})
        assert landed.done <= set(range(64))
        landed.discard()
        landed.close()


def _journal():
    header = {"version": 1, "piece_bytes": MIB, "source": {"a": "b"}}
    return [json.dumps(header, sort_keys=True).encode() + b"\n0-3, 5\n7\n63\n"]


JSON = [
    documents("plan", lambda: [_plan().encode()], run_plan),
    documents("reads", lambda: [_reads().encode()], run_reads),
    documents("event", lambda: [_event()], run_event),
    documents("key", lambda: [key.to_document(parts())], run_key),
    documents("snapshot", lambda: [_snapshot().encode()], run_snapshot),
    documents("request", lambda: [_wish()], run_wish),
    documents("claim", lambda: [{"format": "bootseer env claim", "version": 1, "who": "a",
                                 "token": "b", "until_ns": 3}], run_document),
    documents("catalog", lambda: [key.to_document(parts()), {"mount_s": 3, "unpack_s": 5.5}],
              run_catalog, (Corrupt, NotFound)),
    documents("key_file", lambda: [{"key": DIGEST}], run_key_file, (ConfigError, NotFound)),
    Decoder("journal", lambda: [b"0-3, 5\n7, 9-1999\n", b"1\n"], run_journal),
    Decoder("landing", _journal, run_landing),
]  # fmt: skip


# Frames and compressed blocks.


def frame_seeds():
    data = bytes(range(256)) * 300
    options = {"block_size": lz4.frame.BLOCKSIZE_MAX256KB, "store_size": True}
    return [
        lz4.frame.compress(data, block_linked=False, **options),
        lz4.frame.compress(data[:9], **options),
        lz4.frame.compress(random.Random(3).randbytes(900), content_checksum=True, **options),
    ]


def run_frame(data):
    stored = bytearray(data)
    if len(stored) > 14:  # flags, length, checksum of both
        stored[14] = xxhash.xxh32(bytes(stored[4:14])).intdigest() >> 8 & 0xFF
        size_bytes = struct.unpack_from("<Q", stored, 6)[0]
    else:
        size_bytes = 9
    if size_bytes > 4 * MIB:  # the table of frames allows no more
        size_bytes = 76_800
    stored = bytes(stored)
    frame = frames.Frame(0, size_bytes, 0, len(stored), blake3(stored).digest())
    assert len(frames.content(frame, stored)) == size_bytes


def _blocks():
    import lzma
    import zlib

    import lzallright
    import zstandard

    text = b"all the same, all the same, " * 200
    made = {1: zlib.compress(text), 2: lzma.compress(text, lzma.FORMAT_ALONE),
            3: bytes(lzallright.LZOCompressor().compress(text)),
            4: lzma.compress(text, lzma.FORMAT_XZ), 5: lz4.block.compress(text, store_size=False),
            6: zstandard.compress(text)}  # fmt: skip
    return [bytes([number]) + data for number, data in made.items()]


def run_block(data):
    if data:
        assert len(decompressor(data[0] % 8)(data[1:], 8192)) <= 8192


# Squashfs.


@cache
def squashfs_seeds():
    """An image with raw tables, so that what is changed is what is read, and one compressed."""
    if shutil.which("mksquashfs") is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder, "top")
        (top / "dir" / "deep").mkdir(parents=True)
        for number in range(12):
            (top / "dir" / f"file-{number}").write_bytes(b"content " * number * 40)
        (top / "large").write_bytes(random.Random(5).randbytes(9000))
        (top / "link").symlink_to("dir/file-1")
        os.link(top / "large", top / "again")
        with suppress(OSError):
            os.setxattr(top / "large", "user.key", b"value")
            os.setxattr(top / "dir", "user.other", b"v" * 300)
        made = []
        raw = ["-noI", "-noD", "-noF", "-noX", "-noId"]
        for options in (raw, [*raw, "-no-fragments", "-no-exports"], ["-comp", "lz4"]):
            out = Path(folder, f"image-{len(made)}")
            command = ["mksquashfs", top, out, "-b", "4096", "-noappend", "-quiet", "-no-progress"]
            command += ["-nopad", "-all-time", "5", "-mkfs-time", "5", *options]
            subprocess.run(command, check=True, capture_output=True)
            made.append(out.read_bytes())
        return made


def run_squashfs(data):
    with in_memory(data) as path:
        found = squashfs.find_tables(data[:96], len(data))
        if found is None:
            return
        try:
            with Squashfs(Path(path)) as opened:
                left = 4 * MIB
                for _, inode in opened.walk():
                    opened.xattrs(inode)
                    opened.owner(inode.owner)
                    if inode.is_file and left > 0:
                        for piece in opened.content(inode):
                            left -= len(piece)
                assert opened.data_start > 0
                inodes = opened.inodes.values()
                with suppress(Corrupt):
                    relocate_directories(opened.inode_table, opened.directory_table, inodes)
                relocate_xattrs(opened.xattr_values, opened.xattr_sets)
        finally:
            squashfs.decode_superblock(data[:96], len(data))


# Tar streams and images in them.


@cache
def tar_seeds():
    made = []
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as file:
            for number, kind in enumerate((b"0", b"1", b"2", b"5", b"3", b"6")):
                info = tarfile.TarInfo(f"folder/name-{number}")
                info.type, info.size = kind, 5 if kind == b"0" else 0
                info.linkname = "folder/name-0" if kind in b"12" else ""
                if form == tarfile.PAX_FORMAT:
                    info.pax_headers = {"SCHILY.xattr.user.a": "b", "mtime": "5.25"}
                if form != tarfile.USTAR_FORMAT:
                    info.name += "x" * 120
                file.addfile(info, io.BytesIO(b"12345"))
        data = buffer.getvalue().rstrip(b"\0")
        made.append(data + bytes(-len(data) % 512 + 1024))
    if shutil.which("tar"):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "sparse"), "wb") as file:
                for at in (0, 90_000, 400_000):
                    file.seek(at)
                    file.write(b"data")
                file.truncate(1 << 20)
            for form in ("gnu", "posix --sparse-version=0.0", "posix --sparse-version=0.1",
                         "posix --sparse-version=1.0"):  # fmt: skip
                command = f"tar -C {folder} -cS --format={form} sparse"
                done = subprocess.run(command.split(), check=True, capture_output=True)
                made.append(done.stdout)
    return made


def sealed_tar(data: bytes) -> bytes:
    """Repair the checksum of every block that may be a header."""
    blocks = bytearray(data)
    for at in range(0, len(blocks) - 511, 512):
        if blocks[at + 257 : at + 262] == b"ustar":
            head = blocks[at : at + 512]
            total = sum(head) - sum(head[148:156]) + 8 * 32
            blocks[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(blocks)


def run_tar(data):
    data = sealed_tar(data)
    reader = tar.TarReader(ByteStream("archive", iter([data])), "archive")
    for member in reader:
        tar.encode(member, "name")
        left = 1 * MIB
        for piece in reader.content(member):
            left -= len(piece)
            if left < 0:
                break


def _layer(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _compressed():
    import gzip

    import zstandard

    text = tar_seeds()[0]
    return [gzip.compress(text, 1), zstandard.compress(text), text, gzip.compress(b"") * 3]


def run_layer(data):
    with in_memory(data) as path, open(path, "rb") as file:
        blob = Blob("layer", file.fileno(), 0, len(data))
        for piece in Layer(blob, _layer(data), _layer(data)).archive(
            Budget(8 * MIB), lambda n: None, again=True
        ):
            assert len(piece) <= MIB


def _members(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


CONFIG = {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": [f"sha256:{DIGEST}"]}}
DESCRIBED = {"mediaType": "a/b.tar", "digest": "", "size": 0}


def oci_seeds():
    """An index, a manifest and a configuration; what refers to one another is put in at the end."""
    entry = {**DESCRIBED, "digest": "@1", "platform": {"os": "linux", "architecture": "amd64"}}
    entry["annotations"] = {"org.opencontainers.image.ref.name": "tag"}
    manifest = {"config": {**DESCRIBED, "digest": "@2"}, "layers": [{**DESCRIBED, "digest": "@3"}]}
    several = {"manifests": [entry, {**entry, "annotations": {}}, {**entry, "digest": "@0"}]}
    return [
        b"\0".join(json.dumps(part).encode() for part in (one, manifest, CONFIG))
        for one in ({"manifests": [entry]}, several)
    ]


def run_oci(data):
    index_json, manifest, config, *_ = [*data.split(b"\0"), b"{}", b"{}", b"{}"]
    files = {"oci-layout": b"{}"}
    filled = []
    for number, part in ((3, b""), (2, config), (1, manifest), (0, index_json)):
        for mark, digest, size in filled:
            found = b'"digest":"%s","size":%d' % (digest, size)
            part = part.replace(b'"digest": "@%d", "size": 0' % mark, found)
            part = part.replace(b'"digest":"@%d","size":0' % mark, found)
        filled.append((number, _layer(part).encode(), len(part)))
        files[f"blobs/sha256/{_layer(part)[7:]}"] = part
    files["index.json"] = part
    with (
        in_memory(_members(files)) as path,
        open_image(Path(path), "", "linux/amd64") as (_, found),
    ):
        assert found.layers is not None


def docker_seeds():
    name = f"{hashlib.sha256(json.dumps(CONFIG).encode()).hexdigest()}.json"
    entry = {"Config": name, "RepoTags": ["a:b"], "Layers": ["layer.tar"]}
    return [json.dumps([entry]).encode() + b"\0" + json.dumps(CONFIG).encode()]


def run_docker(data):
    manifest, config, *_ = [*data.split(b"\0"), b"{}"]
    digest = hashlib.sha256(json.dumps(CONFIG).encode()).hexdigest().encode()
    manifest = manifest.replace(digest, hashlib.sha256(config).hexdigest().encode())
    files = {"manifest.json": manifest, "layer.tar": b"", "plain": config}
    files[f"{hashlib.sha256(config).hexdigest()}.json"] = config
    with (
        in_memory(_members(files)) as path,
        open_image(Path(path), "", "linux/amd64") as (_, found),
    ):
        assert found.layers is not None


# What processes tell each other.


def _sent(data):
    """Return a socket from which this can be read, and no more."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with suppress(BlockingIOError):
        ours.sendall(data[:100_000])
    ours.shutdown(socket.SHUT_WR)
    return ours, theirs


async def _talk(data):
    ours, theirs = _sent(data)
    with ours:
        talk = Talk(theirs)
        try:
            while True:
                message, fds = await talk.receive()
                assert isinstance(message, dict) and not fds
        finally:
            talk.close()


async def _channel(data):
    ours, theirs = _sent(data)
    theirs.setblocking(False)
    with ours:
        channel = Channel(theirs)
        try:
            while True:
                message, fd = await channel.receive()
                assert isinstance(message, dict) and fd is None
        finally:
            channel.close()


async def _control(data):
    ours, theirs = _sent(data)
    theirs.setblocking(False)
    with ours, trio.socket.from_stdlib_socket(theirs) as connection:
        request = await control_server._request(connection)
        assert request is None or isinstance(request, dict)


def _said(*messages):
    return [b"".join(struct.pack("<I", len(m)) + m for m in messages)]


class Keeper:
    """Takes what a link asks of it as the real one does, without an entry of the cache."""

    def __init__(self, made):
        self.made = made

    def claim(self, blocks, *, anew):
        assert 0 <= blocks.start < blocks.stop <= self.made.blocks
        return [1] * len(blocks)

    def release(self, blocks):
        assert 0 <= blocks.start < blocks.stop <= self.made.blocks

    def keep(self, first, data):
        if len(data) == 0:
            raise Corrupt("nothing")
        assert 0 <= first < self.made.blocks


def _link_seeds():
    block = random.Random(1).randbytes(20_000)[:4096]
    asked = [struct.pack("<BxxxII2I", what, 2, 0, 0, 1) for what in (1, 2, 3)]
    return [b"".join(asked), struct.pack("<BxxxIII", 4, 1, 4096, 0) + block]


def run_link(data):
    made = _image()
    ours, theirs = _sent(data)
    with ours:
        serve_keeper(Keeper(made), made, theirs)


@cache
def events_seeds():
    async def write():
        store = MemoryStore()
        happened = (event.from_json(_event(), ""),)
        name = await collect.publish_events(
            store, collect.NodeRun("run", 5, "key", "node", "cold", 7, happened)
        )
        return bytes(await read_all(store, name, MIB))

    return [trio.run(write)]


def run_events(data):
    for one in collect._decode(data, "events").events:
        assert event.from_json(one.document(), "") == one


# All.


def in_memory(data):
    """Return a context with the path of a file that holds this."""
    return _InMemory(data)


class _InMemory:
    def __init__(self, data):
        self._data = data

    def __enter__(self):
        self._fd = os.memfd_create("input", os.MFD_CLOEXEC)
        os.write(self._fd, self._data)
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *error):
        os.close(self._fd)


@cache
def _shm():
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


GONE = (Corrupt, Closed)
DECODERS = {
    decoder.name: decoder
    for decoder in (
        *TABLES,
        Decoder("index", index_seeds, run_index, words=(b"user.", b"..", b"0")),
        *JSON,
        Decoder("frame", frame_seeds, run_frame),
        Decoder("block", _blocks, run_block, (Corrupt, Unavailable)),
        Decoder("squashfs", squashfs_seeds, run_squashfs, (Corrupt, Unavailable)),
        Decoder("tar", tar_seeds, run_tar, words=(b"GNU.sparse.", b"path=", b"ustar")),
        Decoder("layer", _compressed, run_layer, (Corrupt, Unavailable)),
        Decoder("oci", oci_seeds, run_oci, (BootseerError,)),
        Decoder("docker", docker_seeds, run_docker, (BootseerError,)),
        Decoder("events", events_seeds, run_events),
        Decoder("talk", lambda: [b'{"a":[1]}\n{"b":{}}\n'], partial(trio.run, _talk), GONE),
        Decoder("channel", lambda: _said(b'{"a":1}', b"{}"), partial(trio.run, _channel), GONE),
        Decoder("control", lambda: [b'{"command":"status"}\n'], partial(trio.run, _control), ()),
        Decoder("link", _link_seeds, run_link, ()),
    )
}  # fmt: skip
