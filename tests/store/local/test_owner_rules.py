"""Who may write in a store that users run things from."""

from __future__ import annotations

import re

import pytest

from bootseer.store.local.owner_rules import OwnerRule, Ownership, PrivateOwner, TrustedOwners

TOP = Ownership(0o755, "provider", "staff")
ALONE = TrustedOwners("ada", 4202)
GROUP = TrustedOwners("ada", 4202, "images", 55)
PRIVATE = PrivateOwner(("ada", "ada_a"))


@pytest.mark.parametrize(
    ("rule", "found", "says"),
    [
        # A store that many use.
        (ALONE, (0o755, "provider", "staff"), ""),
        (ALONE, (0o755, "ada", "staff"), ""),
        (ALONE, (0o755, "4202", "staff"), ""),
        (ALONE, (0o755, "0", "staff"), ""),
        (ALONE, (0o755, "mallory", "staff"), "/x belongs to user mallory.*run `chown provider /x`"),
        (ALONE, (0o757, "provider", "staff"), "everybody can write in /x.*chmod o-w /x"),
        (ALONE, (0o777, "0", "staff"), "everybody can write in /x"),
        (ALONE, (0o775, "provider", "staff"), "group staff can write in /x.*image.store_group"),
        (ALONE, (0o775, "provider", ""), "group  can write in /x"),
        (ALONE, (0o775, "provider", "None"), "group None can write in /x"),
        (ALONE, (0o755, "mallory", "None"), "belongs to user mallory"),
        # One of a group.
        (GROUP, (0o775, "mallory", "images"), ""),
        (GROUP, (0o775, "mallory", "55"), ""),
        (GROUP, (0o755, "mallory", "images"), ""),
        (GROUP, (0o755, "mallory", "staff"), "belongs to user mallory"),
        (GROUP, (0o775, "provider", "staff"), "group staff can write in /x"),
        (GROUP, (0o777, "provider", "images"), "everybody can write in /x"),
        # A user's own.
        (PRIVATE, (0o755, "ada", "staff"), ""),
        (PRIVATE, (0o755, "ada_a", "staff"), ""),
        (PRIVATE, (0o700, "mallory", "staff"), ""),
        (PRIVATE, (0o770, "ada", "staff"), "others can write in /x.*chmod go-w /x.*{user}"),
        (PRIVATE, (0o702, "ada", "staff"), "others can write in /x"),
        (PRIVATE, (0o740, "mallory", "s"), "belongs to user mallory, not to ada:.*chmod go-rwx /x"),
        (PRIVATE, (0o710, "mallory", "s"), "belongs to user mallory"),
        (PRIVATE, (0o704, "mallory", "s"), "belongs to user mallory"),
        (PRIVATE, (0o701, "mallory", "s"), "belongs to user mallory"),
    ],
)
def test_says_who_else_could_have_written_it(
    rule: OwnerRule, found: tuple[int, str, str], says: str
) -> None:
    problem = rule.problem("/x", Ownership(*found), TOP)
    assert bool(problem) is bool(says)
    assert re.search(says, problem)


def test_the_setting_that_names_the_group_is_said() -> None:
    rule = TrustedOwners("ada", 4202, "images", 55, setting="env.shared")
    problem = rule.problem("/x", Ownership(0o775, "provider", "staff"), TOP)
    assert "env.shared can name a group that is trusted" in problem


def test_a_group_of_a_store_changes_no_folders_unless_it_is_said() -> None:
    assert not GROUP.widens
