"""The inodes of a checkpoint mount, and what is known of their names."""

from __future__ import annotations

import errno
import itertools
import secrets
import time
from dataclasses import dataclass, field, replace

import trio

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.folder_locks import FolderLocks
from bootseer.checkpoint.mount.open_file import OpenFile
from bootseer.checkpoint.mount.pending_version import PendingVersion
from bootseer.fuse.view import ROOT_INODE
from bootseer.posix import os_error
from bootseer.store.api.base import ObjectInfo
from bootseer.store.api.name import is_component

_STATS_BEFORE_LISTING = 8
"""Names of a folder that are asked for one by one before the folder is listed again."""
_STATE, _LAYOUT, _DIGEST = (
    f"user.bootseer.{name}".encode() for name in ("state", "layout", "digest")
)
_LISTINGS = 5
"""Listings of a folder that changes meanwhile, before one is used that may be outdated."""


@dataclass(eq=False)
class CheckpointInode:
    """A file or folder that the kernel knows, in one version.

    Attributes:
        inode: inode number.
        parent, name: present name, or the last one if it has none.
        entry: what other nodes see under its name; None for a file that was never published.
        pending: the version that is being written, or waits to be published.
        opened: the handles of a file, and how it is read.
        has_name: false when it was removed or replaced.
        is_forgotten: the kernel does not use the number any more.
        children: number of inodes that are, or last were, in this folder.
        changes: number of changes in a folder.
        changed_ns: time of the last change in a folder through this mount.
        lock: held while its version changes.
    """

    inode: int
    parent: int
    name: str
    entry: FileEntry | None
    pending: PendingVersion | None = None
    opened: OpenFile = field(default_factory=OpenFile)
    has_name: bool = True
    is_forgotten: bool = False
    children: int = 0
    changes: int = 0
    changed_ns: int = 0
    lock: trio.Lock = field(default_factory=trio.Lock)

    @property
    def is_folder(self) -> bool:
        return self.entry is not None and self.entry.is_folder

    def move_versions(self, path: str) -> None:
        """Set the new path of its versions, published and pending."""
        if self.has_name:
            self.opened.move(path)
        if self.pending is not None:
            self.pending.draft.move(path)
            if self.has_name:
                self.pending.draft.move_base(path)

    def put_aside(self, aside: FileEntry | None) -> None:
        """Set where its published version is kept for open handles; None if it is lost."""
        self.opened.put_aside(aside)
        if aside is not None and self.pending is not None:
            self.pending.draft.move_base(aside.name)

    def extended_names(self) -> list[bytes]:
        """Return the names of the extended attributes, sorted.

        Raises:
            OSError: ESTALE, it was removed before it was published.
        """
        if self.is_folder:
            return []
        if self.pending is not None:
            return [_STATE]
        if self.entry is None:
            raise os_error(errno.ESTALE)
        return [*([_DIGEST] if self.entry.is_striped else ()), _LAYOUT, _STATE]

    def extended(self, entry: FileEntry | None = None) -> dict[bytes, bytes]:
        """Return the extended attributes, which tell how it is stored.

        Args:
            entry: of its published version, read; what is known of that if None.
        """
        if self.pending is not None:
            return {_STATE: self.pending.state.encode()}
        entry = entry or self.entry
        if entry is None or entry.is_folder:
            return {}
        found = {_STATE: b"complete", _LAYOUT: b"plain"}
        if entry.problem is not None:
            found[_STATE] = f"damaged: {entry.problem}".encode()
        if (layout := entry.layout) is not None:
            found[_LAYOUT] = f"striped unit={layout.unit_bytes} parts={layout.parts}".encode()
            found[_DIGEST] = f"sha256:{layout.digest}".encode()
        return found


@dataclass(slots=True)
class CachedListing:
    """The last listing of a folder, its time, and how many names were looked up since."""

    at: float
    entries: dict[str, FileEntry]
    asked: int = 0


