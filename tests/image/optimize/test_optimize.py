"""Images written anew: the same tree, hot files first; and what tells two trees apart."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from bootseer_dev.material.images import TinyImage, ch_run, squash, write_image

from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, Conflict, Corrupt, NotFound, Unavailable
from bootseer.image.hot.hotset import HotRange
from bootseer.image.optimize.equal import TreeDifference, same_tree
from bootseer.image.optimize.optimize import optimize
from bootseer.image.optimize.writer import BlockStorage, OptimizedImage
from bootseer.squashfs.codec import decompressor
from bootseer.squashfs.inodes import SquashfsInode
from bootseer.squashfs.reader import Squashfs
from bootseer.squashfs.superblock import BLOCK_RAW, SUPERBLOCK_BYTES
from bootseer.units import KIB, MIB

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")

COMPRESSORS = ("gzip", "xz", "lz4", "lzo", "zstd")
ODD_NAMES = (
    "new\nline",
    "ü",
    'qu"ote',
    "back\\slash",
    " lead",
    "trail ",
    "*?[x]",
    "#",
    "-f",
    "\x7f",
)
ROOT = os.geteuid() == 0
BLOCK_BYTES = 128 * KIB


def text(seed: int, size_bytes: int) -> bytes:
    """Return bytes that compress to less than half."""
    chance = random.Random(seed)
    words = [chance.randbytes(3).hex().encode() for _ in range(200)]
    return b" ".join(chance.choice(words) for _ in range(size_bytes // 7 + 1))[:size_bytes]


def make_odd_tree(tree: Path) -> Path:
    """Make a tree with every kind of entry that this user may make."""
    tree.mkdir()
    for number, name in enumerate(ODD_NAMES):
        (tree / name).write_bytes(text(number, 3000))
    (tree / "many").mkdir()
    for number in range(300):  # more than a block of the directories' table
        (tree / f"many/{number:04}-{'x' * 20}").write_bytes(text(number, number * 13))
    (tree / "big").write_bytes(text(1, 700_001))
    (tree / "big").chmod(0o4755)
    (tree / "noise").write_bytes(random.Random(0).randbytes(300_000))
    (tree / "copy of big").write_bytes(text(1, 700_001))
    (tree / "empty").touch()
    with (tree / "sparse").open("wb") as file:
        file.seek(2 * MIB)
        file.write(b"in the middle")
        file.truncate(5 * MIB + 1)
    (tree / "many/hard link").hardlink_to(tree / "big")
    (tree / "many/symbolic link").symlink_to("../big")
    (tree / "long link").symlink_to("x" * 200)
    os.mkfifo(tree / "fifo")
    value = b"long and shared" * 20
    for name in ("big", "empty", "many"):
        os.setxattr(tree / name, "user.shared", value)
    os.setxattr(tree / "noise", "user.other", b"\0\xff")
    if ROOT:
        os.mknod(tree / "device", stat.S_IFCHR | 0o620, os.makedev(5, 300))
        os.mknod(tree / "disk", stat.S_IFBLK | 0o600, os.makedev(259, 70_000))
        os.chown(tree / "sparse", 1234, 54321)
        os.setxattr(tree / "copy of big", "security.capability", b"\1\0\0\2" + bytes(16))
    os.utime(tree / " lead", (1, 77))
    return tree


@pytest.fixture(scope="module")
def odd_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_odd_tree(tmp_path_factory.mktemp("odd") / "tree")


def unpacked(image: Path, folder: Path) -> dict[str, tuple[object, ...]]:
    """Return all that unsquashfs, which is not ours, makes of an image."""
    run = ["unsquashfs", "-no-progress", "-quiet", "-d", folder, image]
    # As an ordinary user it complains of what only root can make.
    done = subprocess.run(run, capture_output=True, text=True, check=ROOT)
    assert "FATAL" not in done.stderr
    first_names: dict[int, str] = {}
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        info = path.lstat()
        content: object = None
        if stat.S_ISLNK(info.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(info.st_mode):
            content = path.read_bytes()
        xattrs = os.listxattr(path, follow_symlinks=False)
        name = str(path.relative_to(folder))
        found[name] = (
            *(info.st_mode, info.st_uid, info.st_gid, int(info.st_mtime), info.st_rdev),
            content,
            {xattr: os.getxattr(path, xattr, follow_symlinks=False) for xattr in xattrs},
            first_names.setdefault(info.st_ino, name),
        )
    shutil.rmtree(folder)
    return found


def listing(image: Path) -> str:
    return subprocess.run(
        ["unsquashfs", "-lln", image], capture_output=True, text=True, check=True
    ).stdout


def file_at(image: Squashfs, path: bytes) -> SquashfsInode:
    return next(inode for name, inode in image.walk() if name == path)


def ranges_of(image: Path, *paths: str) -> list[ByteRange]:
    """Return where files' blocks are in an image, in the order given."""
    with Squashfs(image) as opened:
        inodes = [file_at(opened, path.encode()) for path in paths]
        return [ByteRange(i.start, i.start + i.stored_bytes) for i in inodes]


