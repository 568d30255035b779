"""Make the service account, as whose processes BootSeer looks after jobs."""

from __future__ import annotations

import os
import subprocess

from bootseer.agent.node.account import service_account
from bootseer.errors import ConfigError, Denied, Unavailable

_USERADD = "/usr/sbin/useradd"


def make_service_user(name: str) -> bool:
    """Make the account on this node, unless it is there; returns whether it was made.

    It has no password, no home and no shell.

    Args:
        name: as the setting `node.service_user` has it.

    Raises:
        ConfigError: the account is root.
        Denied: only root can make one.
        Unavailable: it cannot be made.
    """
    try:
        service_account(name)
    except ConfigError:
        if name == "root":
            raise
    else:
        return False
    if os.geteuid() != 0:
        raise Denied(
            f"only root can make the account {name}; or pass --no-user and make it yourself"
        )
    words = ("--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent")
    argv = [_USERADD, *words, "--shell", "/usr/sbin/nologin", "--comment", "BootSeer", name]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unavailable(
            f"the account {name} cannot be made: {error}; make it yourself"
        ) from error
    if done.returncode:
        raise Unavailable(f"the account {name} cannot be made: {done.stderr.strip()}")
    service_account(name)
    return True
