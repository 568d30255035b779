"""When a file that was written through a mount is shown to others, and when it is not.

close(2) ─► still open elsewhere: only stored ─► … ─► close(2) ─► last: published, or its error
                                                          └─► its process was killed: given up
release  ─► what was not published at a close(2) is, again and again while that may help
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
from bootseer.checkpoint.mount.inodes import Inode, InodeTable
from bootseer.checkpoint.mount.open_writers import CloseKind, OpenWriters
from bootseer.checkpoint.mount.pending_version import PendingVersion
from bootseer.checkpoint.write.draft import Drafts, may_pass
from bootseer.errors import BootseerError, Closed
from bootseer.store.wrappers.backoff import Backoff

_log = logging.getLogger(__name__)

_PAUSES = Backoff(first_s=1.0, longest_s=30.0)
_KEEP_S = ABANDONED_S / 4
_NO_TIME = "the mount ended before it could be published"
_CLOSED = (CloseKind.LAST, CloseKind.KILLED)


@dataclass(frozen=True, slots=True)
class LostFile:
    """A version of a file that was written through a mount, and is not in the store.

    Attributes:
        name: where it would be.
        reason: why it is not there.
    """

    name: str
    reason: str


class Publisher:
    """The versions in the making of a mount's files.

    Concurrency: the tasks of one trio run; the caller of `begin`, `publish` and `abandon` holds the
    lock of the file, the others take it.
    """

    def __init__(
        self,
        nodes: InodeTable,
        tree: CheckpointTree,
        drafts: Drafts,
        reader: FileReader,
        nursery: trio.Nursery,
        on_lost: Callable[[LostFile], None],
    ) -> None:
        """Publish files of `tree`.

        Args:
            nodes: its numbered files.
            tree: where they are published.
            drafts: makes new versions.
            reader: reads the versions that were published before.
            nursery: for the tasks that try again.
            on_lost: told of each version that is lost, once that is certain.
        """
        self._nodes = nodes
        self._tree = tree
        self._drafts = drafts
        self._reader = reader
        self._nursery = nursery
        self._on_lost = on_lost
        self._settling = trio.Event()
        self._scopes: set[trio.CancelScope] = set()
        self._has_no_time = False
        nursery.start_soon(self._keep)

    def create(self, parent: int, name: str, mode: int) -> Inode:
        """Begin a file that is not there."""
        node = self._nodes.new(parent, name, None)
        draft = self._drafts.begin(self._nodes.path_in(parent, name), mode)
        node.pending = PendingVersion(draft)
        self._nodes.touch(parent)
        return node

    async def begin(self, node: Inode, *, is_empty: bool = False) -> PendingVersion:
        """Return the version that is being written, and begin one if there is none.

        Args:
            node: the file.
            is_empty: begin, or go on, with nothing in it.

        Raises:
            BootseerError: what was written before is lost, or waits and still cannot be published,
                or never will be, for it has no name any more.
            OSError: ESTALE, there is nothing to begin with.
        """
        if not is_empty and (pending := node.pending) is not None and pending.failed is not None:
            # How far the attempts before have come is not known: it is not written any more. And
            # the name of one that has lost it may be another file's.
            if pending.is_lost or not node.has_name:
                raise pending.failed.again()
            await self.publish(node)
        before = node.pending
        if before is None:
            entry = self._reader.version(node)
            base = None if is_empty else self._tree.source(entry)
            draft = self._drafts.begin(entry.name, entry.info.mode, base)
            node.pending = pending = PendingVersion(draft)
        elif is_empty:
            # Never without one: what is not published has its name by that alone.
            draft = self._drafts.begin(self._nodes.path(node), before.draft.mode)
            node.pending = pending = PendingVersion(draft)
            await before.draft.discard()
        else:
            pending = before
            pending.is_vouched = False
        return pending

    async def publish(self, node: Inode) -> None:
        """Show a version to others.

        Raises:
            BootseerError: it cannot be published; while `Draft.is_lost` is not true, a later
                attempt may succeed.
        """
        assert node.pending is not None
        self._nodes.update(node, await node.pending.publish())
        node.pending = None
        node.opened.stop_recording()
        self._nodes.touch(node.parent)
        await node.opened.end_version()

    async def flush(self, node: Inode, open_writers: OpenWriters) -> None:
        """Do what a close(2) of a writer asks for; see the module's beginning.

        Raises:
            BootseerError: it cannot be stored, or not be published.
        """
        open_writers.closing = CloseKind.UNKNOWN
        with self._closing(node) as scope:
            async with self._nodes.moves.using(node.inode), node.lock:
                await self._flush(node, open_writers)
        self._notify()
        if scope.cancelled_caught:
            failed = node.pending.failed if node.pending is not None else None
            raise failed or Closed(_NO_TIME)

    async def release(self, node: Inode, open_writers: OpenWriters | None) -> None:
        """Count one who had the file open off; what its last writer leaves is published."""
        with self._closing(node):
            async with self._nodes.moves.using(node.inode), node.lock:
                node.opened.remove_handle(open_writers)
                is_used = node.opened.writers if node.has_name else node.opened.handles
                if node.pending is not None and not is_used:
                    await self._end_pending(node)
                if not node.opened.handles:
                    await self._reader.close_unused(node)
        self._notify()

    async def drain_below(self, folder: Inode) -> None:
        """Have nothing on its way to what is being written in a folder, so that it can move.

        Raises:
            BootseerError: something that was written cannot be stored.
        """
        for node in list(self._nodes.by_inode.values()):
            if self._nodes.is_below(node.inode, folder.inode):
                async with node.lock:
                    if node.pending is not None and not node.pending.draft.is_lost:
                        await node.pending.draft.drain()

    async def empty_folder(self, folder: Inode) -> None:
        """Take out of a folder what is made of files that are removed and still open.

        Raises:
            BootseerError: something that was written cannot be stored.
        """
        for node in list(self._nodes.by_inode.values()):
            if node.parent == folder.inode and not node.has_name:
                async with node.lock:
                    if node.pending is not None and node.pending.draft.is_lost:
                        await node.pending.draft.discard()
                    elif node.pending is not None:
                        await node.pending.draft.leave_folder()

    async def abandon(self, node: Inode) -> None:
        """Give up a version that nobody has open to write, and leave the file as it was."""
        if node.pending is not None:
            await self._discard(node)
            self._notify()

    async def settled(self) -> None:
        """Wait until every file that its writers have closed is published or lost."""
        while any(_is_closed(node) for node in self._nodes.by_inode.values()):
            await self._settling.wait()

    def interrupt(self) -> None:
        """Give up what is still being closed: the mount has to end."""
        self._has_no_time = True
        for scope in list(self._scopes):
            scope.cancel()

    async def end(self, within_s: float) -> None:
        """Publish what was closed, as far as time allows, and give up the rest."""
        nodes = self._nodes.by_inode.values()
        left = [n for n in nodes if n.has_name and _may_be_published(n)]
        left.sort(key=lambda node: not _is_closed(node))
        with trio.move_on_after(within_s):
            for node in left:
                async with self._nodes.moves.using(node.inode), node.lock:
                    await self._end(node)
        for node in left:
            if (pending := node.pending) is not None and not pending.is_lost:
                why = f": {pending.failed}" if pending.failed else ""
                self._lose(node, Closed(f"{_NO_TIME}{why}"))

    @contextmanager
    def _closing(self, node: Inode) -> Iterator[trio.CancelScope]:
        """Leave no file half published because the mount ends, unless there is no time left."""
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

    async def _end(self, node: Inode) -> None:
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

    async def _flush(self, node: Inode, open_writers: OpenWriters) -> None:
        open_writers.closing, by_opener = await open_writers.look(node.inode)
        pending = node.pending
        if pending is None:
            return
        is_last = node.has_name and all(w.closing in _CLOSED for w in node.opened.writers)
        if is_last and open_writers.closing is CloseKind.KILLED and not pending.is_vouched:
            self._hide(node)
        elif is_last:
            await self.publish(node)
        else:
            pending.is_vouched |= by_opener or open_writers.closing is CloseKind.LAST
            await pending.draft.flush()

    def _hide(self, node: Inode) -> None:
        """Lose a version whose writer was killed, and show what was there before."""
        why = "its writer was killed by a signal; what was there before is there still"
        self._lose(node, Closed(why))
        self._nodes.unname(node.parent, node.name)
        self._nodes.touch(node.parent)
        if self._reader.kernel is not None:
            self._reader.kernel.forget_entry(node.parent, node.name.encode())

    async def _end_pending(self, node: Inode) -> None:
        """Publish, or give up, what its last writer has closed."""
        pending = node.pending
        assert pending is not None
        if not node.has_name:
            await self._discard(node)
            return
        await self._try(node)
        if _may_be_published(node):
            self._nursery.start_soon(self._try_again, node, pending)

    async def _try(self, node: Inode) -> None:
        """Publish a file that nobody has open to write; nobody waits for the answer."""
        try:
            await self.publish(node)
        except BootseerError as error:
            assert node.pending is not None
            if may_pass(error) and not node.pending.draft.is_lost:
                _log.warning("%s is not published yet: %s", self._nodes.path(node), error)
            else:
                # Who opens the file next learns of it, too.
                self._lose(node, error)

    async def _try_again(self, node: Inode, pending: PendingVersion) -> None:
        """Try until it is published, or somebody else sees to that, or the mount ends."""
        for attempt in itertools.count(1):
            await trio.sleep(_PAUSES.pause_s(attempt))
            async with self._nodes.moves.using(node.inode), node.lock:
                if node.pending is not pending or node.opened.writers or not node.has_name:
                    break
                await self._try(node)
                if node.pending is not pending or pending.is_lost:
                    break
        self._notify()

    async def _keep(self) -> None:
        """Have what is open to write for days kept by `bootseer ckpt gc`."""
        while True:
            await trio.sleep(_KEEP_S)
            for node in list(self._nodes.by_inode.values()):
                async with self._nodes.moves.using(node.inode), node.lock:
                    if (pending := node.pending) is not None and not pending.is_lost:
                        with suppress(BootseerError):  # there is the next time
                            await pending.draft.keep()

    async def _discard(self, node: Inode) -> None:
        assert node.pending is not None
        pending, node.pending = node.pending, None
        await pending.draft.discard()

    def _lose(self, node: Inode, error: BootseerError) -> None:
        """Tell that a version will never be published."""
        assert node.pending is not None
        node.pending.lose(error)
        lost = LostFile(self._nodes.path(node), str(error))
        _log.error("%s is lost: %s", lost.name, lost.reason)
        self._on_lost(lost)

    def _notify(self) -> None:
        self._settling.set()
        self._settling = trio.Event()


def _may_be_published(node: Inode) -> bool:
    """Tell whether a file has a version that is not published and not lost."""
    return node.pending is not None and not node.pending.is_lost


def _is_closed(node: Inode) -> bool:
    """Tell whether all writers of a version have closed it, so that it is to be published."""
    if not node.has_name or not _may_be_published(node):
        return False
    return all(w.closing not in (None, CloseKind.HELD) for w in node.opened.writers)
