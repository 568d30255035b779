"""Typed messages as JSON: each is a NamedTuple, and every field is checked on receipt.

A message is an object: its operation under "op", and its fields by name. Fields that a receiver
does not know are ignored, and those that are missing have their defaults, so a process may be newer
or older than the other one. NamedTuples inside a message are lists of their fields, dataclasses are
objects.

Imports only modules of the standard library that load fast: hooks use this, and, with Python 3.8 or
later, `bootseer.env.client` in containers.
"""

from __future__ import annotations

import json
from typing import (
    Any,
    Callable,
    Generic,
    Mapping,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from bootseer.errors import Corrupt

M = TypeVar("M")
Read = Callable[[Any], Any]
"""Converts a decoded JSON value to a field's type; raises ValueError if it does not fit."""
Write = Callable[[Any], Any]
"""Converts a field's value to a JSON value."""

_LIMIT = 2**63


class Messages(Generic[M]):
    """The messages that one process sends another, by operation."""

    def __init__(self, name: str, kinds: Mapping[str | None, type[Any]]) -> None:
        """Take the message classes.

        Args:
            name: description for errors, such as "message from the worker".
            kinds: the class of each operation; None for a message without one. A class may have a
                method ``check``, which raises Corrupt for invalid values of the right type.
        """
        self.name = name
        self._kinds = dict(kinds)
        self._operations = {kind: operation for operation, kind in self._kinds.items()}

    @classmethod
    def by_union(cls, name: str, union: Any) -> Messages[M]:
        """Return messages of a union's classes, each named by its class."""
        return cls(name, {kind.__name__: kind for kind in get_args(union)})

    def encode(self, message: M) -> bytes:
        """Encode a message, without line breaks."""
        operation = self._operations[type(message)]
        return encode(message) if operation is None else encode(message, op=operation)

    def decode(self, data: bytes | bytearray) -> M:
        """Decode a message and check it.

        Raises:
            Corrupt: it is invalid.
        """
        document = read_object(data, self.name)
        operation = document.get("op")
        is_name = operation is None or isinstance(operation, str)
        kind = self._kinds.get(operation) if is_name else None
        if kind is None:
            raise Corrupt(f"{self.name}: unknown operation {operation!r:.100}")
        message: M = from_object(document, kind, self.name)
        return message


def encode(message: Any, **more: object) -> bytes:
    """Encode a NamedTuple as an object with additional fields, without line breaks."""
    document = {**more, **message._asdict()}
    for field, write in _writers(type(message)).items():
        document[field] = write(document[field])
    return json.dumps(document, separators=(",", ":"), default=_fields).encode()


def read_object(data: bytes | bytearray, name: str) -> dict[str, Any]:
    """Decode a JSON object without checking its fields.

    Raises:
        Corrupt: it is not a JSON object.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{name}: not JSON") from error
    if not isinstance(document, dict):
        raise Corrupt(f"{name}: not a JSON object")
    return document


def from_object(document: Mapping[str, Any], kind: type[M], name: str) -> M:
    """Convert a decoded object to a NamedTuple or dataclass, and check it.

    Args:
        document: the object.
        kind: the class.
        name: of the message, for errors.

    Raises:
        Corrupt: a field is missing or invalid.
    """
    values = {}
    for field, read in _readers(kind).items():
        if field in document:
            try:
                values[field] = read(document[field])
            except (ValueError, TypeError) as error:
                raise Corrupt(f"{name}: field {field!r} is not acceptable") from error
    try:
        return _checked(kind(**values), name)
    except TypeError as error:
        raise Corrupt(f"{name}: {error}") from error


def _checked(message: M, name: str) -> M:
    check = getattr(message, "check", None)
    if check is not None:
        check(name)
    return message


def check_not_negative(message: Any, name: str) -> None:
    """Check that no number of a message is negative.

    Raises:
        Corrupt: a number is negative.
    """
    for field, value in message._asdict().items():
        if isinstance(value, (int, float)) and value < 0:
            raise Corrupt(f"{name}: field {field!r} is below 0")


def _fields(value: Any) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


_forms: dict[Any, tuple[Write, Read]] = {}
_known_readers: dict[type[Any], dict[str, Read]] = {}
_known_writers: dict[type[Any], dict[str, Write]] = {}


def add_form(hint: Any, write: Write, read: Read) -> None:
    """Register how fields of a type are encoded in JSON.

    Args:
        hint: the type, as annotated.
        write, read: the encoder and the decoder; ``read`` raises Corrupt or ValueError.
    """
    _forms[hint] = (write, read)


def _writers(kind: type[Any]) -> dict[str, Write]:
    if kind not in _known_writers:
        hints = get_type_hints(kind) if _forms else {}
        found = {name: _forms[hint][0] for name, hint in hints.items() if hint in _forms}
        _known_writers[kind] = found
    return _known_writers[kind]


def _readers(kind: type[Any]) -> dict[str, Read]:
    if kind not in _known_readers:
        hints = get_type_hints(kind)
        names = kind._fields if hasattr(kind, "_fields") else tuple(kind.__dataclass_fields__)
        _known_readers[kind] = {name: _reader(hints[name]) for name in names}
    return _known_readers[kind]


def _reader(hint: Any) -> Read:
    """Return the decoder of a type."""
    if hint in _forms:
        return _forms[hint][1]
    if hint is Any or hint is object:
        return lambda value: value
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return _list_reader(inner[0])
    if origin is tuple:
        return _tuple_reader(inner)
    if origin is dict:
        return _dict_reader(inner[1])
    if origin is not None:
        return _union_reader(inner)
    if hasattr(hint, "_fields"):
        return _row_reader(hint)
    if hasattr(hint, "__dataclass_fields__"):
        return lambda value: from_object(_is(dict, value), hint, hint.__name__)
    return _SCALARS[hint]


def _is(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"not a {kind.__name__}")
    return value


def _int(value: Any) -> int:
    if type(value) is not int or not -_LIMIT <= value < _LIMIT:
        raise ValueError("not a whole number of 64 bits")
    return value


def _float(value: Any) -> float:
    if type(value) is int:
        return float(_int(value))
    if type(value) is not float or not abs(value) < float("inf"):
        raise ValueError("not a number")
    return value


_SCALARS: dict[Any, Read] = {
    int: _int,
    float: _float,
    bool: lambda value: _is(bool, value),
    str: lambda value: _is(str, value),
    type(None): lambda value: _is(type(None), value),
}


def _list_reader(inner: Any) -> Read:
    read = _reader(inner)
    return lambda value: [read(item) for item in _is(list, value)]


def _tuple_reader(inner: tuple[Any, ...]) -> Read:
    if inner[-1] is Ellipsis:
        read = _reader(inner[0])
        return lambda value: tuple([read(item) for item in _is(list, value)])
    reads = [_reader(each) for each in inner]
    return lambda value: tuple(_row(value, reads))


def _row_reader(kind: Any) -> Read:
    """Return the decoder of a NamedTuple inside a message."""
    reads = list(_readers(kind).values())
    if all(read is _int for read in reads) and not hasattr(
        kind, "check"
    ):  # there may be a hundred thousand of them
        return lambda value: kind._make(_integers(value, len(reads)))
    return lambda value: _checked(kind._make(_row(value, reads)), kind.__name__)


def _row(value: Any, reads: list[Read]) -> list[Any]:
    if len(_is(list, value)) != len(reads):
        raise ValueError("of another length")
    return [read(value[at]) for at, read in enumerate(reads)]


def _integers(value: Any, count: int) -> list[int]:
    if len(_is(list, value)) != count:
        raise ValueError("of another length")
    for number in value:
        _int(number)
    return list(value)


def _dict_reader(inner: Any) -> Read:
    read = _reader(inner)
    return lambda value: {key: read(item) for key, item in _is(dict, value).items()}


def _union_reader(inner: tuple[Any, ...]) -> Read:
    reads = [_reader(each) for each in inner]

    def read_first(value: Any) -> Any:
        for read in reads:
            try:
                return read(value)
            except ValueError:
                continue
        raise ValueError("of none of the types")

    return read_first
