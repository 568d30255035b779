"""The administrator's settings: /etc/bootseer/bootseer.toml, checked, with where each came from.

Imported by the prolog's hook path: the standard library only (tomli on Python 3.10).
"""

from bootseer.config.file import Config, load, read_toml, setting_line
from bootseer.config.sections import EnvSettings, ImageSettings, NodeSettings, StoreSettings
from bootseer.config.setting import SETTINGS, User, is_per_user

__all__ = [
    "SETTINGS",
    "Config",
    "EnvSettings",
    "ImageSettings",
    "NodeSettings",
    "StoreSettings",
    "User",
    "is_per_user",
    "load",
    "read_toml",
    "setting_line",
]
