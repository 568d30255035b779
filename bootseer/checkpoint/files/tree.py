"""Look up files in a tree of a store that has striped files.

Names are those of the store. A striped file has the name of its manifest; the folders of parts are
not shown. `Namespace` changes names, `Publication` adds versions, `RetiredParts` and `Leftovers`
remove parts. `show` and `show_folder` are for a mount, whose every node asks for every file: they
read no manifest whose length is marked, and look for no truncated ones; `load` and `check` do that
for one file, when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from bootseer.checkpoint.files.entries import FileEntry, ManifestCache
from bootseer.checkpoint.files.parts import Parts
from bootseer.checkpoint.files.size_marks import SizeMarks, version_key
from bootseer.checkpoint.files.source import FileSource, PlainSource, StripedSource
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, StripeManifest
from bootseer.checkpoint.files.truncation_probe import TruncationProbe
from bootseer.errors import Conflict, Corrupt, NotFound
from bootseer.parallel import for_each
from bootseer.peers.shared_files import SharedFiles
from bootseer.store.api.base import ObjectInfo, Store, Unlisted

_READS_AT_ONCE = 16
"""Manifests that a listing reads at once."""
_READS_OF_LISTING = 1
"""Manifests that a listing reads without looking for marks: a list is no cheaper than an open."""


class CheckpointTree:
    """Looks up the files and folders of a store, striped ones among them.

    Errors are the store's.

    Attributes:
        store: where they are.
        parts: of the striped files.
        manifests: those that were read.
        marks: of the lengths of the striped files.
        probe: finds truncated manifests; changes of files announce themselves to it.
    """

    def __init__(self, store: Store, shared: SharedFiles | None = None) -> None:
        """Look up what is in a store.

        Args:
            store: where the files are.
            shared: those that other nodes of a job read, too.
        """
        self.store = store
        self._shared = shared
        self.parts = Parts(store)
        self.manifests = ManifestCache(store)
        self.marks = SizeMarks(store)
        self.probe = TruncationProbe(store, self.manifests)

    async def stat(self, name: str) -> FileEntry:
        """Return the entry of a file or folder; ``""`` is the root, which need not exist yet.

        Raises:
            NotFound: there is none.
        """
        if not name:
            return FileEntry(ObjectInfo("", 0, 0, is_folder=True))
        check_shown(name)
        entry = await self.manifests.entry(await self.store.stat(name))
        return await self.probe.check_one(entry)

    async def find(self, name: str) -> FileEntry | None:
        """Return the entry of a file or folder; None if there is none."""
        try:
            return await self.stat(name)
        except NotFound:
            return None

    async def show(self, name: str) -> FileEntry | None:
        """Return the entry of a file or folder, perhaps unread; None if there is none."""
        try:
            check_shown(name)
            info = await self.store.stat(name)
            if self.manifests.known(info) is None:
                marked_bytes = await self.marks.look_up(info)
                if marked_bytes is not None:
                    return FileEntry(info, marked_bytes=marked_bytes)
            return await self.manifests.entry(info)
        except NotFound:
            return None

    async def load(self, entry: FileEntry) -> FileEntry:
        """Return an entry of `show` or `show_folder` after reading its manifest.

        Raises:
            Conflict: it is of another length: it was replaced, or its mark is wrong.
        """
        if not entry.is_unread:
            return entry
        found = await self.manifests.entry(entry.info)
        if found.problem is None and found.size_bytes != entry.size_bytes:
            raise Conflict(f"{entry.name!r} was replaced; open it again")
        return found

    async def check(self, entry: FileEntry) -> FileEntry:
        """Return `load` of an entry, with a problem if it may be a truncated manifest."""
        return await self.probe.check_one(await self.load(entry))

    async def has_version(self, name: str, layout: StripeManifest) -> bool:
        """Tell whether a name is of a file with the parts that a manifest names."""
        found = await self.find(name)
        return found is not None and found.has_parts_of(layout)

    async def list(
        self, folder: str = "", unlisted: list[Unlisted] | None = None
    ) -> Sequence[FileEntry]:
        """Return the entries of a folder, sorted by name.

        A manifest is read once; it is read again when its length or time has changed.

        Args:
            folder: its name.
            unlisted: gets the objects that cannot be used.
        """
        listing = await self.store.list(folder)
        if unlisted is not None:
            unlisted += listing.unlisted
        return await self.probe.check(folder, await self._entries(listing))

    async def show_folder(self, folder: str = "") -> Sequence[FileEntry]:
        """Return the entries of a folder, sorted by name; some may be unread."""
        listing = await self.store.list(folder)
        unknown = sum(self.manifests.known(info) is None for info in listing)
        if unknown <= _READS_OF_LISTING:
            return await self._entries(listing)
        # Later than the files: a mark without its file does no harm.
        return await self._entries(listing, await self.marks.list(folder))

    async def _entries(
        self, infos: Sequence[ObjectInfo], sizes: Mapping[str, int] | None = None
    ) -> Sequence[FileEntry]:
        """Return the entries of objects that users see, but for those that are gone.

        Args:
            infos: of the objects.
            sizes: lengths of striped files by `version_key`; other manifests are read.
        """
        infos = [info for info in infos if is_shown(info.name)]
        entries: list[FileEntry | None] = [self.manifests.known(info) for info in infos]
        unread: list[int] = []
        for index, info in enumerate(infos):
            if entries[index] is None:
                marked_bytes = sizes.get(version_key(info)) if sizes else None
                if marked_bytes is not None:
                    entries[index] = FileEntry(info, marked_bytes=marked_bytes)
                else:
                    unread.append(index)

        async def read(index: int) -> None:
            with suppress(NotFound):
                entries[index] = await self.manifests.entry(infos[index])

        await for_each(unread, read, min(_READS_AT_ONCE, len(unread)))
        return [entry for entry in entries if entry is not None]

    def source(self, entry: FileEntry) -> FileSource:
        """Return a source that reads a version of a file.

        Raises:
            Corrupt: its manifest cannot be used.
            Conflict: it is a folder.
        """
        if entry.is_folder:
            raise Conflict(f"{entry.name!r} is a folder")
        if entry.problem is not None:
            raise Corrupt(str(entry.problem)) from entry.problem
        if entry.layout is not None:
            return StripedSource(self.store, entry.info, entry.layout, self._shared)
        return PlainSource(self.store, entry.info)


def is_shown(name: str) -> bool:
    """Tell whether users see an object; they do not see folders of parts."""
    return name.rpartition("/")[2] != PARTS_FOLDER


def check_shown(name: str) -> None:
    """Refuse a name that users do not see.

    Raises:
        NotFound: it is in a folder of parts.
    """
    if PARTS_FOLDER in name.split("/"):
        raise NotFound(f"{name!r}: {PARTS_FOLDER!r} is where parts of striped files are kept")
