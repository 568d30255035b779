"""Put an image into a store: read it once to know its digests, then send what is not there."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from bootseer.core import image_manifest
from bootseer.core.image_manifest import ImageManifest, block_bytes_for, block_digest
from bootseer.core.ranges import ByteRange, split
from bootseer.errors import Conflict, NotFound, Unavailable
from bootseer.image.identity import Identity, OpenImage, identify, open_image
from bootseer.image.library import catalog
from bootseer.image.library.catalog import ImageOrigin
from bootseer.image.oci.convert import ConvertedImage, convert
from bootseer.image.oci.detect import ArchiveKind, kind_of
from bootseer.parallel import for_each
from bootseer.posix import read_fully
from bootseer.store.api.base import Store
from bootseer.units import MIB

_CHUNK_BYTES = 4 * MIB
_STREAMS = 3
"""Parts sent at once; `bootseer.store.wrappers.retry` holds as many in memory."""


@dataclass(slots=True)
class UploadProgress:
    """How far it is; the image is read twice."""

    total_bytes: int = 0
    done_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        self.done_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class UploadResult:
    """What has been added.

    Attributes:
        digest: of the image.
        manifest: what it holds.
        sent_bytes: of it; the rest was there already.
    """

    digest: str
    manifest: ImageManifest
    sent_bytes: int


async def add(
    store: Store,
    path: Path,
    name: str,
    about: ImageOrigin,
    progress: UploadProgress | None = None,
    *,
    force: bool = False,
) -> UploadResult:
    """Put a squashfs image into the store and give it a name.

    An interrupted upload is resumed: parts that are there are not sent again.

    Args:
        store: for images.
        path: of the image.
        name: of the image; moved if it is in use.
        about: where it came from.
        progress: kept up to date.
        force: send what is there as well, for it is damaged.

    Raises:
        Unavailable: it is not a squashfs, or cannot be read.
        Conflict: the file was changed meanwhile.

    Cancellation: parts that were sent whole stay, for the next time.
    """
    catalog.check_name(name)
    added = await put(store, path, about, progress, force=force)
    await catalog.give_name(store, name, added.digest, added.manifest.size_bytes)
    return added


async def put(
    store: Store,
    path: Path,
    about: ImageOrigin,
    progress: UploadProgress | None = None,
    *,
    force: bool = False,
) -> UploadResult:
    """Put a squashfs image into the store, without a name; see `add`.

    Concurrency: it is whole even if others were about to delete it, as one that was removed.
    """
    progress = progress or UploadProgress()
    opened = await trio.to_thread.run_sync(open_image, str(path.absolute()))
    try:
        identity = await trio.to_thread.run_sync(identify, opened)
        if not identity.leading:
            raise Unavailable(
                f"{path} is not a squashfs; make one with mksquashfs, or give a Docker archive or "
                "an OCI layout"
            )
        progress.total_bytes = 2 * opened.size_bytes
        manifest = await trio.to_thread.run_sync(
            partial(_measure, opened, identity, progress), abandon_on_cancel=True
        )
        encoded = manifest.encode()
        digest = image_manifest.image_digest(encoded)
        sent_bytes = 0
        for sends_all in (force, False, False):
            progress.done_bytes = opened.size_bytes
            await catalog.revive(store, digest)  # first: what is found to be there is to stay
            sent_bytes += await _send(store, opened, manifest, digest, progress, force=sends_all)
            await trio.to_thread.run_sync(_check_unchanged, opened)
            await catalog.write_about(store, digest, about)
            await catalog.write_manifest(store, digest, encoded)
            await catalog.revive(store, digest)
            if await _is_whole(store, digest, manifest):  # nobody has deleted it meanwhile
                return UploadResult(digest, manifest, sent_bytes)
    finally:
        os.close(opened.fd)
    raise Conflict(f"{digest} is removed from {store.url} while it is added; add {path} again")


@asynccontextmanager
async def as_squashfs(
    path: Path, scratch: Path, tag: str, platform: str, progress: UploadProgress
) -> AsyncIterator[tuple[Path, ConvertedImage | None]]:
    """Convert a source to a squashfs for the length of a block, unless it is one.

    Args:
        path: a squashfs, or what `convert` takes.
        scratch: folder for the squashfs.
        tag, platform: which image of the source, see `convert`.
        progress: kept up to date.

    Yields:
        The squashfs, and what it was made of.

    Raises:
        BootseerError: it cannot be converted.

    Cancellation: what was written is removed.
    """
    if await trio.to_thread.run_sync(kind_of, path) is ArchiveKind.SQUASHFS:
        yield path, None
        return

    def count(done: int, total: int) -> None:
        trio.from_thread.check_cancelled()
        progress.done_bytes, progress.total_bytes = done, total

    folder = tempfile.TemporaryDirectory(prefix="bootseer-image-", dir=scratch)
    with folder as made:
        target = Path(made, "image.sqsh")
        work = partial(convert, path, target, tag=tag, platform=platform, progress=count)
        converted = await trio.to_thread.run_sync(work)
        progress.done_bytes = progress.total_bytes = 0
        yield target, converted


def _measure(opened: OpenImage, identity: Identity, progress: UploadProgress) -> ImageManifest:
    """Read an image and take its digests."""
    whole = hashlib.sha256()
    block_bytes = block_bytes_for(opened.size_bytes)
    digests = bytearray()
    with ThreadPoolExecutor(1) as pool:
        for chunk in split(ByteRange(0, opened.size_bytes), _CHUNK_BYTES):
            data = _read(opened, chunk)
            hashed = pool.submit(whole.update, data)
            for block in _blocks(data, block_bytes):
                digests += block_digest(block)
            hashed.result()
            progress.done_bytes += len(data)
    return ImageManifest(
        size_bytes=opened.size_bytes,
        block_bytes=block_bytes,
        part_bytes=image_manifest.PART_BYTES,
        sha256=whole.hexdigest(),
        identity=identity.digest,
        leading=identity.leading,
        digests=bytes(digests),
    )


async def _send(
    store: Store,
    opened: OpenImage,
    manifest: ImageManifest,
    digest: str,
    progress: UploadProgress,
    *,
    force: bool,
) -> int:
    """Send the parts that the store does not have; returns how many bytes those are."""
    sent_bytes = 0

    async def send(index: int) -> None:
        nonlocal sent_bytes
        part = manifest.part_range(index)
        name = catalog.part_object(digest, index)
        there_bytes = await _stored_bytes(store, name)
        if not force and there_bytes == part.size_bytes:
            progress.done_bytes += part.size_bytes
            return
        # Replace only what was there: another process may have stored it since, and be read.
        replaces = there_bytes is not None
        try:
            async with store.create(name, overwrite=replaces) as writer:
                for chunk in split(part, _CHUNK_BYTES):
                    data = await trio.to_thread.run_sync(_read_again, opened, manifest, chunk)
                    await writer.write(data)
                    progress.done_bytes += len(data)
                    sent_bytes += len(data)
                await writer.commit()
        except Conflict:  # another was faster, with the same bytes; or the file was changed
            if replaces or await _stored_bytes(store, name) != part.size_bytes:
                raise

    await for_each(range(manifest.parts), send, _STREAMS)
    return sent_bytes


async def _is_whole(store: Store, digest: str, manifest: ImageManifest) -> bool:
    """Look, in one call, whether the image is there."""
    lengths = {info.name: info.size_bytes for info in await store.list(f"images/{digest}")}
    return catalog.manifest_object(digest) in lengths and all(
        lengths.get(catalog.part_object(digest, index)) == manifest.part_range(index).size_bytes
        for index in range(manifest.parts)
    )


async def _stored_bytes(store: Store, name: str) -> int | None:
    """Return the length of an object, None if it is not there."""
    try:
        return (await store.stat(name)).size_bytes
    except NotFound:
        return None


def _read_again(opened: OpenImage, manifest: ImageManifest, chunk: ByteRange) -> bytes:
    data = _read(opened, chunk)
    first = chunk.start // manifest.block_bytes
    for index, block in enumerate(_blocks(data, manifest.block_bytes), first):
        if not manifest.matches(index, block):
            raise Conflict(f"{opened.path} was changed while it was read; add it again")
    return data


def _check_unchanged(opened: OpenImage) -> None:
    """See that no other image was written over the one whose length and tables have been read.

    The ctime does not count: it is another one once the file has been removed, which a job may do
    meanwhile.
    """
    try:
        now = os.fstat(opened.fd)
    except OSError as error:
        raise Unavailable(f"{opened.path} cannot be read: {error.strerror}") from error
    if (now.st_size, now.st_mtime_ns) != (opened.size_bytes, opened.mtime_ns):
        raise Conflict(
            f"{opened.path} was changed while it was read; add it again when nobody writes to it"
        )


def _read(opened: OpenImage, chunk: ByteRange) -> bytes:
    try:
        data = read_fully(opened.fd, chunk.start, chunk.size_bytes)
    except OSError as error:
        raise Unavailable(f"{opened.path} cannot be read: {error.strerror}") from error
    if len(data) < chunk.size_bytes:
        raise Conflict(f"{opened.path} became shorter while it was read; add it again")
    return data


def _blocks(data: bytes, block_bytes: int) -> Iterator[memoryview]:
    view = memoryview(data)
    for at in range(0, len(view), block_bytes):
        yield view[at : at + block_bytes]


def about_now(source: str, user: str) -> ImageOrigin:
    """Say that an image comes from here, now."""
    return ImageOrigin(source, user, time.time_ns())
