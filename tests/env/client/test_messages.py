"""The messages of `env run`: each comes back as it was, and nothing else is taken for one."""

import json
from typing import get_args

import pytest

from bootseer.env.client.key import KeyPart, to_document
from bootseer.env.client.messages import (
    FROM_CLIENT,
    FROM_SERVER,
    CaptureDone,
    CommandEnded,
    FromClient,
    FromServer,
    Hello,
    KeepWaiting,
    Locks,
    Notice,
    Refused,
    Request,
    Restored,
    RestoreProgress,
    RunCommand,
)
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.ipc.typed_json import Messages

PARTS = (KeyPart("command", "make it", "what is run"), KeyPart("target /a", "empty"))
SERVERS = [
    Hello(locks=True, image="sha256:12"),
    Refused("too many", "Unavailable"),
    Notice("waiting\nfor \u00e9"),
    KeepWaiting(),
    RestoreProgress(5, 7),
    Restored("mounted", "ab" * 32, 1, 2, 3, 0.5),
    RunCommand(why="", key="ab" * 32),
    CaptureDone(key="ab" * 32, files=1, bytes=2, findings=3),
]
CLIENTS = [
    Locks(),
    Request(
        key=PARTS,
        as_empty=PARTS[:1],
        targets=("/a", "/\udcff"),
        names=("a", "\udcff"),
        mode="auto",
        read_only=True,
        force=False,
        captures=True,
        waits=False,
        wait_s=5,
        environ={"TMPDIR": "/tmp"},
        stays=True,
    ),
    CommandEnded(0, 5, ("A", "B"), ("/f",)),
]
ALL = [*((m, FROM_SERVER) for m in SERVERS), *((m, FROM_CLIENT) for m in CLIENTS)]


def label(value):
    return value.name if isinstance(value, Messages) else str(value)


def line_of(fields):
    return json.dumps(fields).encode() + b"\n"


def fields_of(message):
    kinds = FROM_SERVER if type(message) in map(type, SERVERS) else FROM_CLIENT
    return json.loads(kinds.encode(message))


def test_every_message_is_tested():
    assert {type(message) for message in SERVERS} == set(get_args(FromServer))
    assert {type(message) for message in CLIENTS} == set(get_args(FromClient))


@pytest.mark.parametrize(("message", "kinds"), ALL, ids=label)
def test_it_comes_back_as_it_was(message, kinds):
    line = kinds.encode(message)
    assert b"\n" not in line
    found = kinds.decode(line)
    assert found == message and type(found) is type(message)


def test_what_is_sent_is_what_was_always_sent():
    assert FROM_SERVER.encode(KeepWaiting()) == b'{"op":"wait"}'
    assert FROM_CLIENT.encode(Locks()) == b'{"op":"locks"}'
    assert fields_of(SERVERS[5]) == {
        "op": "restored",
        "how": "mounted",
        "key": "ab" * 32,
        "files": 1,
        "bytes": 2,
        "captured_ns": 3,
        "took_s": 0.5,
    }
    request = fields_of(CLIENTS[1])
    assert request["op"] == "env"
    assert (request["key"], request["as_empty"]) == (to_document(PARTS), to_document(PARTS[:1]))
    assert request["targets"] == ["/a", "/\udcff"]
    assert fields_of(CLIENTS[2]) == {
        "op": "ran",
        "status": 0,
        "took_ms": 5,
        "variables": ["A", "B"],
        "files": ["/f"],
    }


@pytest.mark.parametrize(
    ("fields", "message", "kinds"),
    [
        ({"op": "hello"}, Hello(), FROM_SERVER),
        ({"op": "run", "why": "no"}, RunCommand("no"), FROM_SERVER),
        ({"op": "seen"}, CaptureDone(), FROM_SERVER),
        ({"error": "no"}, Refused("no"), FROM_SERVER),
        ({"op": "ran", "status": 0, "took_ms": 1}, CommandEnded(0, 1), FROM_CLIENT),
    ],
    ids=label,
)
def test_other_versions_leave_fields_out(fields, message, kinds):
    assert kinds.decode(line_of(fields)) == message


