"""The files of an entry of the block cache: how they are lent, made and cleaned up."""

import fcntl
import os
import random
from contextlib import contextmanager

import pytest
from bootseer_dev.material.image_entry import find_image
from bootseer_dev.material.stored_image import cache_in, manifest_of, open_entry

from bootseer.cache.size import SUM_BYTES, EntrySize
from bootseer.cache.token import entry_name, manifest_token
from bootseer.core import image_manifest
from bootseer.errors import Denied, NotFound, Unavailable

pytestmark = pytest.mark.root  # the cache's folder has to be root's
BLOCK = 4096
ALICE = 1001
MANIFEST = manifest_of(random.Random(1).randbytes(10 * BLOCK + 100))
ENCODED = MANIFEST.encode()
TOKEN = manifest_token(ENCODED)
SIZE = EntrySize(len(ENCODED), MANIFEST.size_bytes, MANIFEST.blocks)


@pytest.fixture
def cache(tmp_path):
    return cache_in(tmp_path)


@pytest.fixture
def top(tmp_path):
    """The cache's folder."""
    return tmp_path / "cache" / "images"


@contextmanager
def locked(path, kind):
    """Have a lock on a file, as another process."""
    with path.open() as file:
        fcntl.flock(file, kind)
        yield


@contextmanager
def unreadable():
    """A descriptor of what cannot be read."""
    fd = os.open("/dev/null", os.O_WRONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def left(top):
    """What is in the cache's folder but for the lock."""
    return sorted(set(os.listdir(top)) - {".lock"})


# What is lent.


def test_readers_can_write_nothing_and_the_keeper_all_but_the_manifest(cache):
    entry = open_entry(cache, MANIFEST, ALICE)
    readers = [entry.entry.open_manifest(), *entry.entry.open_blocks()]
    keepers = entry.entry.open_keeper()
    names = ("manifest", "data", "map")
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in readers] == [
        str(entry.path / name) for name in names
    ]
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in keepers] == [
        str(entry.path / name) for name in ("data", "map", "claims")
    ]
    assert os.pread(readers[0], 1 << 20, 0) == ENCODED
    for fd in readers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(fd, b"x", 0)
    for fd in keepers:
        assert os.pwrite(fd, b"x", 0) == 1 and os.pread(fd, 1, 0) == b"x"
    for fd in (*readers, *keepers):
        assert not os.get_inheritable(fd)
        os.close(fd)
    entry.close()


@pytest.mark.parametrize("name", ["data", "map", "claims"])
def test_of_files_that_are_not_all_there_none_stays_open(cache, name):
    entry = open_entry(cache, MANIFEST, ALICE)
    (entry.path / name).unlink()
    with pytest.raises(Unavailable, match="cannot be opened"):
        entry.entry.open_keeper()
    (entry.path / "manifest").unlink()
    with pytest.raises(Unavailable, match="cannot be opened"):
        entry.entry.open_manifest()
    entry.close()


def test_an_incomplete_entry_is_not_in_use(cache):
    entry = open_entry(cache, MANIFEST, ALICE)
    entry.close()
    (entry.path / "map").unlink()
    with pytest.raises(NotFound):
        cache.find(TOKEN, ALICE)
    assert cache.remove(entry.path.name)


# What is made.


def test_an_entry_is_made_of_files_of_the_images_lengths(cache):
    entry = open_entry(cache, MANIFEST, ALICE)
    lengths = {path.name: path.stat().st_size for path in entry.path.iterdir()}
    account = lengths.pop("account")
    assert lengths == {
        "manifest": len(ENCODED),
        "data": MANIFEST.size_bytes,
        "map": MANIFEST.blocks * SUM_BYTES,
        "claims": 0,
        "user": ALICE,
    }
    assert account == SIZE.fixed_bytes
    entry.close()


