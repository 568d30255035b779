"""The numbered files of a checkpoint mount, and what is known of their names."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import time
from dataclasses import dataclass, field, replace

import trio

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.open_file import OpenFile
from bootseer.checkpoint.mount.pending_version import PendingVersion
from bootseer.checkpoint.mount.renames import FolderRenames
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.api.base import ObjectInfo
from bootseer.store.api.name import is_component

_STATS_BEFORE_LISTING = 8
"""So many names of a folder are asked for one by one before the folder is listed again."""
_LISTINGS = 5
"""Of a folder that changes meanwhile, before one is shown that may have what was there before."""


@dataclass(slots=True, eq=False)
class Inode:
    """A file or folder that the kernel knows, in one version.

    Attributes:
        inode: its number.
        parent, name: where it is, or was when it still had a name.
        entry: what others see under its name; None for a file that was not published yet.
        pending: the version that is being written, or waits to be published.
        opened: who has the file open, and how it is read.
        has_name: whether its name is still its own.
        is_forgotten: the kernel has no use for the number any more.
        children: how many numbered files and folders are, or last were, in this folder.
        changes: counts changes in a folder.
        changed_ns: when a folder was last changed here.
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
        """Whether it is a folder."""
        return self.entry is not None and self.entry.is_folder

    def move_versions(self, path: str) -> None:
        """Have its versions use the path that it now has, or would have."""
        if self.has_name:
            self.opened.move(path)
        if self.pending is not None:
            self.pending.draft.move(path)
            if self.has_name:
                self.pending.draft.move_base(path)

    def put_aside(self, aside: FileEntry | None) -> None:
        """Learn where its published version is kept for those who have it open, if it is."""
        self.opened.put_aside(aside)
        if aside is not None and self.pending is not None:
            self.pending.draft.move_base(aside.name)

    def extended(self) -> dict[bytes, bytes]:
        """Return the extended attributes: how it is stored.

        Raises:
            OSError: ESTALE, it was removed before it was ever published.
        """
        if self.is_folder:
            return {}
        if self.pending is not None:
            return {b"user.bootseer.state": self.pending.state.encode()}
        if self.entry is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        found = {b"user.bootseer.state": b"complete", b"user.bootseer.layout": b"plain"}
        if self.entry.problem is not None:
            found[b"user.bootseer.state"] = f"damaged: {self.entry.problem}".encode()
        if (layout := self.entry.layout) is not None:
            text = f"striped unit={layout.unit_bytes} parts={layout.parts}"
            found[b"user.bootseer.layout"] = text.encode()
            found[b"user.bootseer.digest"] = f"sha256:{layout.digest}".encode()
        return found


@dataclass(slots=True)
class CachedListing:
    """What was last seen in a folder, and how often a single name was asked for since."""

    at: float
    entries: dict[str, FileEntry]
    asked: int = 0


