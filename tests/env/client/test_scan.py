"""A folder's tree: everything that counts is seen, and nothing else."""

import errno
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.env.client import scan as tree_module
from bootseer.env.client.scan import (
    TreeNode,
    difference,
    digested,
    scan,
    scan_folder,
    shape,
    tree_digest,
)

WHEN_NS = 1_600_000_000_123_456_789


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "env"
    (folder / "lib/deep").mkdir(parents=True)
    (folder / "lib/a.py").write_bytes(b"a = 1\n")
    (folder / "lib/deep/large").write_bytes(bytes(3 << 20))
    (folder / "lib/empty").touch()
    os.link(folder / "lib/a.py", folder / "lib/same.py")
    (folder / "bin").symlink_to("lib/deep")
    (folder / "nowhere").symlink_to("/none/such")
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, ns=(WHEN_NS, WHEN_NS), follow_symlinks=False)
    return folder


def test_all_is_seen(folder):
    os.setxattr(folder / "lib/empty", "user.note", b"\0new")
    found = scan(str(folder))
    assert sorted(found) == [
        *(b"", b"bin", b"lib", b"lib/a.py", b"lib/deep", b"lib/deep/large"),
        *(b"lib/empty", b"lib/same.py", b"nowhere"),
    ]
    assert found[b"bin"].kind == "link" and found[b"bin"].target == b"lib/deep"
    assert found[b"lib"].kind == found[b""].kind == "folder"
    first, second = found[b"lib/a.py"], found[b"lib/same.py"]
    assert (first.same_as, second.same_as) == (b"", b"lib/a.py")
    assert first.digest == second.digest != b""
    assert found[b"lib/deep/large"].size_bytes == 3 << 20
    assert found[b"lib/empty"].xattrs == ((b"user.note", b"\0new"),)
    assert {node.mtime_ns for node in found.values()} == {WHEN_NS}
    assert {(node.uid, node.gid) for node in found.values()} == {(os.getuid(), os.getgid())}
    assert {node.size_bytes for node in found.values() if node.kind != "file"} == {0}


def test_of_several_names_the_first_in_order_is_the_files(folder):
    os.link(folder / "lib/deep/large", folder / "zz")
    found = scan(str(folder))
    assert list(found) == sorted(found)
    assert (found[b"lib/deep/large"].same_as, found[b"zz"].same_as) == (b"", b"lib/deep/large")
    assert found[b"zz"].digest == found[b"lib/deep/large"].digest != b""


def test_a_copy_has_the_same_digest(folder, tmp_path):
    os.setxattr(folder / "lib/empty", "user.note", b"x")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", folder, copy], check=True)
    assert tree_digest(scan(str(copy))) == tree_digest(scan(str(folder)))


CHANGES = {
    "content": lambda f: (f / "lib/a.py").write_bytes(b"a = 2\n"),
    "length": lambda f: (f / "lib/empty").write_bytes(b" "),
    "mode": lambda f: (f / "lib/a.py").chmod(0o755),
    "owner": lambda f: os.chown(f / "lib/empty", 12345, -1),
    "group": lambda f: os.chown(f / "lib/empty", -1, 12345),
    "time": lambda f: os.utime(f / "lib/empty", ns=(0, WHEN_NS + 1)),
    "a link's target": lambda f: ((f / "bin").unlink(), (f / "bin").symlink_to("lib")),
    "a link's time": lambda f: os.utime(f / "bin", ns=(0, 0), follow_symlinks=False),
    "an attribute": lambda f: os.setxattr(f / "lib/empty", "user.a", b""),
    "a folder's mode": lambda f: (f / "lib/deep").chmod(0o700),
    "a name of its own": lambda f: (
        (f / "lib/same.py").unlink(),
        shutil.copy2(f / "lib/a.py", f / "lib/same.py"),
    ),
}
ROOT_ONLY = {"owner", "group"}
OF_BOTH_NAMES = {"content", "mode"}


@pytest.mark.parametrize(
    "what",
    [pytest.param(name, marks=pytest.mark.root if name in ROOT_ONLY else ()) for name in CHANGES],
)
def test_whatever_changes_is_a_change(folder, what):
    before = scan(str(folder))
    CHANGES[what](folder)
    for path in (folder, folder / "lib"):
        os.utime(path, ns=(WHEN_NS, WHEN_NS))
    after = scan(str(folder))
    assert tree_digest(after) != tree_digest(before)
    found = difference(before, after)
    assert (found.added, found.deleted) == ((), ())
    assert len(found.changed) == (2 if what in OF_BOTH_NAMES else 1)


