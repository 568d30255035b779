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
    ImageCopied,
    ImageMissing,
    ImageRecorded,
    ImageReported,
    ImageServed,
    ReportImage,
)
from bootseer.agent.node.spawn import CONNECTION_FD
from bootseer.agent.workers.base import Task, owner_of
from bootseer.agent.workers.images.access_strategy import AccessSelector
from bootseer.agent.workers.images.hot_pack import JobPack
from bootseer.agent.workers.images.image_pin import check_pin
from bootseer.cache.cached_blocks import CachedBlocks, no_blocks
from bootseer.cache.keeper_link import KeeperLink
from bootseer.cache.token import seal_manifest
from bootseer.core import image_manifest as image_format
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.reference import ENVIRONMENT
from bootseer.env.mount.content import TreeContent
from bootseer.env.snapshot.group_store import find_snapshot, shared_stores
from bootseer.env.snapshot.repository import read_rows
from bootseer.errors import BootseerError, Closed, Unavailable
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
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect as connect_own
from bootseer.store.from_settings import connect_images
from bootseer.store.wrappers.backoff import Backoff
from bootseer.units import MIB, format_size

_CLOSE_S = 0.5
"""For what is open in the store to be closed, at the end of this process."""
_SETTLE_S = 0.5
"""For what has been read to be kept on the node, at the end of a job."""
_OPERATIONS = 48
"""Of the store at once: all fetches under way."""
_ERRORS_TOLD = 8
"""Different ones, of reading the image: a damaged part has a thousand blocks."""


@dataclass(slots=True)
class _Served:
    """What is being served."""

    manifest: ImageManifest
    cache: NodeCache
    blocks: ImageBlocks
    view: ImageView | TreeContent
    tree: TreeTable | None
    packing: JobPack
    source: ImageSource
    way: AccessMode


async def run(task: Task) -> None:
    """Serve until the mount is taken away; without the agent too, should that die."""
    async with AsyncExitStack() as opened, trio.open_nursery() as nursery:
        served = None
        try:
            async with task.stage("image.mount") as said:
                said.start_ns = task.job.started_ns
                served = await _open(task, nursery, opened)
                said.bytes = served.manifest.size_bytes
                said.detail = f"{format_size(_present_bytes(served))} of it are on this node"
        except BootseerError:
            pass  # told as a fallback, if it was not the agent's end that it is about

        async def serve(*, task_status: trio.TaskStatus[None]) -> None:
            if served is None:
                view = MissingImage(task.job.uid, task.job.gid)
                await serve_fd(view, CONNECTION_FD, task_status=task_status)
            else:
                await _serve(served, task_status)
            nursery.cancel_scope.cancel()

        await nursery.start(serve)
        nursery.start_soon(_handle_messages, task, served, nursery)


async def _serve(served: _Served, task_status: trio.TaskStatus[None]) -> None:
    """Serve what has been opened until the mount is taken away."""
    cached = served.cache.cached
    if isinstance(served.view, ImageView):
        await serve_fd(served.view, CONNECTION_FD, cached, task_status=task_status)
    else:
        assert served.tree is not None
        blocks = cached or no_blocks(served.manifest)
        await serve_tree(served.tree, served.view, CONNECTION_FD, blocks, task_status=task_status)


async def _open(task: Task, nursery: trio.Nursery, opened: AsyncExitStack) -> _Served:
    """Find the image and open it, in the store and on this node.

    Raises:
        BootseerError: there is no such image, or the user may not read it.
    """
    config, job = task.config, task.job
    deadline_s = config.image.io_deadline_s
    # A store that is down for a while is no reason to fail those who would have waited.
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
    rows = None
    if job.image.startswith(ENVIRONMENT):
        stores = [store, *shared_stores(config, owner_of(job))]
        store, snapshot = await find_snapshot(stores, job.image.removeprefix(ENVIRONMENT))
        rows = await read_rows(store, snapshot)
        digest = snapshot.image
    else:
        digest = await catalog.resolve(store, job.image)
        if config.image.pin:
            await check_pin(task, digest)
        else:
            nursery.start_soon(check_pin, task, digest)
    source = ImageSource(store, digest)
    opened.push_async_callback(_close, source.close)
    info = await source.open_first()

    async def note(stage: str, reason: str) -> None:
        with suppress(Closed):
            async with task.stage(stage) as said:
                said.fall_back(reason)

    told: set[str] = set()

    def note_error(reason: str) -> None:
        if reason not in told and len(told) < _ERRORS_TOLD:
            told.add(reason)
            nursery.start_soon(note, "image.read", reason)

    manifest, cached, link = await _open_cache(task, store, digest)

    def note_cache(reason: str) -> None:
        nursery.start_soon(note, "image.cache", reason)

    def note_file(reason: str) -> None:
        nursery.start_soon(note, "image.file", reason)

    deadline_s = config.image.io_deadline_s
    patience_s = min(PATIENCE_S, deadline_s / 4)
    cache = NodeCache(manifest, cached, link, note_cache, patience_s)
    blocks = ImageBlocks(manifest, source, cache, nursery, deadline_s)
    view: ImageView | TreeContent
    tree = None
    if rows is not None:
        tree = TreeTable(rows, manifest.size_bytes, job.uid, job.gid)
        view = TreeContent(rows, blocks, note_error)
    else:
        view = ImageView(blocks, manifest.size_bytes, info.mtime_ns, job.uid, job.gid, note_error)
    packs = task.store() if config.image.store_url else store  # the user's own
    packing = JobPack(task, packs, blocks, digest, nursery)
    opened.push_async_callback(_close, packing.close)
    way = await AccessSelector(task, source, blocks, cache).choose(patience_s, note_file)
    return _Served(manifest, cache, blocks, view, tree, packing, source, way)


