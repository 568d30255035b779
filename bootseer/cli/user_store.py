"""Run commands on a user's store."""

from __future__ import annotations

import os
import pwd
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from bootseer import config as settings
from bootseer.agent.node.privileges import drop_privileges
from bootseer.errors import ConfigError

if TYPE_CHECKING:
    from bootseer.store.api.base import Store

T = TypeVar("T")


def with_store(user: str | None, work: Callable[[Store, str], Awaitable[T]]) -> T:
    """Run ``work`` on a user's store and name; by default the caller's.

    Root takes on the named user's rights permanently: the store's content is untrusted, and files
    written there must belong to the user.

    Raises:
        ConfigError: there is no such user.
    """
    import trio

    from bootseer.store.from_settings import connect

    owner = take_on(user)
    config = settings.load()

    async def run() -> T:
        return await work(connect(config, owner), owner.name)

    return trio.run(run)


def take_on(user: str | None) -> settings.User:
    """Return the owner of the store; root takes on a named user's rights for good.

    Raises:
        ConfigError: there is no such user.
    """
    try:
        entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise ConfigError(f"there is no user {user or os.getuid()}") from error
    if os.geteuid() == 0 and user:
        drop_privileges(entry.pw_name, entry.pw_uid, entry.pw_gid, keep_lock=False)
    return settings.User(entry.pw_name, entry.pw_uid, entry.pw_dir)
