"""Plan the steps that make a snapshot's tree; c_ext/unpack.c carries them out.

`bootseer.env.snapshot.index` has checked the tree; this module does no I/O.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bootseer._io import lib
from bootseer.env.client.scan import TreeNode
from bootseer.env.snapshot.chunks import Chunk
from bootseer.env.snapshot.index import Index
from bootseer.errors import Corrupt
from bootseer.units import NS_PER_S

_STEP = struct.Struct("=QQQQQqIIIIII")
STEP_BYTES = _STEP.size


@dataclass(frozen=True, slots=True)
class ExtractBatch:
    """Steps in the order in which they are carried out.

    Attributes:
        steps: packed, as C has them.
        content: bytes that they write from.
    """

    steps: bytes
    content: bytes = b""

    def path_at(self, number: int) -> int:
        """Return the offset of a step's path in the texts."""
        return int(_STEP.unpack_from(self.steps, number * STEP_BYTES)[0])


@dataclass(frozen=True, slots=True)
class ExtractPlan:
    """All steps that make a tree, in phases; each begins when the one before is done.

    Attributes:
        texts: paths and other texts that steps refer to.
        folders: number of targets.
        before: folders, and files whose content is in several chunks.
        chunks: steps of each chunk, in any order.
        after: attributes of files, hard links and links.
        last: for each target, attributes, modes and times of its folders, the deepest first.
    """

    texts: bytes
    folders: int
    before: ExtractBatch
    chunks: tuple[ExtractBatch, ...]
    after: ExtractBatch
    last: tuple[ExtractBatch, ...]


def plan(index: Index, chunks: Sequence[Chunk]) -> ExtractPlan:
    """Plan how to make the tree of an index from its chunks.

    Raises:
        Corrupt: its targets are not called 0, 1 and so on.
    """
    return _Planner(index, chunks).plan()


class _Planner:
    """Collects steps and their texts."""

    def __init__(self, index: Index, chunks: Sequence[Chunk]) -> None:
        self._index = index
        self._chunks = chunks
        self._texts = bytearray(b"\0.\0")
        self._at: dict[bytes, tuple[int, int]] = {}  # a path's text and folder
        self._values = bytearray()

    def plan(self) -> ExtractPlan:
        tree = self._index.tree
        paths = sorted(tree)[1:]
        targets = [path for path in paths if b"/" not in path]
        if targets != sorted(b"%d" % number for number in range(len(targets))):
            raise Corrupt("the snapshot's targets are not called 0, 1 and so on; it is not used")
        for path in paths:
            self._place(path)
        before: list[bytes] = []
        after: list[bytes] = []
        last: defaultdict[int, list[bytes]] = defaultdict(list)
        for path in paths:
            node = tree[path]
            if node.kind == "folder" and b"/" in path:
                before.append(self._step(lib.BS_FOLDER, path, node))
            elif node.kind == "link":
                after.append(self._step(lib.BS_LINK, path, node, other=self._text(node.target)))
            elif node.same_as:
                after.append(self._name(path, node))
        in_chunks = list(self._contents(before, after))
        for path in reversed(paths):
            if tree[path].kind == "folder":
                last[self._at[path][1]] += self._dressed(path, tree[path])
        values = bytes(self._values)
        return ExtractPlan(
            texts=bytes(self._texts),
            folders=len(targets),
            before=ExtractBatch(b"".join(before)),
            chunks=tuple(ExtractBatch(steps) for steps in in_chunks),
            # Before its other names: it is the same file.
            after=ExtractBatch(b"".join(after), values),
            last=tuple(ExtractBatch(b"".join(last[n]), values) for n in range(len(targets))),
        )

    def _contents(self, before: list[bytes], after: list[bytes]) -> Iterator[bytes]:
        """Yield the steps of each chunk; steps for whole files are added to the lists."""
        tree = self._index.tree
        dressed: list[bytes] = []
        for path in self._index.places:
            node = tree[path]
            if not node.size_bytes and node.xattrs:
                before.append(self._step(lib.BS_BEGIN, path, node))
                dressed += self._dressed(path, node)
            elif not node.size_bytes:
                before.append(self._step(lib.BS_FILE, path, node))
        for chunk in self._chunks:
            found = []
            for piece in chunk.pieces:
                path, node = piece.path, tree[piece.path]
                is_whole = piece.size_bytes == node.size_bytes and not node.xattrs
                if not is_whole and piece.offset == 0:
                    before.append(self._step(lib.BS_BEGIN, path, node))
                    dressed += self._dressed(path, node)
                found.append(
                    self._step(
                        *(lib.BS_FILE if is_whole else lib.BS_PART, path, node),
                        start=piece.start,
                        size_bytes=piece.size_bytes,
                        offset=piece.offset,
                    )
                )
            yield b"".join(found)
        after[:0] = dressed

    def _dressed(self, path: bytes, node: TreeNode) -> list[bytes]:
        """Plan the attributes, mode and time of a file or folder."""
        steps = []
        for name, value in node.xattrs:
            text, start = self._text(name), len(self._values)
            self._values += value
            steps.append(
                self._step(
                    lib.BS_ATTRIBUTE, path, node, other=text, start=start, size_bytes=len(value)
                )
            )
        steps.append(self._step(lib.BS_FINISH, path, node))
        return steps

    def _name(self, path: bytes, node: TreeNode) -> bytes:
        text, folder = self._at[node.same_as]
        return self._step(lib.BS_NAME, path, node, other=text, origin=folder)

    def _step(
        self,
        action: int,
        path: bytes,
        node: TreeNode,
        *,
        other: int = 0,
        start: int = 0,
        size_bytes: int = 0,
        offset: int = 0,
        origin: int = 0,
    ) -> bytes:
        text, folder = self._at[path]
        seconds, nanoseconds = divmod(node.mtime_ns, NS_PER_S)
        return _STEP.pack(
            *(text, other, start, size_bytes, offset, seconds),
            *(nanoseconds, node.mode, folder, origin, action, 0),
        )

    def _place(self, path: bytes) -> None:
        """Add a path, relative to its target, to the texts."""
        target, _, below = path.partition(b"/")
        self._at[path] = (self._text(below) if below else 1, int(target))

    def _text(self, text: bytes) -> int:
        at = len(self._texts)
        self._texts += text
        self._texts += b"\0"
        return at


def children(tree: Mapping[bytes, TreeNode]) -> dict[bytes, list[bytes]]:
    """Return the paths directly in each folder that is not empty."""
    found: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for path in tree:
        if path:
            found[path.rpartition(b"/")[0]].append(path)
    return dict(found)
