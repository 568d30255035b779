"""Lanes: each piece once, no lane above its limit, none idle that has something to do."""

from collections import Counter
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.checkpoint.read.lanes import Lanes

LAYOUTS = st.lists(st.sampled_from("abcde"), max_size=40)


class Watched:
    """Lanes, and what should be true of them."""

    def __init__(self, per_lane):
        self.lanes = Lanes(per_lane)
        self.per_lane = per_lane
        self.waiting = {}
        self.busy = Counter()
        self.taken = []

    def add(self, piece, lane):
        self.lanes.add(piece, lane)
        self.waiting.setdefault(lane, set()).add(piece)

    def take(self):
        able = {lane for lane, has in self.waiting.items() if has} - {
            lane for lane, busy in self.busy.items() if busy >= self.per_lane
        }
        taken = self.lanes.take()
        if taken is None:
            assert not able, "a lane is idle that has pieces"
            return None
        piece, lane = taken
        assert lane in able
        assert self.busy[lane] == min(self.busy[other] for other in able), "others are less busy"
        idlest = [other for other in able if self.busy[other] == self.busy[lane]]
        assert piece == min(min(self.waiting[other]) for other in idlest), "an earlier piece waits"
        self.waiting[lane].discard(piece)
        self.busy[lane] += 1
        self.taken.append(piece)
        return taken

    def remove(self, piece):
        self.lanes.remove(piece)
        for has in self.waiting.values():
            has.discard(piece)

    def done(self, lane):
        self.lanes.done(lane)
        self.busy[lane] -= 1


@given(LAYOUTS, st.integers(1, 4), st.integers(1, 12), st.data())
def test_each_piece_is_taken_once_and_no_lane_idles(layout, per_lane, streams, data):
    watched = Watched(per_lane)
    later = list(enumerate(layout))
    under_way = []
    while True:
        for _ in range(min(len(later), data.draw(st.integers(0, 8)))):
            watched.add(*later.pop(0))
        assert len(watched.lanes) == sum(len(has) for has in watched.waiting.values())
        while len(under_way) < streams and (taken := watched.take()) is not None:
            under_way.append(taken[1])
        if under_way:
            watched.done(under_way.pop(data.draw(st.integers(0, len(under_way) - 1))))
        elif not later:
            break
    assert sorted(watched.taken) == list(range(len(layout)))
    assert watched.lanes.take() is None and not len(watched.lanes)


@given(LAYOUTS, st.integers(1, 3), st.integers(0, 10))
def test_what_waits_is_forgotten_and_what_is_under_way_still_counts(layout, per_lane, taken):
    watched = Watched(per_lane)
    for piece, lane in enumerate(layout):
        watched.add(piece, lane)
    under_way = [found[1] for _ in range(taken) if (found := watched.take())]
    watched.lanes.clear()
    watched.waiting.clear()
    assert not len(watched.lanes) and watched.take() is None
    for piece, lane in enumerate(layout):
        watched.add(piece, lane)
    while watched.take():
        pass
    for lane in under_way:
        watched.done(lane)
    while watched.take():
        pass
    assert max(watched.busy.values(), default=0) <= per_lane


@given(LAYOUTS, st.integers(1, 3), st.sets(st.integers(0, 40)), st.booleans())
def test_what_is_removed_is_not_taken_until_it_is_added_again(layout, per_lane, removed, again):
    watched = Watched(per_lane)
    for piece, lane in enumerate(layout):
        watched.add(piece, lane)
    for piece in removed:
        watched.remove(piece)
    expected = set(range(len(layout))) - removed
    assert {piece for piece in range(50) if piece in watched.lanes} == expected
    if again:
        for piece, lane in enumerate(layout):
            if piece in removed:
                watched.add(piece, lane)
        expected = set(range(len(layout)))
    assert len(watched.lanes) == len(expected)
    while len(watched.lanes):
        watched.done(watched.take()[1])
    assert sorted(watched.taken) == sorted(expected) and watched.take() is None


class InOrder:
    """What `Lanes` is better than: the earliest piece, whoever has it."""

    def __init__(self, per_lane):
        self._heap = []

    def add(self, piece, lane):
        heappush(self._heap, (piece, lane))

    def take(self):
        return heappop(self._heap) if self._heap else None

    def done(self, lane):
        pass


def seconds(layout, lanes, streams):
    """Fetch pieces of a lane-second each; fetches of one lane share its rate."""
    for piece, lane in enumerate(layout):
        lanes.add(piece, lane)
    now, left = 0.0, []
    while True:
        while len(left) < streams and (taken := lanes.take()) is not None:
            left.append([1.0, taken[1]])
        if not left:
            return now
        shared = Counter(lane for _, lane in left)
        step = min(work * shared[lane] for work, lane in left)
        now += step
        for fetch in left:
            fetch[0] -= step / shared[fetch[1]]
        for fetch in [fetch for fetch in left if fetch[0] < 1e-9]:
            left.remove(fetch)
            lanes.done(fetch[1])


@pytest.mark.parametrize("streams", [4, 6, 8, 24])
@pytest.mark.parametrize("per_lane", [1, 2, 4])
@pytest.mark.parametrize("run", [2, 32])
def test_machines_of_equal_rate_all_work_to_the_end(run, per_lane, streams):
    """Blocks lie as a-a-b-b-c-c-d-d, as HDFS would have it: read in order, one machine works."""
    layout = [lane for lane in "abcd" for _ in range(run)] * (64 // run)
    best = len(layout) / 4
    assert seconds(layout, Lanes(per_lane), streams) <= 1.05 * best
    if run > streams:
        assert seconds(layout, InOrder(per_lane), streams) > 2 * best


@given(LAYOUTS, st.integers(1, 3), st.integers(5, 12))
def test_it_takes_no_longer_than_the_lane_with_most(layout, per_lane, streams):
    best = max(Counter(layout).values(), default=0)
    assert seconds(layout, Lanes(per_lane), streams) <= best + 1e-6
