"""The administrator's settings: /etc/bootseer/bootseer.toml, checked, with where each came from.

Imported by the prolog's hook path: the standard library only (tomli on Python 3.10).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from bootseer.errors import ConfigError

DEFAULT_PATH = "/etc/bootseer/bootseer.toml"
MAX_BYTES = 1024 * 1024

_USER_NAMES = (None, "home", "user", "uid")  # None: text after the last brace


class User(NamedTuple):
    """The user whom settings with braces are about."""

    name: str
    uid: int
    home: str

    def fill(self, template: str) -> str:
        """Put the user into a setting."""
        return template.format(home=self.home, user=self.name, uid=self.uid)


class Setting(NamedTuple):
    """One setting: its default (which also fixes its type), its limits, and what it is for."""

    default: Any
    minimum: float
    maximum: float
    help: str
    is_template: bool = False  # to be filled by `User.fill`
    is_power_of_two: bool = False
    items: str = "absolute paths"  # what a list is of


_ITEMS = {
    "absolute paths": re.compile(r"/.*"),
    "digests of images": re.compile(r"[0-9a-f]{64}"),
    "ways: copy, file": re.compile(r"copy|file"),
    "GROUP=URL": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*=(/|[a-z0-9]+://).+"),
}


SETTINGS: dict[str, Setting] = {
    "store.url": Setting(
        "file://{home}/.bootseer",
        0,
        0,
        "where warm plans, hot sets and events live; {home}, {user} and {uid} are the job's user's",
        is_template=True,
    ),
    "store.shared_bucket": Setting(
        False,
        0,
        0,
        "store.url may be one place for all users in an object store: its policy says who writes",
    ),
    "store.deadline_s": Setting(10.0, 0.1, 600, "longest one operation on the store may take"),
    "hdfs.conf_dir": Setting(
        "", 0, 0, "Hadoop's configuration; empty: HADOOP_CONF_DIR's if set, else /etc/hadoop/conf"
    ),
    "hdfs.kerberos_cache": Setting(
        "",
        0,
        0,
        "the user's Kerberos tickets, FILE:/tmp/krb5cc_{uid} for one; empty: Kerberos' own default",
        is_template=True,
    ),
    "hdfs.kerberos_principal": Setting(
        "{user}", 0, 0, "whose tickets to take from hdfs.kerberos_cache", is_template=True
    ),
    "aws.profile": Setting(
        "", 0, 0, "profile of the user's ~/.aws/credentials and ~/.aws/config; empty: default"
    ),
    "node.run_dir": Setting("/run/bootseer", 0, 0, "state of the jobs on this node"),
    "node.service_user": Setting(
        "bootseer", 0, 0, "account without rights of its own, as which jobs are looked after"
    ),
    "node.cache_user": Setting(
        "bootseer-cache", 0, 0, "account without rights of its own, whose the block cache is"
    ),
    "node.cache_dir": Setting("/var/cache/bootseer", 0, 0, "what outlives a job on this node"),
    "cache.quota_gib": Setting(
        100.0, 0, 1e6, "what blocks of images may take up in node.cache_dir, of all jobs together"
    ),
    "cache.free_share": Setting(
        0.1, 0, 0.9, "share of the file system of node.cache_dir that they leave free"
    ),
    "cache.user_share": Setting(
        0.5, 0.01, 1, "share of cache.quota_gib that the entries of one user may take up"
    ),
    "prolog.wait_s": Setting(
        0.0, 0, 3600, "how long the prolog waits for the hot set, without --bootseer-wait"
    ),
    "prolog.max_wait_s": Setting(60.0, 0, 3600, "longest that --bootseer-wait may ask for"),
    "epilog.deadline_s": Setting(15.0, 5, 600, "longest the epilog may take, publishing included"),
    "prefetch.mib_per_s": Setting(
        0.0,
        0,
        1e6,
        "how fast a node reads ahead for a job, image and checkpoint together; 0: freely",
    ),
    "checkpoint.mountpoints": Setting(
        [], 0, 0, "folders of the nodes where any job may have its checkpoint mounted, for itself"
    ),
    "checkpoint.unit_mib": Setting(
        4, 1, 64, "length of a stripe unit of files that jobs write", is_power_of_two=True
    ),
    "checkpoint.width": Setting(16, 1, 128, "parts that a file is written to at once"),
    "checkpoint.streams": Setting(
        24, 1, 256, "reads of the store at once, of all files of a mount"
    ),
    "checkpoint.read_memory_mib": Setting(
        256, 64, 65536, "what a mount may hold of files that are being read"
    ),
    "checkpoint.write_memory_mib": Setting(
        192, 64, 65536, "what a mount may hold of files that are being written"
    ),
    "checkpoint.spill_dir": Setting(
        "/var/tmp", 0, 0, "folder of the node for what jobs write out of order; theirs to write in"
    ),
    "checkpoint.spill_gib": Setting(
        8.0, 0, 1e6, "how much of one file may be written out of order"
    ),
    "checkpoint.memory_share": Setting(
        0.5, 0, 0.9, "share of the free memory that checkpoints are read ahead into"
    ),
    "image.store_url": Setting(
        "",
        0,
        0,
        "where images are that bootseer:// names; empty: in each user's store.url",
        is_template=True,
    ),
    "image.store_group": Setting(
        "", 0, 0, "group whose members may write in image.store_url; empty: its owner alone"
    ),
    "image.shared_bucket": Setting(
        False,
        0,
        0,
        "image.store_url may be one place for all users in an object store",
    ),
    "image.io_deadline_s": Setting(
        45.0,
        1,
        3600,
        "longest that a read of a served image waits for the store; then an error. Less than "
        "Slurm's UnkillableStepTimeout, for some who wait cannot be killed",
    ),
    "image.fill_mib_per_s": Setting(
        50.0,
        0,
        1e6,
        "how fast the rest of a served image is brought to the nodes of a job, all together, while "
        "nobody reads it; 0: not at all",
    ),
    "image.importer": Setting(
        False,
        0,
        0,
        "Pyxis has bootseer-importer as its importer: the prolog begins to serve what it will ask",
    ),
    "image.keep_imports": Setting(
        True, 0, 0, "what bootseer-importer had to import is put where images are"
    ),
    "image.pin": Setting(
        False,
        0,
        0,
        "a name that leads to another image than in the job's last run is not served",
    ),
    "image.pack_copies": Setting(
        0,
        0,
        512,
        "machines that keep a hot pack, where the store has such a thing; 0: from the job's nodes",
    ),
    "image.kernel_mount": Setting(
        [],
        0,
        0,
        "digests of images that the kernel may mount, as a tree for their jobs",
        items="digests of images",
    ),
    "image.ways": Setting(
        ["copy", "file"],
        0,
        0,
        "ways that may be chosen for an image beside reading from the store what is needed: all of "
        "it (copy), or from the file that it was added from (file)",
        items="ways: copy, file",
    ),
    "env.scratch_dir": Setting(
        "/var/tmp", 0, 0, "folder of the node for the squashfs of an environment that is captured"
    ),
    "env.keep_days": Setting(
        30.0, 0, 36500, "days since its last use after which an environment goes; 0: never"
    ),
    "env.quota_gib": Setting(
        100.0, 0, 1e6, "what a user's environments may take up in the store; 0: no limit"
    ),
    "env.shared": Setting(
        [], 0, 0, "stores of environments that Unix groups share: GROUP=URL", items="GROUP=URL"
    ),
    "env.shared_bucket": Setting(
        False,
        0,
        0,
        "env.shared may have one place for all users in an object store",
    ),
    "image.window_s": Setting(
        300.0, 1, 86400, "start-up window: recording and pinning end with it"
    ),
    "image.sample_interval_s": Setting(0.25, 0.05, 10, "how often residency is sampled"),
    "image.memory_share": Setting(
        0.25, 0, 0.9, "share of the free memory that all hot sets may pin"
    ),
    "image.streams": Setting(16, 1, 256, "parallel reads of the prefetch"),
    "image.traces_per_run": Setting(4, 1, 64, "nodes of one run whose traces are kept"),
    "image.runs_kept": Setting(5, 1, 100, "newest runs whose traces are merged"),
}


class Config:
    """Effective settings by dotted name, and the names that the file sets."""

    def __init__(self, values: dict[str, Any], path: str, from_file: frozenset[str]) -> None:
        """Hold checked settings."""
        self.values = values
        self.path = path
        self.from_file = from_file

    def __getitem__(self, name: str) -> Any:
        """Return the effective value of a setting."""
        return self.values[name]


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
    values = {name: setting.default for name, setting in SETTINGS.items()}
    given = dict(_flatten(document))
    for name, value in given.items():
        if name not in SETTINGS:
            section = name.split(".")[0] + "."
            known = ", ".join(sorted(n for n in SETTINGS if n.startswith(section)))
            raise ConfigError(
                f"{path}: unknown setting {name}; known: {known or ', '.join(sorted(SETTINGS))}"
            )
        values[name] = _check(path, name, value, SETTINGS[name])
    return Config(values, path, frozenset(given))


def read_toml(text: str) -> dict[str, Any]:
    """Return what TOML says.

    Raises:
        ValueError: it is none.
    """
    # Imported where there is something to read: a prolog waits 5 ms for it.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _flatten(document: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in document.items():
        if isinstance(value, dict):
            flat += _flatten(value, f"{prefix}{key}.")
        else:
            flat.append((prefix + key, value))
    return flat


def _check(path: str, name: str, value: Any, setting: Setting) -> Any:
    kind = type(setting.default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{path}: {name} = {value!r} is not a {kind.__name__}")
    if kind is list and not all(
        type(item) is str and _ITEMS[setting.items].fullmatch(item) for item in value
    ):
        raise ConfigError(f"{path}: {name} = {value!r}: not a list of {setting.items}")
    if kind in (int, float) and not setting.minimum <= value <= setting.maximum:
        raise ConfigError(
            f"{path}: {name} = {value} is not between {setting.minimum:g} and {setting.maximum:g}"
        )
    if setting.is_power_of_two and value & (value - 1):
        raise ConfigError(f"{path}: {name} = {value} is not a power of two")
    if setting.is_template and not _is_template(value):
        raise ConfigError(
            f"{path}: {name} = {value!r}: only {{home}}, {{user}} and {{uid}} may stand in braces"
        )
    return value


def is_per_user(value: str) -> bool:
    """Tell whether each user has a value of this setting of their own."""
    return any(name for _, name, _, _ in _fields(value))


def _fields(template: str) -> Iterable[tuple[str, str | None, str | None, str | None]]:
    from string import Formatter  # as with TOML

    return Formatter().parse(template)


def _is_template(value: str) -> bool:
    try:
        return all(
            name in _USER_NAMES and not spec and not conversion
            for _, name, spec, conversion in _fields(value)
        )
    except ValueError:
        return False
