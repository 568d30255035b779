"""Mount an image with the kernel's own squashfs: of images that the administrator lists, only.

The kernel's parser takes what it is given, so nothing is mounted but the node's own, root-owned
copy of an image: whole, every block compared with the manifest by root when it was written, and
with its checksum since the node was booted. A job's mount of it shares its pages with all others'.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from bootseer._io import lib
from bootseer.agent.node.job import Job, JobFolder
from bootseer.cache.image_entry import ImageEntry
from bootseer.core.event import FALLBACK, OK, Event
from bootseer.errors import BootseerError, Corrupt, NotFound, Unavailable
from bootseer.units import MIB

_PIECE_BYTES = 4 * MIB
_MOUNT_S = 20


class KernelMount:
    """What the kernel mounts of a job's image, if the administrator lists that.

    Attributes:
        path: where it is, "" for nowhere.
        settled: set when that does not change any more.
    """

    def __init__(self, folder: JobFolder, job: Job, config: dict[str, Any]) -> None:
        """Plan it; nothing is mounted yet."""
        self.path = ""
        self.settled = trio.Event()
        self._folder = folder
        self._job = job
        self._listed = config["image.kernel_mount"]
        self._checked = Path(config["node.run_dir"], "checked")

    async def make(
        self, digest: str, entry: ImageEntry, hear: Callable[[dict[str, Any]], None]
    ) -> None:
        """Mount the image, if it is listed and whole.

        Args:
            digest: of the image.
            entry: of the image, in use until the job ends.
            hear: takes the event that says so.
        """
        if digest in self._listed:
            began_ns, status = time.time_ns(), OK
            try:
                self.path = str(await trio.to_thread.run_sync(self._make, entry))
                detail = "mounted by the kernel"
            except NotFound as error:
                detail = str(error)
            except BootseerError as error:
                status, detail = FALLBACK, str(error)
            event = Event(
                "image.kernel", began_ns, time.time_ns(), "agent", status, detail=detail[:500]
            )
            hear({"op": "event", "event": event.document()})
        self.settle()

    def settle(self) -> None:
        """Tell prolog and plugin what there is; the first time counts."""
        if not self.settled.is_set():
            if self.path:
                self._folder.write_mounted(self._folder.rooted, "owned")
            elif self._listed:
                self._folder.write_mounted(self._folder.rooted, "none")
            self.settled.set()

    def remove(self) -> None:
        """Take it away, whoever uses it."""
        if self.path:
            lib.bs_unmount(os.fsencode(self.path))

    def _make(self, entry: ImageEntry) -> Path:
        check_entry(entry, self._checked)
        return mount_image(entry, Path(self._folder.root), self._job.uid, self._job.gid)


def check_entry(entry: ImageEntry, checked: Path) -> None:
    """Check that all of an image is on this node as it should be, once for each boot.

    Args:
        entry: of the image, in use.
        checked: folder of notes on what has been checked, root's, that does not outlive a boot.

    Raises:
        NotFound: not all of it is there.
        Corrupt: a block is damaged.
        Unavailable: the disk does not give it.
    """
    note = checked / entry.path.name
    state = _state(entry)
    try:
        if json.loads(note.read_text()) == state:
            return
    except (OSError, ValueError):
        pass  # not yet
    blocks = entry.blocks()
    try:
        missing = blocks.missing(range(entry.manifest.blocks))
        if missing:
            raise NotFound(f"{len(missing)} blocks of the image are not on this node yet")
        for at in range(0, entry.manifest.size_bytes, _PIECE_BYTES):
            size_bytes = min(_PIECE_BYTES, entry.manifest.size_bytes - at)
            if blocks.read(at, size_bytes) is None:
                raise Corrupt(f"the image is damaged on this node, near byte {at}")
    finally:
        blocks.close()
    if _state(entry) == state:
        checked.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = note.with_suffix(".new")
        partial.write_text(json.dumps(state))
        partial.rename(note)


def mount_image(entry: ImageEntry, folder: Path, uid: int, gid: int) -> Path:
    """Mount an image that has been checked, for one user.

    Args:
        entry: of the image, in use until this is unmounted.
        folder: to be made, where nobody else can reach the mount.
        uid, gid: of the user.

    Returns:
        Where it is mounted.

    Raises:
        Unavailable: it cannot be.
    """
    target = folder / "rootfs"
    try:
        folder.mkdir(mode=0o700)
        target.mkdir(mode=0o755)
        os.chown(folder, uid, gid)
    except OSError as error:
        raise Unavailable(f"cannot mount an image at {target}: {error}") from error
    # A loop device of the same file is used again, and with it what is in memory.
    options = "loop,ro,nodev,nosuid"
    command = ["mount", "-t", "squashfs", "-o", options, str(entry.path / "data"), str(target)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MOUNT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot mount an image at {target}: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise Unavailable(f"cannot mount an image at {target}: {said}")
    return target


def _state(entry: ImageEntry) -> list[list[int]]:
    """Return what is different once data or map have been written to."""
    files = [os.stat(entry.path / name) for name in ("data", "map")]
    return [[f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns] for f in files]
