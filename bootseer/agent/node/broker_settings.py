"""The settings that a job's prolog passes to the broker.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

UNPUBLISHED = "unpublished"
"""Folder below `node.cache_dir` for events that could not be published."""


class NodeAccount(NamedTuple):
    """An account of the node: its name and numbers."""

    name: str
    uid: int
    gid: int


class BrokerSettings(NamedTuple):
    """The settings that the broker uses; the supervisor reads all settings itself.

    Attributes:
        account: the service account, under which the supervisor runs.
        cache_account: the account that owns the block cache and runs its lender.
        run_dir, cache_dir: `node.run_dir` and `node.cache_dir`.
        quota_bytes, free_share, user_share: limits of the block cache.
        kernel_mount: digests of images that the kernel may mount.
    """

    account: NodeAccount
    cache_account: NodeAccount
    run_dir: str
    cache_dir: str
    quota_bytes: int
    free_share: float
    user_share: float
    kernel_mount: list[str]

    @property
    def blocks(self) -> str:
        return f"{self.cache_dir}/images"

    @property
    def scratch(self) -> str:
        """Return the folder for files that jobs write over mounted environments."""
        return f"{self.cache_dir}/environments"

    @property
    def unpublished(self) -> str:
        return f"{self.cache_dir}/{UNPUBLISHED}"

    @classmethod
    def read(cls, document: dict[str, Any]) -> BrokerSettings:
        """Decode the settings from JSON.

        Raises:
            TypeError, KeyError: ``document`` does not hold them.
        """
        accounts = {name: NodeAccount(*document[name]) for name in ("account", "cache_account")}
        return cls(**document | accounts)
