"""Environments that a Unix group shares."""

import grp
import os
import stat

import pytest
import trio
from trio import to_thread

from bootseer import config
from bootseer.config import User
from bootseer.core import image_manifest
from bootseer.env.admin.verify import verify
from bootseer.env.snapshot import group_store, repository
from bootseer.errors import ConfigError, Corrupt, Denied, NotFound
from bootseer.image.library import catalog as images
from bootseer.image.library.upload import UploadProgress
from bootseer.store.local.store import LocalStore
from bootseer.testing.fault_store import FlakyStore
from bootseer.units import MIB

MINE = grp.getgrgid(os.getegid()).gr_name
OTHERS = next(g.gr_name for g in grp.getgrall() if g.gr_gid not in {os.getegid(), *os.getgroups()})
MAKE = "head -c 2200000 /dev/urandom >TARGET/a; echo x >TARGET/b"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o2770)
    return path


@pytest.fixture
def target(folder):
    user = User("ada", os.geteuid(), "/home/ada")
    return group_store.group_store(settings(f"{MINE}={folder}"), user, MINE)


@pytest.fixture
def snapshot(installed):
    return installed.run(MAKE)


async def test_a_copy_is_whole_and_the_groups(installed, snapshot, folder, target):
    mask = os.umask(0o077)
    try:
        counted = UploadProgress()
        assert await group_store.copy_snapshot(installed.store, target, snapshot, counted.add)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(mask)
    assert counted.done_bytes == snapshot.image_bytes
    assert await verify(target, snapshot.key, UploadProgress()) == []
    about = await images.read_about(target, snapshot.image)
    assert about is not None and about == await images.read_about(installed.store, snapshot.image)
    token = await images.read_token(target, snapshot.image)
    assert token is not None and token == await images.read_token(installed.store, snapshot.image)
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_file():
            assert mode == 0o640, path
        elif path.name in ("env", "snapshots", "images"):
            assert mode == 0o2770, path
        else:
            assert mode == 0o2750, path
    assert not await group_store.copy_snapshot(installed.store, target, snapshot)
    own = LocalStore(folder.parent / "own")
    assert await group_store.find_snapshot([own, target], snapshot.key) == (target, snapshot)
    assert await group_store.find_snapshot([installed.store, target], snapshot.key) == (
        installed.store,
        snapshot,
    )
    with pytest.raises(NotFound):
        await group_store.find_snapshot([own], snapshot.key)


async def test_without_set_group_id_modes_are_set_too(installed, snapshot, folder, target):
    folder.chmod(0o700)
    assert await group_store.copy_snapshot(installed.store, target, snapshot)
    assert stat.S_IMODE((folder / "env/snapshots").stat().st_mode) == 0o770
    assert stat.S_IMODE((folder / repository.folder_of(snapshot.key)).stat().st_mode) == 0o750


@pytest.mark.parametrize("what", ["index", "image"])
async def test_what_is_damaged_is_not_published(installed, snapshot, folder, target, what):
    name = f"{repository.folder_of(snapshot.key, snapshot.capture)}/{what}"
    installed.damage(images.part_object(snapshot.image, 0) if what == "image" else name)
    with pytest.raises(Corrupt):
        await group_store.copy_snapshot(installed.store, target, snapshot)
    with pytest.raises(NotFound):
        await repository.read_snapshot(target, snapshot.key)
    assert not (folder / repository.folder_of(snapshot.key, snapshot.capture)).exists()


async def test_what_everybody_may_write_is_not_used(installed, snapshot, folder, target):
    await group_store.copy_snapshot(installed.store, target, snapshot)
    (folder / repository.folder_of(snapshot.key)).chmod(0o777)
    with pytest.raises(NotFound):
        await group_store.find_snapshot([LocalStore(folder.parent / "own"), target], snapshot.key)


async def test_a_damaged_copy_does_not_count_and_is_replaced(installed, snapshot, folder, target):
    await group_store.copy_snapshot(installed.store, target, snapshot)
    (folder / repository.manifest_object(snapshot.key)).write_bytes(b"{}")
    with pytest.raises(NotFound):
        await group_store.find_snapshot([LocalStore(folder.parent / "own"), target], snapshot.key)
    assert await group_store.copy_snapshot(installed.store, target, snapshot)
    assert (await repository.read_snapshot(target, snapshot.key)) == snapshot


def settings(*texts):
    return config.Config({"env.shared": list(texts)})


def test_an_url_may_have_an_equals_sign():
    assert group_store.shared_urls(settings("ml=file:///a=b")) == {"ml": "file:///a=b"}


def test_all_groups_of_a_process_count(monkeypatch):
    assert group_store.is_member(MINE) and not group_store.is_member(OTHERS)
    monkeypatch.setattr(os, "getgroups", lambda: [grp.getgrnam(OTHERS).gr_gid])
    assert group_store.is_member(MINE) and group_store.is_member(OTHERS)


def test_only_members_have_a_groups_store():
    user = User("ada", os.geteuid(), "/home/ada")
    listed = settings(f"{MINE}=file:///a", f"{OTHERS}=file:///b", "no-such-group=/c")
    assert [store.url for store in group_store.shared_stores(listed, user)] == ["file:///a"]
    with pytest.raises(Denied, match="not a member"):
        group_store.group_store(listed, user, OTHERS)
    with pytest.raises(ConfigError, match=f"there are: {MINE}"):
        group_store.group_store(settings(f"{MINE}=/a"), user, "unlisted")


