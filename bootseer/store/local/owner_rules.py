"""Who may write in a store that users run things from."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Ownership(NamedTuple):
    """Whose a folder or a file is: names, or numbers in decimal, as the store has them."""

    mode: int
    owner: str
    group: str


class OwnerRule(Protocol):
    """A rule about who may own and write what is in a store."""

    def problem(self, path: str, found: Ownership, top: Ownership) -> str:
        """Say why a folder or a file is not to be trusted, and what to do; nothing if it is.

        Args:
            path: of it, for the message.
            found: whose it is.
            top: whose the store's top folder is.
        """


@dataclass(frozen=True, slots=True)
class PrivateOwner:
    """The rule for a user's own store: nobody else.

    A file that only its owner can read belongs to the user who reads it, so a user's name in the
    store may differ from that on the node.

    Attributes:
        names: that the user may have in the store.
    """

    names: tuple[str, ...]

    def problem(self, path: str, found: Ownership, top: Ownership) -> str:
        if found.mode & (stat.S_IWGRP | stat.S_IWOTH):
            return (
                f"others can write in {path}: check what it contains, then run `chmod go-w {path}`,"
                " or put {user} into store.url"
            )
        if found.mode & (stat.S_IRWXG | stat.S_IRWXO) and found.owner not in self.names:
            return (
                f"{path} belongs to user {found.owner}, not to {self.names[0]}: choose another "
                f"place for the store, or, if it is yours, run `chmod go-rwx {path}`"
            )
        return ""


@dataclass(frozen=True, slots=True)
class TrustedOwners:
    """The rule: root, the user, and the owner of the store's top folder; nobody else.

    Attributes:
        user: name of the user.
        uid: of the user.
        group: name of a group whose members are trusted too, "" for none.
        gid: of that group, None for none.
        widens: folders that are made get group and mode of the folder that they are in, so that
            all of the group can write in them.
        setting: that names the group, for messages.
    """

    user: str
    uid: int
    group: str = ""
    gid: int | None = None
    widens: bool = False
    setting: str = "image.store_group"

    def problem(self, path: str, found: Ownership, top: Ownership) -> str:
        is_groups = bool(self.group) and found.group in (self.group, str(self.gid))
        if found.mode & stat.S_IWOTH:
            return (
                f"everybody can write in {path}: check what it contains, then run "
                f"`chmod o-w {path}`"
            )
        if found.mode & stat.S_IWGRP and not is_groups:
            return (
                f"group {found.group} can write in {path}: check what it contains, then run "
                f"`chmod g-w {path}`; {self.setting} can name a group that is trusted"
            )
        if found.owner not in ("0", top.owner, self.user, str(self.uid)) and not is_groups:
            return (
                f"{path} belongs to user {found.owner}, not to root or to user {top.owner}, who "
                f"owns the store: check what it contains, then run `chown {top.owner} {path}`"
            )
        return ""
