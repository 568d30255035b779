"""Time and links of simulated machines."""

import pytest

from bootseer.simulate.network import Clock, Link, transfer


def test_what_is_due_is_done_in_its_order_and_may_bring_more():
    clock, done = Clock(), []

    def first():
        done.append(("first", clock.now_s))
        clock.at(clock.now_s + 1, lambda: done.append(("more", clock.now_s)))

    clock.at(2, lambda: done.append(("last", clock.now_s)))
    clock.at(1, first)
    clock.at(2, lambda: done.append(("after it", clock.now_s)))
    clock.run()
    assert done == [("first", 1), ("last", 2), ("after it", 2), ("more", 2)]


def test_a_link_sends_one_thing_after_the_other():
    link = Link(10)
    assert link.send(1, 20) == 1
    assert link.send(2, 10) == 3
    assert link.free_s == 4
    assert link.send(9, 10) == 9
    assert link.sent_bytes == 40


@pytest.mark.parametrize(("sends", "receives", "took_s"), [(10, 100, 10), (100, 10, 10)])
def test_the_slower_link_decides(sends, receives, took_s):
    assert transfer(5, 100, Link(sends), Link(receives)) == pytest.approx(5 + took_s)


def test_a_receiver_that_is_busy_gets_it_later_and_its_sender_is_free():
    sender, busy = Link(10), Link(10)
    busy.send(0, 100)
    assert transfer(0, 10, sender, busy) == 11
    assert sender.free_s == 1
