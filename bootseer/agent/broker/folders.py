"""The folders that the broker makes for the accounts that look after a job: they cannot.

Standard library only.
"""

from __future__ import annotations

import os

from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.job import JobFolder
from bootseer.folder_ownership import check_alone, make_for


def make_folders(folder: JobFolder, settings: BrokerSettings) -> None:
    """Make them, unless they are there.

    Raises:
        OSError: one cannot be made.
        Denied: the node's folder is not root's alone.
    """
    make_for(folder.state, *settings.account[1:])
    os.makedirs(settings.cache_dir, 0o755, exist_ok=True)
    check_alone(settings.cache_dir)
    make_for(settings.unpublished, *settings.account[1:])
    make_for(settings.blocks, *settings.cache_account[1:])
