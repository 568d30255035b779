"""Who may have how much of the block cache: the rule, without a disk."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bootseer.cache.shares import ACTIVE_S, CacheLimits, EntryUsage, SpaceDemand, UsageBook
from bootseer.units import NS_PER_S

NOW_NS = 10 * ACTIVE_S * NS_PER_S
LIMITS = CacheLimits(total_bytes=90, user_bytes=60, user_entries=5)
ALICE, BOB, CAROL = 1001, 1002, 1003


def account(name, uid, charged_bytes, age_s=100, is_leaving=False):
    return EntryUsage(name, uid, charged_bytes, NOW_NS - age_s * NS_PER_S, is_leaving)


def book(*accounts):
    return UsageBook(accounts, LIMITS, NOW_NS)


def demand(uid, more_bytes, entries=1):
    return SpaceDemand(uid, more_bytes, more_bytes, entries)


def victims(accounts, wanted, busy=()):
    """The names of what gives way, in order, until nothing more does."""
    current, names = book(*accounts), []
    while (victim := current.victim(wanted, busy)) is not None:
        names.append(victim.name)
        current.note_leaving(victim)
    return names


def test_a_user_above_the_equal_part_evicts_own_entries_first():
    accounts = [
        account("bob-old", BOB, 40, age_s=900),
        account("alice", ALICE, 20, age_s=500),
        account("alice-new", ALICE, 20, age_s=50),
        account("carol", CAROL, 10, age_s=950),
    ]
    assert victims(accounts, demand(ALICE, 10)) == ["alice"]
    # What is hers and in use does not go: then that of others who have too much, too.
    assert victims(accounts, demand(ALICE, 10), {"alice", "alice-new"}) == ["bob-old"]
    assert victims(accounts, demand(ALICE, 10), {"alice", "alice-new", "bob-old"}) == []


def test_a_user_below_it_evicts_the_oldest_of_users_above_it():
    accounts = [
        account("bob", BOB, 20, age_s=800),
        account("bob-new", BOB, 25, age_s=10),
        account("alice", ALICE, 20, age_s=900),
        account("alice-new", ALICE, 20, age_s=5),
    ]
    assert victims(accounts, demand(CAROL, 10)) == ["alice"]
    assert victims(accounts, demand(CAROL, 25)) == ["alice"]
    assert victims(accounts, demand(CAROL, 30)) == ["alice", "bob"]


def test_a_user_below_it_evicts_own_entries_if_no_others():
    accounts = [account("bob", BOB, 50), account("bob-new", BOB, 10), account("alice", ALICE, 25)]
    assert victims(accounts, demand(ALICE, 15), {"bob", "bob-new"}) == ["alice"]


def test_a_fixed_share_is_the_most_even_of_an_empty_cache():
    assert book().fits(demand(ALICE, 60)) and not book().fits(demand(ALICE, 61))
    accounts = [account(str(n), ALICE, 10, age_s=n) for n in range(5)]
    assert not book(*accounts).fits(demand(ALICE, 1))  # one entry more than five
    assert victims(accounts, demand(ALICE, 1)) == ["4"]
    assert book(*accounts).fits(demand(ALICE, 10, entries=0))


def test_a_demand_is_possible_if_evictable_entries_suffice():
    accounts = [account("alice", ALICE, 30), account("bob", BOB, 40), account("carol", CAROL, 20)]
    assert book(*accounts).is_possible(demand(CAROL, 10))  # in the place of Bob's
    busy = [account("alice", ALICE, 30), replace(account("bob", BOB, 40), is_open=True)]
    assert not book(*busy).is_possible(demand(CAROL, 21))
    assert book(*busy).is_possible(demand(CAROL, 20))
    assert not book(*accounts).is_possible(demand(ALICE, 61))
    assert [a.name for a in accounts] == ["alice", "bob", "carol"]


def test_entries_being_removed_count_until_gone():
    accounts = [account("a", ALICE, 50, is_leaving=True), account("b", BOB, 35)]
    assert not book(*accounts).fits(demand(CAROL, 10))
    assert victims(accounts, demand(CAROL, 10)) == []  # there will be room


def test_unused_users_entries_are_evicted():
    accounts = [account("bob", BOB, 5, age_s=ACTIVE_S + 1), account("alice", ALICE, 60)]
    assert victims(accounts, demand(CAROL, 30)) == ["bob"]
    assert book(*accounts).equal_part(ALICE) == 90


def test_a_day_after_the_last_use_a_part_is_not_kept():
    for age_s, part in ((ACTIVE_S - 1, 45), (ACTIVE_S, 90)):
        assert book(account("bob", BOB, 5, age_s=age_s)).equal_part(ALICE) == part
    assert book(account("bob", BOB, 5, is_leaving=True)).equal_part(ALICE) == 90


def test_an_entry_within_the_equal_part_by_a_byte_is_protected():
    accounts = [account("alice", ALICE, 30), account("bob", BOB, 30), account("carol", CAROL, 30)]
    assert victims(accounts, demand(ALICE, 1)) == ["alice"]
    assert victims(accounts[1:], demand(ALICE, 31)) == []
    more = [account("bob", BOB, 31), account("carol", CAROL, 30)]
    assert victims(more, demand(ALICE, 30)) == ["bob"]
    own = [account("alice", ALICE, 20), account("bob", BOB, 40), account("carol", CAROL, 30)]
    assert victims(own, demand(ALICE, 10)) == ["bob"]
    assert victims(own, demand(ALICE, 11)) == ["alice"]


def test_a_demand_fits_to_the_last_byte_and_entry():
    accounts = [account("alice", ALICE, 30), account("bob", BOB, 40)]
    assert book(*accounts).charged_bytes == 70
    assert book(*accounts).fits(demand(ALICE, 20)) and not book(*accounts).fits(demand(ALICE, 21))
    assert victims(accounts, demand(ALICE, 20)) == []
    four = [account(str(n), ALICE, 10, age_s=n) for n in range(4)]
    assert book(*four).fits(demand(ALICE, 1)) and not book(*four).fits(demand(ALICE, 1, entries=2))


def test_whether_room_can_be_made_changes_nothing():
    accounts = [account("alice", ALICE, 50), account("bob", BOB, 40)]
    current = book(*accounts)
    assert current.is_possible(demand(CAROL, 50))
    assert current.accounts == accounts
    current.note_leaving(accounts[0])
    assert current.accounts == [accounts[1], replace(accounts[0], is_leaving=True)]
    assert not current.fits(demand(CAROL, 1)) and current.is_possible(demand(CAROL, 1))


def test_a_demand_beyond_the_limit_is_impossible():
    little = UsageBook([], CacheLimits(total_bytes=50, user_bytes=60, user_entries=5), NOW_NS)
    assert little.is_possible(demand(ALICE, 50)) and not little.is_possible(demand(ALICE, 51))
    assert book().is_possible(demand(ALICE, 60)) and not book().is_possible(demand(ALICE, 61))


def test_an_account_is_neither_leaving_nor_open_by_default():
    plain = EntryUsage("a", ALICE, 5, NOW_NS)
    assert not plain.is_leaving and not plain.is_open


def test_growing_the_entry_of_another():
    small, large = account("a", ALICE, 20), account("b", ALICE, 30)
    both = book(small, account("bob", BOB, 10))
    assert both.demand(small, BOB, 25) == SpaceDemand(ALICE, 25, 25, 0)
    assert both.demand(small, BOB, 26) == SpaceDemand(BOB, 26, 46, 1)
    assert both.demand(small, ALICE, 70) == SpaceDemand(ALICE, 70, 70, 0)  # refused by `fits`
    assert book(large).demand(large, BOB, 31) == SpaceDemand(BOB, 31, 61, 1)


@st.composite
def full_books(draw):
    accounts = [
        account(
            str(number),
            draw(st.sampled_from([ALICE, BOB, CAROL])),
            draw(st.integers(0, 40)),
            draw(st.integers(1, 2 * ACTIVE_S)),
            draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 8)))
    ]
    busy = {a.name for a in accounts if draw(st.booleans())}
    return accounts, busy


@given(full_books(), st.sampled_from([ALICE, BOB, CAROL]), st.integers(1, 70))
def test_users_within_the_equal_part_lose_nothing_to_others(made, uid, more_bytes):
    accounts, busy = made
    current, wanted = book(*accounts), demand(uid, more_bytes)
    gone = []
    for _ in range(len(accounts) + 1):
        left = [a for a in current.accounts if not a.is_leaving]
        totals = {u: sum(a.charged_bytes for a in left if a.uid == u) for u in (ALICE, BOB, CAROL)}
        active = {a.uid for a in left if NOW_NS - a.used_ns < ACTIVE_S * NS_PER_S} | {uid}
        victim = current.victim(wanted, busy)
        if victim is None:
            break
        assert victim.name not in busy and not victim.is_leaving
        part = LIMITS.total_bytes // len(active)
        assert victim.uid == uid or victim.uid not in active or totals[victim.uid] > part
        current.note_leaving(victim)
        gone.append(victim)
    # If nothing is in use, whoever asks for no more than the share gets it.
    if not busy and more_bytes <= 60 // len({ALICE, BOB, CAROL}):
        left = [a for a in current.accounts if not a.is_leaving]
        assert UsageBook(left, LIMITS, NOW_NS).fits(wanted)
