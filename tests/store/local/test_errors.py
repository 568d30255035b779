"""What the operating system's errors mean."""

from __future__ import annotations

import errno
import os

import pytest

from bootseer.errors import (
    BootseerError,
    ConfigError,
    Conflict,
    Denied,
    NoSpace,
    OverQuota,
    Transient,
    Unavailable,
)
from bootseer.store.local.errors import translate, translated

URL = "file:///store"


@pytest.mark.parametrize(
    ("number", "meaning", "says"),
    [
        (errno.EEXIST, Conflict, "it exists already"),
        (errno.EISDIR, Conflict, "it is a folder"),
        (errno.ENAMETOOLONG, ConfigError, "the name is too long for this file system"),
        (errno.ENOSPC, NoSpace, "no space left; free some"),
        (errno.EDQUOT, OverQuota, "no space left in the quota"),
        (errno.EPERM, Denied, "not permitted; check the owner and mode"),
        (errno.EAGAIN, Transient, "the file system asks to try again"),
        (errno.EXDEV, Unavailable, os.strerror(errno.EXDEV)),
    ],
)
def test_a_number_has_a_meaning_and_says_what_to_do(
    number: int, meaning: type[BootseerError], says: str
) -> None:
    for error in (OSError(number, os.strerror(number)), OSError(number, "")):
        told = translate(error, "stat", "a/b", URL)
        assert type(told) is meaning
        assert str(told).startswith(f"cannot stat 'a/b' in {URL}: {says}")


def test_a_text_that_is_not_the_system_s_is_kept() -> None:
    told = translate(OSError(errno.EPERM, "run `chmod go-w /a`"), "stat", "a", URL)
    assert type(told) is Denied
    assert str(told) == f"cannot stat 'a' in {URL}: run `chmod go-w /a`"


def test_an_error_without_a_number_is_none_of_those_that_have_one() -> None:
    assert type(translate(OSError("what happened"), "stat", "a", URL)) is Unavailable


def test_errors_of_ours_are_let_through() -> None:
    ours = Transient("as it is")
    with pytest.raises(Transient) as raised, translated("stat", "a", URL):
        raise ours
    assert raised.value is ours
