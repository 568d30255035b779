"""The index of a snapshot: its tree, and the place of every file's content.

Mounts and unpacked trees are made from the index; from the squashfs only the content of files is
read. c_ext/tree.c reads the same rows; see docs/formats/env-index.md.
"""

from __future__ import annotations

import posixpath
import stat
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bootseer.core import table
from bootseer.core.fields import Fields
from bootseer.core.tree_rows import BLOCK, BLOCK_BYTES, ENTRY, INODE, XATTR, TreeRows
from bootseer.env.client.scan import TreeNode
from bootseer.errors import Corrupt
from bootseer.squashfs.superblock import BLOCK_RAW
from bootseer.units import KIB, MIB

MAGIC = b"BSENVIDX"
VERSION = 2
MAX_BYTES = 512 * MIB
MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255
MAX_XATTRS_BYTES = 64 * KIB
MAX_PATHS_BYTES = 512 * MIB
"""Of all paths together: a few rows in a deep folder could stand for very many."""
MAX_FILE_BYTES = 1 << 50
_KINDS = {"file": stat.S_IFREG, "folder": stat.S_IFDIR, "link": stat.S_IFLNK}
_KIND_OF = {kind: name for name, kind in _KINDS.items()}
_UNIT_BYTES = 4
_RIGHTS = 0o1777
"""All but set-user-ID and set-group-ID."""


class ContentPlace(NamedTuple):
    """Place of a file's content.

    Attributes:
        start: offset of its blocks in the squashfs.
        blocks: stored lengths of the blocks, as squashfs has them; each holds `BLOCK_BYTES`, the
            last one the rest.
    """

    start: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """A checked index.

    Attributes:
        tree: of the snapshot, by path. The empty path is a folder with the targets, which are
            folders called 0, 1 and so on. There are no owners (uid and gid are 0): the user who
            restores it owns it.
        places: of files' content; a file with several names has one under the first.
        deleted: paths to delete where it is restored.
        rows: the same tree, for `bootseer.fuse.fastpath.TreeTable`.
    """

    tree: Mapping[bytes, TreeNode]
    places: Mapping[bytes, ContentPlace]
    deleted: tuple[bytes, ...]
    rows: TreeRows


def encode(
    tree: Mapping[bytes, TreeNode],
    places: Mapping[bytes, ContentPlace],
    deleted: Collection[bytes] = (),
) -> bytes:
    """Encode the index of a tree.

    Args:
        tree: files, folders and links, with all folders above them and the empty path; owners are
            left out.
        places: of every file; one with several names has it at least under the first.
        deleted: paths to delete where it is restored.
    """
    paths = sorted(tree)
    numbers: dict[bytes, int] = {}
    names: Counter[int] = Counter()
    children: defaultdict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
    for path in paths:
        if not tree[path].same_as:
            numbers[path] = len(numbers)
    for path in paths[1:]:
        folder, _, name = path.rpartition(b"/")
        number = numbers[tree[path].same_as or path]
        children[folder].append((name, number))
        names[number] += 1
        names[numbers[folder]] += tree[path].kind == "folder"
    inodes: list[bytes] = []
    entries: list[bytes] = []
    blocks: list[bytes] = []
    strings = bytearray()

    def keep(text: bytes) -> int:
        at = len(strings)
        strings.extend(text)
        return at

    for path, number in numbers.items():
        node = tree[path]
        size_bytes, data, first, count = node.size_bytes, 0, 0, 0
        if node.kind == "folder":
            first, count = len(entries), len(children[path])
            entries += [ENTRY.pack(keep(name), len(name), n) for name, n in children[path]]
        elif node.kind == "link":
            size_bytes, data = len(node.target), keep(node.target)
        else:
            place = places[path]
            first, count, data = len(blocks), len(place.blocks), place.start
            blocks += [BLOCK.pack(length) for length in place.blocks]
        xattrs = b"".join(XATTR.pack(len(k), len(v)) + k + v for k, v in node.xattrs)
        links = names[number] + (node.kind == "folder") + (not path)
        inodes.append(
            INODE.pack(
                *(size_bytes, node.mtime_ns, data, first, count),
                *(_KINDS[node.kind] | node.mode, links),
                *(keep(xattrs), len(xattrs), node.digest),
            )
        )
    gone = b"".join(path + b"\0" for path in sorted(deleted))
    header = {
        "inodes": len(inodes),
        "entries": len(entries),
        "blocks": len(blocks),
        "strings": len(strings),
        "deleted": len(gone),
    }
    rows = b"".join([*inodes, *entries, *blocks, _padded(bytes(strings)), _padded(gone)])
    return table.close_table(MAGIC, VERSION, header, _UNIT_BYTES, rows)


