"""Check a cached image block by block, in a confined process, for the broker.

It parses data that users wrote, so it runs under the cache's account with only the image open. It
prints the image's digest, or an error, and exits with the error's exit code.
"""

from __future__ import annotations

import sys

from bootseer.agent.node.privileges import confine
from bootseer.agent.node.spawn import leave
from bootseer.cache.cached_blocks import CachedBlocks
from bootseer.cache.keeper import read_manifest
from bootseer.core import image_manifest
from bootseer.errors import BootseerError, Corrupt, NotFound
from bootseer.units import MIB

_PIECE_BYTES = 4 * MIB


def check(manifest_fd: int, data_fd: int, map_fd: int) -> str:
    """Check an image; returns its digest.

    Raises:
        NotFound: blocks are missing.
        Corrupt: a block is damaged.
        Unavailable: the disk cannot be read.
    """
    encoded = read_manifest(manifest_fd)
    digest = image_manifest.image_digest(encoded)
    manifest = image_manifest.decode(encoded, "the manifest in the block cache", digest)
    blocks = CachedBlocks(data_fd, map_fd, manifest)
    missing = blocks.missing(range(manifest.blocks))
    if missing:
        raise NotFound(f"{len(missing)} blocks of the image are not on this node yet")
    for at in range(0, manifest.size_bytes, _PIECE_BYTES):
        if blocks.read(at, min(_PIECE_BYTES, manifest.size_bytes - at)) is None:
            raise Corrupt(f"the image is damaged on this node, near byte {at}")
    return digest


def main() -> None:
    """Check an image; arguments: user, uid, gid, agent's process id, three descriptors."""
    user, uid, gid, agent, *numbers = sys.argv[1:8]
    fds = list(map(int, numbers))
    confine(user, int(uid), int(gid), int(agent), keep=fds)
    try:
        print(check(*fds))
    except BootseerError as error:
        print(error)
        leave(error.exit_code)
    leave(0)