@pytest.mark.parametrize("text", ["ml", "ml=", "=/a", "ml=relative", "a b=/c", "ml=HDFS://x"])
def test_settings_that_are_no_groups_stores(tmp_path, text):
    path = tmp_path / "bootseer.toml"
    path.write_text(f'[env]\nshared = ["{text}"]\n')
    with pytest.raises(ConfigError, match="GROUP=URL"):
        config.load(str(path))
    path.write_text('[env]\nshared = ["ml=hdfs://nn/x", "chem=/proj/chem"]\n')
    assert len(config.load(str(path)).env.shared) == 2


def test_publish(says, call, installed, snapshot, folder):
    listed = [f"{MINE}={folder.as_uri()}", f"{OTHERS}={folder.as_uri()}"]
    with pytest.raises(Denied):
        call("share", snapshot.key, "--group", OTHERS, shared=listed)
    assert list(folder.iterdir()) == []
    with pytest.raises(ConfigError):
        call("share", snapshot.key, "--group", "unlisted")
    assert "shared" in says("share", snapshot.key[:12], "--group", MINE)
    assert "there already" in says("share", snapshot.key[:12], "--group", MINE)
    assert snapshot.key in says("ls", "--group", MINE, "--json")
    says("rm", snapshot.key)
    installed.target.joinpath("a").unlink()
    says("restore", snapshot.key, "--over", "--group", MINE)
    assert "no damage" in says("verify", "--all", "--group", MINE)


async def test_a_snapshot_is_looked_for_in_all_stores(installed, snapshot, folder, target):
    own, empty = LocalStore(folder.parent / "own"), LocalStore(folder.parent / "empty")
    found = await group_store.find_snapshot([own, empty, installed.store, target], snapshot.key)
    assert found == (installed.store, snapshot)
    with pytest.raises(NotFound, match="or in a shared store"):
        await group_store.find_snapshot([own, empty], snapshot.key)


async def test_a_snapshot_of_many_files_and_parts_is_copied(installed, monkeypatch, target):
    monkeypatch.setattr(image_manifest, "PART_BYTES", MIB)
    snapshot = await to_thread.run_sync(installed.run, f"{MAKE}; touch $(seq -f TARGET/%g 400)")
    counted = UploadProgress()
    assert await group_store.copy_snapshot(installed.store, target, snapshot, counted.add)
    assert counted.done_bytes == snapshot.image_bytes
    assert await verify(target, snapshot.key, UploadProgress()) == []


async def test_a_part_that_is_cut_short_is_not_published(installed, snapshot, target):
    path = installed.root / images.part_object(snapshot.image, 0)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(Corrupt, match="capture the environment again"):
        await group_store.copy_snapshot(installed.store, target, snapshot)


async def test_who_is_cancelled_leaves_nothing_of_its_attempt(installed, snapshot, folder, target):
    with trio.CancelScope() as scope:
        await group_store.copy_snapshot(
            installed.store, target, snapshot, lambda size_bytes: scope.cancel()
        )
    assert scope.cancelled_caught
    assert not (folder / repository.folder_of(snapshot.key, snapshot.capture)).exists()


async def test_an_image_that_is_there_is_kept_and_counted(installed, snapshot, target):
    await group_store.copy_snapshot(installed.store, target, snapshot)
    await target.delete(repository.manifest_object(snapshot.key))
    await images.remove(target, snapshot.image)
    counted = UploadProgress()
    assert await group_store.copy_snapshot(installed.store, target, snapshot, counted.add)
    assert counted.done_bytes == snapshot.image_bytes
    assert await images.list_removed(target, 0) == []


async def test_a_damaged_image_is_replaced(installed, snapshot, folder, target):
    await group_store.copy_snapshot(installed.store, target, snapshot)
    await target.delete(repository.manifest_object(snapshot.key))
    await images.remove(target, snapshot.image)
    (folder / images.manifest_object(snapshot.image)).write_bytes(b"{}")
    assert await group_store.copy_snapshot(installed.store, target, snapshot)
    assert await verify(target, snapshot.key, UploadProgress()) == []
    assert await images.list_removed(target, 0) == []


async def test_where_a_store_makes_folders_with_modes_of_its_own_they_are_set(
    installed, snapshot, folder, target
):
    class Private(FlakyStore):
        async def around(self, operation, name, call):
            found = await call()
            if operation == "mkdir":
                (folder / name).chmod(0o700)
            return found

    folder.chmod(0o700)
    assert await group_store.copy_snapshot(installed.store, Private(target, None), snapshot)
    assert stat.S_IMODE((folder / "env/snapshots").stat().st_mode) == 0o770
    assert stat.S_IMODE((folder / repository.folder_of(snapshot.key)).stat().st_mode) == 0o750


async def test_somebody_who_is_first_with_something_damaged_is_not_believed(
    installed, snapshot, folder, target, monkeypatch
):
    async def publish(store, name, data, **options):
        if name == repository.manifest_object(snapshot.key):
            (folder / name).write_bytes(b"{}")
        await real(store, name, data, **options)

    real = group_store.publish
    monkeypatch.setattr(group_store, "publish", publish)
    with pytest.raises(Corrupt):
        await group_store.copy_snapshot(installed.store, target, snapshot)


async def test_who_is_first_is_believed(installed, snapshot, folder, target, monkeypatch):
    real = repository.read_index

    async def slow(store, found):
        index = await real(store, found)
        monkeypatch.setattr(repository, "read_index", real)
        await group_store.copy_snapshot(installed.store, target, found)
        return index

    monkeypatch.setattr(repository, "read_index", slow)
    assert not await group_store.copy_snapshot(installed.store, target, snapshot)
    assert await verify(target, snapshot.key, UploadProgress()) == []
    await to_thread.run_sync(lambda: None)
