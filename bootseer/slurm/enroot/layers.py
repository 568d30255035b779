"""Mount a container's image with a layer to write over it.

Enroot's own programs make the namespaces and mounts: where they may, an unprivileged user can. The
image's root has a path in its mount, the container's on its file system: by this path `enroot list`
recognizes which container a process is in, and Pyxis joins one that runs.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from bootseer.errors import Unavailable

FOLDER = ".bootseer"
IMAGE = "image"
_UPPER, _WORK, _MOUNTS, _LOWER = "upper", "work", "mounts", "lower"
_PLAIN = re.compile(r"/[A-Za-z0-9_./+@-]+")
"""A path in a mount's options, where commas and colons separate."""
_RUN_S = 60.0


class Container(NamedTuple):
    """A container as `enroot create` names it.

    Attributes:
        rootfs: path of its root folder.
    """

    rootfs: str

    @property
    def image(self) -> str:
        """Path of its image."""
        return os.readlink(f"{self.rootfs}/{FOLDER}/{IMAGE}")

    @property
    def above(self) -> str:
        """Path of its root folder on the file system that has it.

        Raises:
            Unavailable: it has none there, or one that a mount's options cannot hold.
        """
        place = self.rootfs
        while not os.path.ismount(place):
            place = os.path.dirname(place)
        above = self.rootfs[len(place.rstrip("/")) :]
        if not above or not _PLAIN.fullmatch(self.rootfs):
            raise Unavailable(f"{self.rootfs} cannot be an overlay's path")
        return above

    def make(self, image: str) -> None:
        """Make its folders.

        Raises:
            OSError: they cannot be made.
        """
        for name in (_UPPER, _WORK, _MOUNTS):
            os.makedirs(f"{self.rootfs}/{FOLDER}/{name}")
        # Whether the kernel can note in the layer that a folder hides the image's.
        os.setxattr(f"{self.rootfs}/{FOLDER}/{_UPPER}", "user.overlay.probe", b"y")
        os.removexattr(f"{self.rootfs}/{FOLDER}/{_UPPER}", "user.overlay.probe")
        os.symlink(image, f"{self.rootfs}/{FOLDER}/{IMAGE}")

    def mount(self, squashfuse: str, enroot_mount: str) -> str:
        """Mount its layers in this process' mount namespace; returns the path of their root.

        Args:
            squashfuse: path of bootseer-squashfuse.
            enroot_mount: path of Enroot's own program.

        Raises:
            Unavailable: they cannot be mounted.
        """
        above, own = self.above, f"{self.rootfs}/{FOLDER}"
        overlay, lower = f"{own}/{_MOUNTS}", f"{own}/{_MOUNTS}/{_LOWER}"
        mount([f"tmpfs {overlay} tmpfs mode=700,slave"], enroot_mount)
        os.mkdir(lower)
        owner = f"uid={os.geteuid()},gid={os.getegid()}"
        run([squashfuse, "-o", f"{owner},bootseer_above={above}", self.image, lower])
        layers = f"lowerdir={lower},upperdir={own}/{_UPPER},workdir={own}/{_WORK}"
        mount([f"overlay {overlay} overlay {layers},xino=off,userxattr"], enroot_mount)
        return f"{overlay}{above}"

    @property
    def written(self) -> str:
        """Path of the container's own files, in the layer over its image; there may be none."""
        return f"{self.rootfs}/{FOLDER}/{_UPPER}{self.above}"

    def is_changed(self) -> bool:
        """Return whether the layer over the image has anything.

        Raises:
            OSError: it cannot be read.
        """
        return os.path.isdir(self.written) and bool(os.listdir(self.written))


def mount(lines: Sequence[str], enroot_mount: str) -> None:
    """Mount lines of fstab by Enroot's own program.

    Raises:
        Unavailable: one cannot be mounted.
    """
    run([enroot_mount, "-"], "".join(f"{line}\n" for line in lines))


def run(argv: Sequence[str], text: str = "", timeout_s: float = _RUN_S) -> None:
    """Run a program that reads a text.

    Raises:
        Unavailable: it fails, or takes too long.
    """
    try:
        done = subprocess.run(
            argv,
            input=text,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error
    if done.returncode != 0:
        said = done.stderr.strip()[-300:] or f"exit code {done.returncode}"
        raise Unavailable(f"{os.path.basename(argv[0])}: {said}")
