"""A user's store as the product uses it: with deadlines, and with retries of what may pass."""

from __future__ import annotations

from typing import Any, Protocol

import trio

from bootseer.config import User
from bootseer.store.backoff import Backoff
from bootseer.store.base import Store
from bootseer.store.hadoop import HdfsOptions, find_conf_dir
from bootseer.store.limit import LimitStore
from bootseer.store.locate import open_store
from bootseer.store.retry import RetryStore

MAX_OPERATIONS = 16
"""At once, of one process: enough to hide the latency of small objects, few for the servers."""


class Settings(Protocol):
    """Effective settings by dotted name: `bootseer.config.Config`, or what was sent of it."""

    def __getitem__(self, name: str, /) -> Any:
        """Return the value of a setting."""
        ...


def connect(
    config: Settings,
    user: User,
    *,
    operations: int = MAX_OPERATIONS,
    backoff: Backoff | None = None,
) -> Store:
    """Open the configured store of a user; nothing is read yet.

    Args:
        config: where stores are and how to reach them.
        user: the only one who may own and write it.
        operations, backoff: as for `connect_to`.

    Raises:
        ConfigError: the URL is not of a kind that this version can use.
    """
    url = user.fill(config["store.url"])
    return connect_to(url, config, user, operations=operations, backoff=backoff)


def connect_images(
    config: Settings,
    user: User,
    *,
    operations: int = MAX_OPERATIONS,
    backoff: Backoff | None = None,
) -> Store:
    """Open the store that has a user's images: the one that all share, or the user's own.

    Args:
        config, user, operations, backoff: as for `connect_to`.
    """
    url = config["image.store_url"] or config["store.url"]
    private = not config["image.store_url"]
    return connect_to(
        user.fill(url), config, user, private=private, operations=operations, backoff=backoff
    )


def connect_to(
    url: str,
    config: Settings,
    user: User,
    *,
    private: bool = True,
    operations: int = MAX_OPERATIONS,
    backoff: Backoff | None = None,
) -> Store:
    """Open the store at a URL as a user, as `connect` does the configured one.

    Args:
        url: of the store.
        config: how to reach it.
        user: as whom.
        private: in a directory, only this user may own and write it; see `LocalStore`.
        operations: how many at once.
        backoff: how often to try again; None for the default.
    """
    owner_uid = user.uid if private else None
    inner = open_store(url, owner_uid=owner_uid, hdfs=hdfs_options(config, user))
    limit = trio.CapacityLimiter(operations)
    limited = LimitStore(inner, deadline_s=config["store.deadline_s"], operations=limit)
    return RetryStore(limited, backoff)


def hdfs_options(config: Settings, user: User) -> HdfsOptions:
    """Take what concerns HDFS out of the settings.

    Raises:
        ConfigError: the configured folder of Hadoop's configuration is not there.
    """
    conf_dir = find_conf_dir(config["hdfs.conf_dir"])
    cache = user.fill(config["hdfs.kerberos_cache"])
    principal = user.fill(config["hdfs.kerberos_principal"]) if cache else ""
    return HdfsOptions(conf_dir, cache, principal)
