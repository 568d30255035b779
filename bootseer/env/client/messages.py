"""The messages of `bootseer env run` between client and server, and how they are encoded.

A message is a line of JSON: its name in the field "op", and its fields. Both ends refuse a message
that is not as its class says. `Hello` alone may have fields that the client does not know: it says
what the server can do, and a later version may say more. A field with a default may be missing:
other versions do not send it.
"""

# No `from __future__ import annotations`: the decoder looks the types of fields up.

import json
import math
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple, Type, TypeVar, Union

from bootseer.env.client import key as env_key
from bootseer.env.client.key import KeyPart
from bootseer.errors import Corrupt

VARIABLES = ("PYTHONNOUSERSITE", "TMPDIR", "SLURM_TMPDIR")
"""Variables of the command that decide which findings its result has."""
_MAX_NUMBER = 2**63

# From the server.


class Hello(NamedTuple):
    """The server's first message.

    Attributes:
        locks: the server takes the locks of the targets; see `Locks`.
        image: digest of the client's image, "" for none or unknown.
    """

    locks: bool = False
    image: str = ""


class Refused(NamedTuple):
    """There is no server for this client; instead of `Hello`, and without a name.

    Attributes:
        error: why.
        kind: class of the error.
    """

    error: str
    kind: str = ""


class Notice(NamedTuple):
    """A line for the user."""

    text: str


class KeepWaiting(NamedTuple):
    """The server is still at work."""


class Progress(NamedTuple):
    """How much of a snapshot is unpacked."""

    done_bytes: int
    total_bytes: int


class Restored(NamedTuple):
    """The targets hold the result; the command need not run.

    Attributes:
        how: "mounted", "unpacked", or "there" if the targets held it before.
        key: of the snapshot.
        files: their number.
        bytes: size of their content.
        captured_ns: when the snapshot was captured.
        took_s: time that the restore took.
    """

    how: str
    key: str
    files: int
    bytes: int
    captured_ns: int
    took_s: float


class RunCommand(NamedTuple):
    """The command is to run.

    Attributes:
        why: its result is not captured; "" if it is.
        key: that its result is stored under.
    """

    why: str
    key: str = ""


class CaptureDone(NamedTuple):
    """The client need not wait any longer after the command.

    Attributes:
        why: the result is not stored; "" if it is, or still being stored.
        key: of the snapshot that is stored, "" for none yet.
        files: their number.
        bytes: size of their content.
        findings: number of findings.
    """

    why: str = ""
    key: str = ""
    files: int = 0
    bytes: int = 0
    findings: int = 0


# From the client.


class Locks(NamedTuple):
    """The descriptors that come with this have the locks of the targets.

    The server shares them: if the client ends, nobody else has the targets before the server has
    stopped work there. Sent before `Request`, and only if `Hello` says that the server takes them.
    """


class Request(NamedTuple):
    """Ask for the result of a command.

    Two descriptors come with this for each target: of the folder above it, and of itself.

    Attributes:
        key: parts of the command's key.
        as_empty: parts of the key that it would have if the targets held nothing.
        targets: absolute paths.
        names: of the targets in the folders above them.
        mode: "auto", "mount" or "unpack".
        read_only: nothing needs to be written to the targets afterwards.
        refresh: run the command even if there is a snapshot.
        captures: capture the result if the command runs.
        waits: the client waits until the result is stored.
        wait_s: longest wait for another node that captures the same.
        stays: the client's working folder is a target, where it would not see a mount.
        environ: those of `VARIABLES` that the command has.
    """

    key: Tuple[KeyPart, ...]
    as_empty: Tuple[KeyPart, ...]
    targets: Tuple[str, ...]
    names: Tuple[str, ...]
    mode: str
    read_only: bool
    refresh: bool
    captures: bool
    waits: bool
    wait_s: int
    environ: Mapping[str, str]
    stays: bool = False


class CommandEnded(NamedTuple):
    """The command has ended.

    Attributes:
        status: its exit status.
        took_ms: time that it took.
        variables: names of variables that it read and that are not in its key.
        files: paths of files that it read and that are not in its key.
    """

    status: int
    took_ms: int
    variables: Tuple[str, ...] = ()
    files: Tuple[str, ...] = ()


