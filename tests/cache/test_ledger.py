"""The accounts of the block cache: whose they are, when an entry was used, what the disk has."""

import os
import random
import shutil
import stat
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from bootseer_dev.material.stored_image import cache_in, manifest_of, open_entry

from bootseer.cache import ledger
from bootseer.cache.folder import BlockCache
from bootseer.cache.removal import disk_bytes
from bootseer.cache.shares import EntryUsage
from bootseer.cache.size import EntrySize
from bootseer.cache.token import manifest_token
from bootseer.errors import NoSpace, Unavailable
from bootseer.units import GIB, KIB, MIB

pytestmark = pytest.mark.root  # the cache's folder has to be root's
BLOCK = 4 * KIB
ALICE, BOB = 1001, 1002
LONG_AGO_NS = 10**18


def manifest(seed=0, blocks=8):
    return manifest_of(random.Random(seed).randbytes(blocks * BLOCK))


def fixed_bytes(blocks=8):
    encoded = manifest(0, blocks).encode()
    return EntrySize(len(encoded), blocks * BLOCK, blocks).fixed_bytes


@pytest.fixture
def cache(tmp_path):
    return cache_in(tmp_path)


def make_old(entry):
    os.utime(entry.path / "account", ns=(LONG_AGO_NS, LONG_AGO_NS))


def write(entry, blocks):
    """Write data of an entry that look like so many blocks."""
    with (entry.path / "data").open("r+b") as data:
        data.write(b"x" * blocks * BLOCK)


# Accounts.


def test_an_account_has_the_entrys_user_and_charge(cache):
    before_ns = time.time_ns() - 10**9
    entry = open_entry(cache, manifest(), ALICE)
    (account,) = cache.accounts()
    assert account == EntryUsage(
        entry.path.name, ALICE, fixed_bytes(), account.used_ns, is_leaving=False, is_open=True
    )
    assert account.used_ns > before_ns
    entry.close()
    (account,) = cache.accounts()
    assert (account.charged_bytes, account.is_open) == (fixed_bytes(), False)


def test_opening_and_closing_an_entry_is_a_use_of_it(cache):
    for _ in range(2):  # the first makes it
        entry = open_entry(cache, manifest(), ALICE)
        make_old(entry)
        entry.close()
        assert cache.accounts()[0].used_ns > LONG_AGO_NS
    make_old(entry)
    entry = open_entry(cache, manifest(), ALICE)
    assert cache.accounts()[0].used_ns > LONG_AGO_NS
    entry.close()


def test_an_entry_without_an_account_counts_for_root_and_was_never_used(cache):
    entry = open_entry(cache, manifest(), ALICE)
    write(entry, 3)
    entry.close()
    (entry.path / "account").unlink()
    (account,) = cache.accounts()
    taken = sum(path.stat().st_blocks * 512 for path in entry.path.iterdir())
    assert account == EntryUsage(entry.path.name, 0, taken + BLOCK, 0)


def test_an_entry_of_which_the_user_is_not_known_counts_for_root(cache):
    entry = open_entry(cache, manifest(), ALICE)
    entry.close()
    (entry.path / "user").unlink()
    assert cache.accounts()[0].uid == 0
    found = cache.find(manifest_token(manifest().encode()), BOB)
    assert found.path == entry.path
    found.close()


def test_an_entry_that_is_leaving_is_not_open(cache, monkeypatch):
    entry = open_entry(cache, manifest(), ALICE)
    os.close(entry.entry.lock_fd)  # as a process that dies
    monkeypatch.setattr(ledger, "_PIECES", 0)
    assert cache.remove(entry.path.name)
    (account,) = cache.accounts()
    assert (account.uid, account.is_leaving, account.is_open) == (ALICE, True, False)


# What is given back.


def test_dead_reservations_are_returned_at_the_next_open(cache):
    dead = open_entry(cache, manifest(), ALICE)
    assert dead.entry.reserve(BLOCK, 5 * BLOCK) == 5 * BLOCK
    write(dead, 2)
    os.close(dead.entry.lock_fd)
    entry = open_entry(cache, manifest(), BOB)
    (account,) = cache.accounts()
    assert (account.uid, account.charged_bytes) == (ALICE, fixed_bytes() + 2 * BLOCK)
    assert not account.is_open
    entry.close()


def test_a_fully_reserved_entry_may_be_rewritten(cache):
    """A block that is damaged, for one."""
    entry = open_entry(cache, manifest(), ALICE)
    assert entry.entry.reserve(BLOCK, MIB) == MIB
    charged = cache.accounts()[0].charged_bytes
    assert charged == fixed_bytes() + 8 * BLOCK
    assert entry.entry.reserve(BLOCK, 3 * BLOCK) == 3 * BLOCK
    assert entry.entry.reserve(2 * BLOCK, BLOCK) == 2 * BLOCK
    assert cache.accounts()[0].charged_bytes == charged
    entry.close()


