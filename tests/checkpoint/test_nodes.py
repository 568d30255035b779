"""Which number a file has, and which files are known to be below a folder."""

from dataclasses import replace

import pytest

from bootseer.checkpoint.nodes import Nodes
from bootseer.checkpoint.tree import CheckpointTree, Entry
from bootseer.core.stripe import Layout, Unit
from bootseer.errors import Corrupt
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.base import ObjectInfo
from bootseer.store.memory import MemoryStore

INFO = ObjectInfo("file", 100, 10**18, version="1")
LAYOUT = Layout(8192, 4096, "0" * 32, 1, (Unit(0, 0, 1), Unit(0, 4096, 2)))
SAME = replace(LAYOUT)
OTHER = replace(LAYOUT, units=(Unit(0, 0, 1), Unit(0, 4096, 3)))
FOLDER = Entry(ObjectInfo("folder", 0, 10**18, is_folder=True))


@pytest.fixture
def nodes():
    return Nodes(CheckpointTree(MemoryStore()), 1.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Entry(INFO), Entry(replace(INFO, mode=0o600)), True),
        (Entry(INFO), Entry(replace(INFO, version="2")), False),
        (Entry(INFO), Entry(replace(INFO, size_bytes=101)), False),
        (Entry(INFO), Entry(replace(INFO, is_folder=True)), False),
        (FOLDER, Entry(replace(FOLDER.info, mtime_ns=1)), True),
        (FOLDER, Entry(replace(FOLDER.info, is_folder=False)), False),
        (Entry(INFO, LAYOUT), Entry(INFO, LAYOUT), True),
        (Entry(INFO, LAYOUT), Entry(INFO, SAME), True),
        (Entry(INFO, LAYOUT), Entry(INFO, OTHER), False),
        (Entry(INFO, LAYOUT), Entry(INFO), False),
        (Entry(INFO), Entry(INFO, LAYOUT), False),
        (Entry(INFO), Entry(INFO, problem=Corrupt("damaged")), False),
        (Entry(INFO, problem=Corrupt("damaged")), Entry(INFO), False),
        (Entry(INFO, problem=Corrupt("one")), Entry(INFO, problem=Corrupt("one")), True),
        (Entry(INFO, problem=Corrupt("one")), Entry(INFO, problem=Corrupt("two")), False),
    ],
)
def test_a_version_has_one_number_and_another_has_another(nodes, one, other, same):
    first = nodes.node(ROOT_INODE, "file", one)
    second = nodes.node(ROOT_INODE, "file", other)
    assert (second.inode == first.inode) == same == first.has_name
    assert second.has_name and nodes.by_name[ROOT_INODE, "file"] is second
    assert second.entry is other


def test_what_is_below_a_folder_is_known_however_deep_it_is(nodes):
    top = nodes.node(ROOT_INODE, "top", FOLDER)
    folder = nodes.node(top.inode, "folder", FOLDER)
    file = nodes.node(folder.inode, "file", Entry(INFO))
    other = nodes.node(ROOT_INODE, "other", FOLDER)
    assert nodes.path(file) == "top/folder/file"
    assert nodes.path_in(folder.inode, "new") == "top/folder/new"
    assert nodes.path_in(ROOT_INODE, "new") == "new"
    for above in (folder.inode, top.inode, ROOT_INODE):
        assert nodes.is_below(file.inode, above)
    for inode, above in (
        (file.inode, other.inode),
        (other.inode, top.inode),
        (top.inode, folder.inode),
        (top.inode, top.inode),
        (ROOT_INODE, ROOT_INODE),
        (12345, ROOT_INODE),  # which nobody has
    ):
        assert not nodes.is_below(inode, above)
