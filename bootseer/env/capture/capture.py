"""What a command has made of its targets, and its content read out of them while a job goes on.

What the command made is fixed by one look when it has ended. Content is read later; a file that has
become another one by then is found out, and nothing of the whole is published.
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
    """What a target held before the command ran, digests included; of nothing, only its root."""

    tree: dict[bytes, TreeNode]
    statuses: dict[bytes, os.stat_result]

    @property
    def base(self) -> str:
        """What to call it in a key."""
        return shape(self.tree) if len(self.tree) > 1 else EMPTY


@dataclass(slots=True)
class CaptureResult:
    """What a command has made.

    Attributes:
        folders: paths under which the targets can be read.
        tree: of the snapshot, nobody's, by path with the target's number before it. Without
            digests, until `read` has read everything.
        statuses: of all of it, as it was seen when the command had ended.
        deleted: paths that are gone.
        outside: of the links, those that lead out of their target.
        findings: what no snapshot can hold, and what of it was left out.
    """

    folders: Sequence[str]
    tree: dict[bytes, TreeNode] = field(default_factory=dict)
    statuses: dict[bytes, os.stat_result] = field(default_factory=dict)
    deleted: list[bytes] = field(default_factory=list)
    outside: list[bytes] = field(default_factory=list)
    findings: list[tuple[bytes, str, str]] = field(default_factory=list)

    @property
    def content_bytes(self) -> int:
        """Of all files."""
        return sum(node.size_bytes for node in self.tree.values() if not node.same_as)

    def read(self, path: bytes) -> Iterator[memoryview]:
        """Read a file, and note its digest; what is given changes once the next is asked for.

        Raises:
            Conflict: it is another one by now.
            Unavailable: it cannot be read.
        """
        number, _, below = path.partition(b"/")
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(_READ_BYTES))
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
        """Give further names of files the digest of the first, once all is read."""
        for path, node in self.tree.items():
            if node.same_as:
                self.tree[path] = node._replace(digest=self.tree[node.same_as].digest)
            elif node.kind == "file" and not node.size_bytes:
                self.tree[path] = node._replace(digest=hashlib.sha256().digest())


def look_before(folder: str) -> Baseline:
    """Look at a target before the command runs.

    Raises:
        OSError: it cannot be looked at.
    """
    tree, statuses = scan_folder(folder)
    return Baseline(digested(folder, tree, statuses), statuses)


def look_after(folders: Sequence[str], befores: Sequence[Baseline], uid: int) -> CaptureResult:
    """Look at what the command has made of its targets.

    Args:
        folders: paths under which they can be read.
        befores: what was there.
        uid: of the user, whose everything ought to be.

    Raises:
        OSError: something cannot be looked at.
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
    """Add the digests of files that are where files were; read are those that may be others."""
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
    """Return the paths of what was added or changed, and of all folders that it is in."""
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
    """Whether what was at a path is to be deleted; not if a folder that it was in is."""
    node, folder = tree.get(path), tree.get(path.rpartition(b"/")[0])
    if folder is None or folder.kind != "folder":
        return False
    return node is None or (node.kind not in _KINDS and node.kind != old.kind)


def _take(
    made: CaptureResult, path: bytes, node: TreeNode, status: os.stat_result, name: bytes, uid: int
) -> None:
    """Take something into the snapshot, or say why not."""
    if node.kind not in _KINDS:
        made.findings.append((path, "left out", f"a {node.kind} is nothing that can be restored"))
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

    Under one, the bits of the group are what anybody who is named there may have at most.
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
    """Have nothing left whose folder, or whose first name, was left out."""
    for path in sorted(made.tree):
        node = made.tree[path]
        folder = path.rpartition(b"/")[0]
        if folder not in made.tree:
            del made.tree[path]
        elif node.same_as and node.same_as not in made.tree:
            made.tree[path] = node._replace(same_as=b"")


def _is_same(now: os.stat_result, then: os.stat_result) -> bool:
    """Whether a file is still what it was; a new name for it elsewhere changes only its ctime."""
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
        "stored: nothing is kept; `--wait` stores before the job goes on"
    )
