"""Keep the lengths of striped files where a listing shows them, so that no manifest is opened.

Each published file has a mark: an empty folder in `.bootseer-parts/sizes`, whose name is that of a
version of a manifest, as a listing shows it, and the length of the file. A mark is only a hint. It
counts for exactly that version; a file without one is opened. So a mark is removed before its file
is replaced or removed, and made when it is certain which version has the name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.parts import above, parts_of
from bootseer.errors import BootseerError
from bootseer.store.api.base import ObjectInfo, Store

SIZES_FOLDER = "sizes"
"""Beside the folders of parts; holds the marks."""
_KEY_CHARS = 32
_MAX_SIZE_BYTES = 2**63 - 1
_READS_BEFORE_MARKS = 8
"""Files without a known mark that are looked up one by one before the marks are listed."""
_CACHED_FOLDERS = 16


@dataclass(slots=True)
class _FolderMarks:
    """The marks of a folder as last listed.

    Attributes:
        sizes: length of a file by the key of its version.
        missed: files without a mark since then.
        patience: so many of them before the marks are listed again.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    missed: int = 0
    patience: int = _READS_BEFORE_MARKS


class SizeMarks:
    """The marks of a store's striped files.

    What cannot be made or removed is no error: without its mark, a file is opened; and what is left
    over counts for no other version, until `ckpt gc` removes it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folders: dict[str, _FolderMarks] = {}

    async def list(self, folder: str) -> Mapping[str, int]:
        """Return the lengths of the striped files in a folder by `version_key`."""
        known = self._known(folder)
        known.sizes = await self._read(folder)
        known.missed = 0
        return known.sizes

    async def look_up(self, info: ObjectInfo) -> int | None:
        """Return the length of a striped file; None if its mark is not known.

        The marks of its folder are listed when several of its files had none that was known.

        Args:
            info: of its manifest.
        """
        key = version_key(info)
        known = self._known(above(info.name))
        if key not in known.sizes:
            known.missed += 1
            if known.missed >= known.patience:
                known.sizes = await self._read(above(info.name))
                known.missed = 0
                # Files of an earlier version of this format have none.
                known.patience = _READS_BEFORE_MARKS if key in known.sizes else 2 * known.patience
        return known.sizes.get(key)

    async def remove(self, entry: FileEntry | None) -> None:
        """Remove the mark of a file that will be replaced or removed, if it is striped."""
        if entry is not None and entry.layout is not None:
            with suppress(BootseerError):
                await self._store.delete(mark_name(entry.info, entry.layout.size_bytes))

    async def move(self, entry: FileEntry, info: ObjectInfo) -> None:
        """Make the mark of a striped file that of its new name or time.

        Args:
            entry: as it was.
            info: of its manifest, as it is.
        """
        if entry.layout is not None:
            size_bytes = entry.layout.size_bytes
            with suppress(BootseerError):
                await self._store.rename(
                    mark_name(entry.info, size_bytes), mark_name(info, size_bytes)
                )

    async def stale(self, folder: str) -> Sequence[ObjectInfo]:
        """List the marks in a folder that are of no version of a file in it."""
        marks = await self._store.list(sizes_of(folder))
        # The files later: what is published or renamed meanwhile has its mark in no listing.
        versions = {version_key(info) for info in await self._store.list(folder)} if marks else ()
        return [info for info in marks if _parse(info.name)[0] not in versions]

    def _known(self, folder: str) -> _FolderMarks:
        known = self._folders.pop(folder, None) or _FolderMarks()
        while len(self._folders) >= _CACHED_FOLDERS:
            del self._folders[next(iter(self._folders))]
        self._folders[folder] = known
        return known

    async def _read(self, folder: str) -> Mapping[str, int]:
        try:
            marks = await self._store.list(sizes_of(folder))
        except BootseerError:
            return {}
        sizes: dict[str, int] = {}
        doubtful: set[str] = set()
        for info in marks:
            key, size_bytes = _parse(info.name)
            if size_bytes is not None and sizes.setdefault(key, size_bytes) != size_bytes:
                doubtful.add(key)  # several have written one file at once
        return {key: size for key, size in sizes.items() if key not in doubtful}


def sizes_of(folder: str) -> str:
    """Return the name of the folder that holds the marks of a folder's files."""
    return f"{parts_of(folder)}/{SIZES_FOLDER}"


def mark_name(info: ObjectInfo, size_bytes: int) -> str:
    """Return the name of the mark of a striped file.

    Args:
        info: of its manifest.
        size_bytes: length of the file.
    """
    return f"{sizes_of(above(info.name))}/{version_key(info)}-{size_bytes}"


def version_key(info: ObjectInfo) -> str:
    """Return what names a version of a manifest among those in its folder, as a listing shows it.

    The folder is left out: it may move with all that is in it.
    """
    name = info.name.rpartition("/")[2]
    shown = f"{name}\n{info.size_bytes}\n{info.mtime_ns}\n{info.version}"
    return hashlib.sha256(shown.encode()).hexdigest()[:_KEY_CHARS]


def _parse(name: str) -> tuple[str, int | None]:
    """Return key and length in the name of a mark; None for what is no length of a file."""
    key, _, digits = name.rpartition("/")[2].partition("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return key, None
    size_bytes = int(digits)
    return key, size_bytes if 0 < size_bytes <= _MAX_SIZE_BYTES else None
