"""Stores that many users run things from: what others could have written is refused."""

import grp
import json
import os
import stat
import subprocess
import sys

import pytest

from bootseer import config
from bootseer.config import User
from bootseer.errors import ConfigError, Denied
from bootseer.image.library import catalog
from bootseer.store.api.base import publish, read_all
from bootseer.store.from_settings import connect, connect_images, connect_shared, connect_to
from bootseer.store.local.owner_rules import TrustedOwners
from bootseer.store.local.store import LocalStore

pytestmark = pytest.mark.root

PROVIDER, ALICE, MALLORY = 4201, 4202, 4203
GROUP = next(g for g in grp.getgrall() if g.gr_gid not in {0, os.getegid(), *os.getgroups()})
ADA = User("ada", ALICE, "/home/ada")
OBJECT = "image-names/train.json"

PUBLISH_AS = """
import os, sys, trio
from pathlib import Path
from bootseer.errors import Denied
from bootseer.store.api.base import publish
from bootseer.store.local.store import LocalStore
from bootseer.store.local.owner_rules import TrustedOwners

path, uid, gid, gids, trusted_gid, name = sys.argv[1:]
os.setgroups([int(gid) for gid in gids.split()])
os.setgid(int(gid))
os.setuid(int(uid))
os.umask(0o022)
group = ("images", int(trusted_gid)) if trusted_gid else ("", None)
owners = TrustedOwners("somebody", int(uid), *group, widens=bool(trusted_gid))
try:
    trio.run(publish, LocalStore(Path(path), trusted=owners), name, b"1")
except Denied as error:
    print(error)
"""


def publish_as(path, uid, name, *, groups="", trusted_gid=""):
    """Write an object as a user in a process of its own; returns why it was refused."""
    argv = [
        sys.executable,
        "-P",
        "-c",
        PUBLISH_AS,
        path,
        str(uid),
        str(uid),
        groups,
        trusted_gid,
        name,
    ]
    return subprocess.run(
        argv, check=True, text=True, stdout=subprocess.PIPE, cwd="/", timeout=60
    ).stdout


@pytest.fixture
def folder(place):
    """A store's folder, made by a user who provides images."""
    path = place / "images"
    path.mkdir(mode=0o755)
    os.chown(path, PROVIDER, PROVIDER)
    publish_as(path, PROVIDER, OBJECT)
    return path


@pytest.fixture
def store(folder):
    return LocalStore(folder, trusted=TrustedOwners("ada", ALICE))


async def test_what_the_owner_of_the_store_has_written_is_used(folder, store):
    assert await read_all(store, OBJECT, 1) == b"1"
    assert [info.name for info in await store.list("image-names")] == [OBJECT]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o757])
@pytest.mark.parametrize("where", ["", "image-names", OBJECT])
async def test_what_others_can_write_is_refused_by_its_name(folder, store, where, mode):
    path = folder / where
    path.chmod(mode)
    with pytest.raises(Denied, match=rf"chmod [og]-w {path}`"):
        await read_all(store, OBJECT, 1)
    if where != OBJECT:
        with pytest.raises(Denied, match=rf"chmod [og]-w {path}`"):
            await publish(store, OBJECT, b"2")


@pytest.mark.parametrize("where", ["image-names", OBJECT])
@pytest.mark.parametrize(
    ("owner", "is_used"), [(0, True), (PROVIDER, True), (ALICE, True), (MALLORY, False)]
)
async def test_folders_belong_to_root_the_owner_of_the_store_or_the_user(
    folder, store, where, owner, is_used
):
    os.chown(folder / where, owner, owner)
    if is_used:
        assert await read_all(store, OBJECT, 1) == b"1"
    else:
        with pytest.raises(Denied, match=f"{folder / where} belongs to user {MALLORY}.*chown"):
            await read_all(store, OBJECT, 1)


async def test_an_image_that_a_stranger_has_tagged_again_is_not_run(folder):
    """The attack: the folder of names is open to all, as one that was made with `chmod -R 777`."""
    settings = of(**{"image.store_url": folder.as_uri()})
    owners = TrustedOwners("provider", 0)
    await catalog.give_name(LocalStore(folder, trusted=owners), "train", "a" * 64, 1)
    assert await catalog.resolve(connect_images(settings, ADA), "train") == "a" * 64
    folder.chmod(0o777)
    (folder / "image-names").chmod(0o777)
    document = json.loads((folder / OBJECT).read_text()) | {"digest": "b" * 64}
    script = f"rm {folder / OBJECT}; cat >{folder / OBJECT}"
    subprocess.run(
        ["sh", "-c", script], user=MALLORY, input=json.dumps(document), text=True, check=True
    )
    with pytest.raises(Denied, match="everybody can write in"):
        await catalog.resolve(connect_images(settings, ADA), "train")
    # Closing the folders alone does not make what is in them good.
    folder.chmod(0o755)
    (folder / "image-names").chmod(0o755)
    with pytest.raises(Denied, match=f"belongs to user {MALLORY}"):
        await catalog.resolve(connect_images(settings, ADA), "train")


