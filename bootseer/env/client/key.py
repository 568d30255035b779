"""The key of a snapshot: a digest of all that the result of an install command depends on.

This module reads no files: `bootseer.env.client.inputs.facts` finds the facts.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bootseer.env.client.inputs.digest import KeyProblem, printable, without_credentials
from bootseer.env.client.inputs.probe import PythonFacts
from bootseer.errors import Corrupt, UnknownVersion

VERSION = 1
MAX_PARTS = 2000
MAX_NAME_CHARS = 1024
MAX_VALUE_CHARS = 8192
EMPTY = "empty"
"""What is known of a target that is not there, or holds nothing."""

_FORMAT = "bootseer environment key"
_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_PRINTABLE = re.compile(r"[ -~]*", re.ASCII)
_WHY = {
    "command": "what is run",
    "target": "what is there before the command",
    "python": "packages are built and chosen for it",
    "installer": "chooses and installs",
    "platform": "packages are built and chosen for it",
    "accelerator": "packages are built and chosen for it",
    "image": "the command runs in it",
    "file": "read by the command",
    "project": "installed by the command",
    "distributions": "the command looks for packages there",
    "variable": "used by the command",
    "extra": "named with --key-extra",
}
_WHY_OF_SETTINGS = "decides what an installer chooses"


class KeyPart(NamedTuple):
    """One part of a key.

    Attributes:
        name: "file requirements.txt"; no other part of the key has it.
        value: printable ASCII; a digest for contents.
        why: why it is a part, for the user; not in the digest.
    """

    name: str
    value: str
    why: str = ""


class KeyChange(NamedTuple):
    """A part that differs between two keys; "" on a side that does not have it."""

    name: str
    before: str
    after: str


class KeyFacts(NamedTuple):
    """Facts about a command and the place where it runs.

    Attributes:
        command: its words.
        targets: absolute paths of the folders it installs to, and what each holds before.
        pythons: Pythons that it uses.
        installers: with their versions.
        platform: machine and C library.
        accelerator: kinds and driver.
        files: names and digests of files that it reads.
        settings: names and values of installers' settings.
        extra: texts that the user adds, in order.
        image_digest: of the image it runs in, "" without one.
        unbounded: programs whose inputs are not known; not in the key.
    """

    command: tuple[str, ...]
    targets: Mapping[str, str]
    pythons: tuple[PythonFacts, ...] = ()
    installers: tuple[str, ...] = ()
    platform: str = ""
    accelerator: str = "none"
    files: Mapping[str, str] = {}
    settings: Mapping[str, str] = {}
    extra: tuple[str, ...] = ()
    image_digest: str = ""
    unbounded: tuple[str, ...] = ()


def parts_of(facts: KeyFacts) -> tuple[KeyPart, ...]:
    """Turn facts into the parts of a key, in order of their names."""
    values = {
        "command": printable(shlex.join(map(without_credentials, facts.command))),
        "platform": facts.platform,
        "accelerator": facts.accelerator,
        "image": printable(facts.image_digest) or "none",
        **numbered("python", map(str, facts.pythons)),
        **numbered("installer", facts.installers),
        **numbered("extra", map(printable, facts.extra)),
        **{f"target {printable(path)}": printable(base) for path, base in facts.targets.items()},
        **facts.files,
        **{f"setting {name}": value for name, value in facts.settings.items()},
    }
    if len(values) > MAX_PARTS:
        raise KeyProblem(
            f"the command has {len(values):,} inputs, but a key holds at most {MAX_PARTS:,}; "
            "split the command"
        )
    return tuple(
        KeyPart(
            _shortened(name, MAX_NAME_CHARS),
            _shortened(value, MAX_VALUE_CHARS),
            _WHY.get(name.split(" ")[0], _WHY_OF_SETTINGS),
        )
        for name, value in sorted(values.items())
    )


def encode(parts: Iterable[KeyPart]) -> bytes:
    """Encode names and values of parts; docs/formats/env-key.md has the layout."""
    pairs = sorted((part.name.encode(), part.value.encode()) for part in parts)
    fields = [f"{_FORMAT} {VERSION}".encode(), b"%d" % len(pairs)]
    for pair in pairs:
        fields += pair
    return b"".join(len(field).to_bytes(8, "little") + field for field in fields)


def key_of(parts: Iterable[KeyPart]) -> str:
    """Return the key that parts make, 64 hexadecimal digits."""
    return hashlib.sha256(encode(parts)).hexdigest()


def compare(old: Iterable[KeyPart], new: Iterable[KeyPart]) -> list[KeyChange]:
    """Return the parts in which two keys differ, in order of their names."""
    before = {part.name: part.value for part in old}
    after = {part.name: part.value for part in new}
    return [
        KeyChange(name, before.get(name, ""), after.get(name, ""))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def to_document(parts: Sequence[KeyPart]) -> dict[str, object]:
    """Return a key and its parts for JSON."""
    listed = [dict(zip(KeyPart._fields, part)) for part in parts]
    return {"format": _FORMAT, "version": VERSION, "key": key_of(parts), "parts": listed}


def from_document(document: object, name: str) -> tuple[KeyPart, ...]:
    """Check a document, and return the parts of its key.

    Args:
        document: decoded JSON.
        name: for messages.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is no such document, or its key is not that of its parts.
    """
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise Corrupt(f"{name}: its format is not {_FORMAT!r}")
    version = document.get("version")
    if type(version) is not int:
        raise Corrupt(f"{name}: field 'version' is missing or not a number")
    if version != VERSION:
        raise UnknownVersion(f"{name}: only version {VERSION} of {_FORMAT!r} is understood")
    listed, key = document.get("parts"), document.get("key")
    if not isinstance(listed, list) or len(listed) > MAX_PARTS:
        raise Corrupt(f"{name}: field 'parts' is missing, or has more than {MAX_PARTS:,} entries")
    parts = tuple(_part(item, name) for item in listed)
    if len({part.name for part in parts}) != len(parts):
        raise Corrupt(f"{name}: two parts have one name")
    if not isinstance(key, str) or not _KEY.fullmatch(key) or key != key_of(parts):
        raise Corrupt(f"{name}: its key is not that of its parts")
    return parts


def _part(item: object, name: str) -> KeyPart:
    limits = (MAX_NAME_CHARS, MAX_VALUE_CHARS, MAX_NAME_CHARS)
    texts: list[str] = []
    for field, limit in zip(KeyPart._fields, limits):
        text = item.get(field) if isinstance(item, dict) else None
        if not isinstance(text, str) or len(text) > limit or not _PRINTABLE.fullmatch(text):
            raise Corrupt(f"{name}: field {field!r} of a part is missing or not acceptable")
        texts.append(text)
    return KeyPart(*texts)


def numbered(name: str, values: Iterable[str]) -> dict[str, str]:
    """Name values of a kind: `python`, `python 2`, and so on."""
    return {f"{name} {at}" if at > 1 else name: value for at, value in enumerate(values, 1)}


def _shortened(text: str, limit: int) -> str:
    """Shorten a text that is too long to its beginning and a digest of all of it."""
    if len(text) <= limit:
        return text
    digest = f"... sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return text[: limit - len(digest)] + digest
