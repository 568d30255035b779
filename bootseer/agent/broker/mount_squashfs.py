"""Mount an image with the kernel's own squashfs: of images that the administrator lists, only.

The kernel's parser takes what it is given, so nothing is mounted but the node's own copy of an
image: files of the block cache's account, whole, and every block compared with the manifest since
the node was booted, by a process that talks to nobody else. A job's mount of it shares its pages
with all others'.

Standard library and our own extension only.
"""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from bootseer.agent.node import spawn
from bootseer.agent.node.broker_settings import NodeAccount
from bootseer.errors import BootseerError, Corrupt, Denied, NotFound, Unavailable

_CHECK_S = 600
_MOUNT_S = 20
_MOST_SAID_BYTES = 1000


def mount_root(
    fds: Sequence[int],
    folder: Path,
    listed: Collection[str],
    checked: Path,
    owner: tuple[int, int],
    account: NodeAccount,
) -> None:
    """Mount an image of the block cache, if it is listed and whole, for one user.

    Args:
        fds: of its manifest, data and map, which stay the caller's.
        folder: to be made, where nobody else can reach the mount.
        listed: digests of the images that may be mounted.
        checked: folder of notes on what has been checked, root's, that does not outlive a boot.
        owner: uid and gid of the user.
        account: the block cache's, whose process checks it.

    Raises:
        Denied: those are not files of the block cache.
        NotFound: it is not listed, or not all of it is on this node.
        Corrupt: a block is damaged.
        Unavailable: it cannot be checked or mounted.
    """
    if _checked_digest(fds, checked, account) not in listed:
        raise NotFound("the image is not one that the kernel may mount")
    target = folder / "rootfs"
    try:
        folder.mkdir(mode=0o700)
        target.mkdir(mode=0o755)
        os.chown(folder, *owner)
        # A loop device of the same file is used again, and with it what is in memory.
        options = "loop,ro,nodev,nosuid"
        data = f"/proc/self/fd/{fds[1]}"
        done = subprocess.run(
            ["mount", "-t", "squashfs", "-o", options, data, str(target)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MOUNT_S,
            pass_fds=[fds[1]],
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot mount an image at {target}: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise Unavailable(f"cannot mount an image at {target}: {said}")


def _checked_digest(fds: Sequence[int], checked: Path, account: NodeAccount) -> str:
    """Return an image's digest once all of it has been checked, once for each boot."""
    state = _state(fds, account)
    note = checked / state.partition(" ")[0]
    with suppress(OSError, ValueError):
        noted, _, digest = note.read_text().rpartition(" ")
        if noted == state:
            return digest
    digest = _check(fds, account)
    if _state(fds, account) == state:
        checked.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Others may be at it, each in a thread of their own.
        partial = note.with_suffix(f".{threading.get_native_id()}")
        try:
            partial.write_text(f"{state} {digest}")
            partial.rename(note)
        finally:
            partial.unlink(missing_ok=True)  # /run is full
    return digest


def _check(fds: Sequence[int], account: NodeAccount) -> str:
    """Have an image checked by a process with the cache's rights; returns its digest."""
    argv = spawn.command(
        "workers.images.check_image", *map(str, (account.name, account.uid, account.gid))
    )
    try:
        done = subprocess.run(
            [*argv, str(os.getpid()), *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=fds,
            timeout=_CHECK_S,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the image cannot be checked: {error}") from error
    said = done.stdout[:_MOST_SAID_BYTES].decode(errors="replace").strip()
    if done.returncode == 0:
        return said
    kinds: dict[int, type[BootseerError]] = {kind.exit_code: kind for kind in (NotFound, Corrupt)}
    raise kinds.get(done.returncode, Unavailable)(said or "the image could not be checked")


def _state(fds: Sequence[int], account: NodeAccount) -> str:
    """Return the number of the image's file, and what changes once data or map are written to."""
    files = [os.fstat(fd) for fd in fds]
    if not all(stat.S_ISREG(f.st_mode) and f.st_uid == account.uid for f in files):
        raise Denied("the image for the kernel mount is not in the block cache")
    numbers = [(f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for f in files[1:]]
    return " ".join(str(number) for file in numbers for number in file)