def test_a_manifest_of_more_than_a_piece_is_copied_whole(cache):
    digests = random.Random(2).randbytes(32 * 70_000)
    manifest = image_manifest.ImageManifest(
        70_000 * BLOCK, BLOCK, 1 << 20, "", "sqfs1-test", (), digests
    )
    encoded = manifest.encode()
    open_entry(cache, manifest, ALICE).close()
    token, digest = manifest_token(encoded), image_manifest.image_digest(encoded)
    entry = find_image(cache, digest, token, ALICE)
    assert entry.manifest.encode() == encoded
    entry.close()


def test_of_an_entry_that_cannot_be_made_nothing_stays(cache, top):
    with unreadable() as fd, pytest.raises(Unavailable, match="cannot be used"):
        cache.create(TOKEN, SIZE, fd, ALICE)
    assert left(top) == []


def test_an_entry_that_cannot_be_mended_is_not_in_use(cache, top):
    entry = open_entry(cache, MANIFEST, ALICE)
    entry.close()
    with unreadable() as fd, pytest.raises(Unavailable, match="cannot be used"):
        cache.create(TOKEN, SIZE, fd, ALICE)
    assert left(top) == [entry.path.name]
    assert cache.remove(entry.path.name)


def test_an_entry_of_another_version_in_use_blocks_creation(cache, top):
    old = top / entry_name(TOKEN)
    old.mkdir(parents=True)
    os.chmod(top, 0o700)
    (old / "map").touch()
    with locked(old / "map", fcntl.LOCK_SH), pytest.raises(Unavailable, match="all the time"):
        open_entry(cache, MANIFEST, ALICE)
    assert left(top) == [old.name]
    open_entry(cache, MANIFEST, ALICE).close()
    assert cache.sweep() == []
    assert left(top) == [old.name] and (old / "account").exists()


def test_a_locked_entry_is_not_opened(cache):
    entry = open_entry(cache, MANIFEST, ALICE)
    entry.close()
    with locked(entry.path / "account", fcntl.LOCK_EX):
        with pytest.raises(Unavailable, match="cannot be used"):
            cache.find(TOKEN, ALICE)
        with pytest.raises(Unavailable, match="cannot be used"):
            open_entry(cache, MANIFEST, ALICE)
    cache.find(TOKEN, ALICE).close()


def test_a_folder_that_others_may_write_to_is_not_used(cache, top):
    open_entry(cache, MANIFEST, ALICE).close()
    top.chmod(0o770)
    with pytest.raises(Denied):
        cache.find(TOKEN, ALICE)
    with pytest.raises(Denied):
        open_entry(cache, MANIFEST, ALICE)
    top.chmod(0o700)
    cache.find(TOKEN, ALICE).close()


# What is swept.


def test_entries_that_are_being_made_are_swept_unless_they_are_in_use(cache, top):
    entry = open_entry(cache, MANIFEST, ALICE)
    for name in (".new-empty", ".new-whole", ".new-used"):
        (top / name).mkdir()
    for name in (".new-whole", ".new-used"):
        (top / name / "account").touch()
    with locked(top / ".new-used" / "account", fcntl.LOCK_SH):
        assert cache.sweep() == []
        assert left(top) == [".new-used", entry.path.name]
    assert cache.sweep() == []
    assert left(top) == [entry.path.name]
    entry.close()


def test_foreign_files_are_reported_in_order(cache, top):
    entry = open_entry(cache, MANIFEST, ALICE)
    entry.close()
    strange = [top / "z", top / ("g" * 64), entry.path / "x", entry.path / "b", top / ("A" * 64)]
    for path in strange:
        path.touch()
    found = [line.partition(" ")[0].strip("'") for line in cache.sweep()]
    assert found == sorted(map(str, strange))
    assert all(path.exists() for path in strange)


def test_where_there_is_no_cache_nothing_is_swept_or_removed(cache, top):
    assert cache.sweep() == []
    assert cache.accounts() == []
    assert not cache.remove("0" * 64)
    assert not top.exists()
