"""Root's side of a mount: make it, set its read-ahead, take it away.

Root does `attach` and hands the descriptor to a process of the user's, which does
`bootseer.fuse.serve_view.serve_fd` and tells root that it has started; root then does
`set_read_ahead`, and at the end `detach`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootseer._io import ffi, lib
from bootseer.errors import Unavailable
from bootseer.fuse.mountinfo import find_mount

# The mount's type in /proc/mounts is "fuse." and this.
SUBTYPE = "bootseer"
# What a kernel without user namespaces for mounts says, or one where none are allowed.
_NO_NAMESPACES = {errno.EPERM, errno.ENOSPC, errno.EUSERS, errno.EINVAL, errno.ENOSYS}


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
            Files may belong to any user but root then, otherwise to the mount's alone.
        confined: refuse to mount where the kernel has no user namespaces. Otherwise an ordinary
            mount takes its place, which must never be shown in a namespace that a user owns.
    """

    name: str = "bootseer"
    read_only: bool = False
    for_all: bool = False
    checks_modes: bool = True
    confined: bool = False


def attach(
    mountpoint: Path | int, uid: int, gid: int, options: MountOptions, groups: Sequence[int] = ()
) -> int:
    """Mount, as root, what somebody else is going to serve.

    For a user's own eyes the mount's superblock belongs to a user namespace in which only that user
    is mapped: see c_ext/usermount.c.

    Until it is served, whoever touches the mount waits. When the last copy of the descriptor is
    closed, by the end of its process for example, they get errors: hand it on and close it.

    Args:
        mountpoint: a folder whose path only root can change; for any other, a descriptor that is
            open on it (O_PATH will do).
        uid, gid: whose mount it is.
        options: how to mount.
        groups: further groups of the user, whose files the mount may hold.

    Returns:
        The connection to the kernel, close-on-exec.

    Raises:
        Unavailable: it cannot be mounted.
    """
    try:
        with _opened(mountpoint) as target:
            if uid == 0 or options.for_all:
                return _mount(target, uid, gid, options)
            try:
                return _mount_for(target, uid, gid, groups, options)
            except OSError as error:
                if options.confined or error.errno not in _NO_NAMESPACES:
                    raise
                return _mount(target, uid, gid, options)
    except OSError as error:
        raise Unavailable(
            f"cannot mount at {mountpoint}: {error}; it takes root, /dev/fuse and a folder there"
        ) from error


def set_read_ahead(mountpoint: Path, kib: int) -> None:
    """Set, as root, how far the kernel reads ahead of a mount's readers; its default is 128 KiB.

    The answer to the kernel's first request would set it back: do it after serving has started.

    Raises:
        OSError: it cannot be set.
    """
    mount = find_mount(str(mountpoint))
    if mount is not None:
        Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb").write_text(str(kib))


def overlay(
    mountpoint: Path,
    lower: Path,
    scratch: Path,
    uid: int,
    gid: int,
    groups: Sequence[int] = (),
    *,
    read_only: bool = False,
) -> None:
    """Lay a writable file system over a folder of a user's mount, as root, for that user.

    Its superblock belongs to a user namespace, as those of `attach`.

    Args:
        mountpoint: an existing folder whose path only root can change.
        lower: what is seen through it; the user can open it.
        scratch: folder with "upper", which takes changes, and "work", both the user's. They are
            for one overlay: fsync(2) does nothing there, and the kernel mounts no second one with
            what may not all be on the disk. The root gets the mode and time of ``lower``.
        uid, gid, groups: of the user.
        read_only: the mount takes no changes.

    Raises:
        OSError: it cannot be mounted.
    """
    user, _kept = _user(uid, gid, groups)
    folders = {"lower": lower, "upper": scratch / "upper", "work": scratch / "work"}
    paths = {name: ffi.new("char[]", os.fsencode(folder)) for name, folder in folders.items()}
    fields = ffi.new("bs_overlay_folders *", paths | {"read_only": read_only})
    mount = _check(lib.bs_mount_overlay_for(user, fields))
    try:
        with _opened(mountpoint) as target:
            _check(lib.bs_attach_mount(mount, target))
    finally:
        os.close(mount)


def copy_mount(mount: str | Path) -> int:
    """Open a copy of a mount, or of a folder in one, that is attached nowhere; as root.

    Raises:
        OSError: there is none, or the kernel is older than Linux 5.2.
    """
    return _check(lib.bs_copy_mount(os.fsencode(mount)))


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
    tree = copy_mount(mount)
    try:
        _check(lib.bs_show_mount(tree, namespace, target))
    finally:
        os.close(tree)


def uncover(mountpoint: Path) -> None:
    """Take away what `overlay` has mounted, whoever uses it.

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


def _mount(target: int, uid: int, gid: int, options: MountOptions) -> int:
    """Mount with a superblock of this process's own user namespace; returns the connection."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    words = [f"fd={device}", "rootmode=40000", f"user_id={uid}", f"group_id={gid}"]
    words += ["default_permissions"] if options.checks_modes else []
    words += ["allow_other"] if options.for_all else []
    kind = f"fuse.{SUBTYPE}"
    try:
        _check(
            lib.bs_mount_fuse(
                target,
                os.fsencode(options.name),
                kind.encode(),
                options.read_only,
                ",".join(words).encode(),
            )
        )
    except BaseException:
        os.close(device)
        raise
    return device


def _mount_for(
    target: int, uid: int, gid: int, groups: Sequence[int], options: MountOptions
) -> int:
    """Mount with a superblock of the user's; returns the connection."""
    user, _kept = _user(uid, gid, groups)
    texts = {
        "source": ffi.new("char[]", os.fsencode(options.name)),
        "subtype": ffi.new("char[]", SUBTYPE.encode()),
    }
    flags = {"read_only": options.read_only, "checks_modes": options.checks_modes}
    made = ffi.new("int *")
    mount = _check(lib.bs_mount_fuse_for(user, ffi.new("bs_fuse_options *", texts | flags), made))
    try:
        _check(lib.bs_attach_mount(mount, target))
    except BaseException:
        os.close(made[0])
        raise
    finally:
        os.close(mount)
    return int(made[0])


def _user(uid: int, gid: int, groups: Sequence[int]) -> tuple[Any, Any]:
    """Return a user for C, and the memory that has to live as long."""
    kept = ffi.new("uint32_t[]", list(groups))
    fields = {"uid": uid, "gid": gid, "groups": kept, "group_count": len(kept)}
    return ffi.new("bs_user *", fields), kept


def _check(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
