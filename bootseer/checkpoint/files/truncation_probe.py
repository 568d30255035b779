"""Find manifests that were truncated to less than their magic number.

Neither length nor content shows what such a file was. It is taken for the rest of a manifest if it
begins like one, and parts lie beside it that no file names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.entries import FileEntry, ManifestCache
from bootseer.checkpoint.files.parts import above, let_changes_settle, parts_of
from bootseer.checkpoint.files.stripe_manifest import StripeManifest
from bootseer.errors import BootseerError, Corrupt, NotFound
from bootseer.store.api.base import ObjectInfo, Store

_PROBLEM = (
    "{!r} may be what is left of a damaged manifest: there are parts beside it that belong to no "
    "file; if it is not, remove them with `bootseer ckpt gc --ignore`"
)


class TruncationProbe:
    """Marks the entries of a folder that may be truncated manifests.

    Concurrency: the tasks of one trio run.
    """

    def __init__(self, store: Store, manifests: ManifestCache) -> None:
        """Probe files of `store`, whose manifests are read through `manifests`."""
        self._store = store
        self._manifests = manifests
        self._changing: Counter[str] = Counter()
        self._orphans: set[str] = set()

    async def check(self, folder: str, entries: Sequence[FileEntry]) -> Sequence[FileEntry]:
        """Return entries of a folder, with a problem for each that may be a truncated manifest.

        Parts that no file names are there after a crash, and between two steps of a writer, perhaps
        on another node.
        """
        if not any(may_be_truncated(entry.info) for entry in entries):
            return entries
        if not await self._has_orphans(folder):
            return entries
        return [
            _truncated(entry) if await self._begins_like_manifest(entry.info) else entry
            for entry in entries
        ]

    async def check_one(self, entry: FileEntry) -> FileEntry:
        """Return an entry, with a problem if it may be a truncated manifest; see `check`.

        Most small files are told by their content, so that their folder is not looked at.
        """
        if await self._begins_like_manifest(entry.info) and await self._has_orphans(
            above(entry.name)
        ):
            return _truncated(entry)
        return entry

    @contextmanager
    def ignoring(self, *layouts: StripeManifest | None) -> Iterator[None]:
        """Ignore the parts of files under change: between two steps no file names them."""
        ids = [layout.parts_id for layout in layouts if layout is not None]
        self._changing.update(ids)
        try:
            yield
        finally:
            self._changing -= Counter(ids)

    async def _begins_like_manifest(self, info: ObjectInfo) -> bool:
        """Tell whether a file is at most the first bytes of a manifest."""
        if not may_be_truncated(info):
            return False
        if not info.size_bytes:
            return True
        try:
            async with self._store.open(info.name, known=info) as reader:
                return stripe_manifest.MAGIC.startswith(
                    await reader.pread(0, len(stripe_manifest.MAGIC))
                )
        except BootseerError:
            return True

    async def _has_orphans(self, folder: str) -> bool:
        """Tell whether a folder has parts that no file names, now and a moment later."""
        orphans = await self._find_orphans(folder)
        if orphans - self._orphans:
            await let_changes_settle()
            orphans &= await self._find_orphans(folder)
            self._orphans |= orphans
        return bool(orphans)

    async def _find_orphans(self, folder: str) -> set[str]:
        """Return the ids of parts in a folder that no file names and no change here ignores."""
        kept = await self._store.list(parts_of(folder))
        ids = {info.name.rpartition("/")[2] for info in kept if info.is_folder}
        orphans = {name for name in ids if stripe_manifest.check_id(name)} - set(self._changing)
        if not orphans:
            return orphans
        for info in await self._store.list(folder):
            with suppress(NotFound):
                if (entry := await self._manifests.entry(info)).layout is not None:
                    orphans.discard(entry.layout.parts_id)
        return orphans - set(self._changing)


def _truncated(entry: FileEntry) -> FileEntry:
    return replace(entry, problem=Corrupt(_PROBLEM.format(entry.name)))


def may_be_truncated(info: ObjectInfo) -> bool:
    """Tell by its length whether a file may be a manifest that lost even its magic number."""
    return not info.is_folder and info.size_bytes < len(stripe_manifest.MAGIC)
