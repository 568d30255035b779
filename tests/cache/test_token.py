"""The token of an image: it takes the whole manifest to compute it, and nothing less does."""

import fcntl
import hashlib
import os
import random

import pytest
from bootseer_dev.material.stored_image import manifest_of
from hypothesis import given
from hypothesis import strategies as st

from bootseer.cache import token
from bootseer.cache.token import entry_name, manifest_token, seal_manifest, sealed_token
from bootseer.core import image_manifest
from bootseer.errors import Corrupt
from bootseer.units import MIB

MANIFEST = manifest_of(bytes(range(256)) * 1000).encode()


def token_of(fd):
    try:
        return sealed_token(fd)
    finally:
        os.close(fd)


@given(st.binary(min_size=1, max_size=3000))
def test_the_token_is_that_of_the_sealed_memory(manifest):
    assert token_of(seal_manifest(manifest)) == (manifest_token(manifest), len(manifest))


def test_a_long_manifest_is_read_to_its_end():
    manifest = random.Random(1).randbytes(5 * MIB // 2)
    assert token_of(seal_manifest(manifest)) == (manifest_token(manifest), len(manifest))


def test_a_manifest_may_have_the_greatest_length(monkeypatch):
    monkeypatch.setattr(token, "MAX_MANIFEST_BYTES", 1000)
    assert token_of(seal_manifest(bytes(1000)))[1] == 1000
    with pytest.raises(Corrupt, match="sealed memory"):
        token_of(seal_manifest(bytes(1001)))


def test_sealed_memory_cannot_be_changed():
    fd = seal_manifest(MANIFEST)
    for change in (
        lambda: os.pwrite(fd, b"x", 0),
        lambda: os.truncate(fd, 1),
        lambda: os.truncate(fd, len(MANIFEST) + 1),
        lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0),
    ):
        with pytest.raises(PermissionError):
            change()
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_the_token_does_not_follow_from_the_public_digest():
    public = image_manifest.image_digest(
        MANIFEST
    )  # of all but the last 32 bytes, which are that digest
    secret = manifest_token(MANIFEST)
    assert hashlib.sha256(MANIFEST[:-32]).hexdigest() == public
    assert hashlib.sha256(MANIFEST).digest() != secret
    for known in (bytes.fromhex(public), public.encode(), MANIFEST[:-32], MANIFEST[:-1], b""):
        assert manifest_token(known) != secret
    # SHA-256 of the public beginning can be extended, but what the token hashes begins otherwise.
    assert len(token._TOKEN_DOMAIN) == 64 and not MANIFEST.startswith(token._TOKEN_DOMAIN[:8])
    assert secret.hex() not in entry_name(secret)


def test_limits_are_those_of_the_format():
    from bootseer.cache import size

    assert token.MAX_MANIFEST_BYTES == image_manifest.MAX_BYTES
    assert size.MAX_BLOCKS == image_manifest.MAX_BLOCKS
    assert size._MAX_IMAGE_BYTES == image_manifest.MAX_BLOCKS * image_manifest.MAX_BLOCK_BYTES


def unsealed():
    fd = os.memfd_create("manifest", os.MFD_ALLOW_SEALING)
    os.write(fd, MANIFEST)
    return fd


def half_sealed():
    fd = unsealed()
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return fd


def too_long():
    fd = os.memfd_create("manifest", os.MFD_ALLOW_SEALING)
    os.truncate(fd, token.MAX_MANIFEST_BYTES + 1)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, token._SEALS)
    return fd


def pipe():
    reading, writing = os.pipe()
    os.close(writing)
    return reading


@pytest.mark.parametrize(
    "make",
    [
        unsealed,
        half_sealed,
        too_long,
        pipe,
        lambda: seal_manifest(b""),
        lambda: os.open("/etc/passwd", os.O_RDONLY),
        lambda: os.open("/etc", os.O_PATH),
    ],
)
def test_nothing_else_is_read(make):
    with pytest.raises(Corrupt, match="sealed memory"):
        token_of(make())