def test_a_file_that_was_written_again_with_the_same_content_and_time_is_none(folder):
    before = scan(str(folder))
    path = folder / "lib/empty"
    path.unlink()
    path.touch()
    os.utime(path, ns=(WHEN_NS, WHEN_NS))
    assert difference(before, scan(str(folder))) == ((), (), ())


def test_what_is_new_and_what_is_gone(folder):
    before = scan(str(folder))
    shutil.rmtree(folder / "lib/deep")
    (folder / "new/er").mkdir(parents=True)
    (folder / "nowhere").unlink()
    (folder / "nowhere").mkdir()
    found = difference(before, scan(str(folder)))
    assert found.added == (b"new", b"new/er")
    assert found.deleted == (b"lib/deep", b"lib/deep/large")
    assert found.changed == (b"nowhere",)


def test_names_need_not_be_text(folder):
    (folder / os.fsdecode(b"\xff\n\xc3")).write_bytes(b"?")
    assert scan(str(folder))[b"\xff\n\xc3"].size_bytes == 1


def test_kinds_that_are_no_files_are_named_and_not_opened(folder):
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        found = scan(str(folder))
    assert (found[b"fifo"].kind, found[b"socket"].kind) == ("fifo", "socket")


@pytest.mark.root
def test_files_of_a_lower_layer_are_seen_though_they_have_another_device_number(tmp_path):
    """overlayfs gives them the number of where they are, and folders its own."""
    lower, merged = tmp_path / "lower", tmp_path / "merged"
    for name in ("lower/sub", "upper", "work", "merged"):
        (tmp_path / name).mkdir(parents=True)
    (lower / "a").write_bytes(b"of the lower layer")
    (lower / "sub/b").write_bytes(b"of it, too")
    layers = f"lowerdir={lower},upperdir={tmp_path}/upper,workdir={tmp_path}/work,xino=off"
    subprocess.run(["mount", "-t", "overlay", "none", "-o", layers, merged], check=True)
    try:
        (merged / "c").write_bytes(b"of the upper")
        assert {b"a", b"sub/b", b"c"} < scan(str(merged)).keys()
    finally:
        subprocess.run(["umount", merged], check=True)


@pytest.mark.root
def test_what_is_mounted_below_is_left_out_and_nothing_else(folder):
    for number in range(20):  # they may be listed in any order
        (folder / f"lib/deep/{number}").touch()
    (folder / "lib/deep/below").mkdir()
    for number in range(20, 40):
        (folder / f"lib/deep/{number}").touch()
    mount = ["mount", "-t", "tmpfs", "none", str(folder / "lib/deep/below")]
    scan_folder = "import sys; from bootseer.env.client.scan import scan; "
    scan_folder += f"print(sorted(scan({str(folder)!r})))"
    script = f'{" ".join(mount)} && exec "$0" -P -c "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, scan_folder],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "lib/deep/below" not in done.stdout
    assert all(f"'lib/deep/{number}'" in done.stdout for number in range(40))


def test_a_file_that_changes_while_it_is_read_is_an_error_that_names_it(folder, monkeypatch):
    def walk(root):
        yield from list(walked(root))
        (folder / "lib/deep/large").write_bytes(b"small")

    walked = tree_module._walk
    monkeypatch.setattr(tree_module, "_walk", walk)
    with pytest.raises(OSError) as caught:
        scan(str(folder))
    assert caught.value.errno == errno.EBUSY
    assert caught.value.filename == "lib/deep/large"


@pytest.mark.parametrize("see", [scan_folder, lambda path: digested(path, {}, {})])
def test_what_is_no_folder_is_an_error_that_names_it(folder, see):
    with pytest.raises(NotADirectoryError) as caught:
        see(str(folder / "lib/a.py"))
    assert caught.value.filename == str(folder / "lib/a.py")


@pytest.fixture
def swap(folder, monkeypatch):
    """Have a path become a link to something elsewhere after a call of a function."""

    def swap(place, function, path, when=lambda argument: True):
        def called(argument, *more, **options):
            found = real(argument, *more, **options)
            if isinstance(found, Iterator):
                found = list(found)
            if when(argument):
                os.rename(folder / path, folder.parent / "gone")
                os.symlink(folder.parent / "elsewhere", folder / path)
            return found

        real = getattr(place, function)
        patched.setattr(place, function, called)
        return folder.parent / "elsewhere"

    with monkeypatch.context() as patched:
        yield swap


def test_a_folder_that_becomes_a_link_is_not_followed(folder, swap):
    swap(os, "stat", "lib/deep", lambda name: name == b"deep").mkdir()
    with pytest.raises(NotADirectoryError):
        scan_folder(str(folder))


