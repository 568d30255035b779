"""The service account: whose rights a job's supervisor has, and the node's own checks.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import pwd
from typing import NamedTuple

from bootseer.errors import ConfigError


class Account(NamedTuple):
    """An account of the node: its name and numbers."""

    name: str
    uid: int
    gid: int


def service_account(name: str) -> Account:
    """Look the service account up.

    Args:
        name: as the setting `node.service_user` has it.

    Raises:
        ConfigError: there is none, or it is root.
    """
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"there is no account {name!a} on this node, as which jobs are looked after: "
            "make it with `bootseer plugin install`, or name another as node.service_user"
        ) from error
    if found.pw_uid == 0 or found.pw_gid == 0:
        raise ConfigError(f"node.service_user {name!a} is root; name an account without rights")
    return Account(found.pw_name, found.pw_uid, found.pw_gid)
