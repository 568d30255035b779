"""The block cache's folder: whose an entry is, who may have it, and what gives way to what."""

import fcntl
import os
import random
import shutil
import socket
import tempfile
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from bootseer_dev.material.damage import flipped
from bootseer_dev.material.image_entry import create_image, find_image
from bootseer_dev.material.stored_image import cache_in, manifest_of, open_entry
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from bootseer.cache import folder, ledger
from bootseer.cache.reservation import REQUEST, answer_reservation
from bootseer.cache.reservation_client import ReservationClient, Room
from bootseer.cache.size import EntrySize
from bootseer.cache.token import entry_name, manifest_token, seal_manifest
from bootseer.core import image_manifest
from bootseer.errors import Corrupt, NoSpace, NotFound, Unavailable
from bootseer.units import GIB, MIB

pytestmark = pytest.mark.root  # the cache's folder has to be root's
BLOCK = 4096
ALICE, BOB, CAROL = 1001, 1002, 1003
CONTENT = random.Random(1).randbytes(10 * BLOCK + 100)
MANIFEST = manifest_of(CONTENT)


def content_of(seed, blocks=8):
    return random.Random(seed).randbytes(blocks * BLOCK)


def disk_use(root):
    """What is below the cache's folder on the disk, in bytes."""
    return sum(path.lstat().st_blocks * 512 for path in Path(root).rglob("*"))


