"""Make the accounts as whose processes BootSeer looks after jobs."""

from __future__ import annotations

import os
import pwd
import subprocess

from bootseer.agent.node.account import account_names, find_account
from bootseer.config import Config
from bootseer.errors import Denied, Unavailable

_USERADD = "/usr/sbin/useradd"


def make_accounts(config: Config) -> list[str]:
    """Make the accounts on this node, unless they are there; returns the names of those made.

    They have no password, no home and no shell.

    Args:
        config: effective settings.

    Raises:
        ConfigError: one of them is root.
        Denied: only root can make one.
        Unavailable: one cannot be made.
    """
    made = []
    for setting, name in account_names(config.node).items():
        if not _exists(name):
            _make(name)
            made.append(name)
        find_account(setting, name)
    return made


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _make(name: str) -> None:
    if os.geteuid() != 0:
        raise Denied(
            f"only root can make the account {name}; or pass --no-accounts and make it yourself"
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
