"""Removing what has to go: temporaries by their age, and trees."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootseer.posix import OPEN_FOLDER
from bootseer.store.api.name import TEMPORARY_PREFIX
from bootseer.store.local.reap_temporaries import reap, remove_tree

OLD_NS = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, OPEN_FOLDER)
    yield fd
    os.close(fd)


def left(path: Path, mtime_ns: int = OLD_NS) -> Path:
    """What a dead writer has left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return path


def test_what_was_written_then_or_earlier_is_reaped(tmp_path: Path, folder: int) -> None:
    left(tmp_path / f"{TEMPORARY_PREFIX}a", OLD_NS - 1)
    left(tmp_path / f"{TEMPORARY_PREFIX}b", OLD_NS)
    spared = left(tmp_path / f"{TEMPORARY_PREFIX}c", OLD_NS + 1)
    named = left(tmp_path / "object")
    assert reap(folder, OLD_NS, 1) == 2
    assert sorted(tmp_path.iterdir()) == [spared, named]


def test_as_many_levels_are_looked_into_as_are_asked_for(tmp_path: Path, folder: int) -> None:
    for above in ("", "a", "a/b", "a/b/c"):
        left(tmp_path / above / f"{TEMPORARY_PREFIX}x")
    assert reap(folder, OLD_NS, 0) == 0
    assert reap(folder, OLD_NS, 3) == 3
    assert (tmp_path / "a/b/c" / f"{TEMPORARY_PREFIX}x").exists()


@pytest.mark.parametrize("target", ["missing", "folder", "new"])
def test_a_link_is_reaped_by_its_own_age(tmp_path: Path, folder: int, target: str) -> None:
    """And nothing behind it."""
    (tmp_path / "folder").mkdir()
    left(tmp_path / "new", 9 * OLD_NS)
    link = tmp_path / f"{TEMPORARY_PREFIX}link"
    link.symlink_to(target)
    os.utime(link, ns=(OLD_NS, OLD_NS), follow_symlinks=False)
    assert reap(folder, OLD_NS, 2) == 1
    assert sorted(os.listdir(tmp_path)) == ["folder", "new"]


@pytest.mark.parametrize(("levels", "is_removed"), [(2, False), (3, False), (4, True)])
def test_a_tree_is_gone_down_so_far(
    tmp_path: Path, folder: int, levels: int, is_removed: bool
) -> None:
    left(tmp_path / "a/b/c/d")
    if is_removed:
        remove_tree(folder, "a", levels)
    else:
        with pytest.raises(OSError, match="deeper") as raised:
            remove_tree(folder, "a", levels)
        assert raised.value.errno == errno.ENOTEMPTY
    assert os.listdir(tmp_path) == ([] if is_removed else ["a"])


def test_what_is_gone_already_needs_no_removing(tmp_path: Path, folder: int) -> None:
    remove_tree(folder, "missing")
    left(tmp_path / "file")
    remove_tree(folder, "file", 1)
    assert os.listdir(tmp_path) == []
