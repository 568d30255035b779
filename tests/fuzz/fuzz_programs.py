"""The fuzz targets in C: what they are built of, and what they begin with."""

import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fuzz_images import block_seeds, squashfuse_seeds
from fuzz_tables import index_seeds

ROOT = Path(__file__).parents[2]
INCLUDED = ("-Ic_ext", "-Ic_ext/squashfs", "-Ispank")
FLAGS = ("-g", "-O1", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", *INCLUDED)
SANITIZERS = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined")
BS_FOLDER, BS_FILE, BS_BEGIN, BS_PART, BS_NAME, BS_LINK, BS_ATTRIBUTE, BS_FINISH = range(8)


@dataclass(frozen=True)
class Program:
    """A target.

    Attributes:
        name: of it, and of its harness in c/.
        sources: that it tests.
        seeds: returns good inputs.
        sanitizers: options of clang.
        libraries: the same.
        is_guided: it is libFuzzer's; else it takes seconds and makes up its own inputs.
    """

    name: str
    sources: tuple[str, ...]
    seeds: Callable[[], list[bytes]] = field(default=lambda: [])
    sanitizers: tuple[str, ...] = SANITIZERS
    libraries: tuple[str, ...] = ()
    is_guided: bool = True

    def build(self, folder: Path) -> Path:
        """Build it, in the checkout that this file is in; returns the program."""
        out = folder / self.name
        sources = [f"tests/fuzz/c/{self.name}.c", *self.sources]
        command = ["clang", *FLAGS, *self.sanitizers, *sources, *self.libraries, "-o", str(out)]
        subprocess.run(command, check=True, cwd=ROOT)
        return out


def _trees() -> list[bytes]:
    """An index's rows, and each request for each of a few nodes behind them."""
    asked = b"".join(
        bytes([opcode, node, 59, 0]) + struct.pack("<QQII", 0, 0, 4096, 0).ljust(60, b"\0")
        for opcode in range(12)
        for node in (1, 2, 3, 5)
    )
    asked += b"".join(bytes([0, 2, 2, 0]) + name.ljust(60, b"\0") for name in (b"a", b"zz"))
    seeds = []
    for seed in index_seeds():
        *counts, gone = struct.unpack_from("<4H", seed)
        rows = seed[8 : len(seed) - gone]
        seeds.append(struct.pack("<4H", *counts, len(asked)) + rows + asked)
    return seeds


def _steps() -> list[bytes]:
    texts = [b"a", b"a/b", b"a/c", b"l/x", b"f", b"..", b"a/..", b"../precious/file", b".", b""]
    texts += [b"/tmp", b"user.a", b"l", b"l/file", b"a/"]
    places, packed = {}, b""
    for text in texts:
        places[text] = len(packed)
        packed += text + b"\0"

    def step(action, path, other=b"a", mode=0x10):
        return bytes([action, 0, places[path], places[other], 0, 5, 0, mode])

    good = [
        step(BS_FOLDER, b"a"),
        step(BS_FILE, b"a/b"),
        step(BS_BEGIN, b"a/c"),
        step(BS_PART, b"a/c"),
        step(BS_NAME, b"a/c", b"a/b"),
        step(BS_ATTRIBUTE, b"a/b", b"user.a"),
        step(BS_FINISH, b"a/c"),
        step(BS_FINISH, b"a"),
    ]
    bad = [
        [step(action, path, other)]
        for action in range(8)
        for path in texts
        for other in (b"../precious/file", b"l/file", b"user.a")
    ]
    return [
        struct.pack("<HH", len(steps) << 1 | by_names, len(packed))
        + packed
        + b"".join(steps)
        + b"content"
        for steps in ([good, *bad])
        for by_names in (0, 1)
    ]


TREE = ("c_ext/tree.c", "c_ext/tree_check.c", "c_ext/blocks.c")
SQUASHFS = tuple(f"c_ext/squashfs/{name}.c" for name in ("image", "codec", "lzo", "cache", "ahead"))

PROGRAMS = {
    program.name: program
    for program in (
        Program("tree", TREE, _trees, libraries=("-llz4",)),
        Program("unpack", ("c_ext/unpack.c", "c_ext/remove.c"), _steps),
        Program("blocks", ("c_ext/blocks.c",), block_seeds, libraries=("-llz4",)),
        Program(
            "squashfuse",
            SQUASHFS,
            squashfuse_seeds,
            libraries=("-lzstd", "-llz4", "-lz", "-lpthread"),
        ),
        Program(
            "options",
            ("spank/options.c",),
            lambda: [
                b"\xff" + t for t in (b"/a/b", b"s3://b/c:/mnt", b"off", b"60", b"\xc3\xa9\n")
            ],
        ),
        Program(
            "fastpath",
            ("c_ext/fastpath.c", *TREE),
            sanitizers=("-fsanitize=thread",),
            libraries=("-llz4", "-lpthread"),
            is_guided=False,
        ),
    )
}
