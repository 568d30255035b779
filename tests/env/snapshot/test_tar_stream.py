"""All that read tar read the tar stream."""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer import tar
from bootseer.env.client.scan import TreeNode
from bootseer.env.snapshot.tar_stream import headers, stream
from bootseer.errors import Conflict
from bootseer.units import GIB, NS_PER_S


def content_of(folder):
    def read(path):
        with open(os.path.join(os.fsencode(folder), path), "rb") as file:
            while chunk := file.read(10_000):
                yield chunk

    return read


@pytest.fixture
def packed(attributes, look, tmp_path):
    """A tree, its stream in a file, and a folder for what is made of it."""
    tree = look(attributes)
    path = tmp_path / "stream.tar"
    with open(path, "wb") as file:
        for chunk in stream(tree, content_of(attributes)):
            file.write(chunk)
    out = tmp_path / "out"
    out.mkdir()
    return tree, path, out


def below(tree):
    return {path: node for path, node in tree.items() if path}


def test_gnu_tar_makes_the_same_tree(packed, look):
    tree, path, out = packed
    # Its warnings of odd times.
    command = ["tar", "--xattrs", "--warning=none", "-xpf", str(path), "-C", str(out)]
    subprocess.run(command, check=True)
    assert below(look(out)) == below(tree)


@pytest.mark.skipif(not shutil.which("bsdtar"), reason="no bsdtar")
def test_bsdtar_makes_the_same_tree(packed, look):
    tree, path, out = packed
    subprocess.run(["bsdtar", "-xpf", str(path), "-C", str(out)], check=True)
    # It adds the fraction of a second to a time before 1970, and has to take it away.
    assert {p: n for p, n in look(out).items() if n != tree[p]}.keys() <= {b"", b"0/lib/file3"}


@pytest.mark.root
def test_mksquashfs_makes_the_same_tree_but_for_parts_of_a_second(packed, look, tmp_path):
    tree, path, out = packed
    image = tmp_path / "image"
    quiet = ["-quiet", "-no-progress", "-exit-on-error"]
    with open(path, "rb") as file:
        command = ["mksquashfs", "-", str(image), "-tar", "-noappend", *quiet]
        done = subprocess.run(command, stdin=file, check=True, capture_output=True)
    assert done.stderr == b""
    command = ["unsquashfs", "-quiet", "-no-progress", "-force", "-d", str(out), str(image)]
    subprocess.run(command, check=True, capture_output=True)

    def rough(found):
        return {
            path: node._replace(mtime_ns=(node.mtime_ns // NS_PER_S) % (1 << 32))
            for path, node in found.items()
            # What squashfs has no room for; links get no time from unsquashfs 4.5.
            if path not in (b"", b"0/lib/file4", b"0/lib/file3")
        }

    assert rough(look(out)) == rough(tree)


def test_python_reads_it(packed):
    tree, path, _ = packed
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as found:
        members = {os.fsencode(member.name): member for member in found}
        for name, node in below(tree).items():
            member = members[name]
            assert (member.uid, member.gid, member.uname) == (0, 0, "")
            assert member.mode == node.mode
            if node.kind == "file" and not node.same_as:
                digest = hashlib.sha256(found.extractfile(member).read()).digest()
                assert digest == node.digest
    assert sorted(members) == sorted(below(tree))
    assert os.fsencode(members[b"0/link"].linkname) == b"lib/deep"


class Bytes:
    """A stream for our own reader."""

    def __init__(self, data):
        self.file = io.BytesIO(data)

    @property
    def position(self):
        return self.file.tell()

    def read(self, size):
        return self.file.read(size)

    def chunks(self, size):
        yield self.file.read(size)

    def skip(self, size):
        self.file.seek(size, io.SEEK_CUR)


NAMES = st.binary(min_size=1, max_size=300).filter(lambda n: not set(n) & {0, 47})
NODES = st.builds(
    TreeNode,
    kind=st.sampled_from(["file", "folder", "link"]),
    mode=st.integers(0, 0o1777),
    uid=st.integers(0, 9),
    gid=st.integers(0, 9),
    mtime_ns=st.integers(-(1 << 63), (1 << 63) - 1),
    target=st.binary(min_size=1, max_size=300).filter(lambda t: 0 not in t),
    size_bytes=st.integers(1, 1 << 50),
    same_as=st.just(b""),
    digest=st.just(bytes(32)),
    xattrs=st.lists(
        st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=600)), max_size=2
    ).map(lambda pairs: tuple((b"user." + k.hex().encode(), v) for k, v in dict(pairs).items())),
)


