"""How a setting is declared, and how a value for it is checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from bootseer.errors import ConfigError

# Not compiled here: a prolog waits for that, and mostly has no list to check.
_ITEMS = {
    "absolute paths": r"/.*",
    "digests of images": r"[0-9a-f]{64}",
    "ways: copy, file": r"copy|file",
    "GROUP=URL": r"[A-Za-z0-9_][A-Za-z0-9_.-]*=(/|[a-z0-9]+://).+",
}

_USER_NAMES = (None, "home", "user", "uid")  # None: text after the last brace


class User(NamedTuple):
    """The user for whom templates are filled."""

    name: str
    uid: int
    home: str

    def fill(self, template: str) -> str:
        """Fill a template with this user's name, uid and home."""
        return template.format(home=self.home, user=self.name, uid=self.uid)


Value: TypeAlias = bool | int | float | str | list[str]
_T = TypeVar("_T", bool, int, float, str, list[str])


class Setting(Generic[_T]):
    """One setting, declared as an attribute of its section and read as that.

    Attributes:
        name: dotted, with the section's.
        default, kind: value where the file does not set it, and its type.
        purpose: one line for people.
        minimum, maximum: limits of a number.
        is_template: `User.fill` puts the user into the value.
        is_power_of_two: the value must be one.
        items: what a list may contain, a key of `_ITEMS`.
    """

    def __init__(
        self,
        default: _T,
        purpose: str,
        minimum: float = 0,
        maximum: float = 0,
        *,
        is_template: bool = False,
        is_power_of_two: bool = False,
        items: str = "absolute paths",
    ) -> None:
        self.default: _T = default
        self.kind: type[Value] = type(default)
        self.purpose = purpose
        self.minimum = minimum
        self.maximum = maximum
        self.is_template = is_template
        self.is_power_of_two = is_power_of_two
        self.items = items

    def __set_name__(self, section: type[Section], name: str) -> None:
        self.name = f"{section.name()}.{name}"
        SETTINGS[self.name] = self

    def __get__(self, section: Section, kind: type[Section]) -> _T:
        return cast(_T, section.values[self.name])  # `check` has seen to the type

    def __set__(self, section: Section, value: NoReturn) -> NoReturn:
        raise AttributeError(f"{self.name} is only read")

    def check(self, path: str, value: object) -> Value:
        """Check a value from a file or another process, and return it with the setting's type.

        Raises:
            ConfigError: it is not acceptable.
        """
        where = f"{path}: {self.name} ="
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind:
            raise ConfigError(f"{where} {value!r} is not a {self.kind.__name__}")
        if isinstance(value, list) and not all(
            type(item) is str and re.fullmatch(_ITEMS[self.items], item) for item in value
        ):
            raise ConfigError(f"{where} {value!r}: not a list of {self.items}")
        if (
            self.kind in (int, float)
            and isinstance(value, int | float)
            and not self.minimum <= value <= self.maximum
        ):
            raise ConfigError(
                f"{where} {value} is not between {self.minimum:g} and {self.maximum:g}"
            )
        if self.is_power_of_two and isinstance(value, int) and value & (value - 1):
            raise ConfigError(f"{where} {value} is not a power of two")
        if self.is_template and isinstance(value, str) and not _is_template(value):
            raise ConfigError(
                f"{where} {value!r}: only {{home}}, {{user}} and {{uid}} may stand in braces"
            )
        return value


SETTINGS: dict[str, Setting[Any]] = {}  # of every type
"""All of them, by name."""


class Section:
    """Effective settings of one section of the file."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values

    @classmethod
    def name(cls) -> str:
        """Return its name in the file."""
        return cls.__name__.removesuffix("Settings").lower()


def is_per_user(value: str) -> bool:
    """Tell whether a template has a different value for each user."""
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
