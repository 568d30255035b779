"""Mount images that the administrator lists with the kernel's squashfs.

The kernel's parser trusts its input, so only complete copies in the block cache are mounted. The
files must belong to the cache's account, and an isolated process must have checked every block
against the manifest since the node booted. All jobs' mounts of an image share its pages.

Imports the standard library and bootseer's C extension only.
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
_MAX_MESSAGE_BYTES = 1000


def mount_root(
    fds: Sequence[int],
    folder: str,
    listed: Collection[str],
    checked: str,
    owner: tuple[int, int],
    account: NodeAccount,
) -> None:
    """Mount a complete, listed image of the block cache for one user.

    Args:
        fds: the image's manifest, data and map; stay the caller's.
        folder: created for the mount, where only root can reach it.
        listed: digests of the images that may be mounted.
        checked: root's folder of notes on checked images; does not outlive a boot.
        owner: the user's uid and gid.
        account: the block cache's account, under which the image is checked.

    Raises:
        Denied: a descriptor is not a file of the block cache.
        NotFound: the image is not listed, or not complete on this node.
        Corrupt: a block is damaged.
        Unavailable: the image cannot be checked or mounted.
    """
    if _checked_digest(fds, Path(checked), account) not in listed:
        raise NotFound("node.kernel_mount does not list the image")
    target = f"{folder}/rootfs"
    try:
        os.mkdir(folder, 0o700)
        os.mkdir(target, 0o755)
        os.chown(folder, *owner)
        # The kernel reuses a loop device of the same file, and its pages in memory.
        options = "loop,ro,nodev,nosuid"
        data = f"/proc/self/fd/{fds[1]}"
        done = subprocess.run(
            ["mount", "-t", "squashfs", "-o", options, data, target],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MOUNT_S,
            pass_fds=[fds[1]],
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot mount an image at {target}: {error}") from error
    if done.returncode:
        message = " ".join(done.stderr.split())
        raise Unavailable(f"cannot mount an image at {target}: {message}")


def _checked_digest(fds: Sequence[int], checked: Path, account: NodeAccount) -> str:
    """Check an image once per boot; returns its digest."""
    state = _state(fds, account)
    note = checked / state.partition(" ")[0]
    with suppress(OSError, ValueError):
        noted, _, digest = note.read_text().rpartition(" ")
        if noted == state:
            return digest
    digest = _check(fds, account)
    if _state(fds, account) == state:
        checked.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Other threads may check the same image.
        partial = note.with_suffix(f".{threading.get_native_id()}")
        try:
            partial.write_text(f"{state} {digest}")
            partial.rename(note)
        finally:
            partial.unlink(missing_ok=True)  # /run is full
    return digest


def _check(fds: Sequence[int], account: NodeAccount) -> str:
    """Check an image in a process with the cache's rights; returns its digest."""
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
        raise Unavailable(f"cannot start the image check: {error}") from error
    message = done.stdout[:_MAX_MESSAGE_BYTES].decode(errors="replace").strip()
    if done.returncode == 0:
        return message
    kinds: dict[int, type[BootseerError]] = {kind.exit_code: kind for kind in (NotFound, Corrupt)}
    raise kinds.get(done.returncode, Unavailable)(message or "the image check failed")


def _state(fds: Sequence[int], account: NodeAccount) -> str:
    """Return inode numbers, sizes and times of the image's data and map, to detect changes."""
    files = [os.fstat(fd) for fd in fds]
    if not all(stat.S_ISREG(f.st_mode) and f.st_uid == account.uid for f in files):
        raise Denied("the image for the kernel mount is not in the block cache")
    numbers = [(f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for f in files[1:]]
    return " ".join(str(number) for file in numbers for number in file)
