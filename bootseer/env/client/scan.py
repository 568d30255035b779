"""Scan a folder, and compare two scans of it."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

_THREADS = 2
"""Threads that read files."""
_READ_BYTES = 1 << 20
_BATCH_FILES = 64
_BATCH_BYTES = 16 << 20
"""Most that a thread hashes at once: many small files, or one large file."""

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


class TreeNode(NamedTuple):
    """One path in a folder, and its metadata.

    Attributes:
        kind: "file", "folder", "link", or a kind that no snapshot takes.
        mode: permission bits.
        uid, gid: owner, as the scanning process sees them.
        size_bytes: of a file.
        mtime_ns: last change; of folders and links too.
        target: of a link.
        same_as: of a file with several names, the first of them in order; else empty.
        digest: SHA-256 of a file's content.
        xattrs: extended attributes by name, in order.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    size_bytes: int = 0
    mtime_ns: int = 0
    target: bytes = b""
    same_as: bytes = b""
    digest: bytes = b""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class ScanDiff(NamedTuple):
    """Paths of a tree that have changed, each list in order.

    Attributes:
        added: paths that were not there.
        changed: paths that were there, and are something else now.
        deleted: paths that are gone, of a folder with all below it.
    """

    added: tuple[bytes, ...]
    changed: tuple[bytes, ...]
    deleted: tuple[bytes, ...]


class ScannedFile(NamedTuple):
    """A file to read and hash."""

    path: bytes
    status: os.stat_result


class Scan(NamedTuple):
    """What a folder holds, but for the content of files.

    Attributes:
        tree: all of it by path, without digests.
        statuses: of all of it, as lstat gives them.
    """

    tree: dict[bytes, TreeNode]
    statuses: dict[bytes, os.stat_result]


def scan_folder(folder: str, *, xattrs: bool = True) -> Scan:
    """Scan a folder without reading files; links are not followed.

    Args:
        folder: to look at; folders below it that others are mounted on are left out.
        xattrs: read extended attributes, too, which takes several calls for each file.

    Returns:
        By path from the folder, with slashes between; itself is the empty path.

    Raises:
        OSError: something cannot be looked at.
    """
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        tree: dict[bytes, TreeNode] = {}
        statuses: dict[bytes, os.stat_result] = {}
        names: dict[tuple[int, int], bytes] = {}
        for path, status in sorted(_walk(root)):
            node = _node(root, path, status, xattrs)
            if node.kind == "file":
                first = names.setdefault((status.st_dev, status.st_ino), path)
                if first != path:
                    node = node._replace(same_as=first)
            tree[path] = node
            statuses[path] = status
    finally:
        os.close(root)
    return Scan(tree, statuses)


def scan(
    folder: str, *, count: Callable[[int], None] = lambda size_bytes: None
) -> dict[bytes, TreeNode]:
    """Scan a folder, and hash its files.

    Args:
        folder: as for `scan_folder`.
        count: called with numbers of bytes that were read.

    Raises:
        OSError: something cannot be read, or was changed meanwhile (EBUSY, with its path).
    """
    tree, statuses = scan_folder(folder)
    return digested(folder, tree, statuses, count=count)


def digested(
    folder: str,
    tree: Mapping[bytes, TreeNode],
    statuses: Mapping[bytes, os.stat_result],
    *,
    count: Callable[[int], None] = lambda size_bytes: None,
) -> dict[bytes, TreeNode]:
    """Add digests of files to the scan of a folder; see `scan`."""
    whole = dict(tree)
    files = [
        ScannedFile(path, statuses[path])
        for path, node in tree.items()
        if node.kind == "file" and not node.same_as
    ]
    from concurrent.futures import ThreadPoolExecutor  # not needed for a key

    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            for batch in pool.map(lambda some: _digests(root, some, count), _batches(files)):
                for path, digest in batch:
                    whole[path] = whole[path]._replace(digest=digest)
    finally:
        os.close(root)
    for path, node in whole.items():
        if node.same_as:
            whole[path] = node._replace(digest=whole[node.same_as].digest)
    return whole


def shape(tree: Mapping[bytes, TreeNode]) -> str:
    """Return a digest of the names, kinds, modes, lengths and link targets in a folder.

    Not of times and owners, which differ wherever the same thing is made again, and not of what is
    in files: there may be very much of it.
    """
    return tree_digest(
        {
            path: node._replace(uid=0, gid=0, mtime_ns=0, digest=b"", xattrs=())
            for path, node in tree.items()
        }
    )


