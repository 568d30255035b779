"""Stores of environments that the members of a Unix group share.

The administrator lists them in `env.shared`. The permissions of the store decide who may read and
write there. All of the group run the code in a shared snapshot, so none is taken from a store where
users outside of the group may write.
"""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import trio

from bootseer.config import Config, User
from bootseer.core.ranges import ByteRange, split
from bootseer.env.client.scan import tree_digest
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.manifest import MAX_BYTES, Snapshot
from bootseer.errors import (
    BootseerError,
    ConfigError,
    Conflict,
    Corrupt,
    Denied,
    NotFound,
    Unavailable,
)
from bootseer.image.library import catalog as images
from bootseer.store.api.base import Store, publish, read_all
from bootseer.store.from_settings import connect_shared
from bootseer.units import MIB

OBJECT_MODE = 0o640
_FOLDER_MODE = 0o750
_COMMON_MODE = 0o770
_COMMON = ("env", "env/snapshots", "images")
"""Folders that every member makes something in."""
_CHUNK_BYTES = 4 * MIB

Count = Callable[[int], None]


def shared_urls(config: Config) -> dict[str, str]:
    """Return the URLs of the stores that the administrator lists, by group."""
    return dict(text.split("=", 1) for text in config.env.shared)


def group_store(config: Config, user: User, group: str) -> Store:
    """Open the store of a group.

    Args:
        config: with `env.shared`.
        user: the caller.
        group: name of the group.

    Raises:
        ConfigError: the administrator has listed none, or one place for all users in an object
            store, see `check_bucket`.
        Denied: this process is not a member of the group.
    """
    urls = shared_urls(config)
    if group not in urls:
        known = ", ".join(sorted(urls)) or "none"
        raise ConfigError(
            f"group {group!a} has no store for environments; there are: {known}. Ask your "
            "administrator to list one in env.shared"
        )
    if not is_member(group):
        raise Denied(
            f"{user.name} is not a member of the group {group!a}: `id -Gn` lists yours; after you "
            "have been added, log in again"
        )
    return connect_shared(urls[group], group, config, user)


def shared_stores(config: Config, user: User) -> list[Store]:
    """Open the stores of all groups of this process, in the administrator's order."""
    return [group_store(config, user, name) for name in shared_urls(config) if is_member(name)]


async def find_snapshot(stores: Sequence[Store], key: str) -> tuple[Store, Snapshot]:
    """Find a snapshot, in the user's own store first.

    Args:
        stores: the user's own, and then those that groups share.
        key: of the snapshot.

    Returns:
        The store that has it, and its manifest.

    Raises:
        NotFound: none of them has it. Shared stores are ignored if they do not answer, if users
            outside of the group may write to them, or if their manifest is damaged.
        BootseerError: the user's own store does not answer.
    """
    own, *others = stores
    with suppress(NotFound):
        return own, await repository.read_snapshot(own, key)
    for store in others:
        with suppress(BootseerError):
            snapshot = await repository.read_snapshot(store, key)
            return store, snapshot
    raise NotFound(f"there is no environment {key[:12]} in {own.url} or in a shared store")


