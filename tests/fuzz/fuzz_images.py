"""The decoders of images: squashfs, archives, and what is compressed."""

import hashlib
import io
import json
import os
import random
import shutil
import struct
import subprocess
import tarfile
import tempfile
from array import array
from contextlib import suppress
from functools import cache
from pathlib import Path

import lz4.block
from fuzz_base import DIGEST, Decoder, in_memory

from bootseer import tar
from bootseer.core.ranges import ByteRange
from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.snapshot.chunks import Chunk, content
from bootseer.errors import BootseerError, Corrupt, Unavailable
from bootseer.image.hot.files import hot_files
from bootseer.image.oci.blob import Blob, ByteStream, DecompressionBudget, Layer
from bootseer.image.oci.manifest import open_image
from bootseer.squashfs import superblock
from bootseer.squashfs.codec import decompressor
from bootseer.squashfs.superblock import BLOCK_RAW
from bootseer.units import MIB

# Compressed blocks.

_SIZES = struct.Struct("<III")


def block_seeds():
    """Two blocks: stored length of the first, lengths of both contents, and what is stored."""
    data = bytes(range(256)) * 300
    packed = lz4.block.compress(data, store_size=False)
    return [
        _SIZES.pack(len(packed), len(data), len(data)) + packed * 2,
        _SIZES.pack(len(packed), len(data), 9) + packed + lz4.block.compress(b"x" * 9)[4:],
        _SIZES.pack(BLOCK_RAW | 900, 900, len(data)) + random.Random(3).randbytes(900) + packed,
    ]


def run_blocks(data):
    """Decompress two blocks of a snapshot's squashfs."""
    first, *sizes = _SIZES.unpack(data[: _SIZES.size].ljust(_SIZES.size, b"\0"))
    stored = data[_SIZES.size :]
    sizes = [size % (BLOCK_BYTES + 1) for size in sizes]
    second = max(0, len(stored) - (first & ~BLOCK_RAW)) % BLOCK_RAW
    lengths = array("I", [first, second])
    chunk = Chunk(0, len(stored), sum(sizes), [], lengths, array("I", sizes))
    assert len(content(chunk, stored)) == sum(sizes)


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


@cache
def squashfuse_seeds():
    """For the reader in C: images of each compressor, with all kinds of files; and LZO alone."""
    import lzallright

    text = b"all the same, all the same, " * 60 + random.Random(4).randbytes(300)
    made = [bytes(lzallright.LZOCompressor().compress(text)), *squashfs_seeds()]
    if shutil.which("mksquashfs") is None:
        return made
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder, "top")
        (top / "dir").mkdir(parents=True)
        for number in range(300):
            (top / "dir" / f"{number}").write_bytes(b"content " * (number % 9))
        (top / "large").write_bytes(random.Random(5).randbytes(5000) + b"text" * 900)
        os.link(top / "large", top / "again")
        with open(top / "sparse", "wb") as file:
            file.truncate(3 * 4096 + 5)
        (top / "link").symlink_to("dir/1")
        os.mkfifo(top / "pipe")
        with suppress(OSError):
            os.setxattr(top / "large", "user.key", b"value")
            for name in ("large", "dir"):
                os.setxattr(top / name, "user.same", b"v" * 300)
        plain = ["-noI", "-noD", "-noF", "-noX", "-noId"]
        for options in ([], plain, ["-no-fragments"]):
            for compressor in ("gzip", "lzo", "lz4", "zstd"):
                out = Path(folder, f"image-{len(made)}")
                command = ["mksquashfs", top, out, "-b", "4096", "-comp", compressor, "-noappend"]
                command += ["-quiet", "-no-progress", "-nopad", "-p", "device c 644 0 0 1 3"]
                command += ["-all-time", "5", "-mkfs-time", "5", *options]
                subprocess.run(command, check=True, capture_output=True)
                made.append(out.read_bytes())
    return made


def run_squashfs(data):
    with in_memory(data) as path:
        found = superblock.find_tables(data[:96], len(data))
        if found is None:
            return
        try:
            hot_files(Path(path), [ByteRange(0, len(data))])
        finally:
            superblock.decode_superblock(data[:96], len(data))


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
            DecompressionBudget(8 * MIB), lambda n: None, again=True
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


IMAGES = [
    Decoder("blocks", block_seeds, run_blocks),
    Decoder("block", _blocks, run_block, (Corrupt, Unavailable)),
    Decoder("squashfs", squashfs_seeds, run_squashfs, (Corrupt, Unavailable)),
    Decoder("tar", tar_seeds, run_tar),
    Decoder("layer", _compressed, run_layer, (Corrupt, Unavailable)),
    Decoder("oci", oci_seeds, run_oci, (BootseerError,)),
    Decoder("docker", docker_seeds, run_docker, (BootseerError,)),
]
