"""The roles of a store: where bytes live that several nodes share.

Objects are written once, as a whole: an object is complete or not visible, and a reader keeps the
version that it opened. Folders exist by themselves and are made as needed by whatever is put into
them. Everything else (retries, deadlines, faults for tests) is a wrapper around these roles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypedDict, TypeVar, runtime_checkable

from bootseer.errors import Conflict, Corrupt
from bootseer.store.api.name import TEMPORARY_PREFIX, problem_of

Data: TypeAlias = bytes | bytearray | memoryview
Mode = TypeVar("Mode", bound=int | None)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is known of an object or a folder without reading it.

    Attributes:
        name: the whole name, relative to the store's root.
        size_bytes: the length; 0 for a folder.
        mtime_ns: last change, nanoseconds since 1970, by the clock of the server.
        is_folder: whether this is a folder.
        mode: permission bits, up to 0o7777; None where the store has none.
        owner: the user, as the store has it: a name, or a number in decimal; None if it has none.
        group: the same for the group.
        version: unique among all objects that the store has or had; "" where the store tells
            versions apart by length and time only.

    Equality compares name, length and time, but neither owner nor mode; `is_version` compares
    versions.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    is_folder: bool = False
    mode: int | None = field(default=None, compare=False)
    owner: str | None = field(default=None, compare=False)
    group: str | None = field(default=None, compare=False)
    version: str = field(default="", compare=False)

    def is_version(self, other: ObjectInfo) -> bool:
        """Tell whether both describe the same version of an object; names may differ."""
        same_version = self.version == other.version or not (self.version and other.version)
        numbers = (self.size_bytes, self.mtime_ns, self.is_folder)
        return same_version and numbers == (other.size_bytes, other.mtime_ns, other.is_folder)


@dataclass(frozen=True, slots=True)
class Unlisted:
    """An entry of a folder that callers cannot use.

    Attributes:
        name: its whole name as the store has it, with whatever is in it.
        problem: what is wrong with the name; "" for a link or a special file.
    """

    name: str
    problem: str


class FolderListing(list[ObjectInfo]):
    """What is in a folder, sorted by name.

    Attributes:
        unlisted: other entries, which cannot be used; objects in the making are left out.
    """

    def __init__(self, infos: Iterable[ObjectInfo] = ()) -> None:
        super().__init__(infos)
        self.unlisted: list[Unlisted] = []

    def admits(self, name: str) -> bool:
        """Tell whether callers can use a name, and note it in `unlisted` if not."""
        problem = problem_of(name)
        if problem and not name.rpartition("/")[2].startswith(TEMPORARY_PREFIX):
            self.unlisted.append(Unlisted(name, problem))
        return not problem


@dataclass(frozen=True, slots=True)
class StoreSpace:
    """Space of a store in bytes, where every copy counts; None if the store does not say."""

    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BlockLocation:
    """A part of an object and the machines that have copies of it, by name or address.

    For an erasure-coded object these are the machines that have the part together.
    """

    offset: int
    size_bytes: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do beyond what every store does.

    Attributes:
        atomic_rename: a rename makes its target visible completely or not at all, folders too.
        replication: `Store.set_replication` has an effect.
        append: `Store.append` can be used.
        attributes: modes and times can be set; elsewhere a mode given to `create` or `mkdir` is
            ignored, and `set_mode` and `set_mtime` are Unavailable.
        exclusive: of several writers that create one name without `overwrite`, only one succeeds;
            in other stores several may succeed at the same moment.
        snapshots: a reader can go on reading an object that was replaced or deleted; in other
            stores that is a Conflict.
    """

    atomic_rename: bool
    replication: bool
    attributes: bool
    append: bool = True
    exclusive: bool = True
    snapshots: bool = True