class InodeTable:
    """All inodes of a mount, by number and by name.

    Concurrency: the tasks of one trio run. A method looks up again after each await.
    """

    def __init__(self, tree: CheckpointTree, valid_s: float) -> None:
        """Begin with the root.

        Args:
            tree: to look names up in.
            valid_s: seconds for which a listing is valid.
        """
        root = CheckpointInode(
            ROOT_INODE, ROOT_INODE, "", FileEntry(ObjectInfo("", 0, 0, is_folder=True))
        )
        self.by_inode: dict[int, CheckpointInode] = {ROOT_INODE: root}
        self.by_name: dict[tuple[int, str], CheckpointInode] = {}
        self.locks = FolderLocks(self.is_below, self.drop_unused)
        self._tree = tree
        self._valid_s = valid_s
        self._listings: dict[int, CachedListing] = {}
        # No other file system of the node has such numbers: `OpenWriters` knows files by them.
        self._numbers = itertools.count(secrets.randbelow(2**20) + 1 << 32)

    def add(self, parent: int, name: str, entry: FileEntry | None) -> CheckpointInode:
        node = CheckpointInode(next(self._numbers), parent, name, entry)
        self.by_inode[node.inode] = node
        self.by_inode[parent].children += 1
        self.by_name[parent, name] = node
        return node

    def remember(self, node: CheckpointInode) -> None:
        """Note that the kernel is told of an inode."""
        node.is_forgotten = False

    def forget(self, inode: int) -> None:
        """Note that the kernel has dropped a number; it may be told of it again."""
        node = self.by_inode.get(inode)
        if node is not None:
            node.is_forgotten = True
            self.drop_unused(inode)

    def drop_unused(self, inode: int) -> None:
        """Drop an inode that the kernel has dropped and nothing needs, and its folders likewise.

        A folder is needed for the paths of its inodes.
        """
        while (node := self.by_inode.get(inode)) is not None and node.is_forgotten:
            is_open = node.opened.handles or node.pending is not None
            if is_open or node.children or self.locks.uses(inode) or inode == ROOT_INODE:
                return
            del self.by_inode[inode]
            self._listings.pop(inode, None)
            if self.by_name.get((node.parent, node.name)) is node:
                del self.by_name[node.parent, node.name]
            inode = node.parent
            self.by_inode[inode].children -= 1

    def move(self, node: CheckpointInode, parent: int, name: str) -> None:
        if self.by_name.get((node.parent, node.name)) is node:
            del self.by_name[node.parent, node.name]
        self.remove_name(parent, name)
        node.has_name = True
        before = self.by_inode[node.parent]
        node.parent, node.name = parent, name
        self.by_name[parent, name] = node
        self.by_inode[parent].children += 1
        before.children -= 1

    def path(self, node: CheckpointInode) -> str:
        """Return the store's name of a file or folder."""
        parts: list[str] = []
        while node.inode != ROOT_INODE:
            parts.append(node.name)
            node = self.by_inode[node.parent]
        return "/".join(reversed(parts))

    def path_in(self, parent: int, name: str) -> str:
        """Return the store's name for a name in a folder."""
        above = self.path(self.by_inode[parent])
        return f"{above}/{name}" if above else name

    def info(self, node: CheckpointInode) -> ObjectInfo:
        """Return what is known of a published file, with its present name."""
        assert node.entry is not None
        return replace(node.entry.info, name=self.path(node))

    def inode_for(self, parent: int, name: str, entry: FileEntry) -> CheckpointInode:
        """Return the inode of an entry: the known one if it is the same version, else a new one."""
        node = self.by_name.get((parent, name))
        if node is not None and node.pending is not None:
            return node
        if node is not None and node.entry is not None:
            same_kind = node.is_folder == entry.is_folder
            if same_kind and (entry.is_folder or _are_one_version(node.entry, entry)):
                # The layout of a file that is read stays.
                node.entry = replace(node.entry, info=entry.info) if entry.is_unread else entry
                return node
            self.remove_name(parent, name)
        return self.add(parent, name, entry)

    def update(self, node: CheckpointInode, entry: FileEntry) -> None:
        """Set the entry of a file or folder that was changed through this mount."""
        node.entry = entry

    def remove_name(self, parent: int, name: str) -> None:
        """Note that a name is not used any more."""
        node = self.by_name.pop((parent, name), None)
        if node is not None:
            node.has_name = False

    async def lookup_entry(self, parent: CheckpointInode, name: str) -> FileEntry | None:
        """Return the entry of a name, from the listing if it is valid; None if there is none."""
        listing = self._listings.get(parent.inode)
        if listing is not None:
            listing.asked += 1
            if self._is_valid(listing):
                return listing.entries.get(name)
            if listing.asked >= _STATS_BEFORE_LISTING:
                return (await self.listing(parent)).entries.get(name)
        if not is_component(name):
            await trio.lowlevel.checkpoint()
            return None
        return await self._find(parent, name)

    def _is_valid(self, listing: CachedListing) -> bool:
        return trio.current_time() - listing.at <= self._valid_s

    async def listing(self, folder: CheckpointInode) -> CachedListing:
        """Return a listing of a folder that is at most `valid_s` old."""
        async with folder.lock:
            known = self._listings.get(folder.inode)
            if known is not None and known.asked and self._is_valid(known):
                return known
            for _ in range(_LISTINGS):
                changes, now = folder.changes, trio.current_time()
                entries = await self._tree.show_folder(self.path(folder))
                listing = CachedListing(now, {e.name.rpartition("/")[2]: e for e in entries})
                if changes == folder.changes:
                    self._listings[folder.inode] = listing
                    break
            return listing

    async def _find(self, parent: CheckpointInode, name: str) -> FileEntry | None:
        """Ask the store for a name, and again if the folder has changed meanwhile."""
        while True:
            changes = parent.changes
            entry = await self._tree.show(self.path_in(parent.inode, name))
            if changes == parent.changes:
                return entry

    def invalidate(self, inode: int) -> None:
        self._listings.pop(inode, None)

    def touch(self, inode: int) -> None:
        """Note a change in a folder: its listing is outdated."""
        self.invalidate(inode)
        folder = self.by_inode[inode]
        folder.changes += 1
        folder.changed_ns = time.time_ns()

    async def lookup(self, parent: int, name: str) -> CheckpointInode | None:
        """Return the inode of a name, asking the store; None if there is no such file."""
        node = self.by_name.get((parent, name))
        if node is not None and node.pending is not None:
            return node
        entry = await self._find(self.by_inode[parent], name)
        node = self.by_name.get((parent, name))
        if node is not None and node.pending is not None:
            return node
        if entry is None:
            self.remove_name(parent, name)
            return None
        listing = self._listings.get(parent)
        if listing is not None and name not in listing.entries:
            # The caller may answer that it exists, and the kernel looks it up next.
            del self._listings[parent]
        return self.inode_for(parent, name, entry)

    def pending_files(self, folder: int) -> list[CheckpointInode]:
        """Return the files in a folder that have a pending version."""
        return [
            node
            for (parent, _), node in self.by_name.items()
            if parent == folder and node.pending is not None
        ]

    def is_below(self, inode: int, folder: int) -> bool:
        """Tell whether a file or folder is somewhere below a folder."""
        node = self.by_inode.get(inode)
        while node is not None and node.inode != ROOT_INODE:
            if node.parent == folder:
                return True
            node = self.by_inode[node.parent]
        return False


def _are_one_version(one: FileEntry, other: FileEntry) -> bool:
    if not one.info.is_version(other.info) or str(one.problem or "") != str(other.problem or ""):
        return False
    if one.is_unread or other.is_unread:
        return one.is_striped and other.is_striped and one.size_bytes == other.size_bytes
    if one.layout is None or other.layout is None:
        return one.layout is other.layout
    return one.layout is other.layout or one.layout.digest == other.layout.digest
