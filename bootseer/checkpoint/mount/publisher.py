"""Decide when a file that was written through a mount is published, and when it is given up.

close(2) ─► still open elsewhere: stored only ─► … ─► close(2) ─► the last: published, or an error
                                                          └─► its process was killed: given up
release  ─► a version that no close(2) has published is published, with retries while these may help
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import trio

from bootseer.checkpoint.files.leftovers import ABANDONED_S
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.file_reader import FileReader
from bootseer.checkpoint.mount.inodes import CheckpointInode, InodeTable
from bootseer.checkpoint.mount.open_writers import CloseKind, OpenWriters
from bootseer.checkpoint.mount.pending_version import PendingVersion
from bootseer.checkpoint.write.draft import Drafts, may_succeed_later
from bootseer.errors import BootseerError, Closed
from bootseer.store.wrappers.backoff import Backoff

_log = logging.getLogger(__name__)

_PAUSES = Backoff(first_s=1.0, longest_s=30.0)
_KEEP_S = ABANDONED_S / 4
_NO_TIME = "the mount ended before it could be published"
_CLOSED = (CloseKind.LAST, CloseKind.KILLED)


@dataclass(frozen=True, slots=True)
class LostFile:
    """A version of a file that was written through a mount and will never be published.

    Attributes:
        name: of the file.
        reason: why it is lost.
    """

    name: str
    reason: str


class Publisher:
    """Begins, publishes and gives up the pending versions of a mount's files.

    Concurrency: the tasks of one trio run; the caller of `begin`, `publish` and `abandon` holds the
    lock of the file, the others take it.
    """

    def __init__(
        self,
        inodes: InodeTable,
        tree: CheckpointTree,
        drafts: Drafts,
        reader: FileReader,
        nursery: trio.Nursery,
        on_lost: Callable[[LostFile], None],
    ) -> None:
        """Publish files of `tree`.

        Args:
            inodes: of the mount.
            tree: where they are published.
            drafts: begins new versions.
            reader: knows the versions that were published before.
            nursery: for the tasks that retry.
            on_lost: called with each version that is lost, once that is certain.
        """
        self._inodes = inodes
        self._tree = tree
        self._drafts = drafts
        self._reader = reader
        self._nursery = nursery
        self._on_lost = on_lost
        self._settling = trio.Event()
        self._scopes: set[trio.CancelScope] = set()
        self._has_no_time = False
        nursery.start_soon(self._touch_parts)

    def create(self, parent: int, name: str, mode: int) -> CheckpointInode:
        node = self._inodes.add(parent, name, None)
        draft = self._drafts.begin(self._inodes.path_in(parent, name), mode)
        node.pending = PendingVersion(draft)
        self._inodes.touch(parent)
        return node

    async def begin(self, node: CheckpointInode, *, is_empty: bool = False) -> PendingVersion:
        """Return the pending version of a file, beginning one if there is none.

        Args:
            node: the file.
            is_empty: start with an empty one, replacing the pending version.

        Raises:
            BootseerError: the pending version is lost, or failed before and still cannot be
                published, or has no name any more.
            OSError: ESTALE, the version to start from is gone.
        """
        if not is_empty and (pending := node.pending) is not None and pending.failed is not None:
            # It is unknown how far the failed attempts have come, so it must not change any more.
            # And if it has lost its name, that may be another file's.
            if pending.is_lost or not node.has_name:
                raise pending.failed.again()
            await self.publish(node)
        before = node.pending
        if before is None:
            if is_empty:
                entry, base = self._reader.version(node), None
            else:
                entry = await self._reader.usable(node)
                base = self._tree.source(entry)
            draft = self._drafts.begin(entry.name, entry.info.mode, base)
            node.pending = pending = PendingVersion(draft)
        elif is_empty:
            # Never without a pending version: without one, an unpublished file has no name.
            draft = self._drafts.begin(self._inodes.path(node), before.draft.mode)
            node.pending = pending = PendingVersion(draft)
            await before.draft.discard()
        else:
            pending = before
            pending.is_vouched = False
        return pending

    async def publish(self, node: CheckpointInode) -> None:
        """Publish the pending version of a file.

        Raises:
            BootseerError: it cannot be published; while `Draft.is_lost` is not true, a later
                attempt may succeed.
        """
        assert node.pending is not None
        self._inodes.update(node, await node.pending.publish())
        node.pending = None
        node.opened.stop_recording()
        self._inodes.touch(node.parent)
        await node.opened.end_version()

    async def flush(self, node: CheckpointInode, open_writers: OpenWriters) -> None:
        """Handle a close(2) of a writer; see the module's docstring.

        Raises:
            BootseerError: the version cannot be stored or published.
        """
        open_writers.closing = CloseKind.UNKNOWN
        with self._closing(node) as scope:
            async with self._inodes.locks.using(node.inode), node.lock:
                await self._flush(node, open_writers)
        self._notify()
        if scope.cancelled_caught:
            failed = node.pending.failed if node.pending is not None else None
            raise failed or Closed(_NO_TIME)

    async def release(self, node: CheckpointInode, open_writers: OpenWriters | None) -> None:
        """Handle the end of a handle; after the last writer's, the version is published."""
        with self._closing(node):
            async with self._inodes.locks.using(node.inode), node.lock:
                node.opened.remove_handle(open_writers)
                is_used = node.opened.writers if node.has_name else node.opened.handles
                if node.pending is not None and not is_used:
                    await self._end_pending(node)
                if not node.opened.handles:
                    await self._reader.close_unused(node)
        self._notify()

    async def drain_below(self, folder: CheckpointInode) -> None:
        """End all parts of pending versions below a folder, so that it can be renamed.

        Raises:
            BootseerError: a version cannot be stored.
        """
        for node in list(self._inodes.by_inode.values()):
            if self._inodes.is_below(node.inode, folder.inode):
                async with node.lock:
                    if node.pending is not None and not node.pending.draft.is_lost:
                        await node.pending.draft.drain()

    async def empty_folder(self, folder: CheckpointInode) -> None:
        """Move parts of files that were removed and are still open out of a folder.

        Raises:
            BootseerError: a version cannot be stored.
        """
        for node in list(self._inodes.by_inode.values()):
            if node.parent == folder.inode and not node.has_name:
                async with node.lock:
                    if node.pending is not None and node.pending.draft.is_lost:
                        await node.pending.draft.discard()
                    elif node.pending is not None:
                        await node.pending.draft.leave_folder()

    async def abandon(self, node: CheckpointInode) -> None:
        """Discard a pending version that no handle may write; the file stays as it was."""
        if node.pending is not None:
            await self._discard(node)
            self._notify()

    async def settled(self) -> None:
        """Wait until every file that all its writers have closed is published or lost."""
        while any(_is_closed(node) for node in self._inodes.by_inode.values()):
            await self._settling.wait()

    def interrupt(self) -> None:
        """Give up versions that are still being published: the mount has to end."""
        self._has_no_time = True
        for scope in list(self._scopes):
            scope.cancel()

    async def end(self, within_s: float) -> None:
        """Publish closed versions within `within_s` seconds, and give up the rest."""
        nodes = self._inodes.by_inode.values()
        left = [n for n in nodes if n.has_name and _may_be_published(n)]
        left.sort(key=lambda node: not _is_closed(node))
        with trio.move_on_after(within_s):
            for node in left:
                async with self._inodes.locks.using(node.inode), node.lock:
                    await self._publish_or_lose(node)
        for node in left:
            if (pending := node.pending) is not None and not pending.is_lost:
                why = f": {pending.failed}" if pending.failed else ""
                self._lose(node, Closed(f"{_NO_TIME}{why}"))

    @contextmanager
    def _closing(self, node: CheckpointInode) -> Iterator[trio.CancelScope]:
        """Shield publishing from the mount's end, until `interrupt` is called."""
        with trio.CancelScope(shield=True) as scope:
            if self._has_no_time:
                scope.cancel()
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.remove(scope)
        if scope.cancelled_caught and node.has_name and _may_be_published(node):
            self._lose(node, Closed(_NO_TIME))

    async def _publish_or_lose(self, node: CheckpointInode) -> None:
        pending = node.pending
        if pending is None:
            return
        if _is_closed(node):
            try:
                await self.publish(node)
                return
            except BootseerError as error:
                self._lose(node, error)
        else:
            self._lose(node, Closed("it was still being written when the mount ended"))
        await pending.draft.discard()

    async def _flush(self, node: CheckpointInode, open_writers: OpenWriters) -> None:
        open_writers.closing, by_opener = await open_writers.scan(node.inode)
        pending = node.pending
        if pending is None:
            return
        is_last = node.has_name and all(w.closing in _CLOSED for w in node.opened.writers)
        if is_last and open_writers.closing is CloseKind.KILLED and not pending.is_vouched:
            self._withdraw(node)
        elif is_last:
            await self.publish(node)
        else:
            pending.is_vouched |= by_opener or open_writers.closing is CloseKind.LAST
            await pending.draft.flush()

    def _withdraw(self, node: CheckpointInode) -> None:
        """Give up a version whose writer was killed, and show the one before."""
        why = "its writer was killed by a signal; the previous version is kept"
        self._lose(node, Closed(why))
        self._inodes.remove_name(node.parent, node.name)
        self._inodes.touch(node.parent)
        if self._reader.kernel is not None:
            self._reader.kernel.forget_entry(node.parent, node.name.encode())

    async def _end_pending(self, node: CheckpointInode) -> None:
        """Publish, or discard, a version that its last writer has closed."""
        pending = node.pending
        assert pending is not None
        if not node.has_name:
            await self._discard(node)
            return
        await self._attempt(node)
        if _may_be_published(node):
            self._nursery.start_soon(self._retry, node, pending)

    async def _attempt(self, node: CheckpointInode) -> None:
        """Publish a file that no handle may write; an error is logged."""
        try:
            await self.publish(node)
        except BootseerError as error:
            assert node.pending is not None
            if may_succeed_later(error) and not node.pending.draft.is_lost:
                _log.warning("%s is not published yet: %s", self._inodes.path(node), error)
            else:
                # The next open(2) of the file fails with this error.
                self._lose(node, error)

    async def _retry(self, node: CheckpointInode, pending: PendingVersion) -> None:
        """Retry until it is published, is written again, or the mount ends."""
        for attempt in itertools.count(1):
            await trio.sleep(_PAUSES.pause_s(attempt))
            async with self._inodes.locks.using(node.inode), node.lock:
                if node.pending is not pending or node.opened.writers or not node.has_name:
                    break
                await self._attempt(node)
                if node.pending is not pending or pending.is_lost:
                    break
        self._notify()

    async def _touch_parts(self) -> None:
        """Keep `bootseer ckpt gc` from removing parts of files that are open for days."""
        while True:
            await trio.sleep(_KEEP_S)
            for node in list(self._inodes.by_inode.values()):
                async with self._inodes.locks.using(node.inode), node.lock:
                    if (pending := node.pending) is not None and not pending.is_lost:
                        with suppress(BootseerError):  # it is repeated
                            await pending.draft.touch()

    async def _discard(self, node: CheckpointInode) -> None:
        assert node.pending is not None
        pending, node.pending = node.pending, None
        await pending.draft.discard()

    def _lose(self, node: CheckpointInode, error: BootseerError) -> None:
        """Report that a version will never be published."""
        assert node.pending is not None
        node.pending.lose(error)
        lost = LostFile(self._inodes.path(node), str(error))
        _log.error("%s is lost: %s", lost.name, lost.reason)
        self._on_lost(lost)

    def _notify(self) -> None:
        self._settling.set()
        self._settling = trio.Event()


def _may_be_published(node: CheckpointInode) -> bool:
    """Tell whether a file has a version that is not published and not lost."""
    return node.pending is not None and not node.pending.is_lost


def _is_closed(node: CheckpointInode) -> bool:
    """Tell whether all writers of a version have closed it, so that it is to be published."""
    if not node.has_name or not _may_be_published(node):
        return False
    return all(w.closing not in (None, CloseKind.HELD) for w in node.opened.writers)
