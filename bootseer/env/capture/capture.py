"""Find out what a command has changed in its targets, and read it while the job continues.

One scan when the command has ended fixes which files are captured. Their content is read later. If
a file has changed by then, nothing is published.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bootseer.env.client.key import EMPTY
from bootseer.env.client.scan import TreeNode, digested, scan_folder, shape, version
from bootseer.env.snapshot.index import MAX_NAME_BYTES, MAX_PATH_BYTES, leads_out
from bootseer.errors import Conflict, Unavailable
from bootseer.large_buffers import page_buffer
from bootseer.units import MIB

_READ_BYTES = MIB
_KINDS = ("file", "folder", "link")
_ACL = b"system.posix_acl_access"
_DEFAULT_ACL = b"system.posix_acl_default"
_ACL_GROUP = 0x04
_ACL_MASK = 0x10
_OTHER = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
"""There is no file any more."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Scan of a target before the command ran, with digests; of an empty target, only its root."""

    tree: dict[bytes, TreeNode]
    statuses: dict[bytes, os.stat_result]

    @property
    def base(self) -> str:
        """Value of the target's part in a key."""
        return shape(self.tree) if len(self.tree) > 1 else EMPTY


@dataclass(slots=True)
class CaptureResult:
    """The result of a command.

    Attributes:
        folders: paths under which the targets can be read.
        tree: of the snapshot, without owners, by path with the target's number before it. It has
            no digests until `read` has read all files.
        statuses: of all paths, as they were when the command had ended.
        deleted: paths that the command has deleted.
        outside: links that lead out of their target.
        findings: about paths that no snapshot can hold, and that were left out.
    """

    folders: Sequence[str]
    tree: dict[bytes, TreeNode] = field(default_factory=dict)
    statuses: dict[bytes, os.stat_result] = field(default_factory=dict)
    deleted: list[bytes] = field(default_factory=list)
    outside: list[bytes] = field(default_factory=list)
    findings: list[tuple[bytes, str, str]] = field(default_factory=list)

    @property
    def content_bytes(self) -> int:
        return sum(node.size_bytes for node in self.tree.values() if not node.same_as)

    def read(self, path: bytes) -> Iterator[memoryview]:
        """Read a file piece by piece, and note its digest; the next piece overwrites the last.

        Raises:
            Conflict: it has changed.
            Unavailable: it cannot be read.
        """
        number, _, below = path.partition(b"/")
        digest = hashlib.sha256()
        buffer = page_buffer(_READ_BYTES)
        try:
            fd = _open(self.folders[int(number)], below)
            try:
                while got := os.readv(fd, [buffer]):
                    digest.update(buffer[:got])
                    yield buffer[:got]
                is_same = _is_same(os.fstat(fd), self.statuses[path])
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _OTHER:
                raise _gone(path) from error
            raise Unavailable(f"{below!a} cannot be read: {error.strerror}") from error
        if not is_same:
            raise _gone(path)
        self.tree[path] = self.tree[path]._replace(digest=digest.digest())

    def finish(self) -> None:
        """Give hard links the digest of the first, when all files are read."""
        for path, node in self.tree.items():
            if node.same_as:
                self.tree[path] = node._replace(digest=self.tree[node.same_as].digest)
            elif node.kind == "file" and not node.size_bytes:
                self.tree[path] = node._replace(digest=hashlib.sha256().digest())


def scan_before(folder: str) -> Baseline:
    """Scan a target before the command runs.

    Raises:
        OSError: it cannot be read.
    """
    tree, statuses = scan_folder(folder)
    return Baseline(digested(folder, tree, statuses), statuses)


def scan_after(folders: Sequence[str], befores: Sequence[Baseline], uid: int) -> CaptureResult:
    """Scan the targets after the command has run.

    Args:
        folders: paths under which the targets can be read.
        befores: their scans before the command ran.
        uid: of the user, who should own all of it.

    Raises:
        OSError: a path cannot be read.
    """
    made = CaptureResult(folders)
    roots = []
    for number, (folder, before) in enumerate(zip(folders, befores, strict=True)):
        tree, statuses = scan_folder(folder)
        if before.base != EMPTY:
            tree = _with_digests(folder, tree, statuses, before)
        changed = _changed(before, tree)
        name = b"%d" % number
        roots.append(tree[b""])
        for path in sorted(changed):
            _take(made, name + b"/" + path if path else name, tree[path], statuses[path], name, uid)
        made.deleted += [
            name + b"/" + path for path, old in before.tree.items() if _is_gone(path, old, tree)
        ]
    made.tree[b""] = TreeNode("folder", 0o700, 0, 0, mtime_ns=max(root.mtime_ns for root in roots))
    _mend(made)
    made.tree = dict(sorted(made.tree.items()))
    return made


