"""Look up the node's accounts and build a broker's settings.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import pwd
from itertools import starmap

from bootseer.agent.node.broker_settings import BrokerSettings, NodeAccount
from bootseer.config import Config, NodeSettings
from bootseer.errors import ConfigError

_GIB = 1 << 30


def account_names(node: NodeSettings) -> dict[str, str]:
    """Return the names of the node's accounts, by setting."""
    return {"node.service_user": node.service_user, "node.cache_user": node.cache_user}


def find_account(setting: str, name: str) -> NodeAccount:
    """Look an account up.

    Args:
        setting: the setting that names it.
        name: the account's name.

    Raises:
        ConfigError: there is no such account, or it is root.
    """
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"there is no account {name!a} on this node: create it with `bootseer plugin "
            f"install`, or name another as {setting}"
        ) from error
    if found.pw_uid == 0 or found.pw_gid == 0:
        raise ConfigError(f"{setting} {name!a} is root; name an unprivileged account")
    return NodeAccount(found.pw_name, found.pw_uid, found.pw_gid)


def broker_settings(config: Config) -> BrokerSettings:
    """Return the settings that a broker gets.

    Raises:
        ConfigError: one of the two accounts is missing, or both are the same.
    """
    account, cache_account = starmap(find_account, account_names(config.node).items())
    if account.uid == cache_account.uid:
        raise ConfigError("node.service_user and node.cache_user must be two different accounts")
    return BrokerSettings(
        account,
        cache_account,
        run_dir=config.node.run_dir,
        cache_dir=config.node.cache_dir,
        quota_bytes=int(config.cache.quota_gib * _GIB),
        free_share=config.cache.free_share,
        user_share=config.cache.user_share,
        kernel_mount=list(config.image.kernel_mount),
    )
