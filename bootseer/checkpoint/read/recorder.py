"""Record which files of a mount are read while a job starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from bootseer.core.access_log import (
    MAX_FILES,
    AccessedFile,
    Recording,
    newest_components,
    numbered,
)
from bootseer.errors import BootseerError
from bootseer.store.api.base import ObjectInfo, Store


class ReadRecorder:
    """Records the reads of a tree until the start-up window closes.

    Concurrency: the tasks of one trio run.
    """

    def __init__(self, store: Store) -> None:
        """Begin to record.

        Args:
            store: with the tree; its folders are listed at the end.
        """
        self._store = store
        self._files: dict[str, Recording] = {}
        self._is_open = True

    def opened(self, path: str) -> Recording | None:
        """Record that a file is opened; returns what records its reads, if they count."""
        if not self._is_open:
            return None
        if path not in self._files:
            if len(self._files) >= MAX_FILES:
                return None
            self._files[path] = Recording(path, time.time_ns())
        self._files[path].opens += 1
        return self._files[path]

    async def close(self) -> list[AccessedFile]:
        self._is_open = False
        folders: dict[str, Sequence[ObjectInfo]] = {}
        for path in self._files:
            for folder in numbered(path):
                if folder not in folders:
                    folders[folder] = await self._list(folder)
        return [
            AccessedFile(
                file.path,
                newest_components(file.path, partial(_names, folders, file.opened_ns)),
                file.read(),
                file.opens,
            )
            for file in self._files.values()
        ]

    async def _list(self, folder: str) -> Sequence[ObjectInfo]:
        try:
            return await self._store.list(folder)
        except BootseerError:
            return []  # the folder is gone


def _names(folders: dict[str, Sequence[ObjectInfo]], at_ns: int, folder: str) -> list[str]:
    """List the names that a folder had at a time: those that are not newer."""
    return [info.name.rpartition("/")[2] for info in folders[folder] if info.mtime_ns <= at_ns]
