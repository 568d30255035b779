"""A small tree with all that a snapshot can hold, and its squashfs and index."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path

from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.client.scan import TreeNode, scan
from bootseer.env.snapshot.index import encode
from bootseer.env.snapshot.squashfs import find_content
from bootseer.env.snapshot.tar_stream import stream
from bootseer.squashfs.writer import PackOptions, pack

_TIMES = (1_700_000_000_123_456_789, -1, 0, 4_000_000_000_000_000_001, 1)


def make_tree(folder: Path) -> None:
    """Fill a folder with two targets; 0/lib/dangling leads out of the first."""
    folder.chmod(0o700)  # as what a mounted snapshot has above its targets
    random_bytes = random.Random(6).randbytes
    top = folder / "0"
    (top / "lib" / "deep" / "er").mkdir(parents=True)
    (folder / "1").mkdir()
    (top / "empty").write_bytes(b"")
    (top / "one").write_bytes(b"1")
    (top / "block").write_bytes(random_bytes(BLOCK_BYTES))
    (top / "text").write_bytes(b"all the same " * 100_000)
    (top / "large").write_bytes(random_bytes(3_000_000) + bytes(400_000) + b"end" * 70_000)
    with open(top / "hole", "wb") as file:
        file.truncate(5 * BLOCK_BYTES + 7)
    for number in range(300):
        (top / "lib" / f"module_{number:03}.py").write_bytes(random_bytes(number * 13))
    (top / "lib" / "deep" / "er" / ("n" * 255)).write_bytes(b"long")
    (top / "lib" / "a\nb\udcff").write_bytes(b"odd")
    os.symlink("lib/deep", top / "link")
    os.symlink("../../nowhere", top / "lib" / "dangling")
    os.link(top / "one", top / "lib" / "again")
    os.link(top / "one", top / "lib" / "once more")
    (top / "bin").mkdir()
    (top / "bin" / "tool").write_text("#!/bin/sh\necho from the snapshot\n")
    os.chmod(top / "bin" / "tool", 0o755)
    os.chmod(top / "text", 0o400)
    os.chmod(top / "lib" / "deep", 0o1777)
    (folder / "1" / "data").write_bytes(b"of the second target")
    for number, (root, _, files) in enumerate(os.walk(folder, topdown=False)):
        for index, name in enumerate(files):
            times = (0, _TIMES[index % len(_TIMES)])
            os.utime(os.path.join(root, name), ns=times, follow_symlinks=False)
        os.utime(root, ns=(0, 10**18 + number))


def disown(tree: Mapping[bytes, TreeNode]) -> dict[bytes, TreeNode]:
    """Return a tree as a snapshot has it: nobody's."""
    return {path: node._replace(uid=0, gid=0) for path, node in tree.items()}


def squash(folder: Path, image: Path) -> tuple[dict[bytes, TreeNode], bytes]:
    """Write a squashfs of a folder as a capture does; returns its tree, and its encoded index."""
    tree = disown(scan(str(folder)))
    with pack(image, PackOptions(BLOCK_BYTES, "lz4", is_linear=True), None) as packer:
        for piece in stream(tree, lambda path: [(folder / os.fsdecode(path)).read_bytes()]):
            packer.write(piece)
    return tree, encode(tree, find_content(image))
