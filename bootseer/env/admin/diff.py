"""Compare two environments: files and their content, without times and owners."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from bootseer.env.client.key import EMPTY
from bootseer.env.client.scan import TreeNode, difference, scan
from bootseer.env.snapshot.manifest import Snapshot

_KINDS = ("file", "folder", "link")
_ABOUT = re.compile(rb"(?:.*/)?([^/]+?)-([^/-]+)\.dist-info")


class PathDiff(NamedTuple):
    """A path that differs between two sides; None on a side that does not have it."""

    path: bytes
    before: TreeNode | None
    after: TreeNode | None


class VersionDiff(NamedTuple):
    """A distribution whose version differs; "" on a side that does not have it."""

    name: str
    before: str
    after: str


def contrast(before: Mapping[bytes, TreeNode], after: Mapping[bytes, TreeNode]) -> list[PathDiff]:
    """Compare two trees of snapshots, in order of their paths; the targets themselves are equal."""
    old, new = _essence(before), _essence(after)
    found = difference(old, new)
    paths = sorted((*found.added, *found.changed, *found.deleted))
    return [PathDiff(path, old.get(path), new.get(path)) for path in paths]


def against_folders(
    snapshot: Snapshot,
    tree: Mapping[bytes, TreeNode],
    deleted: Collection[bytes],
    now: Mapping[bytes, TreeNode],
) -> list[PathDiff]:
    """Compare a snapshot with what its targets hold.

    If a target was not empty before the command ran, the snapshot has changes only. Other paths in
    the target are no difference, unless the command had deleted them.

    Args:
        snapshot: the manifest.
        tree, deleted: of its index.
        now: the result of `scan_now`.
    """
    partial = {b"%d" % n for n, base in enumerate(snapshot.bases) if base != EMPTY}
    gone = set(deleted)
    return [
        delta
        for delta in contrast(tree, now)
        if delta.before is not None
        or delta.path.partition(b"/")[0] not in partial
        or delta.path in gone
    ]


def scan_now(
    folders: Sequence[str], count: Callable[[int], None] = lambda size_bytes: None
) -> dict[bytes, TreeNode]:
    """Scan folders, as the tree of a snapshot; a missing folder counts as empty.

    Args:
        folders: in the order of the snapshot's targets.
        count: called with numbers of bytes that were read.

    Raises:
        OSError: something cannot be read, or changes meanwhile.
    """
    found: dict[bytes, TreeNode] = {}
    for number, folder in enumerate(folders):
        try:
            tree = scan(folder, count=count)
        except FileNotFoundError:
            continue
        found |= numbered(number, tree)
    return found


def numbered(number: int, tree: Mapping[bytes, TreeNode]) -> dict[bytes, TreeNode]:
    """Return the tree of a target as a snapshot has it, below the target's number."""
    top = b"%d" % number
    return {
        top + b"/" + path if path else top: node._replace(
            same_as=top + b"/" + node.same_as if node.same_as else b""
        )
        for path, node in tree.items()
    }


def versions(
    before: Mapping[bytes, TreeNode], after: Mapping[bytes, TreeNode]
) -> list[VersionDiff]:
    """Compare the distributions that are installed in two trees, by their ``*.dist-info``."""
    old, new = _distributions(before), _distributions(after)
    return [
        VersionDiff(place[1], old.get(place, ""), new.get(place, ""))
        for place in sorted({*old, *new})
        if old.get(place) != new.get(place)
    ]


def _essence(tree: Mapping[bytes, TreeNode]) -> dict[bytes, TreeNode]:
    """Return a tree without what is not compared; hard links are files of equal content."""
    return {
        path: node._replace(
            uid=0,
            gid=0,
            mtime_ns=0,
            same_as=b"",
            mode=node.mode & 0o1777,
            xattrs=tuple((n, v) for n, v in node.xattrs if n.startswith(b"user.")),
        )
        for path, node in tree.items()
        if b"/" in path and node.kind in _KINDS
    }


def _distributions(tree: Mapping[bytes, TreeNode]) -> dict[tuple[bytes, str], str]:
    """Return the versions of distributions, by the folder that they are in and their name."""
    found = {}
    for path, node in tree.items():
        match = _ABOUT.fullmatch(path)
        if match and node.kind == "folder":
            name = match[1].decode(errors="replace").replace("_", "-").lower()
            found[path.rpartition(b"/")[0], name] = match[2].decode(errors="replace")
    return found