def test_a_file_that_becomes_a_link_is_not_followed(folder, swap):
    swap(tree_module, "_walk", "lib/a.py").write_bytes(b"secret")
    with pytest.raises(OSError) as caught:
        scan(str(folder))
    assert caught.value.errno == errno.ELOOP


def test_what_becomes_a_link_has_no_attributes_of_its_target(folder, swap):
    elsewhere = swap(tree_module, "_walk", "lib/empty")
    elsewhere.touch()
    os.setxattr(elsewhere, "user.note", b"secret")
    assert scan_folder(str(folder)).tree[b"lib/empty"].xattrs == ()


def test_no_attribute_is_read_of_what_becomes_a_link_when_they_are_listed(folder, swap):
    elsewhere = swap(os, "listxattr", "lib/empty", lambda name: name.endswith(b"lib/empty"))
    for path in (folder / "lib/empty", elsewhere):
        path.touch()
        os.setxattr(path, "user.note", b"secret")
    with pytest.raises(OSError):
        scan_folder(str(folder))


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENAMETOOLONG, errno.EIO])
def test_where_there_can_be_no_attributes_there_are_none(folder, monkeypatch, code):
    def listxattr(*_, **__):
        raise OSError(code, os.strerror(code))

    os.setxattr(folder / "lib/empty", "user.note", b"x")
    monkeypatch.setattr(os, "listxattr", listxattr)
    if code == errno.EIO:
        with pytest.raises(OSError):
            scan_folder(str(folder))
    else:
        assert scan_folder(str(folder)).tree[b"lib/empty"].xattrs == ()


def test_a_thread_reads_some_small_files_or_one_that_is_large(tmp_path, monkeypatch):
    class Pool(ThreadPoolExecutor):
        def map(self, work, batches):
            given.extend(batches)
            return super().map(work, given)

    given = []
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor", Pool)
    monkeypatch.setattr(tree_module, "_BATCH_FILES", 3)
    monkeypatch.setattr(tree_module, "_BATCH_BYTES", 10)
    for name, size_bytes in zip("abcdefghi", (9, 1, 10, 1, 1, 1, 9, 1, 1), strict=True):
        (tmp_path / name).write_bytes(bytes(size_bytes))
    scan(str(tmp_path))
    assert [b"".join(file.path for file in batch) for batch in given] == [
        *(b"ab", b"c", b"def", b"gh", b"i")
    ]


def test_progress_is_all_that_was_read(folder):
    counted = []
    scan(str(folder), count=counted.append)
    assert sum(counted) == (3 << 20) + 6


NODES = st.builds(
    TreeNode,
    kind=st.sampled_from(["file", "link"]),
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 3),
    gid=st.integers(0, 3),
    size_bytes=st.integers(0, 30),
    mtime_ns=st.integers(0, 30),
    target=st.binary(max_size=3),
    same_as=st.binary(max_size=3),
    digest=st.binary(max_size=3),
    xattrs=st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=2)), max_size=2).map(tuple),
)
TREES = st.dictionaries(st.binary(max_size=4), NODES, max_size=5)


@given(TREES, TREES)
def test_digests_are_equal_where_trees_are(one, other):
    assert (tree_digest(one) == tree_digest(other)) == (one == other)
    assert tree_digest(dict(reversed(one.items()))) == tree_digest(one)


def test_a_digest_stays_what_it_is():
    """Stored snapshots have it."""
    node = TreeNode("file", 0o644, 1, 2, 3, 4, b"to", b"as", b"sum", ((b"name", b"value"),))
    fields = [b"path", b"file", b"420", b"1", b"2", b"3", b"4", b"to", b"as", b"sum"]
    whole = [len(f).to_bytes(8, "little") + f for f in [*fields, b"1", b"name", b"value"]]
    assert tree_digest({b"path": node}) == hashlib.sha256(b"".join(whole)).hexdigest()


def test_a_shape_is_the_digest_without_what_differs_where_the_same_is_made_again():
    node = TreeNode("file", 0o644, 1, 2, 3, 4, b"to", b"as", b"sum", ((b"name", b"value"),))
    plain = TreeNode("file", 0o644, 0, 0, 3, 0, b"to", b"as")
    assert shape({b"path": node}) == tree_digest({b"path": plain})


@given(TREES, TREES)
def test_a_difference_leads_from_one_to_the_other(before, after):
    found = difference(before, after)
    led = {path: node for path, node in before.items() if path not in found.deleted}
    led |= {path: after[path] for path in (*found.added, *found.changed)}
    assert led == after
    assert not set(found.added) & set(before)
