"""Who may own and write the folders and files of a tree, and the modes of what is made there."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from bootseer.store.local.owner_rules import Ownership, TrustedOwners


@dataclass(frozen=True, slots=True)
class TreeAccess:
    """A rule for all of a tree.

    Attributes:
        owner_uid: the only user who may own its folders and write in them; what is made is then
            private. None: any owner, and the umask decides.
        trusted: of a tree that many users run things from, who may own its folders and files and
            write in them. None: anybody.
    """

    owner_uid: int | None = None
    trusted: TrustedOwners | None = None

    def check_above(self, fd: int, root: Path) -> None:
        """Check that not everybody can exchange a tree that many use for another.

        Args:
            fd: of the tree's top folder.
            root: its path, for the message.

        Raises:
            PermissionError: they can.
        """
        if self.trusted is None:
            return
        mode = os.stat("..", dir_fd=fd).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            above = os.path.dirname(os.path.realpath(root))
            raise PermissionError(
                errno.EPERM,
                f"everybody can exchange {root} for another folder; run `chmod o-w {above}`",
            )

    def check_file(self, status: os.stat_result, path: Path, top: os.stat_result) -> None:
        """Check who owns and can write a file.

        Args:
            status: of the file.
            path: of it, for the message.
            top: status of the tree's top folder.

        Raises:
            PermissionError: somebody who is not trusted.
        """
        if self.trusted is None:
            return
        problem = self.trusted.problem(str(path), _ownership(status), _ownership(top))
        if problem:
            raise PermissionError(errno.EPERM, problem)

    def check_folder(self, status: os.stat_result, path: Path, top: os.stat_result) -> None:
        """Check who owns and can write a folder; as `check_file`."""
        self.check_file(status, path, top)
        if self.owner_uid is None:
            return
        if status.st_uid != self.owner_uid:
            raise PermissionError(
                errno.EPERM,
                f"{path} is owned by uid {status.st_uid} and must be owned by uid "
                f"{self.owner_uid}; choose another place for the store",
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(
                errno.EPERM,
                f"others than its owner can write in {path}; run `chmod go-w {path}`",
            )

    def check_may_make(self, root: Path) -> None:
        """Check that this process may make the tree's top folder.

        Raises:
            PermissionError: another user has to.
        """
        if self.owner_uid is not None and self.owner_uid != os.geteuid():
            raise PermissionError(
                errno.EPERM,
                f"{root} does not exist and only uid {self.owner_uid} may make it; "
                "make it as that user",
            )
        if self.trusted is not None and os.geteuid() != 0:
            raise PermissionError(
                errno.EPERM,
                f"{root} does not exist, and many users would run what is in it; the "
                f"administrator makes it, with `install -d {root}`",
            )

    def widen(self, made: int, above: int) -> None:
        """Give a folder that was made group and mode of the one above, if the rule is of a group.

        Args:
            made: a descriptor of the folder.
            above: a descriptor of the folder that it is in.
        """
        if self.trusted is not None and self.trusted.widens:
            status = os.fstat(above)
            os.fchown(made, -1, status.st_gid)
            os.fchmod(made, stat.S_IMODE(status.st_mode))

    @property
    def folder_mode(self) -> int:
        """Mode of a folder that is made, less the umask."""
        if self.owner_uid is not None:
            return 0o700
        if self.trusted is None:
            return 0o777
        return 0o755 if self.trusted.gid is None else 0o775

    @property
    def file_mode(self) -> int:
        """Mode of a file that is made, less the umask."""
        if self.owner_uid is not None:
            return 0o600
        return 0o666 if self.trusted is None else 0o644


ANYBODY = TreeAccess()
"""The rule that asks nothing: anybody may own and write."""


def _ownership(status: os.stat_result) -> Ownership:
    return Ownership(stat.S_IMODE(status.st_mode), str(status.st_uid), str(status.st_gid))
