"""HDFS stores that users run things from, on an HDFS in memory."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio

from bootseer.errors import Denied, NotFound
from bootseer.store.api.base import Store, publish, read_all
from bootseer.store.from_url import open_store
from bootseer.store.hdfs.options import HdfsOptions
from bootseer.store.local.owner_rules import TrustedOwners

URL = "hdfs://namenode:8020/shared"
NAME = "image-names/by-user/train"


def shared() -> Store:
    return open_store(URL, trusted=TrustedOwners("alice", 4202), hdfs=HdfsOptions())


def own(owner: str = "alice", principal: str = "") -> Store:
    options = HdfsOptions(kerberos_principal=principal)
    return open_store(URL, owner_uid=os.geteuid(), owner_name=owner, hdfs=options)


@pytest.fixture(autouse=True)
def provided(namenode: Any) -> None:
    namenode.user = "provider"
    trio.run(publish, open_store(URL, hdfs=HdfsOptions()), NAME, b"1")
    namenode.calls.clear()


def change(namenode: Any, where: str, **changes: object) -> None:
    for key, value in changes.items():
        setattr(namenode.inodes[f"/shared{where}"], key, value)


WHERE = ["", "/image-names", "/image-names/by-user", f"/{NAME}"]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"permission": 0o777}, "everybody can write in"),
        ({"permission": 0o775}, "group staff can write in"),
        ({"owner": "mallory"}, "belongs to user mallory"),
    ],
)
async def test_what_others_can_write_is_refused_by_its_name(
    namenode: Any, where: str, changes: dict[str, object], says: str
) -> None:
    assert await read_all(shared(), NAME, 1) == b"1"
    change(namenode, where, **changes)
    if not where and "owner" in changes:  # whose it is, is trusted: but then the others are not
        says, where = "belongs to user provider", "/image-names"
    with pytest.raises(Denied, match=f"the store is not used: .*{URL}{where}[ :]") as raised:
        await read_all(shared(), NAME, 1)
    assert says in str(raised.value)


async def test_folders_are_checked_that_are_walked_through(namenode: Any) -> None:
    """Once in a process; what is asked for itself when it is opened or listed."""
    store = shared()
    await store.list()
    assert namenode.asked("get_file_info") == ["/shared"]
    await store.mkdir("image-names")
    assert namenode.asked("get_file_info") == ["/shared"]
    await store.list("image-names")
    await store.mkdir("image-names/by-user")
    await store.list("image-names")
    await store.list()
    assert namenode.asked("get_file_info") == ["/shared", "/shared/image-names"]


async def test_a_listing_of_what_others_can_write_is_refused(namenode: Any) -> None:
    change(namenode, "/image-names", permission=0o777)
    with pytest.raises(Denied, match="everybody"):
        await shared().list("image-names")
    assert len(await shared().list()) == 1


async def test_what_is_not_there_yet_is_no_matter_of_trust(namenode: Any) -> None:
    namenode.delete("/shared", True)
    store = shared()
    with pytest.raises(NotFound):
        await store.stat("a/b")
    await publish(store, "a/b", b"1")
    assert await read_all(store, "a/b", 1) == b"1"
    change(namenode, "", permission=0o777)
    with pytest.raises(Denied):
        await shared().stat("a/b")


# A user's own


async def test_a_users_own_store_is_the_users(namenode: Any) -> None:
    with pytest.raises(Denied, match=f"{URL} belongs to user provider, not to alice"):
        await own().stat(NAME)
    change(namenode, "", owner="alice")
    await own().list("image-names")
    with pytest.raises(Denied, match=f"{URL}/{NAME} belongs to user provider"):
        await read_all(own(), NAME, 1)
    change(namenode, f"/{NAME}", owner="alice")
    assert await read_all(own(), NAME, 1) == b"1"
    change(namenode, f"/{NAME}", permission=0o620)
    with pytest.raises(Denied, match="others can write in"):
        await read_all(own(), NAME, 1)


@pytest.mark.parametrize("principal", ["alice_a", "alice_a@REALM", "alice_a/n1@REALM"])
async def test_a_user_may_have_the_name_of_a_ticket(namenode: Any, principal: str) -> None:
    for where in WHERE:
        change(namenode, where, owner="alice_a")
    with pytest.raises(Denied):
        await read_all(own(), NAME, 1)
    assert await read_all(own(principal=principal), NAME, 1) == b"1"


async def test_the_top_folder_of_a_users_own_store_is_asked_for_once(namenode: Any) -> None:
    for where in WHERE:
        change(namenode, where, owner="alice")
    store = own()
    await store.list("image-names")
    await store.list("image-names")
    assert namenode.asked("get_file_info") == ["/shared"]


async def test_what_a_users_own_store_makes_is_private(namenode: Any) -> None:
    namenode.user = "alice"
    namenode.delete("/shared", True)
    await publish(own(), NAME, b"1")
    modes = [namenode.inodes[f"/shared{where}"].permission for where in WHERE]
    assert modes == [0o700, 0o700, 0o700, 0o600]


@pytest.mark.parametrize("owner_uid", [None, 4202])
async def test_a_store_of_nobody_in_particular_is_anybodys(
    namenode: Any, owner_uid: int | None
) -> None:
    change(namenode, "", permission=0o777)
    store = open_store(URL, owner_uid=owner_uid, hdfs=HdfsOptions())
    assert await read_all(store, NAME, 1) == b"1"