async def test_a_link_in_the_place_of_a_folder_is_not_followed(folder, store, place):
    elsewhere = place / "elsewhere"
    (folder / "image-names").rename(elsewhere)
    (folder / "image-names").symlink_to(elsewhere)
    with pytest.raises(Denied, match="symbolic link"):
        await read_all(store, OBJECT, 1)


async def test_the_folder_above_is_not_everybodys_to_exchange(folder, store, place):
    place.chmod(0o777)
    with pytest.raises(Denied, match=f"chmod o-w {place}`"):
        await read_all(store, OBJECT, 1)
    place.chmod(0o1777)
    assert await read_all(store, OBJECT, 1) == b"1"


def test_a_users_process_does_not_make_the_store(folder, place):
    place.chmod(0o1777)
    said = publish_as(place / "missing", MALLORY, OBJECT)
    assert "the administrator makes it" in said
    assert not (place / "missing").exists()


async def test_members_of_a_group_write_where_the_administrator_says_so(folder):
    gid = GROUP.gr_gid
    os.chown(folder, 0, gid)
    os.chown(folder / "image-names", 0, 0)
    folder.chmod(0o2775)
    member = {"groups": str(gid), "trusted_gid": str(gid)}
    assert publish_as(folder, PROVIDER, "images/1/manifest", **member) == ""
    assert publish_as(folder, MALLORY, "images/2/manifest", **member) == ""
    for made in ("images", "images/1", "images/2"):
        status = (folder / made).stat()
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o2775, gid)
    settings = of(**{"image.store_url": str(folder), "image.store_group": GROUP.gr_name})
    shared = connect_images(settings, ADA)
    for name in ("images/1/manifest", "images/2/manifest"):
        assert await read_all(shared, name, 1) == b"1"
    ungrouped = of(**{"image.store_url": str(folder)})
    with pytest.raises(Denied, match=rf"group {gid} can write in.*image\.store_group"):
        await read_all(connect_images(ungrouped, ADA), "images/1/manifest", 1)
    # Of others' groups, nothing is taken.
    os.chown(folder / "images", MALLORY, MALLORY)
    with pytest.raises(Denied, match=f"group {MALLORY} can write in {folder}/images"):
        await read_all(shared, "images/1/manifest", 1)
    assert "can write in" in publish_as(folder, MALLORY, "images/3/manifest", **member)


async def test_stores_of_environments_go_by_the_same_rule(folder):
    os.chown(folder, PROVIDER, GROUP.gr_gid)
    folder.chmod(0o2770)
    shared = connect_shared(str(folder), GROUP.gr_name, of(), ADA)
    assert await read_all(shared, OBJECT, 1) == b"1"
    os.chown(folder / "image-names", MALLORY, MALLORY)
    with pytest.raises(Denied, match=f"belongs to user {MALLORY}"):
        await read_all(shared, OBJECT, 1)
    folder.chmod(0o2777)
    with pytest.raises(Denied, match="everybody can write in"):
        await read_all(shared, OBJECT, 1)


def test_a_group_that_is_not_there():
    settings = of(**{"image.store_url": "/a", "image.store_group": "no-such-group"})
    with pytest.raises(ConfigError, match=r"image\.store_group: .*no-such-group"):
        connect_images(settings, ADA)


def of(**values):
    return config.Config(values)


def opened(section, url, **values):
    if section == "store":
        return connect(of(**{"store.url": url, **values}), ADA)
    if section == "image":
        return connect_images(of(**{"image.store_url": url, **values}), ADA)
    return connect_shared(url, GROUP.gr_name, of(**values), ADA)


@pytest.mark.parametrize("section", ["store", "image", "env"])
@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://bucket/a", "abfss://box@account/a"])
def test_one_place_for_all_in_an_object_store_is_refused(section, url):
    with pytest.raises(ConfigError, match=rf"same for all users.*{section}\.shared_bucket = true"):
        opened(section, url)
    assert opened(section, url, **{f"{section}.shared_bucket": True}).url == url
    for braces, filled in (("{user}", "ada"), ("{uid}", str(ALICE))):
        assert opened(section, f"{url}/{braces}").url == f"{url}/{filled}"


def test_what_a_user_names_is_not_restricted():
    assert connect_to("s3://bucket/ckpt", of(), ADA, private=False).url == "s3://bucket/ckpt"
