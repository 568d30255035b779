"""A mounted snapshot is the tree that was captured, whether its blocks are on the node or not."""

import errno
import hashlib
import os
import pickle
import random
import socket
import struct
import sys
from collections import Counter
from contextlib import closing

import pytest
import trio
from bootseer_dev.material.snapshots import disown, make_tree, squash
from bootseer_dev.material.stored_image import cache_in, manifest_of, open_entry

from bootseer.core.ranges import ByteRange, coalesce
from bootseer.core.tree_rows import TreeRows
from bootseer.env.client.scan import tree_digest
from bootseer.env.mount.content import AHEAD, TreeContent
from bootseer.env.snapshot.index import decode
from bootseer.errors import Corrupt, Unavailable
from bootseer.fuse.fastpath import TreeTable
from bootseer.fuse.root_mounts import MountOptions, attach, detach
from bootseer.fuse.serve_tree import serve_tree
from bootseer.squashfs.superblock import BLOCK_RAW

pytestmark = [pytest.mark.fuse, pytest.mark.root]
BLOCK = 65536


class Snapshot:
    def __init__(self, folder):
        (folder / "source").mkdir()
        make_tree(folder / "source")
        self.tree, encoded = squash(folder / "source", folder / "image")
        self.index = decode(encoded, "index", [b"0/lib/dangling"])
        self.content = (folder / "image").read_bytes()
        self.manifest = manifest_of(self.content, BLOCK)
        self.large = (folder / "source/0/large").read_bytes()


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    return Snapshot(tmp_path_factory.mktemp("snapshot"))


class Blocks:
    """What the store would give."""

    def __init__(self, content):
        self.content = content
        self.asked = []
        self.error = None

    async def read(self, offset, size_bytes, is_urgent=True):
        self.asked.append((ByteRange(offset, offset + size_bytes), is_urgent))
        if self.error is not None:
            raise self.error
        return memoryview(self.content)[offset : offset + size_bytes]


class Mounted:
    def __init__(self, path, blocks, entry, rows):
        self.path = path
        self.blocks = blocks
        self.entry = entry
        self.errors = []
        self.content = TreeContent(rows, blocks, self.errors.append)
        self.serving = trio.CancelScope()

    async def run(self, code, *args):
        """Run code in a process of its own; this one may not touch the mount."""
        argv = [sys.executable, "-EP", "-c", code, self.path, *map(str, args)]
        done = await trio.run_process(argv, capture_stdout=True, check=False)
        assert done.returncode == 0
        return done.stdout

    async def scan(self):
        return disown(pickle.loads(await self.run(SCAN)))


SCAN = """
import pickle, sys
from bootseer.env.client.scan import scan
sys.stdout.buffer.write(pickle.dumps(scan(sys.argv[1])))
"""


@pytest.fixture
def mount(snapshot, tmp_path, nursery):
    """Mount the snapshot on a node that has some of its blocks."""
    entry = open_entry(cache_in(tmp_path), snapshot.manifest)
    folder = tmp_path / "mnt"
    folder.mkdir()
    made = []

    async def serve(mounted, connection, task_status):
        tree = TreeTable(snapshot.index.rows, snapshot.manifest.size_bytes, 1234, 2345)
        with closing(entry.blocks()) as cached, mounted.serving:
            await serve_tree(tree, mounted.content, connection, cached, task_status=task_status)

    async def mount(present):
        keeper = entry.keeper(lambda size_bytes: True)
        for index in filter(present, range(snapshot.manifest.blocks)):
            block = snapshot.manifest.block_range(index)
            keeper.keep(index, memoryview(snapshot.content)[block.start : block.stop])
        keeper.close()
        mounted = Mounted(folder, Blocks(snapshot.content), entry, snapshot.index.rows)
        made.append(mounted)
        mounted.connection = attach(folder, os.getuid(), 0, MountOptions(read_only=True))
        await nursery.start(serve, mounted, os.dup(mounted.connection))
        return mounted

    yield mount
    detach(folder)
    for mounted in made:
        os.close(mounted.connection)
    entry.close()


def everything(index):
    return True


def nothing(index):
    return False


PRESENT = {
    "all": everything,
    "nothing": nothing,
    "every other block": lambda index: index % 2,
    "most": lambda index: index % 7,
}


@pytest.mark.parametrize("present", PRESENT)
async def test_the_tree_is_the_one_that_was_captured(snapshot, mount, present):
    mounted = await mount(PRESENT[present])
    found = await mounted.scan()
    assert found == snapshot.tree
    assert tree_digest(found) == tree_digest(snapshot.tree)
    assert bool(mounted.blocks.asked) == (present != "all")


async def test_all_of_it_belongs_to_one_user(mount):
    mounted = await mount(everything)
    code = "import os,sys; s = os.lstat(sys.argv[1] + '/0/link'); print(s.st_uid, s.st_gid)"
    assert await mounted.run(code) == b"1234 2345\n"


LINKS = """
import os, pickle, sys
root, found = os.fsencode(sys.argv[1]), {}
for folder, _, names in os.walk(root):
    for path in (os.path.join(folder, name) for name in names):
        found[os.path.relpath(path, root)] = os.lstat(path).st_nlink
sys.stdout.buffer.write(pickle.dumps(found))
"""


