"""An image in a store in memory, with a cache of its own: all of the served way but the mount."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from bootseer.cache.folder import BlockCache
from bootseer.cache.keeper_link import KeeperLink, serve_keeper, shared_memory
from bootseer.cache.token import seal_manifest
from bootseer.core import image_manifest
from bootseer.core.image_manifest import ImageManifest, block_digest
from bootseer.core.ranges import ByteRange
from bootseer.image.library import catalog
from bootseer.image.library.source import ImageSource
from bootseer.image.serve.image_blocks import ImageBlocks
from bootseer.image.serve.node_cache import NodeCache
from bootseer.store.api.base import Store, publish
from bootseer.units import GIB, KIB, MIB
from bootseer_dev.material.image_entry import ImageEntry, create_image


def manifest_of(content: bytes, block_bytes: int = 4 * KIB) -> ImageManifest:
    """Return the manifest of an image with this content."""
    cut = range(0, len(content), block_bytes)
    return ImageManifest(
        size_bytes=len(content),
        block_bytes=block_bytes,
        part_bytes=MIB,
        sha256=hashlib.sha256(content).hexdigest(),
        identity="sqfs1-test",
        leading=(ByteRange(0, min(96, len(content))),),
        digests=b"".join(block_digest(content[at : at + block_bytes]) for at in cut),
    )


async def store_image(store: Store, content: bytes, name: str, block_bytes: int = 4 * KIB) -> str:
    """Put an image with any content into a store; returns its digest."""
    manifest = manifest_of(content, block_bytes)
    encoded = manifest.encode()
    digest = image_manifest.image_digest(encoded)
    for index in range(manifest.parts):
        part = manifest.part_range(index)
        await publish(store, catalog.part_object(digest, index), content[part.start : part.stop])
    await catalog.write_manifest(store, digest, encoded)
    await catalog.give_name(store, name, digest, manifest.size_bytes)
    return digest


def cache_in(folder: Path, quota_bytes: int = GIB, user_share: float = 1.0) -> BlockCache:
    """Return a block cache in a folder; what was refused room may ask again at once."""
    cache = folder / "cache" / "images"
    return BlockCache(cache, quota_bytes, 0.0, user_share=user_share, refused_s=0.0)


def open_entry(cache: BlockCache, manifest: ImageManifest, uid: int = 0) -> ImageEntry:
    """Open the entry of an image, and make it if it is not there."""
    encoded = manifest.encode()
    fd = seal_manifest(encoded)
    try:
        return create_image(cache, image_manifest.image_digest(encoded), fd, uid)
    finally:
        os.close(fd)


@asynccontextmanager
async def keeper_link(
    entry: ImageEntry, has_room: Callable[[int], bool] = lambda size_bytes: True
) -> AsyncIterator[KeeperLink]:
    """Have a keeper of an entry at work in threads, as the lender has."""
    keeper = entry.keeper(has_room)
    memory = shared_memory()
    ours, threads = [], []
    for _ in range(2):
        end, theirs = socket.socketpair()
        ours.append(end)
        arguments = (keeper, entry.manifest, theirs, memory)
        threads.append(threading.Thread(target=serve_keeper, args=arguments))
        threads[-1].start()
    link = KeeperLink(ours[0], ours[1], os.dup(memory))
    try:
        yield link
    finally:
        link.close()
        for thread in threads:
            thread.join()
        os.close(memory)
        keeper.close()


@asynccontextmanager
async def readable(
    store: Store, digest: str, manifest: ImageManifest, cache: NodeCache, deadline_s: float = 60.0
) -> AsyncIterator[ImageBlocks]:
    """Open an image for the length of a block; what is under way then has 5 s to arrive."""
    source = ImageSource(store, digest)
    try:
        async with trio.open_nursery() as nursery:
            yield ImageBlocks(manifest, source, cache, nursery, deadline_s)
            nursery.cancel_scope.deadline = trio.current_time() + 5
    finally:
        await source.close()