def fill(cache, content, uid, count=None):
    """Keep an image, or so many blocks of it; the entry stays open. None without room."""
    try:
        entry = open_entry(cache, manifest_of(content), uid)
    except NoSpace:
        return None
    keeper = entry.keeper()
    try:
        keeper.keep(0, memoryview(content)[: (count or len(content) // BLOCK) * BLOCK])
    except NoSpace:
        entry.close()
        return None
    finally:
        keeper.close()
    return entry


def read(entry, size_bytes):
    with closing(entry.blocks()) as blocks:
        return blocks.read(0, size_bytes)


def missing(entry, blocks):
    with closing(entry.blocks()) as found:
        return found.missing(range(blocks))


def keep_all(cache, uid, *seeds, blocks=8):
    """Keep images one after the other; returns the paths of their entries."""
    paths = []
    for seed in seeds:
        entry = fill(cache, content_of(seed, blocks), uid)
        assert entry is not None
        entry.close()
        paths.append(entry.path)
    return paths


def entry_bytes(content, blocks=None):
    encoded = manifest_of(content).encode()
    size = EntrySize(len(encoded), len(content), len(content) // BLOCK)
    return size.fixed_bytes + (len(content) if blocks is None else blocks * BLOCK)


ENTRY = entry_bytes(content_of(0))


# Who may have it.


def handed(cache, digest, manifest, uid=BOB):
    fd = seal_manifest(manifest)
    try:
        return create_image(cache, digest, fd, uid)
    finally:
        os.close(fd)


def test_an_entry_is_opened_with_its_token_alone(tmp_path):
    cache = cache_in(tmp_path)
    fill(cache, CONTENT[: 10 * BLOCK], ALICE).close()
    encoded = manifest_of(CONTENT[: 10 * BLOCK]).encode()
    digest = image_manifest.image_digest(encoded)
    entry = find_image(cache, digest, manifest_token(encoded), BOB)
    assert read(entry, 5000) == CONTENT[:5000]
    entry.close()
    forged = [
        bytes.fromhex(digest),
        bytes(32),
        manifest_token(encoded[:-32]),
        manifest_token(encoded[:-1]),
        manifest_token(digest.encode()),
        entry_name(manifest_token(encoded)).encode()[:32],
        bytes.fromhex(entry_name(manifest_token(encoded))),
    ]
    for token in forged:
        with pytest.raises(NotFound):
            find_image(cache, digest, token, BOB)
    assert [a.name for a in cache.accounts()] == [entry.path.name]


def test_a_token_is_good_for_its_own_image_only(tmp_path):
    """One who may read an image, and has its token, asks for another by its digest."""
    cache = cache_in(tmp_path)
    secret, own = (manifest_of(content_of(seed)).encode() for seed in (1, 2))
    for seed, uid in ((1, ALICE), (2, BOB)):
        fill(cache, content_of(seed), uid).close()
    with pytest.raises(Corrupt):
        find_image(cache, image_manifest.image_digest(secret), manifest_token(own), BOB)
    with pytest.raises(NotFound):
        find_image(cache, image_manifest.image_digest(own), manifest_token(secret[:-32]), BOB)


@pytest.mark.parametrize("part", [slice(0, -32), slice(0, 100), slice(0, 0), slice(32, None)])
def test_a_part_of_a_manifest_makes_no_entry(tmp_path, part):
    cache = cache_in(tmp_path)
    fill(cache, content_of(1), ALICE).close()
    encoded = manifest_of(content_of(1)).encode()
    before = disk_use(tmp_path)
    with pytest.raises(Corrupt):
        handed(cache, image_manifest.image_digest(encoded), encoded[part])
    assert disk_use(tmp_path) == before and len(cache.accounts()) == 1


def test_the_manifest_of_another_image_makes_no_entry(tmp_path):
    cache = cache_in(tmp_path)
    encoded, other = (manifest_of(content_of(seed)).encode() for seed in (1, 2))
    with pytest.raises(Corrupt):
        handed(cache, image_manifest.image_digest(encoded), other)
    # One with the digest of the image written to its end is damaged.
    with pytest.raises(Corrupt):
        handed(cache, image_manifest.image_digest(encoded), other[:-32] + encoded[-32:])
    assert cache.accounts() == []


def test_paths_do_not_tell_the_token(tmp_path):
    """The kernel shows the path of a loop device's file to everybody."""
    entry = open_entry(cache_in(tmp_path), MANIFEST, ALICE)
    token = manifest_token(MANIFEST.encode())
    assert token.hex() not in str(entry.path) and entry.path.name == entry_name(token)
    entry.close()


def test_a_readers_descriptors_do_not_lock_the_entry(tmp_path):
    """A lock on what was lent neither keeps an entry for ever nor keeps others out."""
    cache = cache_in(tmp_path)
    entry = open_entry(cache, MANIFEST, ALICE)
    fds = [entry.entry.open_manifest(), *entry.entry.open_blocks()]
    for fd in fds:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    entry.close()
    open_entry(cache, MANIFEST, BOB).close()
    assert cache.remove(entry.path.name)
    assert [os.fstat(fd).st_blocks for fd in fds] == [0, 0, 0]  # nor its room
    for fd in fds:
        os.close(fd)


# Whole again.


def test_an_entry_opened_while_it_is_removed_is_made_again(tmp_path):
    cache = cache_in(tmp_path)
    token = manifest_token(MANIFEST.encode())
    for name in ("map", "data", "claims", "manifest", "account"):
        entry = open_entry(cache, MANIFEST)
        entry.close()
        (entry.path / name).unlink()  # half removed
        with pytest.raises(NotFound):
            cache.find(token, 0)
        again = open_entry(cache, MANIFEST)
        assert missing(again, 11) == list(range(11))
        again.close()
    assert cache.remove(again.path.name)
    with pytest.raises(NotFound):
        cache.find(token, 0)


def test_a_damaged_manifest_is_written_again(tmp_path):
    cache = cache_in(tmp_path)
    entry = fill(cache, content_of(1), ALICE)
    encoded = manifest_of(content_of(1)).encode()
    digest, token = image_manifest.image_digest(encoded), manifest_token(encoded)
    manifest = entry.path / "manifest"
    for damaged in (flipped(encoded, 20), encoded[:30], encoded + b"x"):
        manifest.write_bytes(damaged)
        with pytest.raises(NotFound):
            find_image(cache, digest, token, ALICE)
        again = handed(cache, digest, encoded)
        assert read(again, BLOCK) == content_of(1)[:BLOCK]
        again.close()
        assert manifest.read_bytes() == encoded
    entry.close()


@pytest.mark.parametrize("name", ["data", "map"])
@pytest.mark.parametrize("size_bytes", [0, 77, 10 * MIB])
def test_files_of_another_length_are_mended(tmp_path, name, size_bytes):
    """Otherwise what is written there would not be counted."""
    cache = cache_in(tmp_path)
    entry = fill(cache, content_of(1), ALICE)
    encoded = manifest_of(content_of(1)).encode()
    digest, token = image_manifest.image_digest(encoded), manifest_token(encoded)
    right = (entry.path / name).stat().st_size
    os.truncate(entry.path / name, size_bytes)
    with pytest.raises(NotFound):
        find_image(cache, digest, token, ALICE)
    handed(cache, digest, encoded).close()
    find_image(cache, digest, token, ALICE).close()
    assert (entry.path / name).stat().st_size == right
    entry.close()


def test_an_unfinished_removal_is_swept_in_pieces(tmp_path):
    cache = cache_in(tmp_path)
    entry = open_entry(cache, MANIFEST)
    left = entry.path.with_name(".going-x")
    left.mkdir()
    for name in ("data", "account"):
        (left / name).touch()
    with (left / "data").open("r+b") as file:
        for number in range(30):
            file.seek(number * GIB)
            file.write(b"x")
    os.truncate(left / "account", 7)
    assert cache.sweep() == []
    assert 0 < (left / "data").stat().st_size < 30 * GIB
    (account,) = [a for a in cache.accounts() if a.is_leaving]
    assert BLOCK < account.charged_bytes < 30 * BLOCK
    for _ in range(5):
        cache.sweep()
    assert not left.exists() and entry.path.exists()
    entry.close()


def test_foreign_files_are_left_and_reported(tmp_path):
    cache = cache_in(tmp_path)
    entry = open_entry(cache, MANIFEST)
    entry.close()
    top = entry.path.parent
    (entry.path / "data").unlink()
    (entry.path / "data").symlink_to("/etc")
    (entry.path / "deep").mkdir()
    (entry.path / "deep" / "x").write_bytes(b"x")
    (top / "notes").write_bytes(b"x")
    assert cache.remove(entry.path.name)
    told = cache.sweep()
    (gone,) = top.glob(".going-*")
    assert [path.name for path in gone.iterdir()] == ["deep"] and (gone / "deep" / "x").exists()
    assert len(told) == 2 and "deep" in told[0] and "notes" in told[1]
    assert Path("/etc/passwd").exists()


def test_an_entry_that_a_crash_left_half_made_is_swept(tmp_path, monkeypatch):
    cache = cache_in(tmp_path)
    monkeypatch.setattr(folder, "_fill", lambda *a: os._exit(7))
    child = os.fork()
    if not child:
        open_entry(cache, MANIFEST, ALICE)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    monkeypatch.undo()
    (account,) = cache.accounts()
    assert account.name.startswith(".new-") and account.uid == ALICE
    cache.sweep()
    assert cache.accounts() == []


def test_entries_of_another_version_give_way(tmp_path):
    """They have no account, and are in use while somebody has a lock on the map."""
    cache = cache_in(tmp_path, 3 * ENTRY)
    keep_all(cache, ALICE, 1)
    top = tmp_path / "cache" / "images"
    old, busy = top / ("0" * 64), top / ("1" * 64)
    for path in (old, busy):
        path.mkdir()
        for name in ("data", "map", "manifest", "claims"):
            (path / name).write_bytes(bytes(BLOCK))
    with (busy / "map").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        keep_all(cache, ALICE, 2, 3)
        assert busy.exists() and not old.exists()
        assert disk_use(top) <= 3 * ENTRY
    keep_all(cache, ALICE, 4, 5)
    assert not busy.exists()


def test_a_keeper_elsewhere_asks_over_its_socket(tmp_path):
    """Both ends of a reservation, between the folder and who writes the blocks."""
    cache = cache_in(tmp_path, 3 * ENTRY)
    content = content_of(1, 40)
    entry = open_entry(cache, manifest_of(content), ALICE)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def serve():
        while message := theirs.recv(REQUEST.size + 1):
            theirs.send(answer_reservation(message, entry.entry.reserve))

    thread = threading.Thread(target=serve)
    thread.start()
    client = ReservationClient(ours)
    keeper = entry.keeper(Room(client.reserve).take)
    for first in range(0, 16, 8):
        keeper.keep(first, memoryview(content)[first * BLOCK : (first + 8) * BLOCK])
    with pytest.raises(NoSpace):
        keeper.keep(16, memoryview(content)[16 * BLOCK :])
    keeper.close()
    client.close()
    thread.join()
    theirs.close()
    assert missing(entry, 40) == list(range(16, 40))
    assert cache.accounts()[0].charged_bytes == entry_bytes(content, 16)
    entry.close()


# Accounts.


def test_a_manifest_without_room_is_not_written(tmp_path):
    cache = cache_in(tmp_path, 20 * MIB)
    kept = keep_all(cache, ALICE, 1)
    before = disk_use(tmp_path)
    digests = random.Random(3).randbytes(32 * 1_000_000)
    for number in range(3):
        manifest = manifest_of(b"x")
        bomb = image_manifest.ImageManifest(
            size_bytes=BLOCK * 1_000_000,
            block_bytes=BLOCK,
            part_bytes=MIB,
            sha256="",
            identity=str(number),
            leading=manifest.leading[:0],
            digests=digests,
        ).encode()
        with pytest.raises(NoSpace, match="full"):
            handed(cache, image_manifest.image_digest(bomb), bomb, ALICE)
    assert disk_use(tmp_path) == before and len(cache.accounts()) == 1
    assert kept[0].exists()  # nothing gave way in vain


@pytest.mark.parametrize(
    "size",
    [EntrySize(0, 1, 1), EntrySize(65 * MIB, 1, 1), EntrySize(1, 0, 1), EntrySize(1, 1, 10**7)],
)
def test_an_impossible_size_is_refused(tmp_path, size):
    fd = seal_manifest(b"x")
    with pytest.raises(Corrupt):
        cache_in(tmp_path).create(bytes(32), size, fd, ALICE)
    os.close(fd)


def test_reservations_count_until_the_last_user_has_gone(tmp_path):
    cache = cache_in(tmp_path, 4 * MIB)
    content = content_of(1, 512)
    first = open_entry(cache, manifest_of(content), ALICE)
    second = open_entry(cache, manifest_of(content), BOB)
    assert first.entry.reserve(BLOCK, MIB) == MIB
    fixed = entry_bytes(content, 0)
    (account,) = cache.accounts()
    assert (account.uid, account.charged_bytes) == (ALICE, fixed + MIB)
    first.close()
    assert cache.accounts()[0].charged_bytes == fixed + MIB
    second.close()
    assert cache.accounts()[0].charged_bytes == fixed


def test_a_process_that_has_the_lock_keeps_the_entry(tmp_path):
    """The keeper of its blocks, when root's side is gone."""
    cache = cache_in(tmp_path)
    entry = open_entry(cache, MANIFEST, ALICE)
    theirs = os.dup(entry.entry.lock_fd)
    assert entry.entry.reserve(BLOCK, BLOCK) == BLOCK
    charged = cache.accounts()[0].charged_bytes
    entry.close()
    assert not cache.remove(entry.path.name) and cache.accounts()[0].charged_bytes == charged
    os.close(theirs)
    assert cache.remove(entry.path.name)


def test_reservations_of_dead_processes_are_cancelled(tmp_path):
    cache = cache_in(tmp_path, 2 * MIB)
    content = content_of(1, 256)
    child = os.fork()
    if not child:
        entry = open_entry(cache, manifest_of(content), ALICE)
        os._exit(0 if entry.entry.reserve(BLOCK, MIB) == MIB else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.accounts()[0].charged_bytes > MIB
    other = fill(cache, content_of(2, 256), BOB)  # there is no room for both
    assert other is not None
    assert len(cache.accounts()) == 2  # the first was not even removed
    other.close()


def test_entries_give_way_but_not_while_in_use(tmp_path):
    cache = cache_in(tmp_path, 2 * ENTRY + 4 * BLOCK)
    first, second = (fill(cache, content_of(seed), ALICE) for seed in (0, 1))
    assert fill(cache, content_of(2), ALICE) is None
    second.close()
    first.close()
    open_entry(cache, manifest_of(content_of(1)), ALICE).close()  # used later than the first
    third = fill(cache, content_of(2), ALICE)
    assert not first.path.exists()
    assert second.path.exists() and third.path.exists()
    assert not cache.remove(third.path.name)
    third.close()
    assert cache.remove(third.path.name)
    assert [a.name for a in cache.accounts()] == [second.path.name]


def test_one_user_has_no_more_than_a_share(tmp_path):
    cache = cache_in(tmp_path, 10 * ENTRY, user_share=0.5)
    paths = keep_all(cache, ALICE, *range(12))
    assert [path.exists() for path in paths] == [False] * 7 + [True] * 5
    assert len(cache.accounts()) == 5
    large = content_of(99, 80)
    assert fill(cache, large, ALICE) is None


def test_a_user_within_an_equal_part_loses_nothing_to_others(tmp_path):
    cache = cache_in(tmp_path, 6 * ENTRY, user_share=0.7)
    kept = keep_all(cache, BOB, 100, 101)
    keep_all(cache, ALICE, *range(20))
    assert all(path.exists() for path in kept)
    assert len(cache.accounts()) == 6
    kept += keep_all(cache, BOB, 102)  # in the place of one of Alice's
    assert all(path.exists() for path in kept)
    assert sum(a.uid == ALICE for a in cache.accounts()) == 3
    keep_all(cache, CAROL, 200, 201)
    assert sorted(a.uid for a in cache.accounts()) == [ALICE] * 2 + [BOB] * 2 + [CAROL] * 2


def test_entries_unused_for_a_day_are_not_protected(tmp_path):
    cache = cache_in(tmp_path, 4 * ENTRY)
    (old,) = keep_all(cache, BOB, 100)
    keep_all(cache, ALICE, 1, 2, 3)
    day_ago = (old / "account").stat().st_mtime - 90_000
    os.utime(old / "account", (day_ago, day_ago))
    keep_all(cache, ALICE, 4)
    assert not old.exists() and len(cache.accounts()) == 4


def test_entries_of_one_user_are_counted(tmp_path):
    cache = folder.BlockCache(tmp_path / "cache" / "images", GIB, 0.0, user_entries=3)
    other = keep_all(cache, BOB, 100)
    paths = keep_all(cache, ALICE, 1, 2, 3, 4, 5)
    assert [p.exists() for p in paths] == [False, False, True, True, True] and other[0].exists()


def test_growing_anothers_entry_beyond_its_part_takes_it_over(tmp_path):
    cache = cache_in(tmp_path, 4 * ENTRY, user_share=0.5)
    own = keep_all(cache, ALICE, 1)
    shared = content_of(7)
    fill(cache, shared, ALICE, count=4).close()
    entry = fill(cache, shared, BOB)  # half of it more, and Alice has no more than her half by it
    entry.close()
    by_name = {a.name: a.uid for a in cache.accounts()}
    assert by_name[entry.path.name] == ALICE
    big = content_of(8, 14)
    fill(cache, big, ALICE, count=1).close()  # an old one of hers gives way
    entry = fill(cache, big, BOB)
    entry.close()
    by_name = {a.name: a.uid for a in cache.accounts()}
    assert by_name[entry.path.name] == BOB and sum(uid == ALICE for uid in by_name.values()) == 1
    assert not own[0].exists()


def test_cancelling_dead_reservations_does_not_count_as_use(tmp_path):
    cache = cache_in(tmp_path, 6 * ENTRY)
    content = content_of(1, 16)
    dead = open_entry(cache, manifest_of(content), ALICE)
    assert dead.entry.reserve(BLOCK, len(content)) == len(content)
    os.close(dead.entry.lock_fd)
    used_ns = (dead.path / "account").stat().st_mtime_ns
    before = cache.accounts()[0].charged_bytes
    with pytest.raises(NoSpace):
        open_entry(cache, manifest_of(content_of(2, 5000)), BOB)
    (account,) = cache.accounts()
    assert account.charged_bytes == before - len(content)
    assert account.used_ns == used_ns


@pytest.mark.parametrize("blocks", [1, 100, 5000, 100_000])
def test_an_empty_entrys_space_is_charged(tmp_path, blocks):
    cache = cache_in(tmp_path)
    digests = random.Random(2).randbytes(32 * blocks)
    manifest = replace(manifest_of(b"x"), size_bytes=blocks * BLOCK, digests=digests)
    entry = open_entry(cache, manifest, ALICE)
    fds = entry.entry.open_keeper()
    os.pwrite(fds[1], b"x" * 8 * blocks, 0)
    for fd in fds:
        os.close(fd)
    (account,) = cache.accounts()
    assert disk_use(entry.path.parent) <= account.charged_bytes
    assert account.charged_bytes > 40 * blocks
    entry.close()


def test_removed_entries_count_until_gone(tmp_path, monkeypatch):
    cache = cache_in(tmp_path, 10 * ENTRY, user_share=0.5)
    (path,) = keep_all(cache, ALICE, 1)
    monkeypatch.setattr(ledger, "_PIECES", 0)
    assert cache.remove(path.name)
    (account,) = cache.accounts()
    assert account.is_leaving and account.uid == ALICE
    assert disk_use(path.parent) <= account.charged_bytes <= ENTRY
    monkeypatch.undo()
    cache.sweep()
    assert cache.accounts() == []


def test_a_refused_entry_does_not_ask_again_at_once(tmp_path):
    cache = folder.BlockCache(tmp_path / "cache" / "images", MIB, 0.0)
    entry = open_entry(cache, manifest_of(content_of(1, 500)), ALICE)
    assert not entry.entry.reserve(2 * MIB, 2 * MIB)
    assert not entry.entry.reserve(BLOCK, BLOCK)
    entry.close()
    again = open_entry(cache, manifest_of(content_of(1, 500)), ALICE)
    assert again.entry.reserve(BLOCK, BLOCK) == BLOCK
    again.close()


def test_threads_and_processes_never_have_more_than_there_is(tmp_path):
    """Two processes with two threads each fill entries of their own at once."""
    quota = 3 * ENTRY
    cache = cache_in(tmp_path, quota)
    children = []
    for process in range(2):
        child = os.fork()
        if not child:

            def work(number):
                for seed in range(10):
                    entry = fill(cache, content_of(100 * number + seed), ALICE)
                    if entry is not None:
                        entry.close()

            threads = [threading.Thread(target=work, args=(2 * process + n,)) for n in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            os._exit(0)
        children.append(child)
    most = 0
    while children:
        most = max(most, sum(a.charged_bytes for a in cache.accounts()))
        pid, status = os.waitpid(children[-1], os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            children.pop()
    assert 0 < most <= quota
    assert disk_use(tmp_path / "cache" / "images") <= quota
    assert cache.accounts()


def test_entries_that_cannot_be_inspected_are_not_removed(tmp_path):
    cache = cache_in(tmp_path)
    [path] = keep_all(cache, ALICE, 1)
    (path.parent / ".lock").unlink()
    (path.parent / ".lock").symlink_to(path)
    assert cache.remove(path.name) is False and cache.accounts() == []
    assert path.exists()


def test_a_missing_folder_does_not_fail_the_job(tmp_path):
    cache = cache_in(tmp_path)
    entry = open_entry(cache, MANIFEST, ALICE)
    shutil.rmtree(entry.path.parent)
    assert entry.entry.reserve(BLOCK, BLOCK) == 0
    with pytest.raises(Unavailable):
        entry.keeper()
    entry.close()
    open_entry(cache, MANIFEST, ALICE).close()
    assert len(cache.accounts()) == 1


class Cache(RuleBasedStateMachine):
    """Two users on a small cache; handles are opened, filled, closed, and dropped by crashes."""

    handles = Bundle("handles")
    QUOTA = 5 * ENTRY

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        os.chmod(self.folder.name, 0o755)
        # Each process has an object of its own.
        self.caches = [cache_in(Path(self.folder.name), self.QUOTA, 0.8) for _ in range(2)]
        self.open = []
        self.top = Path(self.folder.name, "cache", "images")

    def teardown(self):
        for handle in self.open:
            handle["entry"].close()
        for _ in range(5):
            self.caches[0].sweep()
        for account in self.caches[0].accounts():
            if not account.is_leaving:
                assert self.caches[0].remove(account.name)
        assert disk_use(self.top) == 0
        self.folder.cleanup()

    def protected(self, uid):
        """What others must not lose by what this user does now."""
        accounts = [a for a in self.caches[0].accounts() if not a.is_leaving]
        users = {a.uid for a in accounts} | {uid}
        safe = set()
        for other in users - {uid}:
            theirs = [a for a in accounts if a.uid == other]
            if sum(a.charged_bytes for a in theirs) <= self.QUOTA // len(users):
                safe |= {a.name for a in theirs}
        return safe

    def check(self, safe):
        assert safe <= {a.name for a in self.caches[0].accounts() if not a.is_leaving}

    @rule(
        target=handles,
        process=st.integers(0, 1),
        uid=st.sampled_from([ALICE, BOB]),
        seed=st.integers(0, 9),
        blocks=st.sampled_from([1, 8, 8, 20, 400]),
    )
    def open_one(self, process, uid, seed, blocks):
        safe = self.protected(uid)
        content = content_of(seed, blocks)
        try:
            entry = open_entry(self.caches[process], manifest_of(content), uid)
        except NoSpace:
            self.check(safe)
            return multiple()
        self.check(safe)
        room = Room(entry.entry.reserve)
        handle = {"entry": entry, "content": content, "uid": uid, "room": room, "written": {}}
        self.open.append(handle)
        return handle

    @rule(handle=handles, first=st.integers(0, 399), count=st.integers(1, 20))
    def keep(self, handle, first, count):
        if handle not in self.open:
            return
        safe = self.protected(handle["uid"])
        blocks = len(handle["content"]) // BLOCK
        first %= blocks
        data = memoryview(handle["content"])[first * BLOCK : (first + count) * BLOCK]
        keeper = handle["entry"].keeper(handle["room"].take)
        try:
            keeper.keep(first, data)
            handle["written"] |= dict.fromkeys(range(first, first + len(data) // BLOCK), True)
        except NoSpace:
            pass
        finally:
            keeper.close()
        self.check(safe)

    @rule(handle=handles)
    def close(self, handle):
        if handle in self.open:
            self.open.remove(handle)
            handle["entry"].close()

    @rule(handle=handles)
    def crash(self, handle):
        if handle in self.open:
            self.open.remove(handle)
            os.close(handle["entry"].entry.lock_fd)

    @rule()
    def sweep(self):
        assert self.caches[1].sweep() == []

    @rule(uid=st.sampled_from([ALICE, BOB]))
    def nothing_leaks_for_ever(self, uid):
        """When nobody uses anything, a user alone can have a whole share."""
        if not self.open:
            entry = fill(self.caches[0], content_of(50, 20), uid)
            assert entry is not None
            entry.close()

    @invariant()
    def quota_holds(self):
        used = disk_use(self.top)
        charged = sum(a.charged_bytes for a in self.caches[0].accounts())
        assert used <= charged <= self.QUOTA

    @invariant()
    def what_is_in_use_stays(self):
        for handle in self.open:
            blocks = handle["entry"].blocks()
            for index in handle["written"]:
                block = handle["content"][index * BLOCK : (index + 1) * BLOCK]
                assert blocks.read(index * BLOCK, BLOCK) == block
            blocks.close()


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestCache.pytestmark = [pytest.mark.root]
