"""Write an image anew from its hot set, and see that the next start of it is warm."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import trio

from bootseer.errors import NotFound
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.hot.repository import publish_trace, read_hot_set, rebuild
from bootseer.image.hot.trace import COMPLETE, MOUNTED, Touch, Trace
from bootseer.image.identity import Identity, identify, open_image
from bootseer.image.library import catalog
from bootseer.image.library.download import retrieve
from bootseer.image.library.upload import UploadProgress, about_now, add
from bootseer.image.optimize.optimize import optimize
from bootseer.image.optimize.writer import BlockStorage, OptimizedImage
from bootseer.store.api.base import Store

_NODE = "+optimized"
"""Stands for a node in the name of the trace that the new image begins with."""


@dataclass(frozen=True, slots=True)
class ReorderedImage:
    """The new image.

    Attributes:
        digest: in the store, "" if it is a file.
        identity: what its traces are named after.
        size_bytes: its length.
        hot_bytes: what starts read of it.
        storing: how its blocks are stored.
    """

    digest: str
    identity: str
    size_bytes: int
    hot_bytes: int
    storing: str

    def document(self) -> dict[str, object]:
        """Return what JSON can carry."""
        return asdict(self)


class Reordering:
    """Writes images anew."""

    def __init__(self, store: Store, images: Store, user: str, progress: UploadProgress) -> None:
        """Take over where things are.

        Args:
            store: of hot sets.
            images: of images.
            user: who does it.
            progress: kept up to date.
        """
        self._store = store
        self._images = images
        self._user = user
        self._progress = progress

    async def run(
        self, image: str, name: str, output: Path | None, scratch: Path, storing: str
    ) -> ReorderedImage:
        """Write an image anew.

        Args:
            image: its name in the store, or the path of a file.
            name: for the new image in the store.
            output: the file to write otherwise.
            scratch: folder for what is on the way.
            storing: name of a `BlockStorage`, in lower case and with dashes.

        Raises:
            NotFound: there is no such image, or nothing is known of its starts.
            Corrupt: the new image would not have the same tree.
            BootseerError: it cannot be read or written.

        Cancellation: what was written is removed.
        """
        with ExitStack() as files:
            folder = tempfile.TemporaryDirectory(prefix="bootseer-image-", dir=scratch)
            made = Path(files.enter_context(folder))
            source, digest = Path(image), ""
            if not image.startswith("/"):
                source = made / "source.sqsh"
                digest = await self._get(image, source)
            identity = await trio.to_thread.run_sync(_identify, source)
            hot_set = await read_hot_set(self._store, identity.digest)
            if hot_set is None:
                raise NotFound(f"no start of {image} is recorded: run a job with it first")
            if not hot_set.ranges:
                raise NotFound(
                    f"starts of {image} have read nearly all of it, as unpacking does: nothing can "
                    "come first; run a job that mounts it"
                )
            target = output or made / "image.sqsh"
            optimized = await self._optimize(source, hot_set, target, storing)
            hot = optimized.moves.hot_ranges(hot_set.ranges)
            new = await trio.to_thread.run_sync(_identify, target)
            size_bytes = target.stat().st_size
            new_digest = ""
            if name:
                about = about_now(image, self._user, optimized_from=digest)
                self._progress.total_bytes = self._progress.done_bytes = 0
                new_digest = (await add(self._images, target, name, about, self._progress)).digest
            known = await self._make_known(new.digest, size_bytes, hot)
        kind = optimized.storing.name.lower().replace("_", "-")
        return ReorderedImage(new_digest, new.digest, size_bytes, known.hot_bytes, kind)

    async def _get(self, image: str, target: Path) -> str:
        digest = await catalog.resolve(self._images, image)
        _, manifest = await catalog.read_manifest(self._images, digest)
        self._progress.total_bytes = manifest.size_bytes
        await retrieve(self._images, digest, manifest, target, self._progress.add)
        return digest

    async def _optimize(
        self, source: Path, hot_set: HotSet, target: Path, storing: str
    ) -> OptimizedImage:
        def count(done: int, total: int) -> None:
            trio.from_thread.check_cancelled()
            self._progress.done_bytes, self._progress.total_bytes = done, total

        hot = [r.range for r in hot_set.ranges]
        kind = BlockStorage[storing.upper().replace("-", "_")]
        work = partial(optimize, source, hot, target, storing=kind, progress=count)
        return await trio.to_thread.run_sync(work)

    async def _make_known(self, identity: str, size_bytes: int, hot: Sequence[HotRange]) -> HotSet:
        """Publish what is hot of the new image, as a start of it would have."""
        touches = tuple(Touch(r.start, r.stop, r.first_ms) for r in hot)
        now_ns = time.time_ns()
        trace = Trace(
            digest=identity,
            size_bytes=size_bytes,
            run=f"optimize.{now_ns}",
            started_ns=now_ns,
            node=_NODE,
            kind=COMPLETE,
            touches=touches,
            usage=MOUNTED,  # though all that is hot comes first
        )
        await publish_trace(self._store, trace, traces_per_run=1)
        return (await rebuild(self._store, identity, runs_kept=1)).hot_set


def _identify(path: Path) -> Identity:
    opened = open_image(str(path.absolute()))
    try:
        return identify(opened)
    finally:
        os.close(opened.fd)