class InodeTable:
    """All files of a mount, by number and by name.

    Concurrency: the tasks of one trio run. What awaits looks again at what it knew before.
    """

    def __init__(self, tree: CheckpointTree, valid_s: float) -> None:
        """Begin with the root.

        Args:
            tree: whose files they are.
            valid_s: how long a listing is believed, in seconds.
        """
        root = Inode(ROOT_INODE, ROOT_INODE, "", FileEntry(ObjectInfo("", 0, 0, is_folder=True)))
        self.by_inode: dict[int, Inode] = {ROOT_INODE: root}
        self.by_name: dict[tuple[int, str], Inode] = {}
        self.moves = FolderRenames(self.is_below, self.drop_unused)
        self._tree = tree
        self._valid_s = valid_s
        self._listings: dict[int, CachedListing] = {}
        # No other file system of the node has such numbers: `OpenWriters` knows files by them.
        self._inodes = itertools.count(secrets.randbelow(2**20) + 1 << 32)

    def new(self, parent: int, name: str, entry: FileEntry | None) -> Inode:
        """Give a name a new number."""
        node = Inode(next(self._inodes), parent, name, entry)
        self.by_inode[node.inode] = node
        self.by_inode[parent].children += 1
        self.by_name[parent, name] = node
        return node

    def remember(self, node: Inode) -> None:
        """Learn that the kernel is told of a number."""
        node.is_forgotten = False

    def forget(self, inode: int) -> None:
        """Learn that the kernel has dropped a number, until it is told of it again."""
        node = self.by_inode.get(inode)
        if node is not None:
            node.is_forgotten = True
            self.drop_unused(inode)

    def drop_unused(self, inode: int) -> None:
        """Drop what the kernel has dropped, unless it is still needed, and the folders it is in.

        A folder is needed for the paths of what is in it.
        """
        while (node := self.by_inode.get(inode)) is not None and node.is_forgotten:
            is_open = node.opened.handles or node.pending is not None
            if is_open or node.children or self.moves.uses(inode) or inode == ROOT_INODE:
                return
            del self.by_inode[inode]
            self._listings.pop(inode, None)
            if self.by_name.get((node.parent, node.name)) is node:
                del self.by_name[node.parent, node.name]
            inode = node.parent
            self.by_inode[inode].children -= 1

    def move(self, node: Inode, parent: int, name: str) -> None:
        """Give a file or folder another name."""
        if self.by_name.get((node.parent, node.name)) is node:
            del self.by_name[node.parent, node.name]
        self.unname(parent, name)
        node.has_name = True
        before = self.by_inode[node.parent]
        node.parent, node.name = parent, name
        self.by_name[parent, name] = node
        self.by_inode[parent].children += 1
        before.children -= 1

    def path(self, node: Inode) -> str:
        """Return the name in the store of a file or folder."""
        parts: list[str] = []
        while node.inode != ROOT_INODE:
            parts.append(node.name)
            node = self.by_inode[node.parent]
        return "/".join(reversed(parts))

    def path_in(self, parent: int, name: str) -> str:
        """Return the name in the store of a name in a folder."""
        above = self.path(self.by_inode[parent])
        return f"{above}/{name}" if above else name

    def info(self, node: Inode) -> ObjectInfo:
        """What is known of a published file, under the name that it has now."""
        assert node.entry is not None
        return replace(node.entry.info, name=self.path(node))

    def node(self, parent: int, name: str, entry: FileEntry) -> Inode:
        """Return the file of a name: the one that is known, if it is still that version."""
        node = self.by_name.get((parent, name))
        if node is not None and node.pending is not None:
            return node
        if node is not None and node.entry is not None:
            same_kind = node.is_folder == entry.is_folder
            if same_kind and (entry.is_folder or _are_one_version(node.entry, entry)):
                node.entry = entry
                return node
            self.unname(parent, name)
        return self.new(parent, name, entry)

    def update(self, node: Inode, entry: FileEntry) -> None:
        """Learn what others see of a file or folder that was changed here."""
        node.entry = entry

    def unname(self, parent: int, name: str) -> None:
        """Learn that a name is nobody's any more."""
        node = self.by_name.pop((parent, name), None)
        if node is not None:
            node.has_name = False

    async def entry(self, parent: Inode, name: str) -> FileEntry | None:
        """Find out what a name is, if what is known is too old."""
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

    async def listing(self, folder: Inode) -> CachedListing:
        """Return what is in a folder, as it was at most `valid_s` ago."""
        async with folder.lock:
            known = self._listings.get(folder.inode)
            if known is not None and known.asked and self._is_valid(known):
                return known
            for _ in range(_LISTINGS):
                changes, now = folder.changes, trio.current_time()
                entries = await self._tree.list(self.path(folder))
                listing = CachedListing(now, {e.name.rpartition("/")[2]: e for e in entries})
                if changes == folder.changes:
                    self._listings[folder.inode] = listing
                    break
            return listing

    async def _find(self, parent: Inode, name: str) -> FileEntry | None:
        """Ask for a name, and again if it may have changed before the answer was there."""
        while True:
            changes = parent.changes
            entry = await self._tree.find(self.path_in(parent.inode, name))
            if changes == parent.changes:
                return entry

    def distrust(self, inode: int) -> None:
        """Look anew for what is in a folder when it is next asked for."""
        self._listings.pop(inode, None)

    def touch(self, inode: int) -> None:
        """Note that what was seen in a folder is no longer all."""
        self.distrust(inode)
        folder = self.by_inode[inode]
        folder.changes += 1
        folder.changed_ns = time.time_ns()

    async def named(self, parent: int, name: str) -> Inode | None:
        """Return the file of a name as it is now, if there is one."""
        node = self.by_name.get((parent, name))
        if node is not None and node.pending is not None:
            return node
        entry = await self._find(self.by_inode[parent], name)
        node = self.by_name.get((parent, name))
        if node is not None and node.pending is not None:
            return node
        if entry is None:
            self.unname(parent, name)
            return None
        listing = self._listings.get(parent)
        if listing is not None and name not in listing.entries:
            # Who is told that it is there looks for it next.
            del self._listings[parent]
        return self.node(parent, name, entry)

    def being_written(self, folder: int) -> list[Inode]:
        """List the files in a folder that have a version in the making."""
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
    if one.layout is None or other.layout is None:
        return one.layout is other.layout
    return one.layout is other.layout or one.layout.digest == other.layout.digest
