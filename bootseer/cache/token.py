"""The token of an image, which proves that its holder can read the manifest.

The manifest has the digest of every block, so it is as secret as the image. The public digest that
names an image is the SHA-256 of the manifest's beginning. The token's hash starts with a separate
domain, so it cannot be derived from that digest, nor by length extension.

Used by the lender: imports the standard library only, and treats manifests as bytes.
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
    """Return the cache entry's name for a token; it hides the token, as paths are visible."""
    return hashlib.sha256(_NAME_DOMAIN + token).hexdigest()


def seal_manifest(manifest: bytes) -> int:
    """Return a descriptor of sealed memory that holds a manifest, for `sealed_token`."""
    fd = os.memfd_create("manifest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        pwrite_fully(fd, manifest, 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sealed_token(fd: int) -> tuple[bytes, int]:
    """Compute the token of a manifest in sealed memory; returns it and its length.

    Args:
        fd: memory sealed against all changes: another file could block reads, or change between
            them.

    Returns:
        The token, and the length of the manifest in bytes.

    Raises:
        Corrupt: it is not sealed memory, or too long for a manifest.
    """
    try:
        is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        size_bytes = os.fstat(fd).st_size
    except OSError:
        is_sealed, size_bytes = False, 0
    if not is_sealed or not 0 < size_bytes <= MAX_MANIFEST_BYTES:
        raise Corrupt("the worker's descriptor is not a manifest in sealed memory")
    digest = hashlib.sha256(_TOKEN_DOMAIN)
    for at in range(0, size_bytes, _PIECE_BYTES):
        digest.update(os.pread(fd, _PIECE_BYTES, at))
    return digest.digest(), size_bytes
