"""What `env run` asks for, as the side that has the store reads it."""

import os

import pytest

from bootseer import config
from bootseer.config import User
from bootseer.env.client.key import KeyPart, key_of
from bootseer.env.client.messages import Request
from bootseer.env.restore.atomic import RestoreTarget
from bootseer.env.server.run_request import read_request
from bootseer.env.server.session_context import make_context
from bootseer.errors import Corrupt
from bootseer.units import GIB

PARTS = (KeyPart("command", "make it"),)
GOOD = Request(
    key=PARTS,
    as_empty=(KeyPart("command", "make it"), KeyPart("target /a", "empty")),
    targets=("/a", "/b"),
    names=("a", "b"),
    mode="auto",
    read_only=True,
    force=False,
    captures=True,
    waits=False,
    wait_s=5,
    stays=True,
    environ={"TMPDIR": "/tmp", "OTHER": "x"},
)


@pytest.fixture
def fds(tmp_path):
    """Of two targets, each with the folder above it."""
    opened = []
    for path in ("one", "one/a", "two", "two/b"):
        (tmp_path / path).mkdir()
        opened.append(os.open(tmp_path / path, os.O_RDONLY))
    yield opened
    for fd in opened:
        os.close(fd)


def test_it_is_read(fds):
    request = read_request(GOOD, fds)
    assert request.key == key_of(PARTS)
    assert request.message._replace(environ=GOOD.environ) == GOOD
    assert request.places == (RestoreTarget(fds[0], "a", True), RestoreTarget(fds[2], "b", True))
    assert request.folders == (fds[1], fds[3])
    assert request.message.environ == {"TMPDIR": "/tmp"}


def test_who_does_not_say_so_does_not_stay(fds):
    assert not read_request(GOOD._replace(stays=False), fds).places[0].stays


@pytest.mark.parametrize(
    "change",
    [
        {"targets": [], "names": []},
        {"targets": ["/a"]},
        {"names": ["a"]},
        {"targets": ["/a"] * 17, "names": ["a"] * 17},
        {"mode": "other"},
        {"names": ["a", ""]},
        {"names": [".", "b"]},
        {"names": ["a", ".."]},
        {"names": ["a", "b/c"]},
        {"wait_s": 86_401},
        {"targets": ("/a", "/b\n")},
        {"names": ("a", "b\0")},
        {"names": ("a", "b" * 256)},
        {"environ": {"TMPDIR": "x" * 4097}},
    ],
    ids=str,
)
def test_what_is_not_acceptable_is_refused(fds, change):
    with pytest.raises(Corrupt):
        read_request(GOOD._replace(**change), fds if change.get("targets") != [] else [])


@pytest.mark.parametrize("count", [3, 2, 0])
def test_targets_without_their_descriptors_are_refused(fds, count):
    with pytest.raises(Corrupt, match="descriptors"):
        read_request(GOOD, fds[:count])


def test_a_target_that_is_no_folder_is_refused(fds, tmp_path):
    with open(tmp_path / "file", "w") as file, pytest.raises(Corrupt, match="no folder"):
        read_request(GOOD, [*fds[:3], file.fileno()])


def test_settings_say_where_it_happens(tmp_path):
    values = {"store.url": tmp_path.as_uri(), "env.scratch_dir": "/scratch"}
    values |= {"env.keep_days": 3, "env.quota_gib": 2.5}
    user = User("ada", os.getuid(), "/home/ada")
    found = make_context(config.Config(values), user, "n1", 2, print, None)
    assert found.store.url == tmp_path.as_uri()
    assert (found.user, found.home, found.node, found.nodes) == ("ada", "/home/ada", "n1", 2)
    assert (found.scratch, found.keep_days) == ("/scratch", 3)
    assert found.quota_bytes == 5 * GIB // 2
