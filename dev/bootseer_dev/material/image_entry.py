"""An entry of the block cache with its manifest decoded: the lender's and the keeper's side."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bootseer.cache.cached_blocks import CachedBlocks
from bootseer.cache.folder import BlockCache, CacheEntry
from bootseer.cache.keeper import BlockKeeper, check_entry, take_manifest
from bootseer.cache.reservation_client import Room
from bootseer.cache.token import sealed_token
from bootseer.core.image_manifest import ImageManifest


class ImageEntry:
    """An image's entry, in use until it is closed.

    Attributes:
        entry: of the cache.
        manifest: what the image holds.
    """

    def __init__(self, entry: CacheEntry, manifest: ImageManifest) -> None:
        """Take over an entry."""
        self.entry = entry
        self.manifest = manifest

    @property
    def path(self) -> Path:
        """The entry's folder."""
        return self.entry.path

    def blocks(self) -> CachedBlocks:
        """Open it for reading here."""
        return CachedBlocks(*self.entry.open_blocks(), self.manifest)

    def keeper(self, has_room: Callable[[int], bool] | None = None) -> BlockKeeper:
        """Open it for writing.

        Args:
            has_room: asked before so many bytes are written; None for what the cache says.

        Raises:
            Unavailable: it cannot be opened.
        """
        fds = self.entry.open_keeper()
        return BlockKeeper(*fds, self.manifest, has_room or Room(self.entry.reserve).take)

    def close(self) -> None:
        """Let others remove it; see `CacheEntry.close`."""
        self.entry.close()


def find_image(cache: BlockCache, digest: str, token: bytes, uid: int) -> ImageEntry:
    """Open the entry of an image for somebody who has its token.

    Raises:
        NotFound: the node has none, or a damaged one: `create_image` makes it.
        Corrupt: the token is another image's.
        BootseerError: as for `BlockCache.find`.
    """
    entry = cache.find(token, uid)
    try:
        fds = [entry.open_manifest(), *entry.open_blocks()]
        try:
            return ImageEntry(entry, check_entry(fds, digest, token))
        finally:
            for fd in fds:
                os.close(fd)
    except BaseException:
        entry.close()
        raise


def create_image(cache: BlockCache, digest: str, manifest_fd: int, uid: int) -> ImageEntry:
    """Open the entry of an image for somebody who hands its manifest over; make it if need be.

    Args:
        cache: of the node.
        digest: of the image.
        manifest_fd: of the manifest in sealed memory; stays the caller's.
        uid: of the user.

    Raises:
        Corrupt: it is not the manifest of that image.
        BootseerError: as for `BlockCache.create`.
    """
    token, _ = sealed_token(manifest_fd)
    manifest, size = take_manifest(manifest_fd, digest)
    return ImageEntry(cache.create(token, size, manifest_fd, uid), manifest)
