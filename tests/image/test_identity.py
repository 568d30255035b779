"""What an image is called: cheap to compute, and another for another image."""

import errno
import fcntl
import hashlib
import os
import struct
import subprocess

import pytest

from bootseer.core.ranges import ByteRange, total_bytes
from bootseer.errors import Denied, NotFound, Unavailable
from bootseer.fuse.mountinfo import read_mounts
from bootseer.image import identity as identity_module
from bootseer.image.identity import OpenImage, identify, open_image, open_served
from bootseer.squashfs.superblock import SUPERBLOCK_BYTES, decode_superblock


def make_image(folder, name, files):
    tree = folder / f"{name}.tree"
    tree.mkdir()
    for file, data in files.items():
        (tree / file).write_bytes(data)
    image = folder / f"{name}.sqsh"
    fixed = ["-mkfs-time", "0", "-all-time", "0", "-all-root"]
    subprocess.run(
        ["mksquashfs", tree, image, "-quiet", "-no-progress", *fixed], check=True, timeout=60
    )
    return image


def digest_of(path):
    image = open_image(str(path))
    try:
        return identify(image)
    finally:
        os.close(image.fd)


def test_equal_images_have_one_digest_and_others_another(tmp_path):
    files = {f"f{i}": os.urandom(100_000) for i in range(5)}
    one = digest_of(make_image(tmp_path, "one", files))
    same = digest_of(make_image(tmp_path, "same", files))
    longer = digest_of(make_image(tmp_path, "longer", files | {"f0": os.urandom(100_001)}))
    other = digest_of(make_image(tmp_path, "other", files | {"f0": bytes(100_000)}))
    assert one == same
    assert len({one.digest, longer.digest, other.digest}) == 3
    assert one.digest.startswith("sqfs1-")


def test_only_superblock_and_tables_are_read(tmp_path):
    path = make_image(tmp_path, "big", {f"f{i}": os.urandom(1_000_000) for i in range(8)})
    identity = digest_of(path)
    assert total_bytes(identity.leading) < 20_000
    # Content is not looked at: that is what makes it cheap, and why it serves no bytes.
    data = bytearray(path.read_bytes())
    data[500_000] ^= 1
    path.write_bytes(data)
    assert digest_of(path) == identity


def test_a_file_of_another_kind_is_known_by_samples_size_and_time(tmp_path):
    path = tmp_path / "image.sif"
    path.write_bytes(os.urandom(10_000_000))
    os.utime(path, ns=(1, 1))
    first = digest_of(path)
    assert first.digest.startswith("file1-")
    assert first.leading == ()
    assert digest_of(path) == first
    os.utime(path, ns=(1, 2))
    assert digest_of(path) != first


@pytest.mark.parametrize("mtime_ns", [-1, -(2**31) * 10**9, 10**19])
def test_any_time_of_a_file_counts(tmp_path, mtime_ns):
    path = tmp_path / "image.sif"
    path.write_bytes(bytes(1000))
    os.utime(path, ns=(0, 0))
    first = digest_of(path)
    os.utime(path, ns=(0, mtime_ns))
    assert digest_of(path) != first


def test_what_a_time_was_before_it_still_is(tmp_path):
    """Traces and hot sets are found by the digest."""
    path = tmp_path / "image.sif"
    path.write_bytes(b"x")
    os.utime(path, ns=(0, 1_700_000_000_000_000_000))
    known = hashlib.sha256(struct.pack("<QQ", 1, 1_700_000_000_000_000_000) + b"x")
    assert digest_of(path).digest == f"file1-{known.hexdigest()}"


def tables_of(path):
    """Where an image's tables are, and what is in them."""
    data = path.read_bytes()
    (bytes_used,) = struct.unpack_from("<Q", data, 40)
    return ByteRange(decode_superblock(data, len(data)).inode_table, bytes_used), data


def test_a_squashfs_is_named_after_its_length_superblock_and_tables(tmp_path):
    path = make_image(tmp_path, "image", {"f": os.urandom(300_000)})
    (start, stop), data = tables_of(path)
    known = hashlib.sha256(struct.pack("<QQ", len(data), 0) + data[:96] + data[start:stop])
    found = digest_of(path)
    assert found.digest == f"sqfs1-{known.hexdigest()}"
    assert found.leading == ((0, SUPERBLOCK_BYTES), (start, stop))


@pytest.mark.parametrize("beyond", [0, 1, 500])
def test_of_large_tables_both_ends_count(tmp_path, monkeypatch, beyond):
    path = make_image(tmp_path, "image", {f"f{i}": os.urandom(3000) for i in range(50)})
    (start, stop), data = tables_of(path)
    most = stop - start - beyond
    monkeypatch.setattr(identity_module, "MAX_TABLE_BYTES", most)
    counted = data[start:stop]
    if beyond:
        counted = data[start : start + most // 2] + data[stop - most // 2 : stop]
    known = hashlib.sha256(struct.pack("<QQ", len(data), 0) + data[:96] + counted)
    assert digest_of(path).digest == f"sqfs1-{known.hexdigest()}"


@pytest.mark.parametrize("size", [95, 65_536, 70_000, 3_000_000])
def test_samples_lie_evenly_from_the_beginning_to_the_end(tmp_path, size):
    path = tmp_path / "image.sif"
    data = os.urandom(size)
    path.write_bytes(data)
    os.utime(path, ns=(0, 5))
    last = max(size - 65_536, 0)
    starts = sorted({last * sample // 31 for sample in range(32)})
    known = hashlib.sha256(struct.pack("<QQ", size, 5))
    for start in starts:
        known.update(data[start : start + 65_536])
    assert digest_of(path).digest == f"file1-{known.hexdigest()}"


@pytest.mark.parametrize("kind", ["sqfs1", "file1"])
def test_reads_in_portions_make_no_other_digest(tmp_path, monkeypatch, kind):
    path = make_image(tmp_path, "image", {"f": os.urandom(300_000)})
    if kind == "file1":
        path.write_bytes(os.urandom(300_000))
    whole, pread = digest_of(path), os.pread
    assert whole.digest.startswith(kind)
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 50), at))
    assert digest_of(path) == whole


