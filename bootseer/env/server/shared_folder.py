"""Tell folders of this node from those that other nodes see, too."""

from __future__ import annotations

from bootseer._io import lib

_OF_A_NODE = {
    0xEF53,  # ext4
    0x58465342,  # XFS
    0x9123683E,  # Btrfs
    0x01021994,  # tmpfs
    0x858458F6,  # ramfs
    0x794C7630,  # overlayfs
    0x2FC12FC1,  # ZFS
    0xF2F52010,  # F2FS
    0xCA451A4E,  # bcachefs
}


def is_of_this_node(folder: int) -> bool:
    """Whether an open folder is on a file system of this node alone.

    Other nodes see the files of a network file system, but not what this node mounts there. File
    systems that are not known count as network file systems.
    """
    return int(lib.bs_file_system(folder)) in _OF_A_NODE
