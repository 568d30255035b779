"""Root's side of a mount: make it, set its read-ahead, take it away.

Root does `attach` and hands the descriptor to a process of the user's, which does
`bootseer.fuse.mount.serve_fd` and tells root that it has started; root then does `set_read_ahead`,
and at the end `detach`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bootseer._io import lib
from bootseer.errors import Unavailable
from bootseer.fuse.mountinfo import find_mount

# The mount's type in /proc/mounts is "fuse." and this.
SUBTYPE = "bootseer"


@dataclass(frozen=True, slots=True)
class MountOptions:
    """How a view is mounted.

    Attributes:
        name: what /proc/mounts shows as the source.
        read_only: the kernel refuses changes by itself.
        for_all: all users may look, as modes and owners allow. Otherwise only processes whose uids
            and gids (real, effective and saved) are all the mount's: not root, and not the user
            after newgrp(1) either.
        checks_modes: the kernel compares modes and owners with who asks. False leaves that to the
            view: for trees that know other rights, or of other users and groups, than this node.
    """

    name: str = "bootseer"
    read_only: bool = False
    for_all: bool = False
    checks_modes: bool = True


def attach(mountpoint: Path | int, uid: int, gid: int, options: MountOptions) -> int:
    """Mount, as root, what somebody else is going to serve.

    Until it is served, whoever touches the mount waits. When the last copy of the descriptor is
    closed, by the end of its process for example, they get errors: hand it on and close it.

    Args:
        mountpoint: a folder whose path only root can change; for any other, a descriptor that is
            open on it (O_PATH will do).
        uid, gid: whose mount it is.
        options: how to mount.

    Returns:
        The connection to the kernel, close-on-exec.

    Raises:
        Unavailable: it cannot be mounted.
    """
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            with _opened(mountpoint) as target:
                _mount(target, device, uid, gid, options)
        except BaseException:
            os.close(device)
            raise
    except OSError as error:
        raise Unavailable(
            f"cannot mount at {mountpoint}: {error}; it takes root, /dev/fuse and a folder there"
        ) from error
    return device


def set_read_ahead(mountpoint: Path, kib: int) -> None:
    """Set, as root, how far the kernel reads ahead of a mount's readers; its default is 128 KiB.

    The answer to the kernel's first request would set it back: do it after serving has started.

    Raises:
        OSError: it cannot be set.
    """
    mount = find_mount(str(mountpoint))
    if mount is not None:
        Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb").write_text(str(kib))


def overlay(mountpoint: Path, lower: Path, scratch: Path) -> None:
    """Lay a writable file system over a folder of a mount, as root.

    Args:
        mountpoint: an existing folder whose path only root can change.
        lower: what is seen through it; it needs `MountOptions.for_all`.
        scratch: folder with "upper", which takes changes and has the owner, mode and time that the
            root of the overlay is to have, and "work".

    Raises:
        OSError: it cannot be mounted.
    """
    # Not by their paths: commas and colons have a meaning there.
    folders = {"lowerdir": lower, "upperdir": scratch / "upper", "workdir": scratch / "work"}
    with ExitStack() as stack:
        options = ",".join(
            f"{name}=/proc/self/fd/{stack.enter_context(_opened(folder))}"
            for name, folder in folders.items()
        )
        _check(lib.bs_mount_overlay(os.fsencode(mountpoint), options.encode()))


def bind(source: Path, mountpoint: Path) -> None:
    """Show a folder of a mount at another path, as root; only root can change either.

    Raises:
        OSError: it cannot be shown.
    """
    _check(lib.bs_bind(os.fsencode(source), os.fsencode(mountpoint)))


def show(mount: Path, namespace: int, target: int) -> None:
    """Show a mount, or a folder of one, in another mount namespace as well, as root.

    It stays there when it is taken away here, but gives errors if its server has ended.

    Args:
        mount: here.
        namespace: descriptor of the other.
        target: descriptor of a folder there.

    Raises:
        OSError: it cannot be shown: EINVAL if the folder is not in that namespace.
    """
    tree = lib.bs_copy_mount(os.fsencode(mount))
    _check(tree)
    try:
        _check(lib.bs_show_mount(tree, namespace, target))
    finally:
        os.close(tree)


def uncover(mountpoint: Path) -> None:
    """Take away what `overlay` or `bind` has mounted, whoever uses it.

    Raises:
        OSError: it cannot be unmounted.
    """
    _check(lib.bs_unmount(os.fsencode(mountpoint)))


def detach(mountpoint: Path) -> None:
    """Take a mount of ours away, as root, whatever its users and its server are doing.

    Requests in progress and files that are open give errors from then on, so that no process is
    left waiting; the server finds the connection closed and ends. Where nothing, or somebody else's
    file system, is mounted, nothing happens.

    Raises:
        OSError: it cannot be unmounted.
    """
    mount = find_mount(str(mountpoint))
    if mount is not None and mount.kind == f"fuse.{SUBTYPE}":
        _check(lib.bs_unmount(os.fsencode(mountpoint)))


@contextmanager
def _opened(folder: Path | int) -> Iterator[int]:
    if isinstance(folder, int):
        yield folder
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mount(target: int, device: int, uid: int, gid: int, options: MountOptions) -> None:
    words = [f"fd={device}", "rootmode=40000", f"user_id={uid}", f"group_id={gid}"]
    words += ["default_permissions"] if options.checks_modes else []
    words += ["allow_other"] if options.for_all else []
    kind = f"fuse.{SUBTYPE}"
    _check(
        lib.bs_mount_fuse(
            target,
            os.fsencode(options.name),
            kind.encode(),
            options.read_only,
            ",".join(words).encode(),
        )
    )


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
