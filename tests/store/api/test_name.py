import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.errors import ConfigError
from bootseer.store.api.name import (
    TEMPORARY_PREFIX,
    check_folder,
    check_name,
    check_rename,
    is_component,
    problem_of,
    temporary_name,
)
from bootseer.testing.store_suite import BAD_NAMES, GOOD_NAMES


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_good_names_are_their_components(name: str) -> None:
    assert "/".join(check_name(name)) == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_with_a_printable_reason(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_name(name)
    assert str(refused.value).isprintable()


@given(st.text())
def test_an_accepted_name_stays_below_the_root(name: str) -> None:
    try:
        parts = check_name(name)
    except ConfigError:
        return
    assert parts
    assert all(part not in ("", ".", "..") and is_component(part) for part in parts)
    assert len(name.encode()) <= 1024


def test_the_root_is_a_folder_and_has_no_name() -> None:
    assert check_folder("") == ()
    assert check_folder("a/b") == ("a", "b")
    with pytest.raises(ConfigError):
        check_name("")


def test_nothing_moves_into_itself() -> None:
    assert check_rename("a", "ab/c") == (("a",), ("ab", "c"))
    with pytest.raises(ConfigError, match="into itself"):
        check_rename("a", "a/b")


@pytest.mark.parametrize("text", ["a", "a b", "...", "x" * 255])
def test_what_callers_can_use_is_found_in_a_folder(text: str) -> None:
    assert is_component(text)
    assert problem_of(text) == ""


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a\n", "x" * 256, f"{TEMPORARY_PREFIX}1"])
def test_what_callers_cannot_use_is_no_component(text: str) -> None:
    assert not is_component(text)


def test_a_temporary_name_tells_host_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-7.cluster.site")
    name = temporary_name()
    assert name.startswith(f"{TEMPORARY_PREFIX}node-7-{os.getpid()}-")
    assert "site" not in name
    assert name != temporary_name()
    monkeypatch.setattr(socket, "gethostname", lambda: "n" * 300)
    assert len(temporary_name()) <= 255
