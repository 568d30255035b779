"""What the view of an image answers, without a mount; `test_view.py` has one."""

import errno
import os
import random
import stat
from types import SimpleNamespace

import pytest
import trio
from bootseer_dev.material.stored_image import manifest_of, readable, store_image

from bootseer.core import image_manifest
from bootseer.image.serve.node_cache import NodeCache
from bootseer.image.serve.view import ImageView, MissingImage
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore

BLOCK = 4096
CONTENT = random.Random(31).randbytes(9 * BLOCK + 5)
MANIFEST = manifest_of(CONTENT)
DIGEST = image_manifest.image_digest(MANIFEST.encode())
ROOT, FILE = 1, 2
OTHER_UID, OTHER_GID = 1234, 5678


@pytest.fixture
async def shown():
    """A view of an image, what it has told of errors, and a switch for its store."""
    memory, errors = MemoryStore(), []
    await store_image(memory, CONTENT, "test")
    shown = SimpleNamespace(is_down=False, errors=errors)
    store = FlakyStore(memory, lambda *call: shown.is_down)
    async with readable(store, DIGEST, MANIFEST, NodeCache()) as shown.blocks:
        owner = (OTHER_UID, OTHER_GID)
        shown.view = ImageView(shown.blocks, len(CONTENT), 10**18 + 3, *owner, errors.append)
        yield shown


async def test_there_is_one_file_and_it_cannot_be_written(shown):
    view = shown.view
    file, root = await view.attributes(FILE), await view.attributes(ROOT)
    assert await view.lookup(ROOT, b"image.sqsh") == file
    assert await view.entries(ROOT) == [(b"image.sqsh", file)]
    assert (file.inode, file.mode) == (FILE, stat.S_IFREG | 0o444)
    assert (file.size_bytes, file.links) == (len(CONTENT), 1)
    assert (root.inode, root.mode) == (ROOT, stat.S_IFDIR | 0o555)
    assert (root.size_bytes, root.links) == (0, 2)
    for shows in (file, root):
        assert shows.mtime_ns == shows.ctime_ns == 10**18 + 3
        assert (shows.uid, shows.gid) == (OTHER_UID, OTHER_GID)
    assert view.valid_s >= 86400, "an image does not change"


@pytest.mark.parametrize("where", [(ROOT, b"other"), (FILE, b"image.sqsh"), (FILE, b"other")])
async def test_there_are_no_other_names_and_no_links(shown, where):
    with pytest.raises(FileNotFoundError) as missing:
        await shown.view.lookup(*where)
    assert missing.value.errno == errno.ENOENT
    with pytest.raises(OSError, match="Invalid") as no_link:
        await shown.view.link_target(FILE)
    assert no_link.value.errno == errno.EINVAL
    shown.view.forget(FILE)
    assert (await shown.view.attributes(FILE)).inode == FILE


async def test_each_open_has_a_handle_of_its_own_until_it_is_closed(shown):
    view = shown.view
    opened = [await view.open(FILE, flags) for flags in (os.O_RDONLY, os.O_NOATIME, os.O_RDONLY)]
    assert len({one.handle for one in opened}) == 3
    assert all(one.keep_cache for one in opened), "the kernel's pages are still the image's"
    assert await view.read(opened[1].handle, 5, 10) == CONTENT[5:15]
    await view.close(opened[1].handle)
    with pytest.raises(KeyError):
        await view.read(opened[1].handle, 5, 10)
    assert await view.read(opened[2].handle, 5, 10) == CONTENT[5:15]


async def test_what_is_read_is_recorded_and_what_is_read_ahead_is_not(shown, autojump_clock):
    view, blocks = shown.view, shown.blocks
    began = blocks.urgent_at
    program = (await view.open(FILE, os.O_RDONLY)).handle
    ahead = (await view.open(FILE, os.O_RDONLY | os.O_NOATIME)).handle
    await trio.sleep(1)
    assert await view.read(ahead, 0, 2 * BLOCK) == CONTENT[: 2 * BLOCK]
    assert blocks.urgent_at == began and not view.touched.touches()
    assert await view.read(program, BLOCK, 10) == CONTENT[BLOCK : BLOCK + 10]
    assert blocks.urgent_at == began + 1
    assert await view.read(program, 9 * BLOCK, BLOCK) == CONTENT[9 * BLOCK :]
    assert await view.read(program, len(CONTENT), BLOCK) == b""
    ranges = [(t.start, t.stop) for t in view.touched.touches()]
    assert ranges == [(BLOCK, BLOCK + 10), (9 * BLOCK, len(CONTENT))]


async def test_what_the_kernel_answered_itself_is_recorded_too(shown):
    asked = []
    reads = lambda *, go_on: asked.append(go_on) or [(5, 9, 0)]  # noqa: E731
    shown.view.attach(SimpleNamespace(reads=reads))
    assert [(t.start, t.stop) for t in shown.view.touched.touches()] == [(5, 9)]
    assert asked == [True]


async def test_what_cannot_be_read_is_an_error_of_the_disk_and_told(shown):
    handle = (await shown.view.open(FILE, os.O_RDONLY)).handle
    shown.is_down = True
    with pytest.raises(OSError, match="Input/output") as failed:
        await shown.view.read(handle, 0, 10)
    assert failed.value.errno == errno.EIO
    assert len(shown.errors) == 1 and "flaky on purpose" in shown.errors[0]
    shown.is_down = False
    assert await shown.view.read(handle, 0, 10) == CONTENT[:10]
    assert len(shown.errors) == 1


async def test_a_missing_image_is_an_empty_folder_that_is_asked_each_time():
    view = MissingImage(OTHER_UID, OTHER_GID)
    view.attach(SimpleNamespace())
    root = await view.attributes(ROOT)
    assert (root.inode, root.mode, root.links) == (ROOT, stat.S_IFDIR | 0o555, 2)
    assert (root.uid, root.gid, root.size_bytes) == (OTHER_UID, OTHER_GID, 0)
    assert await view.entries(ROOT) == []
    for call in (
        view.lookup(ROOT, b"image.sqsh"),
        view.link_target(FILE),
        view.open(FILE, os.O_RDONLY),
        view.read(1, 0, 10),
    ):
        with pytest.raises(FileNotFoundError) as missing:
            await call
        assert missing.value.errno == errno.ENOENT
    await view.close(1)
    view.forget(FILE)
    assert view.valid_s == 0