async def test_files_have_as_many_links_as_names(mount, snapshot):
    mounted = await mount(everything)
    found = pickle.loads(await mounted.run(LINKS))
    names = Counter(node.same_as or path for path, node in snapshot.tree.items())
    wanted = {
        path: names[node.same_as or path]
        for path, node in snapshot.tree.items()
        if node.kind == "file"
    }
    assert {path: found.get(path) for path in wanted} == wanted
    assert max(names.values()) > 1


async def test_names_that_are_not_there(mount):
    mounted = await mount(everything)
    code = """
import os, sys
for name in ["-", "a", "blocj", "block ", "zzz", "lib/n", "n" * 300, "one/x", "link/er/x"]:
    try:
        os.lstat(f"{sys.argv[1]}/0/{name}")
    except OSError as error:
        print(error.errno)
"""
    wanted = [errno.ENOENT] * 6 + [errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENOENT]
    assert list(map(int, (await mounted.run(code)).split())) == wanted


async def test_folders_longer_than_an_answer_are_listed_whole(mount, snapshot):
    mounted = await mount(everything)
    code = """
import os, sys
for _ in range(2):
    fd = os.open(sys.argv[1] + "/0/lib", os.O_RDONLY)
    print(len(set(os.listdir(fd))), sum(entry.is_file() for entry in os.scandir(fd)))
"""
    names = [p for p in snapshot.tree if p.startswith(b"0/lib/") and p.count(b"/") == 2]
    files = [p for p in names if snapshot.tree[p].kind == "file"]
    assert list(map(int, (await mounted.run(code)).split())) == [len(names), len(files)] * 2


@pytest.mark.parametrize("present", ["all", "every other block"])
async def test_reads_at_any_place(mount, snapshot, present):
    mounted = await mount(PRESENT[present])
    picked = random.Random(5)
    places = [(picked.randrange(6000) * 512, picked.randrange(1, 300) * 4096) for _ in range(60)]
    code = """
import hashlib, mmap, os, sys
whole = hashlib.sha256()
fd = os.open(sys.argv[1] + "/0/large", os.O_RDONLY | os.O_DIRECT)
for offset, size in eval(sys.argv[2]):
    buffer = mmap.mmap(-1, size)
    got = os.preadv(fd, [buffer], offset)
    whole.update(buffer[:got])
print(whole.hexdigest())
"""
    whole = hashlib.sha256()
    for offset, size in places:
        whole.update(snapshot.large[offset : offset + size])
    assert (await mounted.run(code, places)).decode().strip() == whole.hexdigest()


async def test_many_readers_at_once(mount, snapshot):
    mounted = await mount(PRESENT["most"])
    found = []

    async def scan():
        found.append(await mounted.scan())

    async with trio.open_nursery() as readers:
        for _ in range(4):
            readers.start_soon(scan)
    assert found == [snapshot.tree] * 4


async def test_programs_run_from_it_and_nothing_can_be_written(mount):
    mounted = await mount(everything)
    done = await trio.run_process([mounted.path / "0/bin/tool"], capture_stdout=True)
    assert done.stdout == b"from the snapshot\n"
    code = """
import os, sys
path = sys.argv[1] + "/0/one"
for work in (
    lambda: open(path + "new", "w"),
    lambda: open(path, "r+"),
    lambda: os.unlink(path),
    lambda: os.utime(path),
):
    try:
        work()
    except OSError as error:
        print(error.errno)
"""
    assert (await mounted.run(code)).split() == [b"%d" % errno.EROFS] * 4


READ = """
import os, sys
fd = os.open(sys.argv[1] + "/0/" + sys.argv[2], os.O_RDONLY | int(sys.argv[3]))
while os.read(fd, 1 << 20):
    pass
"""


@pytest.mark.parametrize("present", ["all", "nothing"])
async def test_the_record_is_of_what_was_read_and_not_ahead(mount, snapshot, present):
    mounted = await mount(PRESENT[present])
    touched = mounted.content.touched
    await mounted.run(READ, "text", AHEAD)
    assert touched.touches() == []
    assert not any(is_urgent for _, is_urgent in mounted.blocks.asked)
    await mounted.run(READ, "block", os.O_NOATIME)
    place = snapshot.index.places[b"0/block"]
    stop = place.start + sum(length & ~BLOCK_RAW for length in place.blocks)
    assert coalesce(ByteRange(t.start, t.stop) for t in touched.touches()) == [
        ByteRange(place.start, stop)
    ]
    touched.stop()
    await mounted.run(READ, "large", 0)
    assert sum(t.stop - t.start for t in touched.touches()) == stop - place.start


