"""Serve an image or an environment on the mount that root has made."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import trio

from bootseer.agent.messages.worker import (
    BlocksLent,
    BlocksRefused,
    BorrowBlocks,
    CloseWindow,
    FetchAhead,
    ImageCopied,
    ImageMissing,
    ImageRecorded,
    ImageReported,
    ImageServed,
    ReportImage,
)
from bootseer.agent.workers.base import Task, owner_of
from bootseer.agent.workers.images.access_strategy import AccessSelector
from bootseer.agent.workers.images.hot_pack import JobPack
from bootseer.agent.workers.images.image_pin import check_pin
from bootseer.agent.workers.job_peers import JobPeers
from bootseer.cache.cached_blocks import CachedBlocks, no_blocks
from bootseer.cache.keeper_link import KeeperLink
from bootseer.cache.token import seal_manifest
from bootseer.core import image_manifest as image_format
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.reference import ENVIRONMENT
from bootseer.env.mount.content import TreeContent
from bootseer.env.snapshot.group_store import find_snapshot, shared_stores
from bootseer.env.snapshot.repository import read_rows
from bootseer.errors import BootseerError, Closed, Corrupt, Unavailable, UnknownImage
from bootseer.fuse.fastpath import TreeTable
from bootseer.fuse.serve_tree import serve_tree
from bootseer.fuse.serve_view import serve_fd
from bootseer.image.hot.trace import Touch
from bootseer.image.library import catalog
from bootseer.image.library.source import ImageSource
from bootseer.image.serve.backfill import copy, fill
from bootseer.image.serve.image_blocks import ImageBlocks
from bootseer.image.serve.node_cache import PATIENCE_S, NodeCache
from bootseer.image.serve.strategy import AccessMode
from bootseer.image.serve.view import ImageView, MissingImage
from bootseer.ipc.channel import unexpected
from bootseer.ipc.descriptors import exactly
from bootseer.large_buffers import keep_large_buffers
from bootseer.peers.client import PeerClient
from bootseer.peers.start_store import store_itself
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect as connect_own
from bootseer.store.from_settings import connect_images
from bootseer.store.wrappers.backoff import Backoff
from bootseer.units import MIB, format_size

_CLOSE_S = 0.5
"""Time to close objects of the store at the end of this process."""
_SETTLE_S = 0.5
"""Time to write fetched blocks to the cache at the end of a job."""
_OPERATIONS = 48
"""Concurrent store requests: all fetches."""
_MAX_ERRORS = 8
"""Limit of different read errors to report: a damaged part has a thousand blocks."""


@dataclass(slots=True)
class _Served:
    """The open image and its sources."""

    manifest: ImageManifest
    cache: NodeCache
    blocks: ImageBlocks
    view: ImageView | TreeContent
    tree: TreeTable | None
    packing: JobPack
    source: ImageSource
    way: AccessMode
    peers: PeerClient | None


async def run(task: Task) -> None:
    """Serve until the mount is detached, even if the agent dies."""
    keep_large_buffers()
    async with AsyncExitStack() as opened, trio.open_nursery() as nursery:
        served, is_new = None, False
        try:
            async with task.stage("image.mount") as report:
                report.start_ns = task.job.started_ns
                served = await _open(task, nursery, opened)
                report.bytes = served.manifest.size_bytes
                report.detail = f"{format_size(_present_bytes(served))} of it are on this node"
        except BootseerError as error:  # reported as a fallback, unless the agent has ended
            is_new = isinstance(error, UnknownImage)

        async def serve(*, task_status: trio.TaskStatus[None]) -> None:
            if served is None:
                view = MissingImage(task.job.uid, task.job.gid)
                await serve_fd(view, task.connection, task_status=task_status)
            else:
                await _serve(task.connection, served, task_status)
            nursery.cancel_scope.cancel()

        await nursery.start(serve)
        nursery.start_soon(_handle_messages, task, served, nursery, is_new)


async def _serve(connection: int, served: _Served, task_status: trio.TaskStatus[None]) -> None:
    """Serve the open image until the mount is detached."""
    cached = served.cache.cached
    if isinstance(served.view, ImageView):
        await serve_fd(served.view, connection, cached, task_status=task_status)
    else:
        assert served.tree is not None
        blocks = cached or no_blocks(served.manifest)
        await serve_tree(served.tree, served.view, connection, blocks, task_status=task_status)


async def _open(task: Task, nursery: trio.Nursery, opened: AsyncExitStack) -> _Served:
    """Find and open the image, in the store and in the node's cache.

    Raises:
        BootseerError: the image does not exist, or the user may not read it.
    """
    config, job = task.config, task.job
    deadline_s = config.image.io_deadline_s
    # Wait for a store that is down for a while, as readers would.
    backoff = Backoff.lasting(deadline_s)
    connect = connect_own if job.image.startswith(ENVIRONMENT) else connect_images
    store = connect(config, owner_of(job), operations=_OPERATIONS, backoff=backoff)
    try:
        with trio.fail_after(deadline_s):
            return await _open_in(store, task, nursery, opened)
    except trio.TooSlowError as error:
        raise Unavailable(f"no answer from {store.url} within {deadline_s:g} s") from error


async def _open_in(
    store: Store, task: Task, nursery: trio.Nursery, opened: AsyncExitStack
) -> _Served:
    """Open the image in a store.

    Raises:
        BootseerError: as for `_open`.
    """
    config, job = task.config, task.job
    peers = JobPeers(task, nursery)
    opened.callback(peers.close)
    starts = peers.start_reads(store)
    own = peers.start_reads(task.store())
    rows = None
    if job.image.startswith(ENVIRONMENT):
        stores = [starts, *map(peers.start_reads, shared_stores(config, owner_of(job)))]
        starts, snapshot = await find_snapshot(stores, job.image.removeprefix(ENVIRONMENT))
        store = store_itself(starts)
        rows = await read_rows(starts, snapshot)
        digest = snapshot.image
    else:
        digest = await catalog.resolve(starts, job.image)
        if config.image.pin:
            await check_pin(task, own, digest)
        else:
            nursery.start_soon(check_pin, task, own, digest)

    async def note(stage: str, reason: str) -> None:
        with suppress(Closed):
            async with task.stage(stage) as report:
                report.fall_back(reason)

    shared = peers.through(store)
    source = ImageSource(shared, digest)
    opened.push_async_callback(_close, source.close)
    info = await source.open_first()

    reported: set[str] = set()

    def note_error(reason: str) -> None:
        if reason not in reported and len(reported) < _MAX_ERRORS:
            reported.add(reason)
            nursery.start_soon(note, "image.read", reason)

    manifest, cached, link = await _open_cache(task, store, starts, shared, digest)

    def note_cache(reason: str) -> None:
        nursery.start_soon(note, "image.cache", reason)

    def note_file(reason: str) -> None:
        nursery.start_soon(note, "image.file", reason)

    deadline_s = config.image.io_deadline_s
    patience_s = min(PATIENCE_S, deadline_s / 4)
    cache = NodeCache(cached, link, note_cache, patience_s)
    blocks = ImageBlocks(manifest, source, cache, nursery, deadline_s)
    view: ImageView | TreeContent
    tree = None
    if rows is not None:
        tree = TreeTable(rows, manifest.size_bytes, job.uid, job.gid)
        view = TreeContent(rows, blocks, note_error)
    else:
        view = ImageView(blocks, manifest.size_bytes, info.mtime_ns, job.uid, job.gid, note_error)
    packs = task.store() if config.image.store_url else store  # the user's own
    parts = peers.through(packs)
    packing = JobPack(task, packs, blocks, digest, parts, peers.start_reads(packs), nursery)
    opened.push_async_callback(_close, packing.close)
    selector = AccessSelector(task, source, blocks, cache, own, starts)
    way = await selector.choose(patience_s, note_file)
    return _Served(manifest, cache, blocks, view, tree, packing, source, way, peers.client)


async def _close(close: Callable[[], Awaitable[None]]) -> None:
    """Close objects of a store, within a time limit."""
    with trio.move_on_after(_CLOSE_S, shield=True):
        await close()


async def _open_cache(
    task: Task, store: Store, starts: Store, shared: Store, digest: str
) -> tuple[ImageManifest, CachedBlocks | None, KeeperLink | None]:
    """Get the manifest, and the node's cached blocks from the agent.

    Args:
        task: the worker's task.
        store: that has the image.
        starts: the same, as a start reads it.
        shared: the same, through other nodes of the job.
        digest: of the image.

    Raises:
        BootseerError: the manifest cannot be read from the store.
    """
    token = await catalog.read_token(starts, digest)
    wanted = BorrowBlocks(digest, token.hex() if token else "")
    with suppress(Closed):  # the agent has died: the job continues
        await task.channel.send(wanted)
        answer, fds = await task.channel.receive()
        if isinstance(answer, BlocksRefused) and answer.wants_manifest:
            encoded, _ = await _read_manifest(store, shared, digest)
            memory = seal_manifest(encoded)
            try:
                await task.channel.send(wanted, [memory])
            finally:
                os.close(memory)
            answer, fds = await task.channel.receive()
        if isinstance(answer, BlocksLent):
            manifest_fd, data_fd, map_fd, *link = exactly(fds, 6)
            with os.fdopen(manifest_fd, "rb") as file:
                manifest = image_format.decode(file.read(), f"the manifest of {digest}", digest)
            return manifest, CachedBlocks(data_fd, map_fd, manifest), KeeperLink.of(*link)
    _, manifest = await _read_manifest(store, shared, digest)
    return manifest, None, None


async def _read_manifest(store: Store, shared: Store, digest: str) -> tuple[bytes, ImageManifest]:
    """Read the manifest from other nodes, and from the store itself if that is not the right one.

    Raises:
        BootseerError: the store does not give it.
    """
    with suppress(Corrupt):
        return await catalog.read_manifest(shared, digest)
    return await catalog.read_manifest(store, digest)


async def _handle_messages(
    task: Task, served: _Served | None, nursery: trio.Nursery, is_new: bool
) -> None:
    """Report the image to the agent, and handle its messages until it has gone."""
    with suppress(Closed):
        if served is None:
            await task.channel.send(ImageMissing(is_new))
            return
        cached = served.cache.cached
        if not task.job.record_only and served.way is not AccessMode.FILE:
            # Before the prefetch begins: its reads use the pack.
            await served.packing.use()
        await task.channel.send(
            ImageServed(
                identity=served.manifest.identity,
                content=served.source.digest,
                size_bytes=served.manifest.size_bytes,
                leading=list(served.manifest.leading),
                is_cached=cached is not None and cached.is_complete,
                copies=served.way is AccessMode.COPY,
            )
        )
        if served.way is AccessMode.COPY:
            nursery.start_soon(_copy, task, served)
        while True:
            match message := await task.channel.receive_only():
                case CloseWindow():
                    served.view.touched.stop()
                    touches = served.view.touched.touches()
                    await task.channel.send(ImageRecorded(touches))
                    nursery.start_soon(_prepare_later_starts, task, served, touches)
                case FetchAhead():
                    if not task.config.prefetch.mib_per_s:  # the prefetch keeps to its rate
                        served.blocks.fetch_ahead(message.ranges)
                case ReportImage():
                    await _report(task, served)
                case _:
                    raise unexpected(message)


async def _copy(task: Task, served: _Served) -> None:
    """Copy the whole image to the node."""
    with suppress(Closed):
        with suppress(BootseerError):  # reported as a fallback; reads fetch what they need
            async with task.stage("image.copy") as report:
                report.bytes = await copy(served.blocks, served.cache)
        await task.channel.send(ImageCopied())


async def _prepare_later_starts(task: Task, served: _Served, touches: list[Touch]) -> None:
    """Prepare later starts, after this one: write the hot pack, fill the cache."""
    bytes_per_s = task.config.image.fill_mib_per_s * MIB
    await served.packing.write([(t.start, t.stop) for t in touches], bytes_per_s)
    await fill(served.blocks, served.cache, bytes_per_s / max(1, task.job.nodes))


async def _report(task: Task, served: _Served) -> None:
    """Report the reads from the store, and the bytes on the node."""
    stats, cached = served.blocks.stats, served.cache.cached
    with trio.move_on_after(_SETTLE_S):
        await served.blocks.settle()
    async with task.stage("image.serve") as report:
        report.bytes = stats.fetched_bytes
        source = served.source
        counts = [f"{stats.fetches} reads of {'the store' if source.file is None else 'its file'}"]
        if served.peers is not None:
            received = format_size(served.peers.received_bytes)
            counts.append(f"{received} of it through the job's nodes")
        if stats.filled_bytes:
            counts.append(f"{format_size(stats.filled_bytes)} of it fetched in the background")
        if cached is not None and cached.damaged:
            counts.append(f"{cached.damaged} damaged blocks in the cache fetched again")
        counts.append(f"{format_size(_present_bytes(served))} are on this node")
        report.detail = ", ".join(counts)
    await served.packing.report()
    nodes = task.job.nodes
    speeds = (source.speed.speed(nodes), source.file_speed.speed(nodes))
    await task.channel.send(ImageReported(*speeds))


def _present_bytes(served: _Served) -> int:
    return served.cache.cached.present_bytes if served.cache.cached is not None else 0
