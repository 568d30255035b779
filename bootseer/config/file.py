"""The effective settings: those of the file, and defaults."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from bootseer.config.sections import (
    AwsSettings,
    CacheSettings,
    CheckpointSettings,
    EnvSettings,
    EpilogSettings,
    HdfsSettings,
    ImageSettings,
    NodeSettings,
    PeersSettings,
    PrefetchSettings,
    PrologSettings,
    StoreSettings,
)
from bootseer.config.setting import SETTINGS, Value
from bootseer.errors import ConfigError

DEFAULT_PATH = "/etc/bootseer/bootseer.toml"
MAX_BYTES = 1024 * 1024


class Config:
    """Effective settings, by section.

    Attributes:
        values: all of them, by dotted name.
        path: of the file.
        from_file: names of those that the file sets.
    """

    def __init__(self, given: Mapping[str, object], path: str = DEFAULT_PATH) -> None:
        """Check settings given by dotted name; all others have their defaults.

        Raises:
            ConfigError: a name or value is not acceptable. The message names it.
        """
        values: dict[str, Value] = {name: setting.default for name, setting in SETTINGS.items()}
        for name, value in given.items():
            if name not in SETTINGS:
                section = name.split(".")[0] + "."
                known = ", ".join(sorted(n for n in SETTINGS if n.startswith(section)))
                raise ConfigError(
                    f"{path}: unknown setting {name}; known: {known or ', '.join(sorted(SETTINGS))}"
                )
            values[name] = SETTINGS[name].check(path, value)
        self.values = values
        self.path = path
        self.from_file = frozenset(given)
        self.store = StoreSettings(values)
        self.hdfs = HdfsSettings(values)
        self.aws = AwsSettings(values)
        self.node = NodeSettings(values)
        self.cache = CacheSettings(values)
        self.prolog = PrologSettings(values)
        self.epilog = EpilogSettings(values)
        self.prefetch = PrefetchSettings(values)
        self.peers = PeersSettings(values)
        self.checkpoint = CheckpointSettings(values)
        self.image = ImageSettings(values)
        self.env = EnvSettings(values)


def load(path: str = DEFAULT_PATH) -> Config:
    """Read the settings; a missing file means the defaults.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or holds a key or value that is not
            acceptable. The message names it.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES).decode()
        document = read_toml(text)
    except FileNotFoundError:
        document = {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return Config(dict(_flatten(document)), path)


def read_toml(text: str) -> dict[str, object]:
    """Decode TOML.

    Raises:
        ValueError: it is not TOML.
    """
    # Imported where there is something to read: a prolog waits 5 ms for it.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _flatten(document: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def setting_line(path: str, name: str) -> int:
    """Return the line of the file that sets a setting; 0 if it cannot be told.

    Args:
        path: of the file.
        name: of the setting, dotted.
    """
    section, lines = "", []
    try:
        with open(path, "rb") as file:
            lines = file.read(MAX_BYTES).decode().splitlines()
    except (OSError, ValueError):
        return 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("[") and "=" not in text.partition("#")[0]:
            section = text.partition("#")[0].strip(" []\t")
        else:
            key = text.partition("=")[0].replace('"', "").replace(" ", "")
            if name == (f"{section}.{key}" if section else key):
                return number
    return 0