@pytest.mark.parametrize("left", [0, 50, 4000])
def test_a_file_that_shrinks_meanwhile_has_no_digest(tmp_path, left):
    path = tmp_path / "image.sif"
    path.write_bytes(os.urandom(100_000))
    image = open_image(str(path))
    os.truncate(path, left)
    with pytest.raises(Unavailable, match="became shorter"):
        identify(image)
    os.close(image.fd)


def test_what_cannot_be_read_has_no_digest(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(Unavailable, match="image /a cannot be read: Is a directory"):
        identify(OpenImage("/a", folder, 100_000, 0))
    os.close(folder)


@pytest.mark.parametrize("size", [1, 95, 96, 70_000])
def test_small_files_have_a_digest(tmp_path, size):
    path = tmp_path / "small"
    path.write_bytes(os.urandom(size))
    assert digest_of(path).digest.startswith("file1-")


def test_what_is_no_image_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    for name in ("fifo", "empty", "."):
        with pytest.raises(Unavailable, match="not a regular file"):
            open_image(str(tmp_path / name))
    with pytest.raises(NotFound, match="does not exist on this node"):
        open_image(str(tmp_path / "missing"))
    with pytest.raises(Unavailable, match="give it with --bootseer-image"):
        open_image("docker://ubuntu")


@pytest.mark.root
def test_the_rights_are_those_of_the_process(tmp_path):
    path = tmp_path / "private"
    path.write_bytes(b"x")
    path.chmod(0o600)
    pid = os.fork()
    if pid == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            open_image(str(path))
        except Denied:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.leaves_open
@pytest.mark.parametrize(
    ("kind", "options", "is_opened"),
    [
        ("fuse.sshfs", "rw,user_id=1000,group_id=0", False),
        ("fuse", "rw,user_id=1000", False),
        ("fuseblk", "rw,user_id=10,user_id=01", False),
        ("fuse.lustre", "rw,user_id=0,group_id=0,allow_other", True),
        ("ext4", "rw", True),
    ],
)
def test_on_fuse_only_roots_mounts_have_images(tmp_path, monkeypatch, kind, options, is_opened):
    """Another's server can leave a read unanswered for ever."""
    path = tmp_path / "image"
    path.write_bytes(b"x")
    mounts = [mount._replace(kind=kind, options=options) for mount in read_mounts()]
    monkeypatch.setattr(identity_module, "read_mounts", lambda: mounts)
    if is_opened:
        os.close(open_image(str(path)).fd)
        return
    with pytest.raises(Unavailable, match="root did not mount on this node"):
        open_image(str(path))
    monkeypatch.setattr(identity_module, "read_mounts", list)
    with pytest.raises(Unavailable, match="root did not mount on this node"):
        open_image(str(path))


@pytest.mark.parametrize("name", ["/dev/zero", "/proc/self/mem", "/proc/self/fd", "/sys"])
def test_what_the_kernel_makes_up_is_no_image(name):
    with pytest.raises((Unavailable, Denied)):
        open_image(name)


@pytest.mark.parametrize("name", ["/a\0b", "/\ud800", "/" + "a" * 5000, "/dev/null/x", "", "-rf"])
def test_what_cannot_be_a_files_name_is_an_error_of_ours(name):
    with pytest.raises((Unavailable, NotFound)):
        open_image(name)


def test_a_file_whose_server_forgot_it_is_unavailable(tmp_path, monkeypatch):
    path = tmp_path / "image"
    path.write_bytes(b"x")
    opened = []

    def fstat(fd):
        opened.append(fd)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fstat)
        with pytest.raises(Unavailable, match="Stale file handle"):
            open_image(str(path))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_what_is_larger_than_any_image_is_none(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        image = open_image(str(path))
        os.close(image.fd)
        assert image.size_bytes == 1 << 40
        file.truncate((1 << 40) + 1)
    with pytest.raises(Unavailable, match="of up to"):
        open_image(str(path))


@pytest.mark.leaves_open
def test_a_file_on_no_mount_of_this_node_is_left_alone():
    """As through /proc/PID/root or /proc/PID/fd of a process with mounts of its own."""
    fd = os.memfd_create("image")
    os.write(fd, b"x" * 8192)
    with pytest.raises(Unavailable, match="root did not mount on this node"):
        open_image(f"/proc/self/fd/{fd}")
    os.close(fd)


def test_a_served_image_is_opened_for_what_is_known_of_it(tmp_path):
    """Its server says nothing that counts, and need not write down that it was read."""
    path = tmp_path / "image"
    path.write_bytes(b"x")
    image = open_served(str(path), 5000)
    assert image == OpenImage(str(path), image.fd, 5000, 0)
    assert fcntl.fcntl(image.fd, fcntl.F_GETFL) & os.O_NOATIME
    os.close(image.fd)
    with pytest.raises(NotFound, match="does not exist"):
        open_served(str(tmp_path / "none"), 5000)
