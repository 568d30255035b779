"""What a broker is told of the settings when its job's prolog runs.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

UNPUBLISHED = "unpublished"
"""Folder in that of the node's for what could not be published."""


class NodeAccount(NamedTuple):
    """An account of the node: its name and numbers."""

    name: str
    uid: int
    gid: int


class BrokerSettings(NamedTuple):
    """The settings that root's part of an agent goes by; the supervisor reads all of them itself.

    Attributes:
        account: the service account, whose rights the supervisor has.
        cache_account: whose rights the lender of the block cache has, and whose that is.
        run_dir, cache_dir: `node.run_dir` and `node.cache_dir`.
        quota_bytes, free_share, user_share: of the block cache.
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
        """Folder of the block cache."""
        return f"{self.cache_dir}/images"

    @property
    def scratch(self) -> str:
        """Folder for what jobs write over mounted environments."""
        return f"{self.cache_dir}/environments"

    @property
    def unpublished(self) -> str:
        """See `UNPUBLISHED`."""
        return f"{self.cache_dir}/{UNPUBLISHED}"

    @classmethod
    def read(cls, document: dict[str, Any]) -> BrokerSettings:
        """Read them back from JSON.

        Raises:
            TypeError, KeyError: those are none.
        """
        accounts = {name: NodeAccount(*document[name]) for name in ("account", "cache_account")}
        return cls(**document | accounts)
