"""Read the kernel's list of mounts, without accessing the mounts."""

from __future__ import annotations

import os
import re
from typing import NamedTuple


class MountInfo(NamedTuple):
    """One line of /proc/PID/mountinfo.

    Attributes:
        mount_id: unique while mounted; also in /proc/PID/fdinfo of an open file.
        device: ``major:minor``, the name of its folder in /sys/class/bdi.
        mountpoint: where it is mounted, as the process sees it.
        kind: the file system's type, such as ``fuse.bootseer``.
        source: the file system's source.
        options: the file system's options, as in /proc/mounts.
    """

    mount_id: str
    device: str
    mountpoint: str
    kind: str
    source: str
    options: str


def read_mounts(pid: int | None = None) -> list[MountInfo]:
    """List the mounts that a process sees, by default this one.

    Raises:
        OSError: the process is gone, or may not be inspected.
    """
    # As bytes: in text mode, characters other than the newline also end a line.
    with open(f"/proc/{pid or 'self'}/mountinfo", "rb") as file:
        return [_parse(os.fsdecode(line.rstrip(b"\n"))) for line in file]


def find_mount(mountpoint: str, pid: int | None = None) -> MountInfo | None:
    """Return the topmost mount at exactly this absolute path, if there is one."""
    found = None
    for mount in read_mounts(pid):
        if mount.mountpoint == mountpoint:
            found = mount
    return found


def _parse(line: str) -> MountInfo:
    """Parse a line; its format is in proc_pid_mountinfo(5)."""
    before, _, after = line.partition(" - ")
    fields = before.split(" ")
    kind, source, options = after.split(" ", 2)
    return MountInfo(fields[0], fields[2], _unescape(fields[4]), kind, _unescape(source), options)


def _unescape(text: str) -> str:
    """Undo the octal escapes of blanks, newlines and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
