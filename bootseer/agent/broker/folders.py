"""Folders that the broker creates for the service and cache accounts.

Imports the standard library only.
"""

from __future__ import annotations

import os

from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.job import JobFolder
from bootseer.folder_ownership import check_alone, make_for


def make_folders(folder: JobFolder, settings: BrokerSettings) -> None:
    """Create the folders that are missing.

    Raises:
        OSError: a folder cannot be created.
        Denied: users other than root can change the node's folder.
    """
    make_for(folder.state, *settings.account[1:])
    os.makedirs(settings.cache_dir, 0o755, exist_ok=True)
    check_alone(settings.cache_dir)
    make_for(settings.unpublished, *settings.account[1:])
    make_for(settings.blocks, *settings.cache_account[1:])
