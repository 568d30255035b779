"""Mount an image with the kernel's own squashfs: of images that the administrator lists, only.

The kernel's parser takes what it is given, so nothing is mounted but the node's own copy of an
image: whole, and every block compared with the manifest since the node was booted, by a process
that talks to nobody else. A job's mount of it shares its pages with all others'.

Standard library and our own extension only.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection
from pathlib import Path

from bootseer.agent.node import process
from bootseer.agent.node.account import Account
from bootseer.cache.folder import CacheEntry
from bootseer.errors import BootseerError, Corrupt, NotFound, Unavailable

_CHECK_S = 600
_MOUNT_S = 20
_MOST_SAID_BYTES = 1000


def mount_root(
    entry: CacheEntry,
    folder: Path,
    listed: Collection[str],
    checked: Path,
    owner: tuple[int, int],
    account: Account,
) -> None:
    """Mount the image of an entry, if it is listed and whole, for one user.

    Args:
        entry: of the block cache, in use until this is unmounted.
        folder: to be made, where nobody else can reach the mount.
        listed: digests of the images that may be mounted.
        checked: folder of notes on what has been checked, root's, that does not outlive a boot.
        owner: uid and gid of the user.
        account: whose process checks it.

    Raises:
        NotFound: it is not listed, or not all of it is on this node.
        Corrupt: a block is damaged.
        Unavailable: it cannot be checked or mounted.
    """
    if _checked_digest(entry, checked, account) not in listed:
        raise NotFound("the image is not one that the kernel may mount")
    target = folder / "rootfs"
    try:
        folder.mkdir(mode=0o700)
        target.mkdir(mode=0o755)
        os.chown(folder, *owner)
        # A loop device of the same file is used again, and with it what is in memory.
        options = "loop,ro,nodev,nosuid"
        command = ["mount", "-t", "squashfs", "-o", options, f"{entry.path}/data", str(target)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MOUNT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot mount an image at {target}: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise Unavailable(f"cannot mount an image at {target}: {said}")


def _checked_digest(entry: CacheEntry, checked: Path, account: Account) -> str:
    """Return an image's digest once all of it has been checked, once for each boot."""
    note = checked / entry.path.name
    state = _state(entry)
    try:
        noted = json.loads(note.read_text())
        if noted["state"] == state:
            return str(noted["digest"])
    except (OSError, ValueError, TypeError, KeyError):
        pass  # not yet
    digest = _check(entry, account)
    if _state(entry) == state:
        checked.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = note.with_suffix(".new")
        partial.write_text(json.dumps({"state": state, "digest": digest}))
        partial.rename(note)
    return digest


def _check(entry: CacheEntry, account: Account) -> str:
    """Have an image checked by a process with the service account's rights; returns its digest."""
    fds = [entry.open_manifest(), *entry.open_blocks()]
    argv = process.command(
        "workers.check_image", *map(str, (account.name, account.uid, account.gid))
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
    finally:
        for fd in fds:
            os.close(fd)
    said = done.stdout[:_MOST_SAID_BYTES].decode(errors="replace").strip()
    if done.returncode == 0:
        return said
    kinds: dict[int, type[BootseerError]] = {3: NotFound, 4: Corrupt}
    raise kinds.get(done.returncode, Unavailable)(said or "the image could not be checked")


def _state(entry: CacheEntry) -> list[list[int]]:
    """Return what is different once data or map have been written to."""
    files = [os.stat(entry.path / name) for name in ("data", "map")]
    return [[f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns] for f in files]