def test_needed_bytes_are_granted_without_space_for_wanted_ones(tmp_path):
    cache = cache_in(tmp_path, fixed_bytes() + 5 * BLOCK)
    entry = open_entry(cache, manifest(), ALICE)
    assert entry.entry.reserve(2 * BLOCK, 6 * BLOCK) == 2 * BLOCK
    assert entry.entry.reserve(BLOCK, 3 * BLOCK) == 3 * BLOCK
    assert entry.entry.reserve(BLOCK, BLOCK) == 0
    assert cache.accounts()[0].charged_bytes == fixed_bytes() + 5 * BLOCK
    entry.close()


def test_room_that_does_not_come_free_in_time_is_refused(tmp_path, monkeypatch):
    cache = cache_in(tmp_path, fixed_bytes() + BLOCK)
    open_entry(cache, manifest(1), ALICE).close()
    monkeypatch.setattr(ledger, "_PIECES", 0)  # whoever removes it takes long
    with pytest.raises(NoSpace):
        open_entry(cache, manifest(2), ALICE)
    assert [account.is_leaving for account in cache.accounts()] == [True]
    monkeypatch.undo()
    open_entry(cache, manifest(2), ALICE).close()
    assert [account.is_leaving for account in cache.accounts()] == [False]


def test_a_removed_entry_gets_no_space(cache):
    entry = open_entry(cache, manifest(), ALICE)
    shutil.rmtree(entry.path)
    assert entry.entry.reserve(BLOCK, BLOCK) == 0
    entry.close()
    assert cache.accounts() == []


def test_a_withdrawn_demand_is_not_met(cache):
    open_entry(cache, manifest(), ALICE).close()
    assert cache._ledger.admit(lambda book: None, lambda book, demand: pytest.fail()) is False


# What the disk has.


@contextmanager
def disk(monkeypatch, blocks, free_blocks):
    """Have the file system of the cache be that large, and that empty."""
    space = SimpleNamespace(f_blocks=blocks, f_bavail=free_blocks, f_frsize=BLOCK)
    with monkeypatch.context() as patched:
        patched.setattr(ledger.os, "statvfs", lambda path: space)
        yield


@pytest.mark.parametrize(("free_blocks", "fits"), [(0, True), (-1, False)])
def test_a_share_of_the_disk_is_left_free(tmp_path, monkeypatch, free_blocks, fits):
    cache = BlockCache(tmp_path / "images", GIB, 0.25)
    needed = fixed_bytes() // BLOCK
    with disk(monkeypatch, 1000, 250 + needed + free_blocks):
        if fits:
            open_entry(cache, manifest(), ALICE).close()
        else:
            with pytest.raises(NoSpace):
                open_entry(cache, manifest(), ALICE)


def test_reserved_bytes_are_not_free(tmp_path, monkeypatch):
    cache = BlockCache(tmp_path / "images", GIB, 0.0, refused_s=0.0)
    entry = open_entry(cache, manifest(), ALICE)
    reserved_blocks = (fixed_bytes() - disk_bytes(entry.path)) // BLOCK
    with disk(monkeypatch, 1000, reserved_blocks + 4):
        assert entry.entry.reserve(3 * BLOCK, 3 * BLOCK) == 3 * BLOCK
        assert entry.entry.reserve(2 * BLOCK, 2 * BLOCK) == 0
        assert entry.entry.reserve(BLOCK, BLOCK) == BLOCK
        assert entry.entry.reserve(BLOCK, BLOCK) == 0
    entry.close()


def test_a_full_disk_has_no_space(tmp_path, monkeypatch):
    cache = BlockCache(tmp_path / "images", GIB, 0.5)
    with disk(monkeypatch, 1000, 0), pytest.raises(NoSpace):
        open_entry(cache, manifest(), ALICE)
    assert cache.accounts() == []


# Files.


def test_a_link_is_not_opened(cache, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"content")
    entry = open_entry(cache, manifest(), ALICE)
    entry.close()
    (entry.path / "account").unlink()
    (entry.path / "account").symlink_to(other)
    with pytest.raises(Unavailable, match="cannot be used"):
        open_entry(cache, manifest(), ALICE)
    assert other.read_bytes() == b"content"


def test_an_entry_is_the_caches_users_alone(cache):
    entry = open_entry(cache, manifest(), ALICE)
    top = entry.path.parent
    assert stat.S_IMODE(top.stat().st_mode) == stat.S_IMODE(entry.path.stat().st_mode) == 0o700
    assert all(not path.stat().st_mode & 0o077 for path in entry.path.iterdir())
    entry.close()
    assert {stat.S_IMODE(path.stat().st_mode) for path in entry.path.iterdir()} == {0o600}