class Reader(Protocol):
    """One open version of an object.

    Concurrency: any number of tasks may read at once.
    """

    info: ObjectInfo

    @property
    def size_bytes(self) -> int:
        """The length of the version that was opened."""
        return self.info.size_bytes

    async def pread(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`; fewer only where the object ends, none after it.

        Raises:
            ValueError: the offset or the size is negative.
            Closed: the block that opened the object was left.
            Corrupt: the object was cut short by a writer that is not BootSeer.
            Conflict: the object was replaced, and its opened version can't be had any more.
        """


class Writer(Protocol):
    """An object in the making, invisible until `commit` returns.

    A step (write or commit) that fails or is cancelled ends the writer: every later step is
    Closed, so that an object with a gap can't be committed.

    Concurrency: one step at a time; a second one meanwhile is Closed.
    """

    async def write(self, data: Data) -> None:
        """Append all of `data`, which must not change until this returns or the block is left.

        Raises:
            Closed: the object was committed, an earlier step failed, or the block was left.
            Unavailable: there is no space.
        """

    async def commit(self) -> None:
        """Make the object visible under its name, all at once.

        Durability: once this returned, the object survives a crash of every node that uses it.

        Cancellation: the object may become visible all the same, and is complete if it does.
        The same holds for a Transient error.

        Raises:
            Closed: as for `write`.
            Conflict: the name is taken and may not be overwritten, or is a folder's.
        """


class Appender(Protocol):
    """An object that has its name from the start, and grows.

    The steps are those of a `Writer`: one at a time, and none after one that failed.
    """

    async def write(self, data: Data) -> None:
        """Append all of `data`, which must not change until this returns or the block is left.

        Raises:
            Closed: the object is finished, an earlier step failed, or the block was left.
            Unavailable: there is no space.
        """

    async def sync(self) -> None:
        """Make all that was written durable; it can be read when the object has ended, or before.

        Durability: the data survives a crash of this process and, where the object has several
        copies, the loss of a machine.

        Raises:
            Closed: as for `write`.
        """

    async def finish(self) -> None:
        """Sync, and end the object.

        Raises:
            Closed: as for `write`.
        """


class AppendOptions(TypedDict, total=False):
    """The options of `Store.append`, for stores that hand them on."""

    mode: int | None
    replication: int | None
    block_bytes: int | None


class CreateOptions(AppendOptions, total=False):
    """The options of `Store.create`."""

    overwrite: bool


class Store(Protocol):
    """A tree of folders and objects under one URL.

    Every operation raises ConfigError for a name that `bootseer.store.api.name` refuses, Denied,
    Transient or Unavailable as the store answers, and NotFound where the docstring does not say
    otherwise. Conflict is a name that is taken, or that is a folder's where an object is asked for.

    Concurrency: any number of tasks, processes and nodes. Of several writers to one name the last
    to commit wins; a reader sees one of the versions, whole.

    Cancellation: every operation ends promptly when cancelled, even if the store doesn't answer.
    A change that was under way may or may not have happened.
    """

    @property
    def url(self) -> str:
        """Where the store is; `bootseer.store.from_url.open_store` understands it."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""

    async def stat(self, name: str) -> ObjectInfo:
        """Describe an object or a folder."""

    async def list(self, folder: str = "") -> FolderListing:
        """Describe what is directly in a folder, sorted by name; ``""`` is the root.

        Where no such folder exists, there is nothing in it. Objects in the making are left out;
        `FolderListing.unlisted` tells of anything else that is.
        """

    def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AbstractAsyncContextManager[Reader]:
        """Open an object for the length of a block.

        Args:
            name: of the object.
            known: what the caller has found out about it, whose content says itself whether it is
                the right one. A store that can then opens it without asking again, and
                `Reader.info` is this with the length found.
            version: the one to be read; with it, `known` does not count.

        Raises:
            Conflict: another than `version` is there by now.
            Denied: it is neither an object nor a folder (a symbolic link, a FIFO, a device).
        """

    def create(
        self,
        name: str,
        *,
        overwrite: bool = True,
        mode: int | None = None,
        replication: int | None = None,
        block_bytes: int | None = None,
    ) -> AbstractAsyncContextManager[Writer]:
        """Write an object within a block, which must `commit`; leaving it otherwise discards all.

        Missing folders of the name are made.

        Args:
            name: of the object.
            overwrite: if not, a name that is taken when it comes to the commit is a Conflict.
            mode: permission bits of the object, whatever the umask; the store's default if None.
            replication: on how many machines to keep it; ignored where there is no such thing.
            block_bytes: length of its blocks; ignored where there is no such thing.

        Raises:
            ValueError: it is no mode, see `check_mode`.
        """

    def append(
        self,
        name: str,
        *,
        mode: int | None = None,
        replication: int | None = None,
        block_bytes: int | None = None,
    ) -> AbstractAsyncContextManager[Appender]:
        """Make an object that is visible from the start, and add to it within a block.

        Left without `finish`, the object keeps what was synced, and perhaps more; its maker deletes
        it or knows how much of it counts. It may be shorter for a while, until a store with a dead
        machine has ended it. Missing folders of the name are made.

        Args:
            name: of an object that does not exist.
            mode: as for `create`.
            replication: as for `create`.
            block_bytes: as for `create`.

        Raises:
            Conflict: the name is taken.
            Unavailable: the store has no such objects (see `Capabilities`).
            ValueError: it is no mode, see `check_mode`.
        """

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Give an object or a folder another name; missing folders of the target are made.

        Durability: survives a crash once this returned.

        Raises:
            Conflict: the target exists. With `overwrite`, an object does replace an object.
        """

    async def delete(self, name: str) -> None:
        """Remove an object or an empty folder.

        Durability: after a crash it may be back.

        Raises:
            Conflict: the folder is not empty (objects in the making count).
        """

    async def delete_tree(self, name: str) -> None:
        """Remove an object, or a folder with all that is below, objects in the making included.

        HDFS does it in one step. Elsewhere it takes many: one that fails or is cancelled leaves
        some of what was there.

        Durability: after a crash, what was removed may be back.
        """

    async def mkdir(self, name: str, *, mode: int | None = None) -> None:
        """Make a folder and those above it; existing folders are left unchanged.

        Args:
            name: of the folder.
            mode: permission bits of this one folder, whatever the umask; the default if None.

        Raises:
            Conflict: an object has that name or one above.
            ValueError: it is no mode, see `check_mode`.
        """

    async def set_mode(self, name: str, mode: int) -> None:
        """Change the permission bits of an object or a folder.

        Raises:
            Unavailable: the store has none (see `Capabilities`).
            ValueError: it is no mode, see `check_mode`.
        """

    async def set_mtime(self, name: str, mtime_ns: int) -> None:
        """Change when an object or a folder was last changed, to a millisecond at least.

        For a reader that has to open the object again, this is another version.

        Args:
            name: of the object or folder.
            mtime_ns: nanoseconds since 1970.

        Raises:
            Unavailable: the store keeps no such time (see `Capabilities`).
        """

    async def set_replication(self, name: str, copies: int) -> None:
        """Ask the store to keep an object on this many machines.

        Raises:
            Unavailable: the store does not replicate (see `Capabilities`).
        """

    async def space(self) -> StoreSpace:
        """Return total and free space."""

    async def reap_temporaries(self, older_than_s: float, folder: str = "") -> int:
        """Remove objects that dead writers left in the making; returns how many.

        Args:
            older_than_s: minimum age in seconds since the last write; a day is safe for every live
                writer.
            folder: only objects below it, where the store knows their names.
        """


@runtime_checkable
class Placement(Protocol):
    """The role of a store that knows which machines have an object."""

    async def block_locations(self, name: str) -> Sequence[BlockLocation]:
        """Return where the parts of an object are: all of it, in order, without gaps.

        Parts can move at any time; the answer helps to choose which machine to ask first.

        Raises:
            Unavailable: the store cannot tell, or not now.
        """


async def read_all(
    store: Store, name: str, limit_bytes: int, known: ObjectInfo | None = None
) -> bytes:
    """Read a whole object that ought to be small.

    Args:
        store: that it is in.
        name: of the object.
        limit_bytes: the most that make sense.
        known: what a listing says of it, which saves calls; see `Store.open`.

    Raises:
        Corrupt: the object is larger than `limit_bytes`; nothing of it was read.
    """
    async with store.open(name, known=known) as reader:
        if reader.size_bytes > limit_bytes:
            raise Corrupt(
                f"{name!r} in {store.url} has {reader.size_bytes} bytes where at most "
                f"{limit_bytes} make sense; delete it to have it made again"
            )
        return await reader.pread(0, reader.size_bytes)


async def publish(
    store: Store, name: str, data: Data, *, overwrite: bool = True, mode: int | None = None
) -> None:
    """Write a whole object; see `Store.create` and `Writer.commit`."""
    async with store.create(name, overwrite=overwrite, mode=mode) as writer:
        await writer.write(data)
        await writer.commit()


def check_version(found: ObjectInfo, wanted: ObjectInfo | None, url: str) -> None:
    """Refuse an object of another version than is wanted, if one is.

    Raises:
        Conflict: it is another.
    """
    if wanted is not None and not wanted.is_version(found):
        raise Conflict(f"{found.name!r} in {url} was replaced; open it again")


def readable_bytes(offset: int, size: int, size_bytes: int) -> int:
    """Return how many of the bytes asked for lie inside an object of `size_bytes`.

    Raises:
        ValueError: the offset or the size is negative.
    """
    if offset < 0 or size < 0:
        raise ValueError(f"cannot read {size} bytes at offset {offset}: both must be 0 or more")
    return max(0, min(size, size_bytes - offset))


def check_mode(mode: Mode) -> Mode:
    """Return what can be the mode of an object: permission bits and the sticky one; None for none.

    Raises:
        ValueError: it is anything else.
    """
    if mode is not None and not 0 <= mode <= 0o1777:
        raise ValueError(f"{mode:#o} is not a mode between 0 and 0o1777")
    return mode
