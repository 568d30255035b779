"""The messages of `env run`: each comes back as it was, and nothing else is taken for one."""

import json

import pytest

from bootseer.env.client import messages
from bootseer.env.client.key import KeyPart, to_document
from bootseer.env.client.messages import (
    FROM_CLIENT,
    FROM_SERVER,
    CaptureDone,
    CommandEnded,
    Hello,
    KeepWaiting,
    Locks,
    Notice,
    Progress,
    Refused,
    Request,
    Restored,
    RunCommand,
)
from bootseer.errors import Corrupt, UnknownVersion

PARTS = (KeyPart("command", "make it", "what is run"), KeyPart("target /a", "empty"))
SERVERS = [
    Hello(locks=True, image="sha256:12"),
    Refused("too many", "Unavailable"),
    Notice("waiting\nfor \u00e9"),
    KeepWaiting(),
    Progress(5, 7),
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
        refresh=False,
        captures=True,
        waits=False,
        wait_s=5,
        environ={"TMPDIR": "/tmp"},
        stays=True,
    ),
    CommandEnded(0, 5, ("A", "B"), ("/f",)),
]
ALL = [*((m, FROM_SERVER) for m in SERVERS), *((m, FROM_CLIENT) for m in CLIENTS)]


def line_of(fields):
    return json.dumps(fields).encode() + b"\n"


def fields_of(message):
    return json.loads(messages.encode(message))


def test_every_message_is_tested():
    assert [type(message) for message in SERVERS] == list(FROM_SERVER.values())
    assert [type(message) for message in CLIENTS] == list(FROM_CLIENT.values())


@pytest.mark.parametrize(("message", "kinds"), ALL, ids=str)
def test_it_comes_back_as_it_was(message, kinds):
    line = messages.encode(message)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    found = messages.decode(line, kinds)
    assert found == message and type(found) is type(message)


def test_what_is_sent_is_what_was_always_sent():
    assert messages.encode(KeepWaiting()) == b'{"op": "wait"}\n'
    assert messages.encode(Locks()) == b'{"op": "locks"}\n'
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
    ids=str,
)
def test_other_versions_leave_fields_out(fields, message, kinds):
    assert messages.decode(line_of(fields), kinds) == message


def test_an_older_client_does_not_say_where_it_is():
    fields = fields_of(CLIENTS[1])
    del fields["stays"]
    assert messages.decode(line_of(fields), FROM_CLIENT) == CLIENTS[1]._replace(stays=False)


def test_a_later_server_may_say_more_of_itself():
    hello = line_of({"op": "hello", "locks": True, "compresses": True})
    assert messages.decode(hello, FROM_SERVER) == Hello(locks=True)


@pytest.mark.parametrize(
    ("message", "kinds"), [one for one in ALL if not isinstance(one[0], Hello)], ids=str
)
def test_no_other_may(message, kinds):
    fields = fields_of(message)
    with pytest.raises(Corrupt, match="field 'more' is not known"):
        messages.decode(line_of(fields | {"more": 1}), kinds)


NEEDED = [
    (message, kinds, field)
    for message, kinds in ALL
    for field in message._fields
    if field not in message._field_defaults
]


@pytest.mark.parametrize(("message", "kinds", "field"), NEEDED, ids=str)
def test_a_field_is_missing(message, kinds, field):
    fields = fields_of(message)
    del fields[field]
    with pytest.raises(Corrupt, match=rf"field '{field}' is missing|not known: 'None'"):
        messages.decode(line_of(fields), kinds)


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
    ("message", "kinds", "field"), [(m, k, f) for m, k in ALL for f in m._fields], ids=str
)
def test_a_field_of_another_type_is_refused(message, kinds, field):
    """Neither is true a number, nor what is in a list or an object left unseen."""
    kind = KIND_OF.get(f"{field} of {type(message).__name__}") or KIND_OF.get(field)
    right = RIGHT[kind or type(getattr(message, field))]
    refused = []
    for value in VALUES:
        line = line_of(fields_of(message) | {field: value})
        try:
            messages.decode(line, kinds)
        except Corrupt as error:
            assert str(error).startswith("message ") and f"field '{field}'" in str(error)
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
    with pytest.raises(Corrupt, match="a message is not"):
        messages.decode(line, kinds)


@pytest.mark.parametrize("name", ["dance", "", 5, True, ["run"], {}, "x" * 1000])
@pytest.mark.parametrize("kinds", [FROM_SERVER, FROM_CLIENT], ids=["server", "client"])
def test_a_name_that_is_not_known(name, kinds):
    with pytest.raises(Corrupt, match="not known") as refused:
        messages.decode(line_of({"op": name}), kinds)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("message", "kinds"), ALL, ids=str)
def test_neither_side_takes_its_own_messages(message, kinds):
    other = FROM_CLIENT if kinds is FROM_SERVER else FROM_SERVER
    with pytest.raises(Corrupt, match="not known"):
        messages.decode(messages.encode(message), other)


def test_a_key_of_another_version_is_told_so():
    fields = fields_of(CLIENTS[1])
    fields["key"]["version"] = 2
    with pytest.raises(UnknownVersion, match="only version 1 of"):
        messages.decode(line_of(fields), FROM_CLIENT)