def _with_digests(
    folder: str,
    tree: dict[bytes, TreeNode],
    statuses: dict[bytes, os.stat_result],
    before: Baseline,
) -> dict[bytes, TreeNode]:
    """Add digests of files that were there before; only those that may have changed are read."""
    known, unknown = {}, {}
    for path, node in tree.items():
        old = before.tree.get(path)
        if node.kind != "file" or old is None or old.kind != "file":
            continue
        if version(statuses[path]) == version(before.statuses[path]):
            known[path] = old.digest
        else:
            unknown[path] = node._replace(same_as=b"")
    found = digested(folder, unknown, statuses)
    digests = known | {path: node.digest for path, node in found.items()}
    return {
        path: node._replace(digest=digests.get(path, node.digest)) for path, node in tree.items()
    }


def _changed(before: Baseline, tree: dict[bytes, TreeNode]) -> set[bytes]:
    """Return the paths that were added or changed, with all folders above them."""
    if before.base == EMPTY:
        return set(tree)
    changed = {b""} | {path for path, node in tree.items() if node != before.tree.get(path)}
    # All names of a file or none: the others would go on naming the file that was there.
    firsts = {tree[path].same_as or path for path in changed}
    changed |= {path for path, node in tree.items() if (node.same_as or path) in firsts}
    for path in list(changed):
        while path := path.rpartition(b"/")[0]:
            changed.add(path)
    return changed


def _is_gone(path: bytes, old: TreeNode, tree: dict[bytes, TreeNode]) -> bool:
    """Whether a snapshot has to delete a path; not if it deletes a folder above it."""
    node, folder = tree.get(path), tree.get(path.rpartition(b"/")[0])
    if folder is None or folder.kind != "folder":
        return False
    return node is None or (node.kind not in _KINDS and node.kind != old.kind)


def _take(
    made: CaptureResult, path: bytes, node: TreeNode, status: os.stat_result, name: bytes, uid: int
) -> None:
    """Take a path into the snapshot, or add a finding why not."""
    if node.kind not in _KINDS:
        made.findings.append((path, "left out", f"a {node.kind} cannot be restored"))
        return
    too_long = len(path) > MAX_PATH_BYTES or len(path.rpartition(b"/")[2]) > MAX_NAME_BYTES
    if too_long or node.mtime_ns.bit_length() > 63:
        made.findings.append((path, "left out", "its name is too long"))
        return
    if node.kind != "link" and node.mode & ~0o1777:
        made.findings.append((path, "rights", "set-user-ID and set-group-ID are not restored"))
    if status.st_uid != uid:
        made.findings.append((path, "owner", f"user {status.st_uid}'s: restored as your own"))
    xattrs = dict(node.xattrs)
    mode = stat.S_IMODE(node.mode) & 0o1777
    if b"security.capability" in xattrs:
        made.findings.append((path, "rights", "file capabilities are not restored"))
    if _ACL in xattrs or _DEFAULT_ACL in xattrs:
        made.findings.append((path, "rights", "its access control list is not restored"))
        mode = _without_list(mode, xattrs.get(_ACL))
    if node.kind == "link" and leads_out(path, node.target):
        made.outside.append(path)
    made.tree[path] = node._replace(
        uid=0,
        gid=0,
        mode=mode,
        digest=b"",
        same_as=name + b"/" + node.same_as if node.same_as else b"",
        xattrs=tuple((n, v) for n, v in node.xattrs if n.startswith(b"user.")),
    )
    made.statuses[path] = status


def _without_list(mode: int, acl: bytes | None) -> int:
    """Return the mode of a file without its access control list.

    With one, the mode's bits for the group are the mask: the most that any of its entries grants.
    """
    if acl is None:
        return mode
    group, mask = 0, 0o7
    for tag, rights, _ in struct.iter_unpack("<HHI", acl[4 : len(acl) // 8 * 8 + 4]):
        if tag == _ACL_GROUP:
            group = rights
        elif tag == _ACL_MASK:
            mask = rights
    return mode & ~0o070 | (group & mask & 0o7) << 3


def _mend(made: CaptureResult) -> None:
    """Leave out paths whose folder, or whose first name, was left out."""
    for path in sorted(made.tree):
        node = made.tree[path]
        folder = path.rpartition(b"/")[0]
        if folder not in made.tree:
            del made.tree[path]
        elif node.same_as and node.same_as not in made.tree:
            made.tree[path] = node._replace(same_as=b"")


def _is_same(now: os.stat_result, then: os.stat_result) -> bool:
    """Whether a file is unchanged; a new hard link to it changes only its ctime."""
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) == (
        then.st_dev,
        then.st_ino,
        then.st_size,
        then.st_mtime_ns,
    )


def _open(folder: str, path: bytes) -> int:
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(path, flags, dir_fd=root)
    finally:
        os.close(root)


def _gone(path: bytes) -> Conflict:
    return Conflict(
        f"{path.partition(b'/')[2]!a} was changed after the command had ended, and before it was "
        "stored: the result is not stored; with `--wait` the job continues only then"
    )