async def _close(close: Callable[[], Awaitable[None]]) -> None:
    """Close what is open in a store, if that does not take too long."""
    with trio.move_on_after(_CLOSE_S, shield=True):
        await close()


async def _open_cache(
    task: Task, store: Store, digest: str
) -> tuple[ImageManifest, CachedBlocks | None, KeeperLink | None]:
    """Get the manifest, and from root what this node has of the image.

    Raises:
        BootseerError: the store does not give the manifest.
    """
    token = await catalog.read_token(store, digest)
    wanted = BorrowBlocks(digest, token.hex() if token else "")
    with suppress(Closed):  # the agent has died: the job goes on
        await task.channel.send(wanted)
        answer, fds = await task.channel.receive()
        if isinstance(answer, BlocksRefused) and answer.wants_manifest:
            encoded, _ = await catalog.read_manifest(store, digest)
            memory = seal_manifest(encoded)
            try:
                await task.channel.send(wanted, [memory])
            finally:
                os.close(memory)
            answer, fds = await task.channel.receive()
        if isinstance(answer, BlocksLent):
            manifest_fd, data_fd, map_fd, claims, blocks = exactly(fds, 5)
            with os.fdopen(manifest_fd, "rb") as file:
                manifest = image_format.decode(file.read(), f"the manifest of {digest}", digest)
            return manifest, CachedBlocks(data_fd, map_fd, manifest), KeeperLink.of(claims, blocks)
    _, manifest = await catalog.read_manifest(store, digest)
    return manifest, None, None


async def _handle_messages(task: Task, served: _Served | None, nursery: trio.Nursery) -> None:
    """Tell the agent that the image can be read, and do what it says for as long as it lives."""
    with suppress(Closed):
        if served is None:
            await task.channel.send(ImageMissing())
            return
        cached = served.cache.cached
        if not task.job.record_only and served.way is not AccessMode.FILE:
            # Before who reads ahead begins: what it asks for comes from the pack, or does not.
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
                    nursery.start_soon(_work_behind, task, served, touches)
                case ReportImage():
                    await _report(task, served)
                case _:
                    raise unexpected(message)


async def _copy(task: Task, served: _Served) -> None:
    """Bring all of the image to the node."""
    with suppress(Closed):
        with suppress(BootseerError):  # told as a fallback; what is needed comes all the same
            async with task.stage("image.copy") as said:
                said.bytes = await copy(served.blocks, served.cache)
        await task.channel.send(ImageCopied())


async def _work_behind(task: Task, served: _Served, touches: list[Touch]) -> None:
    """Do what later starts gain by, now that this one is over."""
    bytes_per_s = task.config.image.fill_mib_per_s * MIB
    await served.packing.write([(t.start, t.stop) for t in touches], bytes_per_s)
    await fill(served.blocks, served.cache, bytes_per_s / max(1, task.job.nodes))


async def _report(task: Task, served: _Served) -> None:
    """Tell what was read of the store, and what the node has now."""
    stats, cached = served.blocks.stats, served.cache.cached
    with trio.move_on_after(_SETTLE_S):
        await served.blocks.settle()
    async with task.stage("image.serve") as said:
        said.bytes = stats.fetched_bytes
        source = served.source
        told = [f"{stats.fetches} reads of {'the store' if source.file is None else 'its file'}"]
        if stats.filled_bytes:
            told.append(f"{format_size(stats.filled_bytes)} of it that nobody waited for")
        if cached is not None and cached.damaged:
            told.append(f"{cached.damaged} damaged blocks in the cache fetched again")
        told.append(f"{format_size(_present_bytes(served))} are on this node")
        said.detail = ", ".join(told)
    await served.packing.report()
    nodes = task.job.nodes
    speeds = (source.speed.speed(nodes), source.file_speed.speed(nodes))
    await task.channel.send(ImageReported(*speeds))


def _present_bytes(served: _Served) -> int:
    return served.cache.cached.present_bytes if served.cache.cached is not None else 0
