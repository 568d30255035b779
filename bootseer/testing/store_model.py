"""A store as a dictionary, and a state machine that compares real stores with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest
import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bootseer.errors import BootseerError, ConfigError, Conflict, NotFound
from bootseer.store.api.base import ObjectInfo, Store, publish, read_all

T = TypeVar("T")

NAMES = st.sampled_from(["a", "b", "a/a", "a/b", "b/a", "b/a/a", "b/a/b"])
CONTENTS = st.binary(max_size=64)
LIMIT_BYTES = 64


class StoreModel:
    """Names and contents, None for a folder."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes | None] = {}

    def publish(self, name: str, content: bytes, overwrite: bool) -> None:
        """Put an object in its place, and the folders above it."""
        self.mkdir(name.rpartition("/")[0])
        if name in self.entries and not (overwrite and self.is_object(name)):
            raise Conflict(name)
        self.entries[name] = content

    def read(self, name: str) -> bytes:
        content = self.need(name)
        if content is None:
            raise Conflict(name)
        return content

    def mkdir(self, name: str) -> None:
        if not name:
            return
        self.mkdir(name.rpartition("/")[0])
        if self.is_object(name):
            raise Conflict(name)
        self.entries[name] = None

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        """Move an object, or a folder with all that is below."""
        if target.startswith(source + "/"):
            raise ConfigError(target)
        content = self.need(source)
        if source == target and overwrite:
            return
        replaces = overwrite and content is not None and self.is_object(target)
        if target in self.entries and not replaces:
            raise Conflict(target)
        self.mkdir(target.rpartition("/")[0])
        self.entries = {
            target + name[len(source) :] if f"{name}/".startswith(f"{source}/") else name: content
            for name, content in self.entries.items()
            if name != target
        }

    def delete(self, name: str) -> None:
        self.need(name)
        if any(other.startswith(f"{name}/") for other in self.entries):
            raise Conflict(name)
        del self.entries[name]

    def delete_tree(self, name: str) -> None:
        """Remove an object, or a folder with all that is below."""
        self.need(name)
        self.entries = {
            other: content
            for other, content in self.entries.items()
            if not f"{other}/".startswith(f"{name}/")
        }

    def stat(self, name: str) -> tuple[str, int, bool]:
        content = self.need(name)
        return name, len(content or b""), content is None

    def list(self, folder: str) -> list[tuple[str, int, bool]]:
        return [self.stat(name) for name in sorted(self.entries) if _above(name) == folder]

    def need(self, name: str) -> bytes | None:
        """Return what is under a name that must exist."""
        if name not in self.entries:
            raise NotFound(name)
        return self.entries[name]

    def is_object(self, name: str) -> bool:
        """Tell whether there is an object, not a folder, of that name."""
        return self.entries.get(name) is not None


class StoreMachine(RuleBasedStateMachine):
    """Does to a store and to the model the same, and wants the same result or error."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.model = StoreModel()

    @rule(name=NAMES, content=CONTENTS, overwrite=st.booleans())
    def publish(self, name: str, content: bytes, overwrite: bool) -> None:
        self.same(
            partial(publish, self.store, name, content, overwrite=overwrite),
            partial(self.model.publish, name, content, overwrite),
        )

    @rule(name=NAMES, content=CONTENTS)
    def discard(self, name: str, content: bytes) -> None:
        """Write an object and leave without a commit: only its folders are made."""

        async def write() -> None:
            async with self.store.create(name) as writer:
                await writer.write(content)

        self.same(write, partial(self.model.mkdir, _above(name)))

    @rule(name=NAMES)
    def read(self, name: str) -> None:
        self.same(partial(read_all, self.store, name, LIMIT_BYTES), partial(self.model.read, name))

    @rule(name=NAMES)
    def mkdir(self, name: str) -> None:
        self.same(partial(self.store.mkdir, name), partial(self.model.mkdir, name))

    @rule(name=NAMES, new_name=NAMES, overwrite=st.booleans())
    def rename(self, name: str, new_name: str, overwrite: bool) -> None:
        self.same(
            partial(self.store.rename, name, new_name, overwrite=overwrite),
            partial(self.model.rename, name, new_name, overwrite),
        )

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.same(partial(self.store.delete, name), partial(self.model.delete, name))

    @rule(name=NAMES)
    def delete_tree(self, name: str) -> None:
        """Delete an object, or a folder with all that is below."""
        self.same(partial(self.store.delete_tree, name), partial(self.model.delete_tree, name))

    @rule(name=NAMES)
    def stat(self, name: str) -> None:

        async def stat() -> tuple[str, int, bool]:
            return _seen(await self.store.stat(name))

        self.same(stat, partial(self.model.stat, name))

    @rule(folder=NAMES | st.just(""))
    def list(self, folder: str) -> None:

        async def list_folder() -> object:
            return [_seen(info) for info in await self.store.list(folder)]

        self.same(list_folder, partial(self.model.list, folder))

    def same(self, real: Callable[[], Awaitable[T]], expected: Callable[[], T]) -> None:
        """Compare the store's result or error with the model's."""
        try:
            result = expected()
        except BootseerError as error:
            with pytest.raises(type(error)):
                trio.run(real)
        else:
            assert trio.run(real) == result

    @invariant()
    def root_agrees(self) -> None:
        """The root shows what the model has."""
        self.list("")


def _seen(info: ObjectInfo) -> tuple[str, int, bool]:
    return info.name, info.size_bytes, info.is_folder


def _above(name: str) -> str:
    return name.rpartition("/")[0]