async def copy_snapshot(
    from_store: Store,
    to_store: Store,
    snapshot: Snapshot,
    count: Count = lambda size_bytes: None,
) -> bool:
    """Copy a snapshot to another store, with its squashfs; the manifest is written last.

    All content is compared with its digests on the way. Objects get `OBJECT_MODE` if the store has
    modes, and the group of their folder if that is set-group-ID.

    Args:
        from_store: source.
        to_store: destination.
        snapshot: its manifest.
        count: called with numbers of bytes that were copied.

    Returns:
        Whether it was copied; it is not if a complete one is there already.

    Raises:
        Corrupt: it is damaged; nothing is published.
        BootseerError: it cannot be read or written; nothing is published.

    Concurrency: the umask of the process is changed for moments, while folders are made.
    """
    is_damaged = False
    try:
        await repository.read_snapshot(to_store, snapshot.key)
        return False
    except NotFound:
        pass
    except Corrupt:
        is_damaged = True
    key, folder = snapshot.key, repository.folder_of(snapshot.key, snapshot.capture)
    index = await repository.read_index(from_store, snapshot)
    if tree_digest(index.tree) != snapshot.digest:
        raise Corrupt(f"{folder}/index in {from_store.url}: its tree is not the manifest's")
    for name in _COMMON:
        await _make_folder(to_store, name, _COMMON_MODE)
    for name in (repository.folder_of(key), folder, f"images/{snapshot.image}"):
        await _make_folder(to_store, name, _FOLDER_MODE)
    try:
        await _copy_image(from_store, to_store, snapshot.image, count)
        await _copy_object(from_store, to_store, f"{folder}/index")
        manifest = repository.manifest_object(key)
        data = snapshot.encode()
        await publish(to_store, manifest, data, overwrite=is_damaged, mode=OBJECT_MODE)
    except Conflict:
        await repository.read_snapshot(to_store, key)  # another process was first
        return False
    except BaseException:
        with trio.move_on_after(5, shield=True), suppress(BootseerError):
            await to_store.delete_tree(folder)
        raise
    return True


async def _copy_image(source: Store, target: Store, digest: str, count: Count) -> None:
    """Copy an image, and compare every block with its digest; existing parts are left."""
    encoded, manifest = await images.read_manifest(source, digest)

    def check(start: int, data: bytes) -> bool:
        return manifest.bad_block(manifest.covering(start, len(data)), memoryview(data)) is None

    with suppress(NotFound, Corrupt):
        await images.read_manifest(target, digest)
        await images.revive(target, digest)
        count(manifest.size_bytes)
        return
    for number in range(manifest.parts):
        name = images.part_object(digest, number)
        await _copy_part(source, target, name, manifest.part_range(number), check, count)
    await _copy_object(source, target, f"images/{digest}/about.json")
    await images.write_manifest(target, digest, encoded, OBJECT_MODE)
    await images.revive(target, digest)


async def _copy_part(
    source: Store,
    target: Store,
    name: str,
    part: ByteRange,
    check: Callable[[int, bytes], bool],
    count: Count,
) -> None:
    """Copy an object.

    Args:
        source, target, name: stores, and the object's name in both.
        part: range of the whole that it holds.
        check: whether bytes at an offset of the whole are correct.
        count: called with numbers of bytes that were copied.

    Raises:
        Corrupt: it is damaged.
    """
    async with source.open(name) as reader, target.create(name, mode=OBJECT_MODE) as writer:
        for chunk in split(part, _CHUNK_BYTES):
            data = await reader.pread(chunk.start - part.start, chunk.size_bytes)
            if len(data) != chunk.size_bytes or not check(chunk.start, data):
                raise Corrupt(f"{name} in {source.url} is damaged: capture the environment again")
            await writer.write(data)
            count(len(data))
        await writer.commit()


async def _copy_object(source: Store, target: Store, name: str) -> None:
    """Copy a small object that was checked, or needs no check."""
    with suppress(NotFound):
        data = await read_all(source, name, MAX_BYTES * 128)
        await publish(target, name, data, mode=OBJECT_MODE)


async def _make_folder(store: Store, name: str, mode: int) -> None:
    """Make a folder if there is none; it inherits set-group-ID and group from the one above."""
    with suppress(NotFound):
        await store.stat(name)
        return
    with _umask(0o777 & ~mode):
        await store.mkdir(name)
    found = (await store.stat(name)).mode
    if found is not None and not found & stat.S_ISGID and found != mode:
        with suppress(Unavailable):
            await store.set_mode(name, mode)


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def is_member(group: str) -> bool:
    """Whether this process is a member of a group."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        return False
    return gid == os.getegid() or gid in os.getgroups()
