"""What a broker is told of the settings when its job's prolog runs.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bootseer.agent.node.account import Account, service_account

_GIB = 1 << 30


class BrokerSettings(NamedTuple):
    """The settings that root's part of an agent goes by; the supervisor reads all of them itself.

    Attributes:
        user, uid, gid: the service account.
        run_dir, cache_dir: `node.run_dir` and `node.cache_dir`.
        quota_bytes, free_share, user_share: of the block cache.
        kernel_mount: digests of images that the kernel may mount.
    """

    user: str
    uid: int
    gid: int
    run_dir: str
    cache_dir: str
    quota_bytes: int
    free_share: float
    user_share: float
    kernel_mount: list[str]

    @property
    def account(self) -> Account:
        """The service account."""
        return Account(self.user, self.uid, self.gid)

    @classmethod
    def of(cls, config: Any) -> BrokerSettings:
        """Take them from all settings.

        Raises:
            ConfigError: there is no service account.
        """
        return cls(
            *service_account(config["node.service_user"]),
            run_dir=config["node.run_dir"],
            cache_dir=config["node.cache_dir"],
            quota_bytes=int(config["cache.quota_gib"] * _GIB),
            free_share=config["cache.free_share"],
            user_share=config["cache.user_share"],
            kernel_mount=list(config["image.kernel_mount"]),
        )
