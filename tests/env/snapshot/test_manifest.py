"""The manifest of a snapshot: what may be in it, and to whose key it belongs."""

import json
from dataclasses import replace

import pytest

from bootseer.env.client import key
from bootseer.env.client.key import KeyPart
from bootseer.env.snapshot import manifest
from bootseer.env.snapshot.manifest import EMPTY, Finding, Snapshot, check, decode, shown_path
from bootseer.errors import Corrupt, Unavailable, UnknownVersion

PARTS = (KeyPart("command", "make it", "what is run"),)
DIGEST = "0123456789abcdef" * 4
GOOD = Snapshot(
    *(key.key_of(PARTS), PARTS, ("/env", "/x/y"), (EMPTY, DIGEST), DIGEST[:16], DIGEST, DIGEST),
    *(4096, DIGEST, 3, 5, ("302f6c",), (Finding("owner", "/env/a", "somebody's"),)),
    *(5, "user", "node", 7),
)


def decoded(found, wanted=GOOD.key):
    return decode(found.encode(), "m", wanted)


def test_it_is_read_as_it_was_written():
    assert decoded(GOOD) == GOOD
    assert GOOD.outside_paths == [b"0/l"]
    longest = replace(GOOD, outside=("00" * 4096,), targets=("/a",) * 16, bases=(DIGEST,) * 16)
    assert decoded(longest) == longest


def test_a_path_is_shown_as_its_user_sees_it_in_what_can_be_printed():
    assert shown_path(b"1/a\n\xff", ("/env", "/x")) == "/x/a\\n\\udcff"
    assert shown_path(b"0", ("/env", "/x")) == "/env/"
    assert shown_path(b"0/" + b"a" * 5000, ("/env", "/x")) == ("/env/" + "a" * 5000)[:4000]


@pytest.mark.parametrize(("bases", "is_whole"), [((EMPTY, EMPTY), True), ((EMPTY, DIGEST), False)])
def test_it_is_whole_if_all_targets_held_nothing(bases, is_whole):
    assert replace(GOOD, bases=bases).is_whole is is_whole


REFUSED = {
    "a link's path that is too long": {"outside": ("00" * 4097,)},
    "a link's path that is none": {"outside": ("x",)},
    "no targets": {"targets": (), "bases": ()},
    "a target without a base": {"bases": (EMPTY,)},
    "a relative target": {"targets": ("env", "/x")},
    "a target that goes up": {"targets": ("/env/../x", "/x")},
    "a target that is all there is": {"targets": ("/", "/x")},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    with pytest.raises(Corrupt, match=r"^m: "):
        decoded(replace(GOOD, **REFUSED[what]))


@pytest.mark.parametrize("field", ["capture", "digest", "image", "index"])
def test_digests_are_hexadecimal_digits(field):
    with pytest.raises(Corrupt, match=f"{field}.* is no digest"):
        decoded(replace(GOOD, **{field: getattr(GOOD, field)[1:] + "x"}))


def test_an_outdated_version_may_be_replaced_and_a_later_one_not():
    for version, kind, reason in ((1, Corrupt, "outdated"), (3, UnknownVersion, "only version 2")):
        data = GOOD.encode().replace(b'"version": 2', b'"version": %d' % version, 1)
        with pytest.raises(kind, match=f"^m: .*{reason}") as found:
            decode(data, "m", GOOD.key)
        assert type(found.value) is kind


def test_one_of_another_key_is_refused():
    other = (KeyPart("command", "make another"),)
    for found, wanted in ((GOOD, key.key_of(other)), (replace(GOOD, parts=other), GOOD.key)):
        with pytest.raises(Corrupt, match="another key"):
            decoded(found, wanted)


def test_one_that_is_too_long_is_not_stored(monkeypatch):
    data = GOOD.encode()
    monkeypatch.setattr(manifest, "MAX_BYTES", len(data))
    check(data, "m", GOOD.key)
    with pytest.raises(Unavailable, match=f"may have {len(data):,}"):
        check(data + b" ", "m", GOOD.key)


def test_one_that_nobody_would_read_is_not_stored():
    data = json.dumps({**json.loads(GOOD.encode()), "files": -1}).encode()
    with pytest.raises(Corrupt, match="files"):
        check(data, "m", GOOD.key)
