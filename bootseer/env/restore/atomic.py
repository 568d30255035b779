"""Restore a snapshot to its targets: a target that was empty gets all of it or nothing.

The tree is made beside its place, in a folder that only the calling user can enter, and renamed
when it is complete. Nothing is written with fsync: what a crash destroys can be restored again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from bootseer._io import lib
from bootseer.env.client.scan import TreeNode
from bootseer.env.client.temporary import note_use, temporary_name
from bootseer.env.restore.apply import Check, Count, Read, explained, finish, unpack_content
from bootseer.env.restore.extract_plan import children, plan
from bootseer.env.snapshot.chunks import Chunk
from bootseer.env.snapshot.index import Index
from bootseer.errors import Conflict, Corrupt, Denied, NoSpace
from bootseer.posix import OPEN_FOLDER, check_result, os_error, status_at
from bootseer.units import format_size

_OPEN = OPEN_FOLDER | os.O_CLOEXEC
_NO_WRITING = {errno.EACCES, errno.EPERM, errno.EROFS}


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """Where a folder of a snapshot goes.

    Attributes:
        parent: descriptor of the folder above it.
        name: its name there.
        stays: it is some process's working folder: it is filled, and not replaced.
    """

    parent: int
    name: str
    stays: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """A temporary folder in which a target is made.

    Attributes:
        target: the target that it becomes.
        above: descriptor of the folder above: the target's parent, or the target.
        name: its name there.
        made: its descriptor.
        old: descriptor of the target, if that is not replaced.
    """

    target: RestoreTarget
    above: int
    name: str
    made: int
    old: int | None


def restore(
    index: Index,
    chunks: Sequence[Chunk],
    read: Read,
    targets: Sequence[RestoreTarget],
    *,
    threads: int = 2,
    count: Count = lambda size_bytes: None,
    check_cancelled: Check = lambda: None,
) -> None:
    """Restore a snapshot to its targets, as the calling user.

    A target that is missing or empty is restored completely or not at all. If a target is not
    empty, or stays, or its file system cannot rename folders, files and links of the snapshot
    replace those of the same names, and paths that the command had deleted are deleted. That is
    done when all is unpacked, each path atomically, one after the other. An error or a cancellation
    then leaves some paths as they were.

    Args:
        index, chunks: of the snapshot.
        read, threads, count, check_cancelled: see `bootseer.env.restore.apply.unpack_content`.
        targets: for the folders 0, 1 and so on of the snapshot; nothing else is written to.

    Raises:
        Corrupt: the snapshot is damaged; nothing has been written.
        NoSpace: there is too little space, or there are too few inodes.
        Denied: there is no right to write there.
        Conflict: another file is in the way.

    Cancellation: what was made is removed, but for the case above. Durability: none; a crash can
    leave a folder ``.NAME.bootseer-…``, see `bootseer.env.client.temporary`.
    """
    steps = plan(index, chunks)
    if len(targets) != steps.folders:
        raise Corrupt(f"the snapshot has {steps.folders} folders, and not {len(targets)}")
    with ExitStack() as stack:
        places = [stack.enter_context(_made_place(target)) for target in targets]
        _check_space(index, places)
        made = [place.made for place in places]
        unpack_content(steps, chunks, read, made, threads, count, check_cancelled)
        for number, place in enumerate(places):
            if place.old is not None:
                _merge(index, b"%d" % number, place.made, place.old, check_cancelled)
                # Now, for its time is set below.
                with explained(os.fsencode(place.target.name)), _writable(place.old):
                    remove(place.above, place.name)
        finish(steps, [place.made if place.old is None else place.old for place in places])
        for place in places:
            if place.old is None:
                _put(place)


def remove(folder: int, name: str) -> None:
    """Remove a path in an open folder, with all below it; links are not followed.

    Raises:
        FileNotFoundError: there is no such path.
        OSError: it cannot be removed.
    """
    status = lib.bs_remove(folder, os.fsencode(name))
    if status < 0:
        raise OSError(-status, os.strerror(-status), name)


@contextmanager
def _made_place(target: RestoreTarget) -> Iterator[_Place]:
    """Make a temporary folder for the length of a block; what is left then is removed."""
    with ExitStack() as stack:
        with explained(os.fsencode(target.name)):
            old = _open_target(target)
            moves = _moves_folders(target)
            if old is None and not moves:
                stack.enter_context(_made_empty(target))
                old = _open_target(target)
            if old is not None:
                stack.callback(os.close, old)
            place = _make_place(target, old, moves)
        stack.callback(_remove_quietly, place)
        stack.callback(os.close, place.made)
        yield place


@contextmanager
def _made_empty(target: RestoreTarget) -> Iterator[None]:
    """Make a target; if the block fails while it is empty, remove it."""
    os.mkdir(target.name, 0o700, dir_fd=target.parent)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.rmdir(target.name, dir_fd=target.parent)
        raise


def _open_target(target: RestoreTarget) -> int | None:
    """Open a target, if it is there.

    Raises:
        Conflict: it is no folder.
        Denied: it is another user's.
    """
    try:
        status = status_at(target.name, target.parent)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise Conflict(f"{target.name!a} is no folder; remove it, or choose another")
    if os.geteuid() not in (0, status.st_uid):
        raise Denied(f"{target.name!a} is user {status.st_uid}'s; choose a folder of your own")
    return os.open(target.name, _OPEN, dir_fd=target.parent)


def _make_place(target: RestoreTarget, old: int | None, moves: bool) -> _Place:
    """Make a temporary folder beside a target, or in it if it is not replaced."""
    is_bound = old is not None and _mount(old) != _mount(target.parent)
    if old is not None and (target.stays or not moves or os.listdir(old) or is_bound):
        return _folder_in(target, old, old)
    try:
        return _folder_in(target, target.parent, None)
    except OSError as error:
        if old is None or error.errno not in _NO_WRITING:
            raise
        return _folder_in(target, old, old)


def _moves_folders(target: RestoreTarget) -> bool:
    """Whether folders beside a target can be renamed, as far as that can be found out.

    They cannot on overlays that a user's container runtime has mounted: that takes root's xattrs.
    """
    folder = target.parent
    names = [temporary_name(target.name) for _ in range(2)]
    try:
        os.mkdir(names[0], 0o700, dir_fd=folder)
    except OSError:
        return True
    try:
        os.rename(*names, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        os.rmdir(names[0], dir_fd=folder)
        return error.errno != errno.EXDEV
    os.rmdir(names[1], dir_fd=folder)
    return True


def _folder_in(target: RestoreTarget, above: int, old: int | None) -> _Place:
    name = temporary_name(target.name)
    with _writable(old):
        os.mkdir(name, 0o700, dir_fd=above)
    made = os.open(name, _OPEN, dir_fd=above)
    note_use(made)
    status = os.fstat(made)
    if status.st_uid != os.geteuid() or os.listdir(made):
        os.close(made)
        raise os_error(errno.EEXIST)
    return _Place(target, above, name, made, old)


def _mount(fd: int) -> str:
    """Return the identity of a path's mount; device numbers do not tell bind mounts."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        return next(line for line in lines if line.startswith("mnt_id:"))


