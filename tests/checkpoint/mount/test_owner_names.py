"""Whose files are, as `ls -l` shows it."""

import grp
import pwd

import pytest

from bootseer.checkpoint.mount.owner_names import NOBODY, OwnerNames
from bootseer.store.api.base import ObjectInfo

DAEMON = pwd.getpwnam("daemon")


@pytest.mark.parametrize(
    ("owner", "group", "expected"),
    [
        (None, None, (1000, 2000)),
        ("user", "others", (1000, 2000)),
        ("daemon", "daemon", (DAEMON.pw_uid, grp.getgrnam("daemon").gr_gid)),
        ("daemon", None, (DAEMON.pw_uid, NOBODY)),
        ("4321", "5432", (4321, 5432)),
        ("root", "root", (NOBODY, NOBODY)),
        ("0", "0", (NOBODY, NOBODY)),
        ("no such user", "no such group", (NOBODY, NOBODY)),
    ],
)
def test_a_name_becomes_a_number_of_this_node(owner, group, expected):
    owners = OwnerNames(1000, 2000, "user")
    assert owners.own == (1000, 2000)
    assert owners.of(ObjectInfo("file", 0, 0, owner=owner, group=group)) == expected


def test_a_name_is_looked_up_once(monkeypatch):
    """The answer may come from far away, and a listing asks for each of its files."""
    asked = []

    def look_up(name):
        asked.append(name)
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", look_up)
    monkeypatch.setattr(grp, "getgrnam", look_up)
    for _ in range(3):
        info = ObjectInfo("file", 0, 0, owner="somebody once", group="some group once")
        assert OwnerNames(1000, 1000, "user").of(info) == (NOBODY, NOBODY)
    assert asked == ["somebody once", "some group once"]
