"""Look up files in a tree of a store that has striped files.

Names are those of the store. A striped file has the name of its manifest; the folders of parts are
not shown. `Namespace` changes names, `Publication` adds versions, `RetiredParts` and `Leftovers`
remove parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.entries import FileEntry, ManifestCache
from bootseer.checkpoint.files.parts import Parts, above
from bootseer.checkpoint.files.source import FileSource, PlainSource, StripedSource
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, StripeManifest
from bootseer.checkpoint.files.truncation_probe import TruncationProbe
from bootseer.errors import Conflict, Corrupt, NotFound
from bootseer.parallel import for_each
from bootseer.peers.shared_files import SharedFiles
from bootseer.store.api.base import ObjectInfo, Store, Unlisted

_READS_AT_ONCE = 16
"""Manifests that a listing reads at once."""


class CheckpointTree:
    """Looks up the files and folders of a store, striped ones among them.

    Errors are the store's.

    Attributes:
        store: where they are.
        parts: of the striped files.
        manifests: those that were read.
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
        return (await self.probe.check(above(name), [entry]))[0]

    async def find(self, name: str) -> FileEntry | None:
        """Return the entry of a file or folder; None if there is none."""
        try:
            return await self.stat(name)
        except NotFound:
            return None

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
        infos = [info for info in listing if is_shown(info.name)]
        entries: list[FileEntry | None] = [None] * len(infos)
        striped: list[int] = []
        for index, info in enumerate(infos):
            if info.is_folder or not stripe_manifest.may_be_manifest(info.size_bytes):
                entries[index] = FileEntry(info)
            else:
                striped.append(index)

        async def read(index: int) -> None:
            with suppress(NotFound):
                entries[index] = await self.manifests.entry(infos[index])

        await for_each(striped, read, min(_READS_AT_ONCE, len(striped)))
        return await self.probe.check(folder, [entry for entry in entries if entry is not None])

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
