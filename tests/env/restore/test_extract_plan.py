"""What is to be done to make a tree: as few steps as can be, and each where its content is."""

import errno
import os
import threading

import pytest

from bootseer.env.client.scan import TreeNode
from bootseer.env.restore.apply import finish, meaning, unpack_content
from bootseer.env.restore.extract_plan import STEP_BYTES, children, plan
from bootseer.env.snapshot.frames import Frame
from bootseer.errors import Conflict, Corrupt, Denied, Unavailable

FOLDER = TreeNode("folder", 0o755, 0, 0)
SIZE = 3000


@pytest.fixture
def index(written):
    """Of a file, and where in the stream its content is."""
    node = TreeNode("file", 0o644, 0, 0, SIZE, digest=bytes(32))
    snapshot = written({b"": FOLDER, b"0": FOLDER, b"0/a": node}, {b"0/a": bytes(SIZE)})
    return snapshot.opened()[0]


def framed(*stops):
    starts = (0, *stops[:-1])
    return [
        Frame(start, stop - start, 0, 0, b"") for start, stop in zip(starts, stops, strict=True)
    ]


def steps(index, frames):
    """Count the steps before all frames, of each frame, after them, and last of all."""
    found = plan(index, frames)
    batches = (found.before, *found.frames, found.after, *found.last)
    return [len(batch.steps) // STEP_BYTES for batch in batches]


def test_a_file_is_made_in_one_step_by_the_frame_that_has_it(index):
    start = index.places[b"0/a"].tar
    assert steps(index, framed(start + SIZE)) == [0, 1, 0, 1]
    assert steps(index, framed(start, start + SIZE, start + SIZE + 1024)) == [0, 0, 1, 0, 0, 1]


def test_a_file_in_several_frames_is_begun_written_and_finished(index):
    start = index.places[b"0/a"].tar
    stops = (start + 1, start + 2, start + SIZE, start + SIZE + 1024)
    assert steps(index, framed(*stops)) == [1, 1, 1, 1, 0, 1, 1]


def test_a_file_that_is_not_in_the_frames_is_refused(index):
    start = index.places[b"0/a"].tar
    for frames in (framed(start + SIZE - 1), []):
        with pytest.raises(Corrupt, match="'0/a' is not in"):
            plan(index, frames)


def test_a_file_that_begins_where_a_frame_does_is_restored(written, tmp_path, look):
    node = TreeNode("file", 0o644, 0, 0, SIZE, digest=bytes(32))
    content = os.urandom(SIZE)
    tree = {b"": FOLDER, b"0": FOLDER, b"0/a": node, b"0/b": node}
    written(tree, {b"0/a": content, b"0/b": content}, frame_bytes=512).restore(tmp_path / "new")
    assert (tmp_path / "new/a").read_bytes() == (tmp_path / "new/b").read_bytes() == content


def test_the_step_that_fails_is_named(written, tmp_path):
    tree = {b"": FOLDER, b"0": FOLDER} | {b"0/%d" % number: FOLDER for number in range(3)}
    found, frames = written(tree, {}).opened()
    planned = plan(found, frames)
    (tmp_path / "2").touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(Conflict, match="cannot restore '2': "):
            unpack_content(planned, frames, None, [fd], 1, print, lambda: None)
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
    snapshot = written(tree, {b"0/a": os.urandom(SIZE)}, frame_bytes=1100)
    begun, both = [], threading.Barrier(2, timeout=20)

    def read(frame):
        begun.append(frame)
        if len(begun) <= 2:
            both.wait()
        return snapshot.read(frame)

    snapshot.restore(tmp_path / "new", read=read, threads=2)
    assert {frame.start for frame in begun[:2]} == {0, 3 * 1100}
