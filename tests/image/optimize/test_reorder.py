"""An image written anew from what starts read of it, and what is known of the new one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio
from bootseer_dev.material.images import TinyImage, write_image

from bootseer.errors import NotFound
from bootseer.image.hot import trace as trace_format
from bootseer.image.hot.hotset import HotSet
from bootseer.image.hot.repository import hot_set_name, publish_trace, read_hot_set, rebuild
from bootseer.image.hot.trace import COMPLETE, MOUNTED, Touch, Trace
from bootseer.image.identity import Identity, identify, open_image
from bootseer.image.library import catalog
from bootseer.image.library.upload import UploadProgress, about_now, add
from bootseer.image.optimize.equal import same_tree
from bootseer.image.optimize.reorder import ReorderedImage, Reordering
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.units import MIB

RECIPE = TinyImage(files=16, hot_every=4)


class Watched(UploadProgress):
    """Progress that somebody looks at, and may end the work at the first sight of any."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.scope: trio.CancelScope | None = None
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "done_bytes" and value:
            self.seen.append((value, self.total_bytes))
            if self.scope is not None:
                trio.from_thread.run_sync(self.scope.cancel)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "tiny.sqsh"
    write_image(RECIPE, path)
    return path


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def identity_of(path: Path) -> Identity:
    opened = open_image(str(path))
    try:
        return identify(opened)
    finally:
        os.close(opened.fd)


def places(path: Path) -> list[int]:
    """Return where the data begins that a start reads, in its order."""
    content = path.read_bytes()
    return [content.index(RECIPE.content(name)) for name in reversed(RECIPE.hot)]


async def started(path: Path) -> MemoryStore:
    """Return a store that knows what a start of the image has read."""
    store, digest = MemoryStore(), identity_of(path).digest
    touches = tuple(
        Touch(at, at + RECIPE.file_bytes, 1000 * number) for number, at in enumerate(places(path))
    )
    trace = Trace(digest, path.stat().st_size, "c.1", 1, "n1", COMPLETE, touches)
    await publish_trace(store, trace, traces_per_run=1)
    await rebuild(store, digest, runs_kept=1)
    return store


@pytest.mark.parametrize("storing", ["lz4", "as-they-are", "hot-uncompressed"])
async def test_what_starts_read_of_a_new_image_is_known_at_once(
    path: Path, scratch: Path, tmp_path: Path, storing: str
) -> None:
    store, target = await started(path), tmp_path / "fast.sqsh"
    made = await Reordering(store, MemoryStore(), "alice", UploadProgress()).run(
        str(path), "", target, scratch, storing
    )
    assert same_tree(path, target) is None
    hot_bytes = len(RECIPE.hot) * RECIPE.file_bytes
    new, size_bytes = identity_of(target).digest, target.stat().st_size
    assert made == ReorderedImage("", new, size_bytes, hot_bytes, storing)
    assert made.document() == {
        "digest": "",
        "identity": new,
        "size_bytes": size_bytes,
        "hot_bytes": hot_bytes,
        "storing": storing,
    }
    hot_set = await read_hot_set(store, new)
    assert hot_set is not None and hot_set.size_bytes == size_bytes
    assert [r.start for r in hot_set.ranges] == places(target) == sorted(places(target))
    assert [r.first_ms for r in hot_set.ranges] == [1000 * n for n in range(len(RECIPE.hot))]
    [info] = await store.list(f"traces/{new}")
    trace = trace_format.decode(await read_all(store, info.name, MIB), info.name)
    assert (trace.kind, trace.usage, trace.node) == (COMPLETE, MOUNTED, "+optimized")
    assert trace.run == f"optimize.{trace.started_ns}"
    assert os.listdir(scratch) == []


async def test_an_image_of_the_store_is_put_there_under_another_name(
    path: Path, scratch: Path
) -> None:
    store, images, progress = await started(path), MemoryStore(), Watched()
    old = await add(images, path, "tiny", about_now("/images/tiny.sqsh", "bob"))
    job = Reordering(store, images, "alice", progress)
    made = await job.run("tiny", "fast", None, scratch, "lz4")
    assert await catalog.resolve(images, "fast") == made.digest != old.digest
    assert await catalog.resolve(images, "tiny") == old.digest
    about = await catalog.read_about(images, made.digest)
    assert about is not None
    assert (about.source, about.added_by, about.optimized_from) == ("tiny", "alice", old.digest)
    assert progress.done_bytes == progress.total_bytes == 2 * made.size_bytes
    assert all(done_bytes <= total_bytes for done_bytes, total_bytes in progress.seen)
    assert os.listdir(scratch) == []


async def test_nothing_of_an_image_comes_first_if_starts_read_all_of_it(
    path: Path, scratch: Path, tmp_path: Path
) -> None:
    store, digest = MemoryStore(), identity_of(path).digest
    hot_set = HotSet(digest, path.stat().st_size, ("c.1",), ())
    await publish(store, hot_set_name(digest), hot_set.encode())
    job = Reordering(store, MemoryStore(), "alice", UploadProgress())
    with pytest.raises(NotFound, match="read nearly all of it"):
        await job.run(str(path), "", tmp_path / "fast.sqsh", scratch, "lz4")
    assert os.listdir(tmp_path) == ["scratch"] and os.listdir(scratch) == []


async def test_who_gives_up_has_nothing_written_and_nothing_left(
    path: Path, scratch: Path, tmp_path: Path
) -> None:
    store, progress = await started(path), Watched()
    job = Reordering(store, MemoryStore(), "alice", progress)
    with trio.CancelScope() as progress.scope:
        await job.run(str(path), "", tmp_path / "fast.sqsh", scratch, "lz4")
    assert progress.scope.cancelled_caught
    assert len(progress.seen) == 1
    assert os.listdir(tmp_path) == ["scratch"] and os.listdir(scratch) == []
