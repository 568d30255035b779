"""A store as a start reads it: one node of a job reads its small objects for many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bootseer.errors import NotFound
from bootseer.peers.store import StoreOfNodes
from bootseer.store.api.base import ObjectInfo, Reader, Store


class StartStore(StoreOfNodes):
    """Opens small objects as nodes of the job have read them, within the last seconds.

    Only for a start, which all nodes of the job begin at about the same time. It may miss what was
    written meanwhile, so nobody may write what he has read here.
    """

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        found = None
        if known is None and version is None:
            try:
                found = await self._client.read_object(self._number, name)
            except NotFound as error:
                raise NotFound(f"{error} in {self.url}") from error
        if found is not None:
            yield found
            return
        async with self.inner.open(name, known=known, version=version) as reader:
            yield reader


def store_itself(store: Store) -> Store:
    """Return the store that a start reads, without the peers."""
    return store.inner if isinstance(store, StartStore) else store