@given(NAMES, NODES)
def test_headers_say_all_that_our_own_reader_understands(name, node):
    if node.kind != "file":
        node = node._replace(size_bytes=0)
    if node.kind != "link":
        node = node._replace(target=b"")
    data = headers(name, node)
    assert len(data) % 512 == 0
    [member] = [next(iter(tar.TarReader(Bytes(data), "stream")))]
    assert os.fsencode(member.name).rstrip(b"/") == name.rstrip(b"/")
    assert os.fsencode(member.link) == node.target
    assert (member.mode, member.size_bytes) == (node.mode, node.size_bytes)
    assert tuple((os.fsencode(k), v) for k, v in member.xattrs.items()) == node.xattrs
    assert (member.uid, member.gid) == (0, 0)
    assert b"mtime=" not in data or b"%09d" % (abs(node.mtime_ns) % NS_PER_S) in data


@pytest.mark.parametrize("size_bytes", [8 * GIB - 1, 8 * GIB, 1 << 50])
def test_sizes_that_take_more_than_the_header_has(size_bytes):
    data = headers(b"0/x", TreeNode("file", 0o644, 0, 0, size_bytes=size_bytes))
    with tarfile.open(fileobj=io.BytesIO(data)) as found:
        assert found.next().size == size_bytes


@pytest.mark.parametrize("size_bytes", [1, 511, 512, 1024])
def test_attributes_of_every_length_end_with_a_zero_for_mksquashfs(size_bytes):
    for extra in range(512):
        value = b"v" * (size_bytes + extra)
        node = TreeNode("folder", 0, 0, 0, xattrs=((b"user.a", value),))
        data = headers(b"0", node)
        assert data[-513] == 0
        length = int(data[512:].partition(b" ")[0])
        record = b"%d SCHILY.xattr.user.a=%s\n" % (length, value)
        assert data[512 : 512 + length] == record


@pytest.mark.parametrize(
    ("mtime_ns", "record", "header_s"),
    [
        (0, b"", 0),
        (1_600_000_000 * NS_PER_S, b"", 1_600_000_000),
        ((8**11 - 1) * NS_PER_S, b"", 8**11 - 1),
        (8**11 * NS_PER_S, b" mtime=8589934592.000000000\n", 8**11 - 1),
        (-1, b" mtime=-0.000000001\n", 0),
        (-NS_PER_S, b" mtime=-1.000000000\n", 0),
        (NS_PER_S + 1, b" mtime=1.000000001\n", 1),
    ],
)
def test_a_time_is_in_a_record_where_the_header_has_no_room_for_it(mtime_ns, record, header_s):
    data = headers(b"0/x", TreeNode("file", 0o644, 0, 0, mtime_ns=mtime_ns))
    assert len(data) == (512 * 3 if record else 512)
    assert data[512:-512].lstrip(b"0123456789").rstrip(b"\0") == record
    assert int(data[-512:][136:147], 8) == header_s


@pytest.mark.parametrize("length", [100, 101, 511, 512])
def test_names_of_more_than_a_hundred_bytes_have_a_member_of_their_own(length):
    path = b"0/" + b"n" * (length - 2)
    for node in (TreeNode("file", 0o644, 0, 0), TreeNode("link", 0o777, 0, 0, target=path)):
        data = headers(path, node)
        # A header, and the name with a zero behind it.
        extra = 0 if length == 100 else 512 + 512 * (1 + length // 512)
        assert len(data) == 512 + extra * (1 + (node.kind == "link"))
        with tarfile.open(fileobj=io.BytesIO(data)) as found:
            member = found.next()
            assert os.fsencode(member.name) == path
            assert os.fsencode(member.linkname) == node.target


def test_what_says_more_of_a_member_has_no_time():
    node = TreeNode("file", 0o644, 0, 0, mtime_ns=NS_PER_S + 1)
    assert headers(b"0/x", node)[136:148] == b"0" * 11 + b"\0"


@pytest.mark.parametrize("content", [b"ab", b"abcd", b""])
def test_a_file_of_another_length_is_refused(content):
    node = TreeNode("file", 0o644, 0, 0, size_bytes=3)
    with pytest.raises(Conflict, match="0/x"):
        list(stream({b"": TreeNode("folder", 0, 0, 0), b"0/x": node}, lambda path: [content]))


def test_a_file_that_grows_is_read_no_further():
    node = TreeNode("file", 0o644, 0, 0, size_bytes=3)
    pieces = iter([b"ab", b"cd", b"ef"])
    with pytest.raises(Conflict, match="0/x"):
        list(stream({b"": TreeNode("folder", 0, 0, 0), b"0/x": node}, lambda path: pieces))
    assert list(pieces) == [b"ef"]