def _check_space(index: Index, places: Sequence[_Place]) -> None:
    """Check that there is room for a snapshot.

    Raises:
        NoSpace: there is too little.
    """
    sizes: Counter[int] = Counter()
    names: Counter[int] = Counter()
    made = {os.fstat(place.made).st_dev: place for place in places}
    where = {b"%d" % n: os.fstat(place.made).st_dev for n, place in enumerate(places)}
    free = {device: os.fstatvfs(place.made) for device, place in made.items()}
    for path, node in index.tree.items():
        if path and not node.same_as:
            device = where[path.partition(b"/")[0]]
            block_bytes = free[device].f_frsize
            sizes[device] += node.size_bytes + -node.size_bytes % block_bytes
            names[device] += 1
    for device, found in free.items():
        name = made[device].target.name
        if sizes[device] > found.f_bavail * found.f_frsize:
            raise NoSpace(
                f"{name!a} takes {format_size(sizes[device])}, and its file system has "
                f"{format_size(found.f_bavail * found.f_frsize)} left; free some, or choose "
                "another folder"
            )
        if found.f_files and names[device] > found.f_favail:
            raise NoSpace(
                f"{name!a} takes {names[device]} files, and its file system has {found.f_favail} "
                "left; remove some, or choose another folder"
            )


def _put(place: _Place) -> None:
    """Rename a complete target to its name."""
    target = place.target
    with explained(os.fsencode(target.name)):
        if not os.path.samestat(status_at(place.name, place.above), os.fstat(place.made)):
            raise os_error(errno.EEXIST)
        os.rename(place.name, target.name, src_dir_fd=place.above, dst_dir_fd=target.parent)


def _merge(index: Index, root: bytes, made: int, old: int, check_cancelled: Check) -> None:
    """Move a tree into a folder that is not empty, and delete what the command had deleted."""
    inside = children(index.tree)
    for path in index.deleted:
        if path.startswith(root + b"/"):
            with explained(path):
                _delete(old, path[len(root) + 1 :])
    waiting = [root]
    while waiting:
        check_cancelled()
        folder = waiting.pop()
        below = folder[len(root) + 1 :]
        with (
            explained(folder),
            _opened(made, below) as source,
            _opened(old, below) as target,
            _writable(target),
        ):
            for path in inside.get(folder, ()):
                with explained(path):
                    if not _moved(path, index.tree[path], source, target):
                        waiting.append(path)


def _moved(path: bytes, node: TreeNode, source: int, target: int) -> bool:
    """Move a path over that of the same name; False for a folder that is to be merged."""
    name = os.fsdecode(path.rpartition(b"/")[2])
    with suppress(FileNotFoundError):
        is_folder = stat.S_ISDIR(status_at(name, target).st_mode)
        if is_folder and node.kind == "folder":
            return False
        if is_folder or node.kind == "folder":
            remove(target, name)
    try:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno != errno.EXDEV or node.kind != "folder":
            raise
        os.mkdir(name, 0o700, dir_fd=target)  # see `_moves_folders`
        return False
    return True


def _delete(root: int, path: bytes) -> None:
    """Delete a path, if it exists and no link is on the way."""
    folder, _, name = path.rpartition(b"/")
    try:
        with _opened(root, folder) as fd, _writable(fd):
            remove(fd, os.fsdecode(name))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise


@contextmanager
def _opened(root: int, path: bytes) -> Iterator[int]:
    fd = check_result(lib.bs_open_folder(root, path, not lib.bs_has_openat2()))
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _writable(fd: int | None) -> Iterator[None]:
    """Make a folder of the user writable for the length of a block."""
    mode = stat.S_IRWXU if fd is None else stat.S_IMODE(os.fstat(fd).st_mode)
    if fd is None or mode & stat.S_IRWXU == stat.S_IRWXU:
        yield
        return
    os.fchmod(fd, mode | stat.S_IRWXU)
    try:
        yield
    finally:
        os.fchmod(fd, mode)


def _remove_quietly(place: _Place) -> None:
    """Remove a temporary folder; if that fails, it stays, and the next `env run` removes it."""
    with suppress(OSError), _writable(place.old):
        remove(place.above, place.name)
