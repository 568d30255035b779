"""Which number a file has, and which files are known to be below a folder."""

from dataclasses import replace

import pytest

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.stripe_manifest import StripeManifest, UnitPlace
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.inodes import InodeTable
from bootseer.errors import Corrupt
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.api.base import ObjectInfo
from bootseer.store.memory import MemoryStore

INFO = ObjectInfo("file", 100, 10**18, version="1")
LAYOUT = StripeManifest(8192, 4096, "0" * 32, 1, (UnitPlace(0, 0, 1), UnitPlace(0, 4096, 2)))
SAME = replace(LAYOUT)
OTHER = replace(LAYOUT, units=(UnitPlace(0, 0, 1), UnitPlace(0, 4096, 3)))
FOLDER = FileEntry(ObjectInfo("folder", 0, 10**18, is_folder=True))


@pytest.fixture
def inodes():
    return InodeTable(CheckpointTree(MemoryStore()), 1.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (FileEntry(INFO), FileEntry(replace(INFO, mode=0o600)), True),
        (FileEntry(INFO), FileEntry(replace(INFO, version="2")), False),
        (FileEntry(INFO), FileEntry(replace(INFO, size_bytes=101)), False),
        (FileEntry(INFO), FileEntry(replace(INFO, is_folder=True)), False),
        (FOLDER, FileEntry(replace(FOLDER.info, mtime_ns=1)), True),
        (FOLDER, FileEntry(replace(FOLDER.info, is_folder=False)), False),
        (FileEntry(INFO, LAYOUT), FileEntry(INFO, LAYOUT), True),
        (FileEntry(INFO, LAYOUT), FileEntry(INFO, SAME), True),
        (FileEntry(INFO, LAYOUT), FileEntry(INFO, OTHER), False),
        (FileEntry(INFO, LAYOUT), FileEntry(INFO), False),
        (FileEntry(INFO), FileEntry(INFO, LAYOUT), False),
        (FileEntry(INFO), FileEntry(INFO, problem=Corrupt("damaged")), False),
        (FileEntry(INFO, problem=Corrupt("damaged")), FileEntry(INFO), False),
        (FileEntry(INFO, problem=Corrupt("one")), FileEntry(INFO, problem=Corrupt("one")), True),
        (FileEntry(INFO, problem=Corrupt("one")), FileEntry(INFO, problem=Corrupt("two")), False),
    ],
)
def test_a_version_has_one_number_and_another_has_another(inodes, one, other, same):
    first = inodes.inode_for(ROOT_INODE, "file", one)
    second = inodes.inode_for(ROOT_INODE, "file", other)
    assert (second.inode == first.inode) == same == first.has_name
    assert second.has_name and inodes.by_name[ROOT_INODE, "file"] is second
    assert second.entry is other


def test_what_is_below_a_folder_is_known_however_deep_it_is(inodes):
    top = inodes.inode_for(ROOT_INODE, "top", FOLDER)
    folder = inodes.inode_for(top.inode, "folder", FOLDER)
    file = inodes.inode_for(folder.inode, "file", FileEntry(INFO))
    other = inodes.inode_for(ROOT_INODE, "other", FOLDER)
    assert inodes.path(file) == "top/folder/file"
    assert inodes.path_in(folder.inode, "new") == "top/folder/new"
    assert inodes.path_in(ROOT_INODE, "new") == "new"
    for above in (folder.inode, top.inode, ROOT_INODE):
        assert inodes.is_below(file.inode, above)
    for inode, above in (
        (file.inode, other.inode),
        (other.inode, top.inode),
        (top.inode, folder.inode),
        (top.inode, top.inode),
        (ROOT_INODE, ROOT_INODE),
        (12345, ROOT_INODE),  # which nobody has
    ):
        assert not inodes.is_below(inode, above)