def difference(before: Mapping[bytes, TreeNode], after: Mapping[bytes, TreeNode]) -> ScanDiff:
    """Compare two scans of a folder; a new time alone is no change of a folder."""
    return ScanDiff(
        added=tuple(path for path in sorted(after) if path not in before),
        changed=tuple(
            path
            for path in sorted(after)
            if path in before and _timeless(after[path]) != _timeless(before[path])
        ),
        deleted=tuple(path for path in sorted(before) if path not in after),
    )


def tree_digest(tree: Mapping[bytes, TreeNode]) -> str:
    """Return a digest of a tree with all its metadata, in hexadecimal.

    Of every path in order, each of these with its length in bytes, eight of them, little-endian,
    before it: path, kind, then mode, uid, gid, size and mtime in decimal digits, target, same_as,
    digest, and names and values of extended attributes.
    """
    whole = hashlib.sha256()
    for path in sorted(tree):
        node = tree[path]
        numbers = (node.mode, node.uid, node.gid, node.size_bytes, node.mtime_ns)
        fields = [path, node.kind.encode(), *(b"%d" % number for number in numbers)]
        fields += [node.target, node.same_as, node.digest, b"%d" % len(node.xattrs)]
        for pair in node.xattrs:
            fields += pair
        for field in fields:
            whole.update(len(field).to_bytes(8, "little"))
            whole.update(field)
    return whole.hexdigest()


def _walk(root: int) -> Iterator[tuple[bytes, os.stat_result]]:
    """List a folder and all below it, in no order."""
    status = os.stat(root)
    yield b"", status
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        fd = os.open(folder or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
        try:
            with os.scandir(fd) as entries:
                names = [os.fsencode(entry.name) for entry in entries]
            for name in names:
                path = folder + b"/" + name if folder else name
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                # Of overlayfs, files may have the number of the layer that they are in.
                if stat.S_ISDIR(found.st_mode) and found.st_dev != status.st_dev:
                    continue
                yield path, found
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(path)
        finally:
            os.close(fd)


def _node(root: int, path: bytes, status: os.stat_result, xattrs: bool) -> TreeNode:
    """Describe a path, but for a file's content."""
    kind = _KINDS[stat.S_IFMT(status.st_mode)]
    return TreeNode(
        kind=kind,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        size_bytes=status.st_size if kind == "file" else 0,
        mtime_ns=status.st_mtime_ns,
        target=os.readlink(path, dir_fd=root) if kind == "link" else b"",
        xattrs=_xattrs(root, path) if xattrs and kind in ("file", "folder") else (),
    )


def _xattrs(root: int, path: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Read extended attributes of a path that may become a link at any time."""
    where = b"/proc/self/fd/%d/%s" % (root, path or b".")
    try:
        names = sorted(map(os.fsencode, os.listxattr(where, follow_symlinks=False)))
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENAMETOOLONG):
            raise
        return ()
    return tuple((name, os.getxattr(where, name, follow_symlinks=False)) for name in names)


def _batches(files: list[ScannedFile]) -> Iterator[list[ScannedFile]]:
    """Group files into batches, one for a thread at a time."""
    batch: list[ScannedFile] = []
    size_bytes = 0
    for file in files:
        batch.append(file)
        size_bytes += file.status.st_size
        if len(batch) == _BATCH_FILES or size_bytes >= _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _digests(
    root: int, files: list[ScannedFile], count: Callable[[int], None]
) -> list[tuple[bytes, bytes]]:
    """Read files; returns path and digest of each.

    Raises:
        OSError: one cannot be read, or is another by now.
    """
    found = []
    buffer = bytearray(_READ_BYTES)
    view = memoryview(buffer)
    for file in files:
        digest = hashlib.sha256()
        fd = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=root)
        try:
            while True:
                got = os.readv(fd, [buffer])
                if not got:
                    break
                digest.update(view[:got])
                count(got)
            if version(os.fstat(fd)) != version(file.status):
                raise OSError(
                    errno.EBUSY, "it was changed while it was read", os.fsdecode(file.path)
                )
        finally:
            os.close(fd)
        found.append((file.path, digest.digest()))
    return found


def version(status: os.stat_result) -> tuple[int, ...]:
    """Return what differs between two versions of a file; it is not read."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _timeless(node: TreeNode) -> TreeNode:
    return node._replace(mtime_ns=0) if node.kind == "folder" else node