def decode(data: bytes, name: str, outside: Collection[bytes] = ()) -> Index:
    """Decode an index, which may be hostile.

    Args:
        data: the encoded index.
        name: for messages.
        outside: paths of links that may lead out of their target.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is damaged, or has paths that no snapshot may have.
    """
    rows, gone = _sections(data, name)
    reader = _Reader(rows, name, frozenset(outside))
    tree, places = reader.read()
    if gone and not gone.endswith(b"\0"):
        raise Corrupt(f"{name}: its list of deleted paths is cut short")
    deleted = tuple(gone.split(b"\0")[:-1])
    for path in deleted:
        if path in tree or not _is_path(path):
            raise reader.refuse(path, "cannot be deleted")
    return Index(tree, places, deleted, reader.rows)


def open_rows(data: bytes, name: str) -> TreeRows:
    """Open the rows of an index to mount it.

    `bootseer.fuse.fastpath.TreeTable` checks them, much faster than `decode`, and refuses the same
    rows but for two: a mount may have links that lead anywhere, for the kernel follows them with
    the rights of the process that opens them; and it deletes nothing.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is damaged.
    """
    return _sections(data, name)[0]


def _sections(data: bytes, name: str) -> tuple[TreeRows, bytes]:
    """Return the rows of an index, and its list of deleted paths."""
    header, rows = table.open_table(MAGIC, VERSION, _UNIT_BYTES, data, name)
    fields = Fields(header, name)
    sections = []
    at = 0
    for key, unit in (("inodes", INODE), ("entries", ENTRY), ("blocks", BLOCK)):
        sections.append((at, fields.count(key) * unit.size))
        at += sections[-1][1]
    for key in ("strings", "deleted"):
        sections.append((at, fields.count(key)))
        at += sections[-1][1] + -sections[-1][1] % _UNIT_BYTES
    if at != len(rows):
        raise Corrupt(f"{name}: it holds another number of rows than its header says")
    inodes, entries, blocks, strings, gone = (bytes(rows[a : a + n]) for a, n in sections)
    return TreeRows(inodes, entries, blocks, strings), gone


def leads_out(path: bytes, target: bytes) -> bool:
    """Whether a link at a path of a snapshot may lead out of its target."""
    if target.startswith(b"/"):
        return True
    below = path.partition(b"/")[2]
    where = posixpath.normpath(posixpath.join(posixpath.dirname(below), target))
    return where == b".." or where.startswith(b"../")


