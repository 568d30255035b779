"""Tell whether this BootSeer, and its plugin, come from a package of the system's.

A package is made by `make packages`. Its virtual environment has a file that names it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/opt/bootseer")
CURRENT = FOLDER / "current"
"""A link to the folder of the installed version."""
LIBEXEC = CURRENT / "libexec"
PLUGIN = Path("/usr/lib/bootseer/bootseer.so")
LINE = Path("/etc/bootseer/plugstack.conf")
"""The plugin's line, a configuration file of its package; plugstack.conf.d has a link to it."""
NAME = "package.json"


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the system's.

    Attributes:
        version: of the package, such as "0.1.0-1+deb12".
        plugin: the name of the package with the plugin.
        is_rpm: whether it is an RPM; otherwise it is one of Debian's.
    """

    version: str
    plugin: str
    is_rpm: bool

    def install_again(self, name: str) -> str:
        """Return the command that puts the files of one of our packages back."""
        if self.is_rpm:
            return f"dnf reinstall {name}"
        return f"apt-get install --reinstall {name}"


def package(environment: Path | None = None) -> Package | None:
    """Return the package that has this virtual environment, or another; None for others."""
    file = (environment or Path(sys.prefix)) / NAME
    try:
        values = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    return Package(values["version"], values["plugin"], values["is_rpm"])


def plugin_package() -> Package | None:
    """Return the package that has this virtual environment, if the plugin is from one too."""
    return package() if PLUGIN.exists() else None
