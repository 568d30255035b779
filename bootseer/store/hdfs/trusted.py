"""An HDFS store that users run things from: what others could have written is refused.

In a directory the same rule is checked on open descriptors, by `bootseer.store.local.dirfd_tree`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from bootseer.errors import Denied, NotFound
from bootseer.store.api.base import ObjectInfo, Reader
from bootseer.store.hdfs.store import HdfsStore
from bootseer.store.local.owner_rules import OwnerRule, Ownership
from bootseer.store.wrappers.base import WrappedStore

T = TypeVar("T")


class TrustedStore(WrappedStore):
    """Checks each folder when it is first walked through, and objects when they are opened.

    A NameNode can only be asked about names. So a folder can be exchanged after its check, by those
    who can write in the folders above it: they are trusted.
    """

    def __init__(self, inner: HdfsStore, owners: OwnerRule) -> None:
        super().__init__(inner)
        self._hdfs = inner
        self._owners = owners
        self._top: ObjectInfo | None = None
        self._checked: set[str] = set()

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do an operation where only trusted users can write.

        Raises:
            Denied: others can write there.
        """
        parts = name.split("/") if name else []
        folders = parts if operation == "list" else parts[:-1]
        await self._check(["/".join(folders[:depth]) for depth in range(1, len(folders) + 1)])
        return await call()

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        """Open an object that only trusted users can write.

        Raises:
            Denied: others can write it.
        """
        async with super().open(name, known=known, version=version) as reader:
            self._refuse(name, reader.info)
            yield reader

    async def _check(self, folders: Sequence[str]) -> None:
        try:
            if self._top is None:
                self._top = await self._hdfs.stat_root()
                self._refuse("", self._top)
            for folder in folders:
                if folder not in self._checked:
                    self._refuse(folder, await self._hdfs.stat(folder))
                    self._checked.add(folder)
        except NotFound:
            return  # nothing is there, or this process makes it

    def _refuse(self, name: str, info: ObjectInfo) -> None:
        if self._top is None:
            return
        path = f"{self.url}/{name}".rstrip("/")
        problem = self._owners.problem(path, _ownership(info), _ownership(self._top))
        if problem:
            raise Denied(f"the store is not used: {problem}")


class PrivateStore(TrustedStore):
    """Checks the top folder, once, and objects when they are opened.

    Where only the user can write in the top folder, nobody else makes folders in it. Each process
    asks the NameNode one question more.
    """

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._check(())
        return await call()


def _ownership(info: ObjectInfo) -> Ownership:
    return Ownership(info.mode or 0, str(info.owner), str(info.group))
