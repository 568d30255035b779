"""What a supervisor and its broker and lender tell each other."""

import os
import random
from typing import get_type_hints

import pytest

from bootseer import errors
from bootseer.agent.messages import broker, lender
from bootseer.agent.messages.broker import Role
from bootseer.ipc.request import MAX_BYTES, Reply
from bootseer.ipc.request_client import decode_reply, encode_request

MOST = (1 << 63) - 1
TABLES = (broker.VERBS, lender.VERBS)
VERBS = [(table, verb) for table in TABLES for verb in table.all]


def values_of(verb, chance):
    """Make a request with any values."""
    made = [
        chance.randbytes(32) if kind is bytes else chance.choice((0, 1, -1, MOST, ~MOST))
        for kind in get_type_hints(verb).values()
    ]
    return verb(*made)


@pytest.mark.parametrize(("table", "verb"), VERBS)
def test_every_request_arrives_as_it_was_sent(table, verb):
    chance = random.Random(verb.__name__)
    for number in (0, 1, (1 << 64) - 1):
        request = values_of(verb, chance)
        encoded = encode_request(table, number, request)
        found = table.decode(encoded)
        assert found == (number, request) and type(found[1]) is verb
        assert len(encoded) < MAX_BYTES


@pytest.mark.parametrize("table", TABLES)
def test_every_verb_has_a_number_of_its_own(table):
    chance = random.Random(1)
    seen = {encode_request(table, 1, values_of(verb, chance))[8:12] for verb in table.all}
    assert len(seen) == len(table.all)


@pytest.mark.parametrize(("table", "verb"), VERBS)
def test_a_request_of_another_length_is_none(table, verb):
    encoded = encode_request(table, 1, values_of(verb, random.Random(1)))
    for wrong in (encoded[:-1], encoded + b"\0", encoded[:12] + b"\0" * 600):
        with pytest.raises(errors.Corrupt):
            table.decode(wrong)


@pytest.mark.parametrize("decode", [broker.VERBS.decode, lender.VERBS.decode, decode_reply])
def test_garbage_of_any_length_is_no_message(decode):
    for length in range(MAX_BYTES + 2):
        for garbage in (b"\xff" * length, os.urandom(4) + b"\xff" * length):
            with pytest.raises(errors.Corrupt):
                decode(garbage)


OURS = (errors.Unavailable, errors.NotFound, errors.NoSpace, errors.Denied, errors.Corrupt)


@pytest.mark.parametrize("kind", OURS)
def test_an_error_arrives_with_its_class(kind):
    reply = decode_reply(Reply(5, kind("image /x\u20ac cannot be read")).encode())
    assert reply.number == 5
    assert type(reply.error) is kind
    assert str(reply.error) == "image /x\u20ac cannot be read"


@pytest.mark.parametrize("kind", [errors.ConfigError, errors.Closed])
def test_an_error_of_another_class_arrives_as_unavailable(kind):
    reply = decode_reply(Reply(5, kind("why")).encode())
    assert type(reply.error) is errors.Unavailable
    assert str(reply.error) == "why"


@pytest.mark.parametrize("why", ["x" * 10_000, "\u20ac" * 10_000, "\udcff" * 1000, "a\0b", ""])
def test_a_long_error_message_is_cut(why):
    encoded = Reply(5, errors.NotFound(why)).encode()
    assert len(encoded) < MAX_BYTES
    told = str(decode_reply(encoded).error)
    shown = why.encode(errors="backslashreplace").decode()
    assert told.rstrip("\ufffd") == shown[: len(told.rstrip("\ufffd"))]
    assert len(told.encode()) >= min(len(shown.encode()), 500)


@pytest.mark.parametrize("value", [0, 1, -1, MOST, ~MOST])
def test_a_result_arrives(value):
    assert decode_reply(Reply(5, None, value).encode()) == Reply(5, None, value)


def test_the_workers_that_can_be_started_are_there():
    for role in Role:
        __import__(f"bootseer.agent.workers.{role.module}")
