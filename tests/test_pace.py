"""Requests under way become more or fewer by how long their answers take."""

from bootseer.peers.client import pace_of_pieces


def test_requests_become_more_while_pieces_come_quickly_up_to_a_limit():
    pace = pace_of_pieces()
    seen = [pace.requests]
    for _ in range(20):
        pace.note(0.1)
        seen.append(pace.requests)
    assert seen[:4] == [4, 5, 6, 7]
    assert seen[-1] == 16


def test_requests_become_fewer_while_pieces_come_late_but_never_one():
    pace = pace_of_pieces()
    for _ in range(20):
        pace.note(2)
    assert pace.requests == 2


def test_what_is_neither_changes_nothing():
    pace = pace_of_pieces()
    pace.note(0.5)
    assert pace.requests == 4