@pytest.mark.parametrize("storing", BlockStorage)
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_nothing_of_the_tree_is_lost(
    odd_tree: Path, tmp_path: Path, compressor: str, storing: BlockStorage
) -> None:
    image = squash(odd_tree, tmp_path / "image", "-comp", compressor)
    with Squashfs(image) as opened:
        fragment = opened.fragments[1]
        stop = fragment.start + (fragment.length & ~BLOCK_RAW)
    hot = [*ranges_of(image, "/big"), ByteRange(fragment.start, stop)]
    done = optimize(image, hot, tmp_path / "new", storing=storing)
    assert (done.front_files, done.storing) == (2, storing)
    assert listing(image) == listing(tmp_path / "new")
    assert unpacked(image, tmp_path / "a") == unpacked(tmp_path / "new", tmp_path / "b")
    assert same_tree(image, tmp_path / "new") is None


@pytest.mark.parametrize(
    "options",
    [("-no-xattrs",), ("-no-fragments",), ("-no-exports",), ("-noI", "-noD", "-noF", "-noX")],
    ids=lambda options: options[0],
)
def test_images_without_some_table_or_compression(
    odd_tree: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    image = squash(odd_tree, tmp_path / "image", "-comp", "zstd", *options)
    optimize(image, ranges_of(image, "/noise"), tmp_path / "new")
    assert unpacked(image, tmp_path / "a") == unpacked(tmp_path / "new", tmp_path / "b")


def test_an_image_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    image = squash(tmp_path / "tree", tmp_path / "image")
    done = optimize(image, [ByteRange(0, 4096)], tmp_path / "new")
    assert done.front.size_bytes == done.scattered.size_bytes == 0
    assert listing(image) == listing(tmp_path / "new")


@pytest.mark.parametrize("storing", BlockStorage)
def test_hot_files_lie_first_in_the_order_of_first_touch(
    tmp_path: Path, storing: BlockStorage
) -> None:
    recipe = TinyImage(files=40)
    write_image(recipe, tmp_path / "image")
    hot = random.Random(0).sample(recipe.hot + recipe.cold, 12)
    done = optimize(
        tmp_path / "image",
        ranges_of(tmp_path / "image", *hot),
        tmp_path / "new",
        storing=storing,
    )
    data = (tmp_path / "new").read_bytes()
    front = b"".join(recipe.content(path) for path in hot)
    assert data[done.front.start :].startswith(front)
    assert (done.front.size_bytes, done.front_files) == (len(front), 12)
    assert done.scattered.size_bytes == 0


@pytest.fixture(scope="module")
def large_and_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of a large file, 40 blocks, and smaller ones of one or two."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "tree").mkdir()
    (folder / "tree/large").write_bytes(text(0, 40 * BLOCK_BYTES))
    for number in range(20):
        (folder / f"tree/small{number:02}").write_bytes(text(number + 1, (number + 1) * 10_000))
    return squash(folder / "tree", folder / "image", "-comp", "zstd", "-no-fragments")


def optimize_some(image: Path, target: Path, storing: BlockStorage) -> OptimizedImage:
    """Optimize with three blocks of the large file first, then two small files."""
    small = ranges_of(image, "/small12", "/small03")
    with Squashfs(image) as opened:
        blocks = [extent for extent, _, _ in opened.stored(file_at(opened, b"/large"))]
    return optimize(image, [*blocks[7:10], *small], target, storing=storing)


def test_a_large_file_with_little_that_is_hot_does_not_tear_the_others_apart(
    large_and_small: Path, tmp_path: Path
) -> None:
    done = optimize_some(large_and_small, tmp_path / "new", BlockStorage.AS_THEY_ARE)
    small12, small03, large = ranges_of(tmp_path / "new", "/small12", "/small03", "/large")
    assert (done.front.start, done.front.stop) == (small12.start, small03.stop)
    assert (small12.stop, done.scattered) == (small03.start, large)
    assert (done.front_files, done.scattered_files) == (2, 1)


def test_hot_blocks_alone_are_stored_uncompressed(large_and_small: Path, tmp_path: Path) -> None:
    optimize_some(large_and_small, tmp_path / "new", BlockStorage.HOT_UNCOMPRESSED)
    with Squashfs(tmp_path / "new") as new:
        large = file_at(new, b"/large").blocks
        raw = [number for number, length in enumerate(large) if length & BLOCK_RAW]
        assert raw == [7, 8, 9]
        assert large[7] == BLOCK_BYTES | BLOCK_RAW
        assert file_at(new, b"/small03").blocks == (40_000 | BLOCK_RAW,)
        assert not file_at(new, b"/small04").blocks[0] & BLOCK_RAW


def test_a_page_shared_with_a_neighbour_makes_no_file_hot(
    large_and_small: Path, tmp_path: Path
) -> None:
    (small,) = ranges_of(large_and_small, "/small12")
    pages = ByteRange(small.start - 100, small.stop + 100)
    done = optimize(large_and_small, [pages], tmp_path / "new")
    assert done.front_files == 1


@pytest.mark.parametrize("storing", BlockStorage)
def test_the_hot_set_moves_along(
    large_and_small: Path, tmp_path: Path, storing: BlockStorage
) -> None:
    done = optimize_some(large_and_small, tmp_path / "new", storing)
    with Squashfs(large_and_small) as opened:
        blocks = [extent for extent, _, _ in opened.stored(file_at(opened, b"/large"))]
    (small,) = ranges_of(large_and_small, "/small12")
    # The second half of a block, and the first half of it with the next one.
    middle = (blocks[7].start + blocks[7].stop) // 2
    old = [
        HotRange(small.start, small.stop, 10, 500_000),
        HotRange(middle, blocks[7].stop, 20, 1_000_000),
        HotRange(blocks[8].start, blocks[9].stop, 30, 1_000_000),
        HotRange(blocks[7].start, middle, 40, 1_000_000),
    ]
    moved = done.moves.hot_ranges(old)
    (small_now,) = ranges_of(tmp_path / "new", "/small12")
    with Squashfs(tmp_path / "new") as new:
        now = [extent for extent, _, _ in new.stored(file_at(new, b"/large"))]
    assert moved[0] == (*small_now, 10, 500_000)
    assert moved[2] == (now[8].start, now[9].stop, 30, 1_000_000)
    if storing is BlockStorage.AS_THEY_ARE:
        assert moved[1].stop == moved[2].start
        assert [r.stop - r.start for r in moved] == [r.stop - r.start for r in old]
    else:
        assert moved[1] == (*now[7], 20, 1_000_000)  # whole, and not a second time
        assert len(moved) == 3


@pytest.mark.parametrize("storing", BlockStorage)
def test_equal_input_gives_equal_bytes(
    large_and_small: Path, tmp_path: Path, storing: BlockStorage
) -> None:
    for name in ("a", "b"):
        optimize_some(large_and_small, tmp_path / name, storing)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_grows_too_far_with_lz4_is_copied_as_it_is(
    large_and_small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image of 4 GB in small: all its inodes are short, and have room for so many bytes."""
    with Squashfs(large_and_small) as opened:
        data_bytes = opened.superblock.inode_table
        large = file_at(opened, b"/large").stored_bytes
    monkeypatch.setattr("bootseer.image.optimize.layout.NEAR_BYTES", data_bytes - large + 50_000)
    done = optimize_some(large_and_small, tmp_path / "new", BlockStorage.LZ4)
    assert done.storing is BlockStorage.AS_THEY_ARE
    # As the largest it stays behind, though it is hot.
    (large_now,) = ranges_of(tmp_path / "new", "/large")
    with Squashfs(tmp_path / "new") as new:
        assert large_now.stop == new.superblock.inode_table
    assert (done.front_files, done.scattered_files) == (2, 0)


def test_an_image_can_replace_itself_and_keeps_its_mode(
    large_and_small: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    shutil.copy(large_and_small, image)
    image.chmod(0o640)
    optimize_some(image, image, BlockStorage.LZ4)
    assert stat.S_IMODE(image.stat().st_mode) == 0o640
    assert same_tree(large_and_small, image) is None
    assert os.listdir(tmp_path) == ["image"]


@pytest.mark.root
@pytest.mark.fuse
def test_a_start_reads_the_same_from_the_new_image(tmp_path: Path) -> None:
    recipe = TinyImage()
    write_image(recipe, tmp_path / "image")
    optimize(tmp_path / "image", ranges_of(tmp_path / "image", *recipe.hot), tmp_path / "new")
    (tmp_path / "mnt").mkdir()
    done = subprocess.run(
        ch_run(tmp_path / "new", tmp_path / "mnt", *recipe.command),
        env={**os.environ, "USER": "root"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == (recipe.output, "")


AS_ANYONE = """
import sys
from pathlib import Path
from bootseer.core.ranges import ByteRange
from bootseer.image.optimize.optimize import optimize

optimize(Path(sys.argv[1]), [ByteRange(0, 1 << 20)], Path(sys.argv[2]))
"""


@pytest.mark.root
def test_an_ordinary_user_keeps_owners_and_devices(odd_tree: Path, tmp_path: Path) -> None:
    image = squash(odd_tree, tmp_path / "image")
    folder = Path(f"/var/tmp/bootseer-test-optimize-{os.getpid()}")
    folder.mkdir()
    try:
        shutil.copy(image, folder / "image")
        os.chown(folder, 12345, 12345)
        user = ("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups")
        script = (sys.executable, "-P", "-c", AS_ANYONE, folder / "image", folder / "new")
        subprocess.run([*user, *script], check=True, cwd="/", timeout=60)
        assert (folder / "new").stat().st_uid == 12345
        assert unpacked(image, tmp_path / "a") == unpacked(folder / "new", tmp_path / "b")
    finally:
        shutil.rmtree(folder)


def test_a_change_of_the_image_meanwhile_is_noticed_and_nothing_stays(tmp_path: Path) -> None:
    image, target = tmp_path / "image", tmp_path / "new"
    recipe = TinyImage(files=8)
    write_image(recipe, image)
    target.write_bytes(b"old")
    (extent,) = ranges_of(image, "/data/0003")

    def change_once_copied(done_bytes: int, all_bytes: int) -> None:
        if done_bytes > image.stat().st_size - MIB // 2:
            with image.open("r+b") as file:
                file.seek(extent.start + 5)
                file.write(b"changed")

    with pytest.raises(Corrupt, match=r"content at byte 5 of /data/0003 .* meanwhile"):
        optimize(image, [extent], target, progress=change_once_copied)
    assert target.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["image", "new"]


@pytest.mark.parametrize("share", [0.1, 0.9], ids=["writing", "comparing"])
def test_who_watches_can_end_it_and_nothing_stays(tmp_path: Path, share: float) -> None:
    write_image(TinyImage(), tmp_path / "image")
    seen: list[tuple[int, int]] = []

    def stop(done_bytes: int, all_bytes: int) -> None:
        seen.append((done_bytes, all_bytes))
        if done_bytes > share * all_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimize(tmp_path / "image", [ByteRange(0, MIB)], tmp_path / "new", progress=stop)
    assert os.listdir(tmp_path) == ["image"]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_what_is_not_whole_is_its_writers_alone(large_and_small: Path, tmp_path: Path) -> None:
    shutil.copy(large_and_small, tmp_path / "image")
    modes = set()

    def look(done_bytes: int, all_bytes: int) -> None:
        [new] = set(tmp_path.iterdir()) - {tmp_path / "image"}
        modes.add(stat.S_IMODE(new.stat().st_mode))

    optimize(tmp_path / "image", [], tmp_path / "new", progress=look)
    assert modes == {0o600}


def test_progress_ends_at_all(large_and_small: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    optimize(large_and_small, [], tmp_path / "new", progress=lambda *both: seen.append(both))
    assert seen[-1][0] == seen[-1][1]


def test_what_cannot_be_written_is_said(large_and_small: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no folder"):
        optimize(large_and_small, [], tmp_path / "no/new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Conflict, match="is a folder"):
        optimize(large_and_small, [], tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unavailable, match="not a regular file"):
        optimize(tmp_path / "pipe", [], tmp_path / "new")
    with pytest.raises(NotFound, match="no image"):
        optimize(tmp_path / "none", [], tmp_path / "new")


# What tells trees apart.


def _rewrite(tree: Path) -> None:
    data = bytearray((tree / "noise").read_bytes())
    data[200_000] ^= 1
    (tree / "noise").write_bytes(data)


def _relink(tree: Path) -> None:
    (tree / "many/symbolic link").unlink()
    (tree / "many/symbolic link").symlink_to("../bog")


def _part(tree: Path) -> None:
    (tree / "many/hard link").unlink()
    shutil.copy2(tree / "big", tree / "many/hard link")


def _swap_type(tree: Path) -> None:
    (tree / "fifo").unlink()
    (tree / "fifo").touch()


def _touch_link(tree: Path) -> None:
    os.utime(tree / "long link", (5, 5), follow_symlinks=False)


CHANGES = {
    "mode": (lambda tree: (tree / "noise").chmod(0o1604), "/noise", "mode"),
    "mtime": (_touch_link, "/long link", "mtime"),
    "content": (_rewrite, "/noise", "content at byte 200000"),
    "tail": (lambda tree: (tree / "ü").write_bytes(b"~" * 3000), "/ü", "content at byte 0"),
    "size": (lambda tree: (tree / "#").write_bytes(b"x"), "/#", "size"),
    "missing": (lambda tree: (tree / "#").unlink(), "/#", "missing in the second"),
    "extra": (lambda tree: (tree / "zz").mkdir(), "/zz", "missing in the first"),
    "link": (_relink, "/many/symbolic link", "link target"),
    "hard link": (_part, "/big", "number of links"),
    "type": (_swap_type, "/fifo", "type"),
    "xattr": (
        lambda tree: os.setxattr(tree / "noise", "user.other", b"2"),
        "/noise",
        "extended attributes",
    ),
    "no xattr": (
        lambda tree: os.removexattr(tree / "empty", "user.shared"),
        "/empty",
        "extended attributes",
    ),
}
ROOTS_CHANGES = {
    "owner": (lambda tree: os.chown(tree / "noise", 7, -1), "/noise", "owner"),
    "group": (lambda tree: os.lchown(tree / "long link", -1, 7), "/long link", "group"),
}


@pytest.mark.parametrize("change", [*CHANGES, *ROOTS_CHANGES])
def test_each_difference_is_found(odd_tree: Path, tmp_path: Path, change: str) -> None:
    if change in ROOTS_CHANGES and not ROOT:
        pytest.skip("root: not root")
    make, path, what = (CHANGES | ROOTS_CHANGES)[change]
    tree = tmp_path / "tree"
    subprocess.run(["cp", "-a", odd_tree, tree], check=True)
    before = squash(tree, tmp_path / "before")
    times = {str(p): p.lstat() for p in [tree, *tree.rglob("*")]}
    make(tree)
    for name, info in times.items():
        if change != "mtime" and os.path.lexists(name):
            os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)
    after = squash(tree, tmp_path / "after")
    assert same_tree(before, before) is None
    assert same_tree(before, after) == TreeDifference(path, what)
    swap = {"missing in the second": "missing in the first"}
    swap |= {second: first for first, second in swap.items()}
    assert same_tree(after, before) == TreeDifference(path, swap.get(what, what))


def test_which_names_are_one_file_is_told_apart(tmp_path: Path) -> None:
    images = []
    for pairs in (("ab", "cd"), ("ac", "bd")):
        tree = tmp_path / pairs[0]
        tree.mkdir()
        for first, second in pairs:
            (tree / first).write_bytes(b"same")
            (tree / second).hardlink_to(tree / first)
        images.append(squash(tree, tmp_path / f"{pairs[0]}.sqsh", "-all-time", "0"))
    assert same_tree(*images) == TreeDifference("/b", "hard link")
    assert same_tree(*reversed(images)) == TreeDifference("/b", "hard link")


def test_images_made_in_different_ways_hold_the_same_tree(odd_tree: Path, tmp_path: Path) -> None:
    one = squash(odd_tree, tmp_path / "one", "-comp", "gzip", "-b", "64K")
    other = squash(odd_tree, tmp_path / "two", "-comp", "zstd", "-b", "1M", "-no-fragments")
    assert same_tree(one, other) is None


# What is no image, or one made to harm.


def test_damaged_tables_are_refused_and_never_more(odd_tree: Path, tmp_path: Path) -> None:
    """Tables that are not compressed, so that a changed byte reaches what reads them."""
    plain = ("-comp", "zstd", "-noI", "-noX", "-noId", "-e", "many")
    data = squash(odd_tree, tmp_path / "image", *plain).read_bytes()
    with Squashfs(tmp_path / "image") as opened:
        start = opened.superblock.inode_table
        stop = opened.superblock.bytes_used
    chance = random.Random(3)
    refused = 0
    for _ in range(250):
        damaged = bytearray(data)
        place = chance.choice((chance.randrange(SUPERBLOCK_BYTES), chance.randrange(start, stop)))
        field = slice(place, place + chance.choice((1, 2, 4, 8)))
        value = int.from_bytes(damaged[field], "little")
        width = len(damaged[field])
        most = (1 << 8 * width) - 1
        value = chance.choice((0, most, most >> 1, value + 1 & most, value - 1 & most))
        damaged[field] = value.to_bytes(width, "little")
        (tmp_path / "image").write_bytes(damaged)
        try:
            optimize(tmp_path / "image", [ByteRange(0, len(data))], tmp_path / "new")
        except BootseerError:
            refused += 1
            assert {"image"} <= set(os.listdir(tmp_path)) <= {"image", "new"}
    assert refused > 30


@pytest.mark.parametrize("place", [0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 1 << 32])
def test_a_table_that_is_said_to_lie_far_away_is_refused(
    large_and_small: Path, tmp_path: Path, place: int
) -> None:
    data = bytearray(large_and_small.read_bytes())
    with Squashfs(large_and_small) as opened:
        index = opened.superblock.id_table
    data[index : index + 8] = place.to_bytes(8, "little")
    (tmp_path / "image").write_bytes(data)
    with pytest.raises(Corrupt, match="image"):
        optimize(tmp_path / "image", [], tmp_path / "new")


@pytest.mark.parametrize("size_bytes", [0, 95, 96, 10_000])
def test_a_cut_image_is_refused(large_and_small: Path, tmp_path: Path, size_bytes: int) -> None:
    (tmp_path / "image").write_bytes(large_and_small.read_bytes()[:size_bytes])
    with pytest.raises(Corrupt, match=r"/image: .*(squashfs|cut)"):
        optimize(tmp_path / "image", [], tmp_path / "new")


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_a_block_cannot_become_more_than_it_may(tmp_path: Path, number: int) -> None:
    names = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/zeros").write_bytes(b"a" * MIB)
    options = ("-comp", names[number], "-b", "1M", "-no-fragments")
    image = squash(tmp_path / "tree", tmp_path / "image", *options)
    with Squashfs(image) as opened:
        inode = file_at(opened, b"/zeros")
        data = opened.pread(inode.start, inode.stored_bytes)
    assert len(data) < 20_000
    assert decompressor(number)(data, MIB) == b"a" * MIB
    for most_bytes in (0, 4096, MIB - 1):
        with pytest.raises(Corrupt, match=r"more than it may|cannot be decompressed"):
            decompressor(number)(data, most_bytes)


def test_an_unknown_compressor_is_said(large_and_small: Path, tmp_path: Path) -> None:
    data = bytearray(large_and_small.read_bytes())
    data[20] = 9
    (tmp_path / "image").write_bytes(data)
    with pytest.raises(Unavailable, match="unknown compressor, number 9"):
        optimize(tmp_path / "image", [], tmp_path / "new")


def test_as_many_blocks_of_another_size_hold_the_same_file(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(text(1, 100_000))  # a block and an end, or a larger block
    one = squash(tree, tmp_path / "one", "-b", "64K", "-always-use-fragments")
    other = squash(tree, tmp_path / "two", "-b", "128K", "-no-fragments")
    assert same_tree(one, other) is None
