"""The role of a reader that may give bytes which are not the store's, and reads that check them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, runtime_checkable

from bootseer.store.api.base import Reader

T = TypeVar("T")


@runtime_checkable
class SharedReader(Protocol):
    """A reader of an object that others have read from the store."""

    def distrust(self, offset: int, size: int) -> bool:
        """Read these bytes from the store from now on, and ask those that gave them no more.

        Returns:
            Whether they may have come from elsewhere until now.
        """


async def read_checked(
    reader: Reader, offset: int, size: int, read: Callable[[], Awaitable[tuple[T, int | None]]]
) -> tuple[T, int | None]:
    """Read bytes and check them; read once more if wrong ones may not have been the store's.

    Args:
        reader: that is read.
        offset, size: what is read of it.
        read: returns the bytes, and what is wrong with them; None for nothing.

    Returns:
        The same.

    Raises:
        BootseerError: the store does not give them.
    """
    data, bad = await read()
    if bad is not None and isinstance(reader, SharedReader) and reader.distrust(offset, size):
        data, bad = await read()
    return data, bad
