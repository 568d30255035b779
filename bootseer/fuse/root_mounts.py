"""Root's side of a mount: mount, set the read-ahead, unmount.

Root calls `attach` and passes the descriptor to a process of the user's. That calls
`bootseer.fuse.serve_view.serve_fd` and reports that it has started. Root then calls
`set_read_ahead`, and at the end `detach`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

from bootseer._io import ffi, lib
from bootseer.errors import Unavailable
from bootseer.fuse.mountinfo import find_mount

# The mount's type in /proc/mounts is "fuse.bootseer".
SUBTYPE = "bootseer"
# Errors of kernels without user namespaces for mounts, or that forbid them.
_NO_NAMESPACES = {errno.EPERM, errno.ENOSPC, errno.EUSERS, errno.EINVAL, errno.ENOSYS}

Folder: TypeAlias = str | PathLike[str]


class MountOptions(NamedTuple):
    """How a view is mounted.

    Attributes:
        name: the source in /proc/mounts.
        read_only: the kernel refuses changes.
        for_all: all users have access, as modes and owners allow. Otherwise only processes whose
            real, effective and saved ids are all the mount's: neither root, nor the user after
            newgrp(1).
        checks_modes: the kernel checks modes and owners. False leaves checks to the view, for trees
            with other rights, users or groups than this node's. Files may then belong to any user
            but root, otherwise only to the mount's user.
        confined: refuse to mount where the kernel has no user namespaces. Otherwise an ordinary
            mount is made, which must never be shown in a namespace that a user owns.
    """

    name: str = "bootseer"
    read_only: bool = False
    for_all: bool = False
    checks_modes: bool = True
    confined: bool = False


def attach(
    mountpoint: Folder | int, uid: int, gid: int, options: MountOptions, groups: Sequence[int] = ()
) -> int:
    """Mount, as root, a file system that another process will serve; returns its connection.

    Unless ``for_all`` is set, the mount's superblock belongs to a user namespace in which only that
    user is mapped: see c_ext/usermount.c.

    Until it is served, processes that access the mount wait. When the last copy of the descriptor
    is closed, they get errors: pass it on and close it.

    Args:
        mountpoint: a folder whose path only root can change; otherwise a descriptor of the folder
            (O_PATH suffices).
        uid, gid: the mount's user.
        options: how to mount.
        groups: other groups of the user whose files the mount may hold.

    Returns:
        The connection to the kernel, close-on-exec.

    Raises:
        Unavailable: mounting failed.
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


def set_read_ahead(mountpoint: Folder, kib: int) -> None:
    """Set a mount's read-ahead, as root; the kernel's default is 128 KiB.

    The answer to the kernel's first request resets it: call this after serving has started.

    Raises:
        OSError: the read-ahead cannot be set.
    """
    mount = find_mount(str(mountpoint))
    if mount is not None:
        with open(f"/sys/class/bdi/{mount.device}/read_ahead_kb", "w") as file:
            file.write(str(kib))


def overlay(
    mountpoint: Folder,
    lower: Folder,
    scratch: Folder,
    uid: int,
    gid: int,
    groups: Sequence[int] = (),
    *,
    read_only: bool = False,
) -> None:
    """Mount a writable overlay over a folder of a user's mount, as root.

    Its superblock belongs to a user namespace, as with `attach`.

    Args:
        mountpoint: an existing folder whose path only root can change.
        lower: the lower folder, which the user can open.
        scratch: folder with "upper", which takes changes, and "work", both owned by the user. Use
            them for one overlay only: fsync(2) does nothing there, so the kernel refuses to mount
            them again. The overlay's root gets the mode and time of ``lower``.
        uid, gid, groups: the user's ids.
        read_only: the mount refuses changes.

    Raises:
        OSError: mounting failed.
    """
    user, _kept = _user(uid, gid, groups)
    folders = {"lower": lower, "upper": f"{scratch}/upper", "work": f"{scratch}/work"}
    paths = {name: ffi.new("char[]", os.fsencode(folder)) for name, folder in folders.items()}
    fields = ffi.new("bs_overlay_folders *", paths | {"read_only": read_only})
    mount = _check(lib.bs_mount_overlay_for(user, fields))
    try:
        with _opened(mountpoint) as target:
            _check(lib.bs_attach_mount(mount, target))
    finally:
        os.close(mount)


def copy_mount(mount: Folder) -> int:
    """Open a detached copy of a mount, or of a folder in one, as root; returns a descriptor.

    Raises:
        OSError: there is no such mount, or the kernel is older than Linux 5.2.
    """
    return _check(lib.bs_copy_mount(os.fsencode(mount)))


def show(mount: Folder, namespace: int, target: int) -> None:
    """Attach a copy of a mount, or of a folder in one, in another mount namespace, as root.

    The copy outlives the original mount, but gives errors once its server has ended.

    Args:
        mount: path of the mount.
        namespace: descriptor of the other namespace.
        target: descriptor of a folder there.

    Raises:
        OSError: attaching failed: EINVAL if the folder is not in that namespace.
    """
    tree = copy_mount(mount)
    try:
        _check(lib.bs_show_mount(tree, namespace, target))
    finally:
        os.close(tree)


def uncover(mountpoint: Folder) -> None:
    """Unmount an overlay, even while in use.

    Raises:
        OSError: unmounting failed.
    """
    _check(lib.bs_unmount(os.fsencode(mountpoint)))


def detach(mountpoint: Folder) -> None:
    """Unmount a BootSeer mount, as root, even while in use.

    Requests in progress and open files give errors from then on, so that no process keeps waiting.
    The server finds the connection closed and ends. Other file systems are not unmounted.

    Raises:
        OSError: unmounting failed.
    """
    mount = find_mount(str(mountpoint))
    if mount is not None and mount.kind == f"fuse.{SUBTYPE}":
        _check(lib.bs_unmount(os.fsencode(mountpoint)))


@contextmanager
def _opened(folder: Folder | int) -> Iterator[int]:
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
    """Return a user as a C struct, and objects that must outlive it."""
    kept = ffi.new("uint32_t[]", list(groups))
    fields = {"uid": uid, "gid": gid, "groups": kept, "group_count": len(kept)}
    return ffi.new("bs_user *", fields), kept


def _check(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