def test_an_older_client_does_not_say_where_it_is():
    fields = fields_of(CLIENTS[1])
    del fields["stays"]
    assert FROM_CLIENT.decode(line_of(fields)) == CLIENTS[1]._replace(stays=False)


@pytest.mark.parametrize(("message", "kinds"), ALL, ids=label)
def test_a_later_version_may_say_more(message, kinds):
    assert kinds.decode(line_of(fields_of(message) | {"more": 1})) == message


NEEDED = [
    (message, kinds, field)
    for message, kinds in ALL
    for field in message._fields
    if field not in message._field_defaults
]


@pytest.mark.parametrize(("message", "kinds", "field"), NEEDED, ids=label)
def test_a_field_is_missing(message, kinds, field):
    fields = fields_of(message)
    del fields[field]
    with pytest.raises(Corrupt, match=rf"{field}|unknown operation"):
        kinds.decode(line_of(fields))


VALUES = [None, True, 1, -1, 1.5, "x", [], ["x"], ["x", 1], [["x"]], {}, {"a": "b"}, {"a": 1}]
VALUES += [float("nan"), float("inf"), 2**63, 10**400, "NaN"]
RIGHT = {
    str: ["x", "NaN"],
    bool: [True],
    int: [1],
    float: [1, 1.5],
    "texts": [[], ["x"]],
    "object": [{}, {"a": "b"}],
    "key": [],
}
KIND_OF = {
    **dict.fromkeys(("targets", "names", "variables", "files of CommandEnded"), "texts"),
    **dict.fromkeys(("key of Request", "as_empty"), "key"),
    "environ": "object",
}


@pytest.mark.parametrize(
    ("message", "kinds", "field"), [(m, k, f) for m, k in ALL for f in m._fields], ids=label
)
def test_a_field_of_another_type_is_refused(message, kinds, field):
    """Neither is true a number, nor what is in a list or an object left unseen."""
    kind = KIND_OF.get(f"{field} of {type(message).__name__}") or KIND_OF.get(field)
    right = RIGHT[kind or type(getattr(message, field))]
    refused = []
    for value in VALUES:
        line = line_of(fields_of(message) | {field: value})
        try:
            kinds.decode(line)
        except Corrupt as error:
            assert str(error).startswith(("message ", "key of a message"))
            refused.append(value)
        except ValueError:  # of a number that has too many digits
            raise AssertionError(value) from None
    accepted = [v for v in VALUES if not any(v is r for r in refused)]
    assert [(type(v), v) for v in accepted] == [
        (type(v), v) for v in VALUES if any(type(v) is type(r) and v == r for r in right)
    ]


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"{", b"hello", b"\xff\xfe", b"[1]", b"5", b"null", b"[" * 100_000, b"\0"],
    ids=lambda line: ascii(line)[:20],
)
@pytest.mark.parametrize("kinds", [FROM_SERVER, FROM_CLIENT], ids=["server", "client"])
def test_what_is_no_object_is_no_message(line, kinds):
    with pytest.raises(Corrupt, match="message"):
        kinds.decode(line)


@pytest.mark.parametrize("name", ["dance", "", 5, True, ["run"], {}, "x" * 1000])
@pytest.mark.parametrize("kinds", [FROM_SERVER, FROM_CLIENT], ids=["server", "client"])
def test_a_name_that_is_not_known(name, kinds):
    with pytest.raises(Corrupt, match="unknown operation") as refused:
        kinds.decode(line_of({"op": name}))
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("message", "kinds"), ALL, ids=label)
def test_neither_side_takes_its_own_messages(message, kinds):
    other = FROM_CLIENT if kinds is FROM_SERVER else FROM_SERVER
    with pytest.raises(Corrupt, match="unknown operation"):
        other.decode(kinds.encode(message))


def test_a_key_of_another_version_is_told_so():
    fields = fields_of(CLIENTS[1])
    fields["key"]["version"] = 2
    with pytest.raises(UnknownVersion, match="only version 1 of"):
        FROM_CLIENT.decode(line_of(fields))
