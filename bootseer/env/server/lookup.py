"""Look for the snapshot of a key: in the user's store and in those of groups."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import trio

from bootseer.env.admin.diff import numbered
from bootseer.env.client import key as env_key
from bootseer.env.client.scan import TreeNode, scan_folder
from bootseer.env.server.run_request import RunRequest
from bootseer.env.server.session_context import SessionContext
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.group_store import find_snapshot
from bootseer.env.snapshot.manifest import Snapshot
from bootseer.errors import Corrupt, NotFound
from bootseer.store.api.base import Store


class FoundSnapshot(NamedTuple):
    """A snapshot, and the store that has it."""

    store: Store
    snapshot: Snapshot


class SnapshotLookup:
    """Looks for what a client asks for."""

    def __init__(self, context: SessionContext, request: RunRequest) -> None:
        self._context = context
        self._request = request

    async def find(self) -> FoundSnapshot | None:
        """Find the snapshot to restore, or the one that the targets hold already.

        Raises:
            Corrupt: it is damaged.
            BootseerError: the store does not say.
        """
        asked = self._request.message
        async with self._context.stage("env.find") as report:
            report.detail = f"key {self._request.key[:12]}: none yet"
            for parts in dict.fromkeys((asked.key, asked.as_empty)):
                key = env_key.key_of(parts)
                try:
                    found = await self._read(key)
                except NotFound:
                    continue
                if parts == asked.key or await self._is_in_targets(found):
                    report.bytes = found.snapshot.content_bytes
                    report.detail = f"key {key[:12]}"
                    return found
        return None

    async def find_newer(self, capture: str) -> FoundSnapshot | None:
        """Find a snapshot of the key that is of another capture than this; None if it is damaged.

        Args:
            capture: that is not good enough, "" for none.
        """
        with suppress(NotFound, Corrupt):
            found = await self._read(self._request.key)
            if found.snapshot.capture != capture:
                return found
        return None

    async def _read(self, key: str) -> FoundSnapshot:
        """Read the manifest of a snapshot.

        Raises:
            NotFound: there is none.
            Corrupt: it is damaged.
        """
        stores = [self._context.store, *self._context.shared]
        found = FoundSnapshot(*await find_snapshot(stores, key))
        if found.snapshot.targets != self._request.message.targets:
            raise Corrupt(f"the snapshot {key[:12]} has other targets")
        return found

    async def _is_in_targets(self, found: FoundSnapshot) -> bool:
        """Whether the targets hold a snapshot, as far as can be seen without reading files."""
        index = await repository.read_index(found.store, found.snapshot)

        def compare() -> bool:
            there: dict[bytes, TreeNode] = {}
            for number, folder in enumerate(self._request.folders):
                path = f"/proc/self/fd/{folder}"
                there |= numbered(number, scan_folder(path, xattrs=False).tree)
            return _visible(there) == _visible({p: n for p, n in index.tree.items() if p})

        return await trio.to_thread.run_sync(compare, abandon_on_cancel=True)


def _visible(tree: Mapping[bytes, TreeNode]) -> dict[bytes, TreeNode]:
    """Return what tells trees apart without reading; times of folders change with each look."""
    return {
        path: node._replace(
            uid=0,
            gid=0,
            digest=b"",
            xattrs=(),
            mode=node.mode & 0o1777,
            mtime_ns=0 if node.kind == "folder" else node.mtime_ns,
        )
        for path, node in tree.items()
    }
