"""The stores that settings name, as the product opens them."""

from __future__ import annotations

import grp
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bootseer import config
from bootseer.config import User
from bootseer.errors import ConfigError, Denied, Transient
from bootseer.store import from_settings as connect_module
from bootseer.store.api.base import publish, read_all
from bootseer.store.from_settings import (
    connect,
    connect_images,
    connect_shared,
    connect_to,
    image_owners,
)
from bootseer.store.local.owner_rules import TrustedOwners
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.backoff import Backoff
from bootseer.testing.fault_store import FlakyStore, HangingStore, every

GROUP = grp.getgrgid(os.getegid())
ADA = User("ada", os.geteuid(), "/home/ada")
BOB = User("bob", os.geteuid() + 1, "/home/bob")


def of(**values: Any) -> config.Config:
    return config.Config(values)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "{user}").as_uri().replace("%7B", "{").replace("%7D", "}")


async def test_a_users_store_is_that_users_alone(tmp_path: Path, url: str) -> None:
    settings = of(**{"store.url": url})
    for store in (connect(settings, ADA), connect_images(settings, ADA)):
        assert store.url == (tmp_path / "ada").as_uri()
        await publish(store, "object", b"1")
    (tmp_path / "ada").rename(tmp_path / "bob")
    for store in (connect(settings, BOB), connect_images(settings, BOB)):
        with pytest.raises(Denied, match="owned by uid"):
            await read_all(store, "object", 1)


async def test_images_have_a_store_of_their_own_where_one_is_named(
    tmp_path: Path, url: str
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    settings = of(**{"store.url": url, "image.store_url": str(images)})
    assert connect(settings, ADA).url == (tmp_path / "ada").as_uri()
    await publish(connect_images(settings, ADA), "object", b"1")
    images.chmod(0o775)
    with pytest.raises(Denied, match=r"can write in .*image\.store_group"):
        await read_all(connect_images(settings, ADA), "object", 1)
    settings = of(**settings.values | {"image.store_group": GROUP.gr_name})
    assert await read_all(connect_images(settings, ADA), "object", 1) == b"1"


async def test_what_is_not_private_may_be_anybodys(tmp_path: Path) -> None:
    """If it is not said who is trusted."""
    url = tmp_path.as_uri()
    await publish(connect_to(url, of(), ADA, private=False), "object", b"1")
    tmp_path.chmod(0o777)
    for user in (ADA, BOB):
        with pytest.raises(Denied):
            await read_all(connect_to(url, of(), user), "object", 1)
        assert await read_all(connect_to(url, of(), user, private=False), "object", 1) == b"1"
    trusted = TrustedOwners(BOB.name, BOB.uid)
    with pytest.raises(Denied, match="everybody can write"):
        await read_all(connect_to(url, of(), BOB, trusted=trusted), "object", 1)
    tmp_path.chmod(0o755)
    assert await read_all(connect_to(url, of(), BOB, trusted=trusted), "object", 1) == b"1"


def test_a_group_whose_members_write_images_widens_the_folders() -> None:
    assert image_owners(of(), ADA) == TrustedOwners("ada", ADA.uid)
    assert image_owners(of(**{"image.store_group": GROUP.gr_name}), ADA) == TrustedOwners(
        "ada", ADA.uid, GROUP.gr_name, GROUP.gr_gid, widens=True
    )


async def test_the_setting_of_a_group_s_environments_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o757)
    shared = connect_shared(f"{tmp_path}", GROUP.gr_name, of(), ADA)
    with pytest.raises(Denied, match="everybody"):
        await shared.list()
    tmp_path.chmod(0o775)
    assert await shared.list() == []
    with pytest.raises(ConfigError, match=r"env\.shared: this node has no group 'no-such-group'"):
        connect_shared(f"{tmp_path}", "no-such-group", of(), ADA)


@pytest.mark.parametrize("is_private", [True, False])
async def test_whose_an_hdfs_store_is_is_handed_on(namenode: Any, is_private: bool) -> None:
    url = "hdfs://namenode:8020/folder"
    namenode.user = "mallory"
    await publish(connect_to(url, of(), ADA, private=False), "object", b"1")
    store = connect_to(url, of(), ADA, private=is_private)
    if is_private:
        with pytest.raises(Denied, match="belongs to user mallory, not to ada"):
            await read_all(store, "object", 1)
    else:
        assert await read_all(store, "object", 1) == b"1"


# Deadlines and attempts


async def test_each_attempt_has_the_deadline_of_the_settings(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_module, "open_store", lambda *_, **__: HangingStore(MemoryStore()))
    backoff = Backoff(attempts=3, first_s=0, longest_s=0)
    store = connect_to("/a", of(**{"store.deadline_s": 7}), ADA, backoff=backoff)
    with pytest.raises(Transient, match="gave up after 3 attempts"):
        await store.list()
    assert trio.current_time() == 3 * 7


@pytest.mark.parametrize("section", ["store", "image"])
async def test_operations_and_attempts_are_what_is_asked_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    inner = FlakyStore(HangingStore(MemoryStore(), {"stat"}), lambda *_: False)
    monkeypatch.setattr(connect_module, "open_store", lambda *_, **__: inner)
    opens = connect if section == "store" else connect_images
    settings = of(**{"store.url": "/a", "image.store_url": "/a"})
    store = opens(settings, ADA, operations=2, backoff=Backoff(attempts=1))
    with trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(store.stat, "a")
    assert len(inner.calls) == 2
    flaky = FlakyStore(MemoryStore(), every(1))
    monkeypatch.setattr(connect_module, "open_store", lambda *_, **__: flaky)
    with pytest.raises(Transient, match="gave up after 1 attempts"):
        await opens(settings, ADA, backoff=Backoff(attempts=1)).list()
