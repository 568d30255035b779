import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.errors import ConfigError
from bootseer.store.name import check_folder, check_name, check_rename, is_component
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
