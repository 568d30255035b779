"""The keeper of blocks: what it takes over, and what it says where a disk does not do its part."""

import os
from contextlib import contextmanager

import pytest
from bootseer_dev.material.stored_image import manifest_of

from bootseer.cache.keeper import BlockClaim, BlockKeeper, check_entry, read_manifest, take_manifest
from bootseer.cache.size import SUM_BYTES, EntrySize
from bootseer.cache.token import manifest_token, seal_manifest
from bootseer.core import image_manifest
from bootseer.errors import Corrupt, NoSpace, NotFound, Unavailable

BLOCK = 4096
CONTENT = bytes(range(256)) * 64 + b"the end"
MANIFEST = manifest_of(CONTENT)
ENCODED = MANIFEST.encode()
DIGEST = image_manifest.image_digest(ENCODED)


@contextmanager
def memory(*contents):
    """Descriptors of memory with these contents."""
    fds = [os.memfd_create("file") for _ in contents]
    for fd, content in zip(fds, contents, strict=True):
        os.write(fd, content)
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


@contextmanager
def keeper_of(data=None, claims=None, has_room=lambda size_bytes: True):
    """A keeper with its files in a memory of their own, or with others in their place."""
    fds = [os.memfd_create(name) for name in ("data", "map", "claims")]
    for place, path_and_flags in ((0, data), (2, claims)):
        if path_and_flags is not None:
            os.close(fds[place])
            fds[place] = os.open(*path_and_flags)
    keeper = BlockKeeper(*fds, MANIFEST, has_room)
    try:
        yield keeper, fds
    finally:
        keeper.close()


# Manifests.


def test_a_manifest_is_read_whole_and_no_more_of_it_than_one_can_have(monkeypatch):
    with memory(ENCODED) as [fd]:
        assert read_manifest(fd) == ENCODED
        monkeypatch.setattr(image_manifest, "MAX_BYTES", len(ENCODED))
        assert read_manifest(fd) == ENCODED
        monkeypatch.setattr(image_manifest, "MAX_BYTES", len(ENCODED) - 1)
        with pytest.raises(Corrupt, match="exceeds the size limit"):
            read_manifest(fd)


def test_an_unreadable_manifest_raises_unavailable():
    reading, writing = os.pipe()
    with pytest.raises(Unavailable, match="cannot read the manifest"):
        read_manifest(reading)
    os.close(reading)
    os.close(writing)


def test_take_manifest_returns_the_entry_size():
    fd = seal_manifest(ENCODED)
    manifest, size = take_manifest(fd, DIGEST)
    assert manifest.encode() == ENCODED
    assert size == EntrySize(len(ENCODED), len(CONTENT), 5)
    with pytest.raises(Corrupt, match="another image"):
        take_manifest(fd, "0" * 64)
    os.close(fd)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("more", [-1, 1])
def test_an_entry_of_other_lengths_is_damaged(place, more):
    files = [ENCODED, CONTENT, bytes(MANIFEST.blocks * SUM_BYTES)]
    token = manifest_token(ENCODED)
    with memory(*files) as fds:
        assert check_entry(fds, DIGEST, token).encode() == ENCODED
        os.truncate(fds[place], len(files[place]) + more)
        with pytest.raises(NotFound):
            check_entry(fds, DIGEST, token)


# Claims.


def test_a_claim_on_a_present_block_is_released():
    with keeper_of() as (keeper, fds):
        other = BlockKeeper(*map(reopened, fds), MANIFEST, lambda size_bytes: True)
        keeper.keep(1, memoryview(CONTENT)[BLOCK : 2 * BLOCK])
        assert keeper.claim(range(3)) == [
            BlockClaim.GRANTED,
            BlockClaim.PRESENT,
            BlockClaim.GRANTED,
        ]
        expected = [BlockClaim.BUSY, BlockClaim.GRANTED, BlockClaim.BUSY]
        assert other.claim(range(3), replace=True) == expected
        assert keeper.claim(range(1, 2)) == [BlockClaim.PRESENT]  # though the other has it
        assert other.claim(range(1, 2), replace=True) == [BlockClaim.GRANTED]
        keeper.release(range(1))
        assert other.claim(range(3)) == [BlockClaim.GRANTED, BlockClaim.PRESENT, BlockClaim.BUSY]
        other.close()


def reopened(fd):
    """Open a file once more, as another process does."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR)


def test_a_failed_lock_is_not_another_keepers_claim():
    with (
        keeper_of(claims=("/dev/null", os.O_RDONLY)) as (keeper, _),
        pytest.raises(OSError, match="Bad file descriptor"),
    ):
        keeper.claim(range(1))


# Disks.


def test_a_full_disk_is_no_space():
    with keeper_of(data=("/dev/full", os.O_RDWR)) as (keeper, fds):
        with pytest.raises(NoSpace, match="disk is full"):
            keeper.keep(0, memoryview(CONTENT)[:BLOCK])
        assert os.fstat(fds[1]).st_size == 0
        assert keeper.claim(range(1)) == [BlockClaim.GRANTED]


def test_a_disk_that_takes_nothing_is_not_there():
    with keeper_of(data=("/dev/null", os.O_RDONLY)) as (keeper, fds):
        with pytest.raises(Unavailable, match="cannot be written") as refused:
            keeper.keep(0, memoryview(CONTENT)[:BLOCK])
        assert not isinstance(refused.value, NoSpace)
        assert os.fstat(fds[1]).st_size == 0
