"""What is to be done to make a tree: as few steps as can be, and each where its content is."""

import errno
import os
import threading

import pytest

from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.client.scan import TreeNode
from bootseer.env.restore.apply import finish, meaning, unpack_content
from bootseer.env.restore.extract_plan import STEP_BYTES, children, plan
from bootseer.env.snapshot.chunks import split
from bootseer.errors import Conflict, Denied, Unavailable

FOLDER = TreeNode("folder", 0o755, 0, 0)
SIZE = 3 * BLOCK_BYTES - 1


@pytest.fixture
def snapshot(written):
    """Of a file of three blocks and a short one."""
    node = TreeNode("file", 0o644, 0, 0, SIZE, digest=bytes(32))
    tree = {b"": FOLDER, b"0": FOLDER, b"0/a": node, b"0/b": node._replace(size_bytes=3)}
    return written(tree, {b"0/a": bytes(SIZE), b"0/b": b"abc"})


def steps(snapshot, chunk_bytes):
    """Count the steps before all chunks, of each chunk, after them, and last of all."""
    index = snapshot.opened()[0]
    found = plan(index, split(index, chunk_bytes))
    batches = (found.before, *found.chunks, found.after, *found.last)
    return [len(batch.steps) // STEP_BYTES for batch in batches]


def test_a_file_is_made_in_one_step_by_the_chunk_that_has_it(snapshot):
    assert steps(snapshot, SIZE + 3) == [0, 2, 0, 1]
    assert steps(snapshot, SIZE + 1) == [0, 1, 1, 0, 1]


def test_a_file_in_several_chunks_is_begun_written_and_finished(snapshot):
    assert steps(snapshot, BLOCK_BYTES) == [1, 1, 1, 1, 1, 1, 1]
    assert steps(snapshot, 2 * BLOCK_BYTES) == [1, 1, 2, 1, 1]


def test_a_file_that_begins_where_a_chunk_does_is_restored(written, tmp_path, look):
    node = TreeNode("file", 0o644, 0, 0, SIZE, digest=bytes(32))
    content = os.urandom(SIZE)
    tree = {b"": FOLDER, b"0": FOLDER, b"0/a": node, b"0/b": node}
    written(tree, {b"0/a": content, b"0/b": content}, chunk_bytes=SIZE).restore(tmp_path / "new")
    assert (tmp_path / "new/a").read_bytes() == (tmp_path / "new/b").read_bytes() == content


def test_the_step_that_fails_is_named(written, tmp_path):
    tree = {b"": FOLDER, b"0": FOLDER} | {b"0/%d" % number: FOLDER for number in range(3)}
    found, chunks = written(tree, {}).opened()
    planned = plan(found, chunks)
    (tmp_path / "2").touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(Conflict, match="cannot restore '2': "):
            unpack_content(planned, chunks, None, [fd], 1, print, lambda: None)
        with pytest.raises(Conflict, match="1 folders, and not 2"):
            finish(planned, [fd, fd])
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (OSError(errno.EPERM, "x"), Denied, "not permitted"),
        (OSError(errno.EIO, "x"), Unavailable, os.strerror(errno.EIO)),
        (OSError("without a number"), Unavailable, os.strerror(0)),
    ],
)
def test_errors_say_what_they_mean(error, kind, reason):
    found = meaning(error, b"a")
    assert type(found) is kind and str(found).startswith(f"cannot restore 'a': {reason}")


def test_children_are_what_is_directly_in_a_folder():
    tree = dict.fromkeys([b"", b"0", b"0/a", b"0/a/b", b"0/c"], FOLDER)
    assert children(tree) == {b"": [b"0"], b"0": [b"0/a", b"0/c"], b"0/a": [b"0/a/b"]}


def test_threads_begin_far_from_each_other(written, tmp_path):
    """Two that write the same file wait for each other."""
    node = TreeNode("file", 0o644, 0, 0, SIZE, digest=bytes(32))
    tree = {b"": FOLDER, b"0": FOLDER, b"0/a": node}
    snapshot = written(tree, {b"0/a": os.urandom(SIZE)}, chunk_bytes=BLOCK_BYTES)
    begun, both = [], threading.Barrier(2, timeout=20)

    def read(chunk):
        begun.append(chunk)
        if len(begun) <= 2:
            both.wait()
        return snapshot.read(chunk)

    snapshot.restore(tmp_path / "new", read=read, threads=2)
    assert {chunk.pieces[0].offset for chunk in begun[:2]} == {0, 2 * BLOCK_BYTES}
