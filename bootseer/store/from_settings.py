"""A user's store as the product uses it: with deadlines, and with retries of what may pass."""

from __future__ import annotations

import grp

import trio

from bootseer.config import Config, EnvSettings, ImageSettings, StoreSettings, User, is_per_user
from bootseer.errors import ConfigError
from bootseer.store.api.base import Store
from bootseer.store.arrow import filesystem
from bootseer.store.arrow.aws_profile import AwsOptions
from bootseer.store.from_url import open_store
from bootseer.store.hdfs.options import HdfsOptions, find_conf_dir
from bootseer.store.local.owner_rules import TrustedOwners
from bootseer.store.wrappers.backoff import Backoff
from bootseer.store.wrappers.limit import LimitStore
from bootseer.store.wrappers.retry import RetryStore

MAX_OPERATIONS = 16
"""At once, of one process: enough to hide the latency of small objects, few for the servers."""


def connect(
    config: Config,
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
        ConfigError: the URL is not of a kind that this version can use, or one for all users.
    """
    check_bucket(config.store.url, config.store)
    url = user.fill(config.store.url)
    return connect_to(url, config, user, operations=operations, backoff=backoff)


def connect_images(
    config: Config,
    user: User,
    *,
    operations: int = MAX_OPERATIONS,
    backoff: Backoff | None = None,
) -> Store:
    """Open the store that has a user's images: the one that all share, or the user's own.

    Args:
        config, user, operations, backoff: as for `connect_to`.

    Raises:
        ConfigError: as for `connect`, or there is no such group as `image.store_group`.
    """
    if not config.image.store_url:
        return connect(config, user, operations=operations, backoff=backoff)
    check_bucket(config.image.store_url, config.image)
    return connect_to(
        user.fill(config.image.store_url),
        config,
        user,
        trusted=image_owners(config, user),
        operations=operations,
        backoff=backoff,
    )


def image_owners(config: Config, user: User) -> TrustedOwners:
    """Say who may write in the image store that users share.

    Raises:
        ConfigError: there is no such group as `image.store_group`.
    """
    group = config.image.store_group
    if not group:
        return TrustedOwners(user.name, user.uid)
    gid = _gid("image.store_group", group)
    return TrustedOwners(user.name, user.uid, group, gid, widens=True)


def connect_shared(url: str, group: str, config: Config, user: User) -> Store:
    """Open a store of environments that a group shares; its members are trusted.

    Args:
        url: as the administrator has set it.
        group: its name.
        config, user: as for `connect_to`.

    Raises:
        ConfigError: as for `connect`, or there is no such group.
    """
    check_bucket(url, config.env)
    gid = _gid("env.shared", group)
    trusted = TrustedOwners(user.name, user.uid, group, gid, setting="env.shared")
    return connect_to(user.fill(url), config, user, trusted=trusted)


def check_bucket(url: str, section: StoreSettings | ImageSettings | EnvSettings) -> None:
    """Refuse one place for all users in an object store, which tells no owners.

    Args:
        url: as the administrator has set it, with its braces.
        section: of the settings; its `shared_bucket` allows it.

    Raises:
        ConfigError: the first user who writes there would have all others run it.
    """
    if url.partition("://")[0] not in filesystem.SCHEMES or is_per_user(url):
        return
    if not section.shared_bucket:
        raise ConfigError(
            f"store {filesystem.redacted(url)!r} is the same for all users, and an object store "
            "does not tell who wrote what: a user could have others run it. The administrator "
            f"puts {{user}} into the URL, or sets {section.name()}.shared_bucket = true after the "
            "bucket's policy lets only trusted users write there"
        )


def connect_to(
    url: str,
    config: Config,
    user: User,
    *,
    private: bool = True,
    trusted: TrustedOwners | None = None,
    operations: int = MAX_OPERATIONS,
    backoff: Backoff | None = None,
) -> Store:
    """Open the store at a URL as a user, as `connect` does the configured one.

    Args:
        url: of the store.
        config: how to reach it.
        user: as whom.
        private: in a directory or in HDFS, only this user may own and write it.
        trusted: of a store that many users run things from, who may; then it is not private.
        operations: how many at once.
        backoff: how often to try again; None for the default.
    """
    is_own = private and trusted is None
    inner = open_store(
        url,
        owner_uid=user.uid if is_own else None,
        owner_name=user.name if is_own else "",
        trusted=trusted,
        hdfs=hdfs_options(config, user),
        aws=AwsOptions(user.home, user.uid, config.aws.profile),
    )
    limit = trio.CapacityLimiter(operations)
    limited = LimitStore(inner, deadline_s=config.store.deadline_s, operations=limit)
    return RetryStore(limited, backoff)


def _gid(setting: str, group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ConfigError(f"{setting}: this node has no group {group!a}") from error


def hdfs_options(config: Config, user: User) -> HdfsOptions:
    """Take what concerns HDFS out of the settings.

    Raises:
        ConfigError: the configured folder of Hadoop's configuration is not there.
    """
    conf_dir = find_conf_dir(config.hdfs.conf_dir)
    cache = user.fill(config.hdfs.kerberos_cache)
    principal = user.fill(config.hdfs.kerberos_principal) if cache else ""
    return HdfsOptions(conf_dir, cache, principal)