FromServer = Union[Hello, Refused, Notice, KeepWaiting, Progress, Restored, RunCommand, CaptureDone]
FromClient = Union[Locks, Request, CommandEnded]
M = TypeVar("M", FromServer, FromClient)

FROM_SERVER: Mapping[Optional[str], Type[FromServer]] = {
    "hello": Hello,
    None: Refused,
    "say": Notice,
    "wait": KeepWaiting,
    "progress": Progress,
    "restored": Restored,
    "run": RunCommand,
    "seen": CaptureDone,
}
"""The server's messages, by their names."""
FROM_CLIENT: Mapping[Optional[str], Type[FromClient]] = {
    "locks": Locks,
    "env": Request,
    "ran": CommandEnded,
}
"""The client's messages, by their names."""
_NAMES: Dict[type, Optional[str]] = {
    **{kind: name for name, kind in FROM_SERVER.items()},
    **{kind: name for name, kind in FROM_CLIENT.items()},
}


def encode(message: Union[FromServer, FromClient]) -> bytes:
    """Return a message as a line."""
    kind = type(message)
    name = _NAMES[kind]
    fields: Dict[str, Any] = {} if name is None else {"op": name}
    for field, value in message._asdict().items():
        is_key = kind.__annotations__[field] == Tuple[KeyPart, ...]
        fields[field] = env_key.to_document(value) if is_key else value
    return json.dumps(fields).encode() + b"\n"


def decode(line: bytes, kinds: Mapping[Optional[str], Type[M]]) -> M:
    """Return the message that a line holds.

    Args:
        line: with or without its end.
        kinds: messages that are expected, by their names: `FROM_SERVER` or `FROM_CLIENT`.

    Raises:
        UnknownVersion: its key is of another version.
        Corrupt: it is none of these messages.
    """
    try:
        fields = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise Corrupt("a message is not JSON") from error
    if not isinstance(fields, dict):
        raise Corrupt("a message is not a JSON object")
    name = fields.pop("op", None)
    kind = kinds.get(name) if name is None or isinstance(name, str) else None
    if kind is None:
        raise Corrupt(f"a message has a name that is not known: {str(name)[:40]!a}")
    title = f"message {name!a}"
    unknown = sorted(fields.keys() - kind.__annotations__.keys())
    if unknown and kind is not Hello:
        raise Corrupt(f"{title}: field {unknown[0][:40]!a} is not known")
    found: Dict[str, Any] = {}
    for field, type_ in kind.__annotations__.items():
        if field in fields:
            found[field] = _READERS[type_](fields[field], f"{title}: field {field!r}")
        elif field not in kind._field_defaults:
            raise Corrupt(f"{title}: field {field!r} is missing")
    return kind(**found)


def _text(value: object, title: str) -> str:
    if not isinstance(value, str):
        raise Corrupt(f"{title} is not a text")
    return value


def _flag(value: object, title: str) -> bool:
    if not isinstance(value, bool):
        raise Corrupt(f"{title} is neither true nor false")
    return value


def _count(value: object, title: str) -> int:
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise Corrupt(f"{title} is not a whole number, or out of its range")
    return value


def _seconds(value: object, title: str) -> float:
    if type(value) is int:
        return float(_count(value, title))
    if not isinstance(value, float) or not math.isfinite(value) or not 0 <= value < _MAX_NUMBER:
        raise Corrupt(f"{title} is not a number, or out of its range")
    return value


def _texts(value: object, title: str) -> Tuple[str, ...]:
    if not isinstance(value, list):
        raise Corrupt(f"{title} is not a list")
    return tuple(_text(item, title) for item in value)


def _named_texts(value: object, title: str) -> Dict[str, str]:
    if not isinstance(value, dict):
        raise Corrupt(f"{title} is not an object")
    return {name: _text(item, title) for name, item in value.items()}


_READERS: Mapping[Any, Callable[[object, str], Any]] = {
    str: _text,
    bool: _flag,
    int: _count,
    float: _seconds,
    Tuple[str, ...]: _texts,
    Mapping[str, str]: _named_texts,
    Tuple[KeyPart, ...]: env_key.from_document,
}
"""Check a decoded value and return it as the type of a field, by that type."""