@pytest.mark.parametrize("present", ["all", "nothing"])
async def test_the_record_has_each_of_the_files_that_share_a_page(mount, snapshot, present):
    mounted = await mount(PRESENT[present])
    small = {
        place.start: (path, place.start + (place.blocks[0] & ~BLOCK_RAW))
        for path, place in snapshot.index.places.items()
        if len(place.blocks) == 1 and 0 < place.blocks[0] & ~BLOCK_RAW < 1000
    }
    starts = sorted(small)
    first = next(i for i, at in enumerate(starts) if small[starts[i + 2]][1] // 4096 == at // 4096)
    around, between = [starts[first], starts[first + 2]], starts[first + 1]
    for start in (*around, between):
        await mounted.run(READ, os.fsdecode(small[start][0].removeprefix(b"0/")), 0)
    found = coalesce(ByteRange(t.start, t.stop) for t in mounted.content.touched.touches())
    wanted = [ByteRange(start, small[start][1]) for start in (*around, between)]
    assert found == coalesce(wanted)


async def test_content_that_cannot_be_had_is_an_error_and_told(mount):
    mounted = await mount(nothing)
    code = """
import sys
try:
    open(sys.argv[1] + "/0/" + sys.argv[2], "rb").read()
except OSError as error:
    print(error.errno)
"""
    mounted.blocks.error = Unavailable("the store is away")
    assert await mounted.run(code, "one") == b"%d\n" % errno.EIO
    assert mounted.errors[0] == "the store is away"
    mounted.blocks.error = None
    mounted.blocks.content = bytes(len(mounted.blocks.content))
    assert await mounted.run(code, "text") == b"%d\n" % errno.EIO
    assert "decompress" in mounted.errors[-1]


async def test_what_is_damaged_on_the_node_is_asked_for(mount, snapshot):
    mounted = await mount(everything)
    place = snapshot.index.places[b"0/block"]
    with open(mounted.entry.path / "data", "r+b") as file:
        file.seek(place.start + 1000)
        file.write(b"damage")
    code = "import sys; sys.stdout.buffer.write(open(sys.argv[1] + '/0/block', 'rb').read())"
    found = hashlib.sha256(await mounted.run(code)).digest()
    assert found == snapshot.tree[b"0/block"].digest
    assert mounted.blocks.asked


async def test_what_the_kernel_knows_it_does_not_ask_again(mount, snapshot):
    """Listing, opening, reading again is no request: nobody is there to answer one."""
    mounted = await mount(everything)
    assert await mounted.scan() == snapshot.tree
    code = "import os, sys; print(*[os.path.exists(sys.argv[1] + p) for p in sys.argv[2:]])"
    assert await mounted.run(code, "/0/not", "/0/lib/dangling") == b"False False\n"
    mounted.serving.cancel()
    with trio.fail_after(20):
        code = """
import os, sys
for root, folders, files in os.walk(sys.argv[1]):
    for name in files:
        if not os.path.islink(os.path.join(root, name)):
            os.close(os.open(os.path.join(root, name), os.O_RDONLY))
fd = os.open(sys.argv[1] + "/0/one", os.O_RDONLY)  # open() asks whether it is a terminal
print(os.read(fd, 9), os.path.exists(sys.argv[1] + "/0/not"))
"""
        assert await mounted.run(code) == b"b'1' False\n"


def changed(snapshot, part, offset, layout, *values):
    rows = list(snapshot.index.rows)
    data = bytearray(rows[part])
    struct.pack_into(layout, data, offset, *values)
    rows[part] = bytes(data)
    return TreeRows(*rows)


HARM = {
    "entries past the end": (0, 24, "<I", 1 << 31),
    "so many entries that it wraps": (0, 24, "<II", 0xFFFFFFFF, 0xFFFFFFFF),
    "an attribute past the end": (0, 40, "<II", 0xFFFFFFF0, 0xFF),
    "a device": (0, 80 + 32, "<I", 0o020644),
    "a root that is a file": (0, 32, "<I", 0o100644),
    "a name past the end": (1, 0, "<I", 0xFFFFFFFF),
    "a name of no length": (1, 4, "<I", 0),
    "a name that is too long": (1, 4, "<I", 256),
    "an entry for nothing": (1, 8, "<I", 1 << 30),
    "a hole": (2, 0, "<I", 0),
    "a block that is too long": (2, 0, "<I", (1 << 24) - 1),
}


@pytest.mark.parametrize("name", HARM)
def test_rows_that_would_harm_are_refused(snapshot, name):
    with pytest.raises(Corrupt, match="what no snapshot may"):
        TreeTable(changed(snapshot, *HARM[name]), snapshot.manifest.size_bytes, 0, 0)


def test_blocks_past_the_end_of_the_image_are_refused(snapshot):
    with pytest.raises(Corrupt, match="what no snapshot may"):
        TreeTable(snapshot.index.rows, 4096, 0, 0)


async def test_a_mount_that_is_gone_is_not_waited_for(snapshot, tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    entry = open_entry(cache_in(tmp_path), snapshot.manifest)
    cached = entry.blocks()
    tree = TreeTable(snapshot.index.rows, snapshot.manifest.size_bytes, 0, 0)
    content = TreeContent(snapshot.index.rows, Blocks(b""), print)
    with pytest.raises(Unavailable, match="cannot serve"):
        await serve_tree(tree, content, theirs.detach(), cached)
    cached.close()
    entry.close()
