"""Typed messages: what was sent comes out, and nothing else is taken."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from bootseer.errors import Corrupt
from bootseer.ipc.typed_json import Messages


class Range(NamedTuple):
    start: int
    stop: int


class Named(NamedTuple):
    name: str
    ranges: list[Range]

    def check(self, name):
        if not self.name:
            raise Corrupt(f"{name}: without a name")


@dataclass(frozen=True)
class Speed:
    rate: float
    is_known: bool = True


class Everything(NamedTuple):
    ranges: list[Range]
    indexes: tuple[int, ...]
    pair: tuple[int, str]
    named: list[Named]
    speed: Speed | None
    values: dict[str, Any]
    text: str = "default"


class Empty(NamedTuple):
    pass


MESSAGES = Messages("message", {"all": Everything, "empty": Empty, "named": Named})
ALL = Everything(
    ranges=[Range(0, 5), Range(2**62, -1)],
    indexes=(1, 2, 3),
    pair=(7, "seven"),
    named=[Named("a", [Range(1, 2)]), Named("b", [])],
    speed=Speed(0.5, is_known=False),
    values={"a": [1, {"b": None}]},
    text="ä\udcff\n\0",
)


@pytest.mark.parametrize(
    "message", [ALL, ALL._replace(speed=None, ranges=[], named=[]), Empty(), Named("x", [])]
)
def test_messages_round_trip(message):
    data = MESSAGES.encode(message)
    assert b"\n" not in data
    again = MESSAGES.decode(data)
    assert again == message and type(again) is type(message)
    if isinstance(message, Everything):
        assert all(type(r) is Range for r in again.ranges)
        assert all(type(n) is Named for n in again.named)


def test_fields_that_are_missing_have_their_defaults_and_those_of_others_are_ignored():
    document = json.loads(MESSAGES.encode(ALL))
    del document["text"]
    document["speed"] = {"rate": 1}
    document["added later"] = [1]
    expected = ALL._replace(text="default", speed=Speed(1.0))
    assert MESSAGES.decode(json.dumps(document).encode()) == expected


WRONG = [
    ("ranges", [[1]]),
    ("ranges", [[1, 2, 3]]),
    ("ranges", [[1, True]]),
    ("ranges", [[1, 2**63]]),
    ("ranges", [[1, 2.0]]),
    ("ranges", {"start": 1}),
    ("ranges", None),
    ("indexes", [1, "2"]),
    ("indexes", 5),
    ("pair", [7]),
    ("pair", ["7", 7]),
    ("named", [["", []]]),
    ("named", [["a", [[1]]]]),
    ("named", ["ab"]),
    ("speed", {}),
    ("speed", {"rate": "fast"}),
    ("speed", {"rate": 10**400}),
    ("speed", {"rate": True}),
    ("speed", {"rate": 1, "is_known": 1}),
    ("speed", [1, True]),
    ("values", []),
    ("text", 5),
    ("text", None),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_value_of_another_type_is_refused(field, value):
    document = json.loads(MESSAGES.encode(ALL)) | {field: value}
    with pytest.raises(Corrupt):
        MESSAGES.decode(json.dumps(document).encode())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_is_finite(number):
    data = MESSAGES.encode(ALL).replace(b"0.5", number.encode())
    with pytest.raises(Corrupt, match="rate"):
        MESSAGES.decode(data)


@pytest.mark.parametrize("field", [f for f in Everything._fields if f != "text"])
def test_a_field_without_a_default_has_to_be_there(field):
    document = json.loads(MESSAGES.encode(ALL))
    del document[field]
    with pytest.raises(Corrupt, match=field):
        MESSAGES.decode(json.dumps(document).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"5",
        b"{}",
        b"[" * 100_000,
        b'{"op": ' + b"9" * 5000 + b"}",
        b'{"op": null}',
        b'{"op": ["all"]}',
        b'{"op": {"all": 1}}',
        b'{"op": "other"}',
        b'{"op": "named"}',
    ],
)
def test_invalid_messages_are_refused(data):
    with pytest.raises(Corrupt, match="message") as refused:
        MESSAGES.decode(data)
    assert len(str(refused.value)) < 200


def test_a_message_is_checked_by_its_class():
    with pytest.raises(Corrupt, match="without a name"):
        MESSAGES.decode(b'{"op": "named", "name": "", "ranges": []}')
