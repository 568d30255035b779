"""Entries of a checkpoint tree: what the store and manifests say of files and folders."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.stripe_manifest import StripeManifest
from bootseer.errors import Corrupt
from bootseer.store.api.base import ObjectInfo, Store

_CACHED_MANIFESTS = 20_000


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or a folder.

    Attributes:
        info: of the object in the store; of a striped file, its manifest.
        layout: content of the manifest of a striped file.
        problem: why the manifest cannot be used; the file is neither read nor written then.
        marked_bytes: length of a striped file whose manifest was not read, by `SizeMarks`.
    """

    info: ObjectInfo
    layout: StripeManifest | None = None
    problem: Corrupt | None = None
    marked_bytes: int | None = None

    @property
    def name(self) -> str:
        """Return its name in the store."""
        return self.info.name

    @property
    def is_folder(self) -> bool:
        return self.info.is_folder

    @property
    def size_bytes(self) -> int:
        """Return the length of the content; 0 for a folder."""
        if self.layout is not None:
            return self.layout.size_bytes
        return self.info.size_bytes if self.marked_bytes is None else self.marked_bytes

    @property
    def is_striped(self) -> bool:
        """Tell whether it is a striped file that can be used, as far as is known."""
        return self.layout is not None or self.is_unread

    @property
    def is_unread(self) -> bool:
        """Tell whether it is a striped file of which only the length is known."""
        return self.marked_bytes is not None

    def has_parts_of(self, layout: StripeManifest | None) -> bool:
        """Tell whether the file has the parts that a manifest names; copies of a manifest do."""
        return (
            self.layout is not None
            and layout is not None
            and self.layout.parts_id == layout.parts_id
        )


class ManifestCache:
    """Reads the manifests of a store, and keeps each until its object changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._entries: dict[str, FileEntry] = {}

    async def entry(self, info: ObjectInfo) -> FileEntry:
        """Return the entry of an object: a striped file if the object is a manifest.

        Raises:
            NotFound: the object is gone.
        """
        known = self.known(info)
        if known is None:
            known = await self._read(info)
            while len(self._entries) >= _CACHED_MANIFESTS:
                del self._entries[next(iter(self._entries))]
            self._entries[info.name] = known
        return known

    def known(self, info: ObjectInfo) -> FileEntry | None:
        """Return the entry of an object that need not be read; None if it must be."""
        if info.is_folder or not stripe_manifest.may_be_manifest(info.size_bytes):
            return FileEntry(info)
        known = self._entries.get(info.name)
        return replace(known, info=info) if known and known.info.is_version(info) else None

    def forget(self, name: str) -> None:
        self._entries.pop(name, None)

    async def _read(self, info: ObjectInfo) -> FileEntry:
        async with self._store.open(info.name, known=info) as reader:
            head = await reader.pread(0, len(stripe_manifest.MAGIC))
            data = (
                await reader.pread(0, stripe_manifest.MAX_BYTES)
                if stripe_manifest.is_manifest(head)
                else None
            )
            if reader.size_bytes != info.size_bytes:
                return await self.entry(await self._store.stat(info.name))
        if data is None:
            return FileEntry(info)
        try:
            return FileEntry(info, stripe_manifest.decode(data, info.name))
        except Corrupt as error:
            return FileEntry(info, problem=error)
