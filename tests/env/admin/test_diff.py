"""What tells two environments apart."""

import os
from dataclasses import replace

import pytest

from bootseer.env.admin.diff import (
    PathDiff,
    VersionDiff,
    against_folders,
    contrast,
    scan_now,
    versions,
)
from bootseer.env.client.key import EMPTY
from bootseer.env.client.scan import TreeNode

FOLDER = TreeNode("folder", 0o755, 0, 0)
FILE = TreeNode("file", 0o644, 1, 2, 3, 4, digest=b"sum")


def test_what_is_no_difference():
    before = {b"0": FOLDER, b"0/a": FILE, b"0/b": FILE, b"0/s": TreeNode("socket", 0o600, 0, 0)}
    xattrs = ((b"security.a", b"1"), (b"user.b", b"2"))
    after = {
        b"0": FOLDER._replace(mode=0o700),
        b"0/a": FILE._replace(uid=9, gid=9, mtime_ns=9, mode=0o6644),
        b"0/b": FILE._replace(same_as=b"0/a"),
    }
    assert contrast(before, after) == []
    with_attributes = {b"0/a": FILE._replace(xattrs=xattrs)}
    without = {b"0/a": FILE._replace(xattrs=xattrs[1:])}
    assert contrast(with_attributes, without) == []


@pytest.mark.parametrize(
    "change", [{"mode": 0o600}, {"mode": 0o1644}, {"digest": b"x"}, {"xattrs": ((b"user.a", b""),)}]
)
def test_what_is_a_difference(change):
    [delta] = contrast({b"0/a": FILE}, {b"0/a": FILE._replace(**change)})
    assert delta.path == b"0/a" and delta.before != delta.after


def test_differences_are_in_the_order_of_paths():
    plain = FILE._replace(uid=0, gid=0, mtime_ns=0)
    longer = plain._replace(size_bytes=9)
    found = contrast(
        {b"0/a": FILE, b"0/b": FILE, b"0/d": FILE},
        {b"0/c": FILE, b"0/b": FILE._replace(size_bytes=9), b"0/d": FILE},
    )
    assert found == [
        PathDiff(b"0/a", plain, None),
        PathDiff(b"0/b", plain, longer),
        PathDiff(b"0/c", None, plain),
    ]


def test_what_held_something_before_may_hold_more(installed):
    """Unless the command had deleted that."""
    found = replace(installed.run("echo >TARGET/a"), bases=(EMPTY, "sha256:1"))
    now = {b"0/more": FILE, b"1/more": FILE, b"1/gone": FILE}
    deltas = against_folders(found, {b"1/missing": FILE}, [b"1/gone"], now)
    assert [delta.path for delta in deltas] == [b"0/more", b"1/gone", b"1/missing"]


def test_folders_are_looked_at_below_their_numbers(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x").write_bytes(b"hello")
    os.link(tmp_path / "b/x", tmp_path / "b/y")
    counted = []
    found = scan_now([str(tmp_path / "a"), str(tmp_path / "b")], counted.append)
    assert list(found) == [b"1", b"1/x", b"1/y"]
    assert [node.same_as for node in found.values()] == [b"", b"", b"1/x"]
    assert sum(counted) == 5


def test_versions_are_told_by_the_names_of_folders():
    before = {
        b"0/lib/My_Thing-1.0.dist-info": FOLDER,
        b"0/lib/same-1.dist-info": FOLDER,
        b"0/lib/gone-1.dist-info": FOLDER,
        b"0/lib/file-1.dist-info": FILE,
        b"0/lib/plain": FOLDER,
    }
    after = {
        b"0/lib/my_thing-2.0.dist-info": FOLDER,
        b"0/lib/same-1.dist-info": FOLDER,
        b"0/lib/new-3.dist-info": FOLDER,
    }
    assert versions(before, after) == [
        VersionDiff("gone", "1", ""),
        VersionDiff("my-thing", "1.0", "2.0"),
        VersionDiff("new", "", "3"),
    ]