class _Reader:
    """Builds a tree from rows, and refuses rows that make none."""

    def __init__(self, rows: TreeRows, name: str, outside: frozenset[bytes]) -> None:
        self.rows = rows
        self._name = name
        self._outside = outside
        self._inodes = list(INODE.iter_unpack(rows.inodes))
        self._entries = list(ENTRY.iter_unpack(rows.entries))
        self._blocks = [length for (length,) in BLOCK.iter_unpack(rows.blocks)]
        self._unused_bytes = len(rows.strings)

    def refuse(self, path: bytes, why: str) -> Corrupt:
        return Corrupt(f"{self._name}: {path[:200]!a} {why}; nothing of the snapshot is used")

    def read(self) -> tuple[dict[bytes, TreeNode], dict[bytes, ContentPlace]]:
        """Read all rows.

        Raises:
            Corrupt: they make no tree.
        """
        numbers = self._walk()
        paths = sorted(numbers)
        firsts: dict[int, bytes] = {}
        for path in paths:
            firsts.setdefault(numbers[path], path)
        if len(firsts) != len(self._inodes):
            raise Corrupt(f"{self._name}: some of its inodes are nowhere in its tree")
        nodes: list[TreeNode] = []
        places: dict[bytes, ContentPlace] = {}
        block, stop = 0, 0
        for number in range(len(self._inodes)):
            path = firsts[number]
            node = self._node(path, number)
            if node.kind == "file":
                place = places[path] = self._place(path, number, block)
                block += len(place.blocks)
                if node.size_bytes:
                    if place.start < stop:  # little could become very much
                        raise self.refuse(path, "has the content of another file in it")
                    stop = place.start + sum(length & ~BLOCK_RAW for length in place.blocks)
            nodes.append(node)
        if block != len(self._blocks):
            raise Corrupt(f"{self._name}: some of its blocks are no file's")
        tree: dict[bytes, TreeNode] = {}
        for path in paths:
            node, first = nodes[numbers[path]], firsts[numbers[path]]
            if path and b"/" not in path and node.kind != "folder":
                raise self.refuse(path, "is a target, and no folder")
            self._check_link(path, node)
            tree[path] = node if first == path else node._replace(same_as=first)
        return tree, {path: places[path] for path in paths if path in places}

    def _walk(self) -> dict[bytes, int]:
        """Return the number of the inode at every path.

        Folders come before the folders in them, and their entries in the same order. So there are
        no loops, and few entries cannot make many paths.
        """
        if not self._inodes or not stat.S_ISDIR(self._inodes[0][5]):
            raise Corrupt(f"{self._name}: it has no root")
        numbers = {b"": 0}
        folders = {0: b""}
        entry, paths_bytes = 0, 0
        for number, row in enumerate(self._inodes):
            if not stat.S_ISDIR(row[5]):
                continue
            folder = folders.pop(number, None)
            if folder is None:
                raise Corrupt(f"{self._name}: its folder {number} is nowhere in its tree")
            for name, child in self._listed(folder, number, entry):
                path = folder + b"/" + name if folder else name
                paths_bytes += len(path)
                if len(path) > MAX_PATH_BYTES or not 0 < child < len(self._inodes):
                    raise self.refuse(path, "is too long, or nothing")
                if paths_bytes > MAX_PATHS_BYTES:
                    raise self.refuse(path, "is one of too many long paths")
                numbers[path] = child
                if stat.S_ISDIR(self._inodes[child][5]):
                    if child <= number or child in folders:
                        raise self.refuse(path, "is a folder in two places, or out of order")
                    folders[child] = path
            entry += row[4]
        if entry != len(self._entries):
            raise Corrupt(f"{self._name}: some of its entries are nowhere in its tree")
        return numbers

    def _listed(self, folder: bytes, number: int, first: int) -> Iterator[tuple[bytes, int]]:
        """List a folder; its entries have to begin with this one."""
        found, count = self._inodes[number][3:5]
        if found != first or count > len(self._entries) - first:
            raise self.refuse(folder, "has entries that are not there, or another folder's")
        before = b""
        for at, length, inode in self._entries[first : first + count]:
            name = self._string(folder, at, length)
            if not is_name(name) or name <= before:
                raise self.refuse(folder, f"has an entry {name[:80]!a}, which is no name for one")
            before = name
            yield name, inode

    def _node(self, path: bytes, number: int) -> TreeNode:
        size_bytes, mtime_ns, data, _, _, mode, _, xattrs, length, digest = self._inodes[number]
        kind = _KIND_OF.get(stat.S_IFMT(mode))
        if kind is None:
            raise self.refuse(path, "is no file, folder or link")
        if mode & ~(0o170000 | _RIGHTS):
            raise self.refuse(path, "would take on the rights of another user or group")
        target = b""
        if kind == "link":
            target = self._string(path, data, size_bytes)
            if not 0 < len(target) <= MAX_PATH_BYTES or b"\0" in target:
                raise self.refuse(path, "is a link to what is no path")
        return TreeNode(
            kind=kind,
            mode=stat.S_IMODE(mode),
            uid=0,
            gid=0,
            size_bytes=size_bytes if kind == "file" else 0,
            mtime_ns=mtime_ns,
            target=target,
            digest=digest if kind == "file" else b"",
            xattrs=tuple(self._xattrs(path, xattrs, length)),
        )

    def _check_link(self, path: bytes, node: TreeNode) -> None:
        if node.kind == "link" and leads_out(path, node.target) and path not in self._outside:
            raise self.refuse(path, f"leads out of its folder, to {node.target[:200]!a}")

    def _xattrs(self, path: bytes, at: int, length: int) -> Iterator[tuple[bytes, bytes]]:
        packed = self._string(path, at, length)
        if length > MAX_XATTRS_BYTES:
            raise self.refuse(path, "has unreasonably large extended attributes")
        while packed:
            name_bytes, value_bytes = XATTR.unpack_from(packed + bytes(XATTR.size))
            stop = XATTR.size + name_bytes + value_bytes
            name = packed[XATTR.size : XATTR.size + name_bytes]
            # What else there is gives rights (security, system, trusted).
            is_users = name.startswith(b"user.") and b"\0" not in name
            if stop > len(packed) or not is_users or not 5 < name_bytes <= MAX_NAME_BYTES:
                raise self.refuse(path, f"has an extended attribute {name[:80]!a}")
            yield name, packed[XATTR.size + name_bytes : stop]
            packed = packed[stop:]

    def _place(self, path: bytes, number: int, block: int) -> ContentPlace:
        """Return the place of a file's content; its blocks have to begin with this one."""
        size_bytes, _, start, first, count, *_ = self._inodes[number]
        if max(size_bytes, start) > MAX_FILE_BYTES:
            raise self.refuse(path, "is unreasonably large")
        if count != -(-size_bytes // BLOCK_BYTES):
            raise self.refuse(path, "has another number of blocks than its length takes")
        if first != block or count > len(self._blocks) - first:
            raise self.refuse(path, "has blocks that are not there, or another file's")
        blocks = tuple(self._blocks[first : first + count])
        if any(not 0 < length & ~BLOCK_RAW <= BLOCK_BYTES for length in blocks):
            raise self.refuse(path, "has a block of impossible length")
        return ContentPlace(start, blocks)

    def _string(self, path: bytes, at: int, length: int) -> bytes:
        if at + length > len(self.rows.strings):
            raise self.refuse(path, "refers to a text that is not there")
        self._unused_bytes -= length
        if self._unused_bytes < 0:
            raise self.refuse(path, "has a text that is another's too")
        return self.rows.strings[at : at + length]


def is_name(name: bytes) -> bool:
    """Whether an entry of a folder may be called so."""
    return (
        0 < len(name) <= MAX_NAME_BYTES
        and name not in (b".", b"..")
        and b"/" not in name
        and b"\0" not in name
    )


def _is_path(path: bytes) -> bool:
    return len(path) <= MAX_PATH_BYTES and all(map(is_name, path.split(b"/")))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _UNIT_BYTES)
