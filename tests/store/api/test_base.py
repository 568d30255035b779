"""What stores say and take, and what is checked of it in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bootseer.errors import Conflict, Corrupt
from bootseer.store.api.base import (
    Capabilities,
    FolderListing,
    ObjectInfo,
    StoreSpace,
    Unlisted,
    check_mode,
    check_version,
    publish,
    read_all,
    readable_bytes,
)
from bootseer.store.api.name import TEMPORARY_PREFIX
from bootseer.store.memory import MemoryStore

INFO = ObjectInfo("a/b", 5, 100, mode=0o600, owner="ada", group="staff", version="v1")


@pytest.mark.parametrize(
    "changes", [{"mode": 0o644}, {"owner": "bob"}, {"group": "all"}, {"version": "v2"}]
)
def test_whose_it_is_makes_no_difference_to_what_is_known(changes: dict[str, object]) -> None:
    assert replace(INFO, **changes) == INFO  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"name": "a"}, {"size_bytes": 6}, {"mtime_ns": 101}, {"is_folder": True}]
)
def test_name_length_time_and_kind_make_a_difference(changes: dict[str, object]) -> None:
    assert replace(INFO, **changes) != INFO  # type: ignore[arg-type]


def test_an_object_is_no_folder_unless_it_is_said() -> None:
    assert not ObjectInfo("a", 1, 2).is_folder


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"name": "c", "mode": 0o644, "owner": "bob"}, True),
        ({"version": ""}, True),
        ({"version": "v2"}, False),
        ({"size_bytes": 6}, False),
        ({"mtime_ns": 101}, False),
        ({"is_folder": True}, False),
        ({"version": "", "size_bytes": 6}, False),
    ],
)
def test_versions_are_told_apart(changes: dict[str, object], is_same: bool) -> None:
    """By all that both have of it."""
    other = replace(INFO, **changes)  # type: ignore[arg-type]
    assert INFO.is_version(other) is other.is_version(INFO) is is_same
    if is_same:
        check_version(other, INFO, "memory:")
    else:
        with pytest.raises(Conflict, match="in memory: was replaced"):
            check_version(other, INFO, "memory:")
    check_version(other, None, "memory:")


def test_a_listing_notes_what_callers_cannot_use() -> None:
    listing = FolderListing()
    assert (listing, listing.unlisted) == ([], [])
    assert listing.admits("folder/object")
    assert not listing.admits(f"folder/{TEMPORARY_PREFIX}x")
    assert not listing.admits(f"{TEMPORARY_PREFIX}x")
    assert listing.unlisted == []
    assert not listing.admits("folder/a\tb")
    [one] = listing.unlisted
    assert one == Unlisted("folder/a\tb", one.problem)
    assert "control character" in one.problem


def test_what_is_not_said_of_a_store() -> None:
    assert StoreSpace() == StoreSpace(None, None)
    assert Capabilities(True, False, True) == Capabilities(
        atomic_rename=True,
        replication=False,
        attributes=True,
        append=True,
        exclusive=True,
        snapshots=True,
    )


@pytest.mark.parametrize(
    ("offset", "size", "readable"),
    [(0, 0, 0), (0, 10, 10), (0, 11, 10), (3, 7, 7), (3, 8, 7), (9, 1, 1), (10, 1, 0), (99, 1, 0)],
)
def test_a_read_ends_with_the_object(offset: int, size: int, readable: int) -> None:
    assert readable_bytes(offset, size, 10) == readable


@pytest.mark.parametrize(("offset", "size"), [(-1, 0), (0, -1)])
def test_a_read_begins_in_the_object(offset: int, size: int) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        readable_bytes(offset, size, 10)


@pytest.mark.parametrize("mode", [0, 1, 0o777, 0o1777])
def test_modes_are_permissions_and_the_sticky_bit(mode: int) -> None:
    assert check_mode(mode) == mode


@pytest.mark.parametrize("mode", [-1, 0o2000, 0o1777 + 1])
def test_other_bits_are_no_mode(mode: int) -> None:
    with pytest.raises(ValueError, match="not a mode"):
        check_mode(mode)


async def test_what_is_small_is_read_whole() -> None:
    store = MemoryStore()
    await publish(store, "object", b"12345")
    assert await read_all(store, "object", 5) == b"12345"
    with pytest.raises(Corrupt, match=r"'object' in memory: has 5 bytes where at most 4"):
        await read_all(store, "object", 4)
