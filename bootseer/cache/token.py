"""The token of an image: what only somebody can compute who can read all of its manifest.

The manifest has the digest of every block, so it is as secret as the image. The digest that names
an image is public, and it is the SHA-256 of the manifest's beginning: the token begins with a
domain of its own, so that it does not follow from that digest, not by extending it either.

Part of the lender's side: imports the standard library only, and takes manifests as bytes without
sense.
"""

from __future__ import annotations

import fcntl
import hashlib
import os

from bootseer.errors import Corrupt
from bootseer.posix import pwrite_fully
from bootseer.units import MIB

TOKEN_BYTES = 32
MAX_MANIFEST_BYTES = 64 * MIB
"""The same as `bootseer.core.image_manifest.MAX_BYTES`, which the lender does not import."""
_BLOCK_BYTES = 64  # of SHA-256: the domain fills one
_TOKEN_DOMAIN = b"BootSeer image token, version 1".ljust(_BLOCK_BYTES, b"\0")
_NAME_DOMAIN = b"BootSeer cache entry, version 1".ljust(_BLOCK_BYTES, b"\0")
_PIECE_BYTES = MIB
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def manifest_token(manifest: bytes) -> bytes:
    """Return the token of an image, 32 bytes, from its whole encoded manifest."""
    digest = hashlib.sha256(_TOKEN_DOMAIN)
    digest.update(manifest)
    return digest.digest()


def entry_name(token: bytes) -> str:
    """Name the cache's entry for a token, without telling the token: the kernel shows paths."""
    return hashlib.sha256(_NAME_DOMAIN + token).hexdigest()


def seal_manifest(manifest: bytes) -> int:
    """Return a descriptor of sealed memory with a manifest, as `sealed_token` takes it."""
    fd = os.memfd_create("manifest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        pwrite_fully(fd, manifest, 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sealed_token(fd: int) -> tuple[bytes, int]:
    """Compute the token of a manifest that somebody handed over.

    Args:
        fd: of memory, sealed against all changes: any other file could keep root waiting, or be
            another one when it is read again.

    Returns:
        The token, and the length of the manifest in bytes.

    Raises:
        Corrupt: it is no such memory, or too long for a manifest.
    """
    try:
        is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        size_bytes = os.fstat(fd).st_size
    except OSError:
        is_sealed, size_bytes = False, 0
    if not is_sealed or not 0 < size_bytes <= MAX_MANIFEST_BYTES:
        raise Corrupt("what the worker hands over is not the manifest of an image in sealed memory")
    digest = hashlib.sha256(_TOKEN_DOMAIN)
    for at in range(0, size_bytes, _PIECE_BYTES):
        digest.update(os.pread(fd, _PIECE_BYTES, at))
    return digest.digest(), size_bytes
