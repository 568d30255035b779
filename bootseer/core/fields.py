"""Read and check typed fields of decoded JSON."""

from __future__ import annotations

import json
from typing import TypeVar

from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt, UnknownVersion

T = TypeVar("T")


class Fields:
    """The fields of one JSON object, each read once and checked for its type and limits."""

    def __init__(self, value: object, name: str) -> None:
        """Wrap ``value``; ``name`` is the document's, for messages.

        Raises:
            Corrupt: ``value`` is not an object.
        """
        if not isinstance(value, dict):
            raise Corrupt(f"{name}: not a JSON object")
        self._value: dict[str, object] = value
        self._name = name

    def has(self, key: str) -> bool:
        """Return whether a field is present and not null."""
        return self._value.get(key) is not None

    def text(self, key: str, max_chars: int = 4096) -> str:
        """Read a string without NUL or line breaks."""
        return self._text(key, self._get(key, str), max_chars)

    def texts(self, key: str, max_items: int = 1000, max_chars: int = 4096) -> list[str]:
        """Read a list of strings without NUL or line breaks."""
        return [self._text(key, value, max_chars) for value in self.items(key, max_items)]

    def part(self, key: str) -> Fields:
        return Fields(self._get(key, dict), f"{self._name}: {key}")

    def unread(self, key: str) -> dict[str, object]:
        """Return an object without checking its fields."""
        return self._get(key, dict)

    def count(self, key: str, maximum: int = 2**63 - 1) -> int:
        """Read a whole number from 0 to ``maximum``."""
        value = self._get(key, int)
        if isinstance(value, bool) or not 0 <= value <= maximum:
            raise Corrupt(f"{self._name}: field {key!r} is out of its range")
        return value

    def rank(self, key: str) -> int:
        """Read the rank of a process, -1 for none."""
        value = self._get(key, int)
        if isinstance(value, bool) or not -1 <= value < 2**31:
            raise Corrupt(f"{self._name}: field {key!r} is out of its range")
        return value

    def items(self, key: str, max_items: int = 1000) -> list[object]:
        """Read a list of at most ``max_items``."""
        value = self._get(key, list)
        if len(value) > max_items:
            raise Corrupt(f"{self._name}: field {key!r} has more than {max_items} entries")
        return value

    def ranges(self, key: str, max_ranges: int) -> list[ByteRange]:
        """Read a list of ranges: pairs of the first byte and the byte after the last."""
        ranges = [ByteRange(*row) for row in self.rows(key, max_ranges, 2)]
        if not all(0 <= start < stop < 2**63 for start, stop in ranges):
            raise Corrupt(f"{self._name}: field {key!r} holds something that is not a range")
        return ranges

    def rows(self, key: str, max_rows: int, width: int) -> list[list[int]]:
        """Read a list of rows of ``width`` whole numbers each."""
        rows: list[list[int]] = []
        for row in self.items(key, max_rows):
            if (
                not isinstance(row, list)
                or len(row) != width
                or not all(type(n) is int for n in row)
            ):
                raise Corrupt(f"{self._name}: field {key!r} holds something that is not a row")
            rows.append(row)
        return rows

    def objects(self, key: str, max_items: int = 1000) -> list[Fields]:
        name = f"{self._name}: {key}"
        return [Fields(item, name) for item in self.items(key, max_items)]

    def _text(self, key: str, value: object, max_chars: int) -> str:
        if (
            not isinstance(value, str)
            or len(value) > max_chars
            or any(c in value for c in "\0\n\r")
        ):
            raise Corrupt(f"{self._name}: field {key!r} is not acceptable")
        return value

    def _get(self, key: str, kind: type[T]) -> T:
        value = self._value.get(key)
        if not isinstance(value, kind):
            raise Corrupt(f"{self._name}: field {key!r} is missing or not a {kind.__name__}")
        return value


def open_document(data: bytes, name: str, wanted: str, version: int, outdated: int = 0) -> Fields:
    """Open a JSON document that has ``"format"`` and ``"version"`` fields.

    Args:
        data: the document.
        name: for messages.
        wanted: the expected format, such as "bootseer warm plan".
        version: the supported version.
        outdated: the last version that is no longer supported, and may be replaced.

    Raises:
        UnknownVersion: the document has another version.
        Corrupt: it is not a document of that format, or outdated.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{name}: not JSON") from error
    fields = Fields(document, name)
    if fields.text("format") != wanted:
        raise Corrupt(f"{name}: its format is not {wanted!r}")
    found = fields.count("version")
    if 0 < found <= outdated:
        raise Corrupt(f"{name}: version {found} of {wanted!r} is outdated; create it again")
    if found != version:
        raise UnknownVersion(f"{name}: only version {version} of {wanted!r} is supported")
    return fields
