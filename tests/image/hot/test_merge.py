"""Merging traces: order-free, idempotent, complete, aged."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core.ranges import ByteRange, total_bytes
from bootseer.image.hot import hotset
from bootseer.image.hot.hotset import merge
from bootseer.image.hot.order import prefetch_order
from bootseer.image.hot.trace import (
    COMPLETE,
    MISSED,
    MOUNTED,
    PARTIAL,
    UNPACKED,
    Touch,
    Trace,
    join_touches,
    touched_beyond,
    usage_of,
)
from bootseer.testing import strategies as bst

DIGEST = "sqfs1-test"


def trace(run, touches, kind=COMPLETE, node="n1"):
    return Trace(DIGEST, 1 << 20, f"c.{run}", run, node, kind, tuple(touches))


def page(number, first_ms=0):
    """A page far from all others."""
    return Touch(number * 100_000, number * 100_000 + 4096, first_ms)


def ranges(hot_set):
    return [(r.start, r.stop) for r in hot_set.ranges]


@given(st.lists(bst.traces(), min_size=1, max_size=8), st.randoms())
def test_order_and_repetition_do_not_matter(traces, random):
    merged = merge(DIGEST, traces)
    shuffled = [*traces, *random.sample(traces, k=len(traces) // 2)]
    random.shuffle(shuffled)
    # Two traces of one node in one run that started at the same time cannot both be true.
    if len({(t.run, t.node, t.started_ns) for t in traces}) == len(traces):
        assert merge(DIGEST, shuffled) == merged


@given(bst.traces())
def test_all_that_a_single_trace_touched_is_hot(t):
    hot = {b for r in merge(DIGEST, [t]).ranges for b in range(r.start, r.stop, 4096)}
    assert {b for x in t.touches for b in range(x.start, x.stop, 4096)} <= hot


@given(st.lists(bst.traces(), min_size=1, max_size=8))
def test_hot_ranges_do_not_overlap_and_come_in_first_touch_order(traces):
    hot = merge(DIGEST, traces).ranges
    assert [r.first_ms for r in hot] == sorted(r.first_ms for r in hot)
    at = 0
    for r in sorted(hot):
        assert at <= r.start < r.stop
        at = r.stop


def test_first_touch_orders_the_hot_set():
    hot = merge(DIGEST, [trace(1, [Touch(500_000, 504_096, 10), Touch(0, 4096, 5000)])])
    assert ranges(hot) == [(500_000, 504_096), (0, 4096)]


def test_what_the_runs_since_have_not_touched_is_forgotten():
    old = trace(1, [Touch(0, 4096, 0), Touch(400_000, 404_096, 0)])
    new = [trace(run, [Touch(400_000, 404_096, 0)]) for run in range(2, 8)]
    assert ranges(merge(DIGEST, [old, *new[:2]])) == [(0, 4096), (400_000, 404_096)]
    assert ranges(merge(DIGEST, [old, *new])) == [(400_000, 404_096)]


def hot_pages(traces):
    return sorted(r.start // 100_000 for r in merge(DIGEST, traces).ranges)


def test_what_a_warm_start_missed_is_added():
    assert hot_pages([trace(1, [page(0)]), trace(2, [page(8)], MISSED)]) == [0, 8]


@pytest.mark.parametrize("kind", [COMPLETE, PARTIAL])
def test_warm_starts_forget_nothing(kind):
    """They cannot tell of what was prefetched for them, however many they are."""
    known = [trace(1, [page(0), page(1)], kind), trace(2, [page(2)], MISSED)]
    warm = [trace(run, [page(run % 10)], MISSED) for run in range(3, 60)]
    assert set(hot_pages([*known, *warm])) >= {0, 1, 2}


def test_a_partial_recording_counts_while_there_is_no_complete_one():
    partial = trace(1, [page(0)], PARTIAL)
    assert hot_pages([partial, trace(2, [page(1)], PARTIAL)]) == [0, 1]
    assert hot_pages([partial, trace(2, [page(1)])]) == [1]


def test_a_requeued_job_does_not_replace_what_it_recorded_first():
    first = Trace(DIGEST, 1 << 20, "c.1", 1, "n1", COMPLETE, (page(0),))
    again = Trace(DIGEST, 1 << 20, "c.1", 2, "n1", MISSED, (page(8),))
    assert hot_pages([first, again]) == [0, 8]


def test_the_lightest_are_left_out_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr(hotset, "MAX_RANGES", 3)
    old = trace(1, [page(number) for number in range(5)])
    new = trace(2, [page(number, first_ms=9) for number in range(3, 7)])
    assert hot_pages([old, new]) == [3, 4, 5]


def near(gap_bytes, *later_ms):
    """Pages with gaps between them, the first one touched after 0 ms."""
    step = 4096 + gap_bytes
    times_ms = enumerate((0, *later_ms))
    return [Touch(n * step, n * step + 4096, first_ms) for n, first_ms in times_ms]


@pytest.mark.parametrize(
    ("touches", "joined"),
    [
        (near(hotset.JOIN_GAP_BYTES, hotset.JOIN_MS), [(0, 2, 0)]),
        (near(hotset.JOIN_GAP_BYTES, 7, 5), [(0, 3, 0)]),
        (near(hotset.JOIN_GAP_BYTES + 1, 0), [(0, 1, 0), (1, 2, 0)]),
        (near(0, hotset.JOIN_MS + 1), [(0, 1, 0), (1, 2, 251)]),
        # After many seconds, samples are farther apart; before or after the first.
        (near(0, 16_000, 17_000), [(0, 1, 0), (1, 3, 16_000)]),
        (near(0, 16_000, 17_001), [(0, 1, 0), (1, 2, 16_000), (2, 3, 17_001)]),
        (near(0, 16_000, 15_000), [(0, 1, 0), (1, 3, 15_000)]),
        (near(0, 16_000, 14_999), [(0, 1, 0), (2, 3, 14_999), (1, 2, 16_000)]),
    ],
)
def test_neighbours_that_were_touched_at_about_the_same_time_are_one(touches, joined):
    found = [(r.start, r.stop, r.first_ms) for r in merge(DIGEST, [trace(1, touches)]).ranges]
    assert found == [(touches[a].start, touches[b - 1].stop, ms) for a, b, ms in joined]


def test_of_neighbours_that_are_one_the_heavier_weighs():
    often, rarely = near(0, 0)
    hot = merge(DIGEST, [trace(1, [often]), trace(2, [often, rarely])]).ranges
    assert hot == (hotset.HotRange(0, 8192, 0, 1_000_000),)
    hot = merge(DIGEST, [trace(1, [rarely]), trace(2, [often])]).ranges
    assert hot == (hotset.HotRange(0, 8192, 0, round(1e6 / 1.7)),)


def test_of_several_nodes_the_typical_time_counts():
    nodes = [trace(1, [page(0, ms)], node=f"n{ms}") for ms in (9, 5, 700, 6)]
    assert [r.first_ms for r in merge(DIGEST, nodes).ranges] == [6]


def test_what_weighs_just_enough_is_hot(monkeypatch):
    monkeypatch.setattr(hotset, "AGEING", 1.0)
    monkeypatch.setattr(hotset, "MIN_WEIGHT", 0.5)
    assert hot_pages([trace(1, [page(0)]), trace(2, [page(1)])]) == [0, 1]
    assert hot_pages([trace(1, [page(0)]), trace(2, [page(1)]), trace(3, [page(1)])]) == [1]


# Which traces are kept.


def test_what_was_missed_as_a_recording_began_is_told_by_that():
    recorded = trace(5, [page(5)])
    missed = [replace(trace(6, [page(6)], MISSED), started_ns=ns) for ns in (5, 6)]
    assert hotset.sort_out([recorded, *missed], 3) == ([recorded, missed[1]], [])


def test_without_a_recording_all_that_was_missed_is_used():
    missed = [trace(run, [page(run)], MISSED) for run in range(3)]
    assert hotset.sort_out(missed, 2) == (missed, [])


@pytest.mark.parametrize(("count", "folded"), [(3, 0), (4, 2), (6, 4)])
def test_old_starts_that_missed_something_are_folded_but_for_the_newest(count, folded):
    recorded = trace(1, [page(0)])
    missed = [trace(run, [page(run)], MISSED) for run in range(2, 2 + count)]
    use, old = hotset.sort_out([recorded, *missed], 2)
    assert (use, old) == ([recorded, *missed], missed[:folded])


def test_a_fold_is_a_trace_of_the_newest_of_those_that_it_holds():
    held = (ByteRange(0, 4096),)
    old = [
        replace(trace(2, [page(1, 30)], MISSED, "n1"), holdout=held),
        replace(trace(3, [page(2, 20), page(1, 10)], MISSED, "n2"), size_bytes=1 << 21),
    ]
    touches = (page(1, 10), page(2, 20))
    expected = replace(old[1], node=hotset.FOLDED, touches=touches, holdout=())
    assert hotset.fold(old) == hotset.fold(old[::-1]) == expected


def test_the_newest_recordings_are_used_and_what_was_missed_since():
    traces = [trace(run, [page(run)]) for run in range(1, 8)]
    missed = [trace(2, [page(8)], MISSED, "n2"), trace(9, [page(9)], MISSED)]
    use, old = hotset.sort_out([*missed, *traces], runs_kept=3)
    assert [t.started_ns for t in use] == [5, 6, 7, 9]
    assert old == []


@given(
    st.lists(bst.traces(), max_size=30, unique_by=lambda t: (t.run, t.node, t.started_ns)),
    st.integers(1, 3),
)
def test_folding_changes_nothing_of_what_was_missed(traces, runs_kept):
    use, old = hotset.sort_out(traces, runs_kept)
    assert all(t in use and t.kind == MISSED for t in old)
    if not old:
        return
    folded = hotset.fold(old)
    after = [*(t for t in use if t not in old), folded]
    before_set = {b for r in merge(DIGEST, use).ranges for b in range(r.start, r.stop, 4096)}
    after_set = {b for r in merge(DIGEST, after).ranges for b in range(r.start, r.stop, 4096)}
    assert {b for t in old for x in t.touches for b in range(x.start, x.stop, 4096)} <= after_set
    assert before_set <= after_set
    again, old = hotset.sort_out(after, runs_kept)
    runs = {t.run for t in again if t.kind == MISSED}
    assert len(runs) <= 2 * (runs_kept + 1) + hotset.DOUBTS - 1 or old


def test_traces_of_another_image_are_passed_over():
    other = Trace("sqfs1-other", 1 << 20, "c.2", 2, "n1", COMPLETE, (Touch(8192, 12288, 0),))
    assert ranges(merge(DIGEST, [trace(1, [Touch(0, 4096, 0)]), other])) == [(0, 4096)]


def test_the_prefetch_begins_with_the_tables_and_reads_nothing_twice():
    tables = [ByteRange(0, 96), ByteRange(900_000, 1_000_000)]
    hot = [ByteRange(950_000, 1_000_000), ByteRange(4096, 8192), ByteRange(0, 4096)]
    pieces = list(prefetch_order(tables, hot, 1 << 30, 65_536))
    assert pieces[0] == ByteRange(0, 96)
    assert pieces[1].start == 900_000
    assert pieces[-2:] == [ByteRange(4096, 8192), ByteRange(96, 4096)]
    seen = [b for p in pieces for b in range(*p)]
    assert len(seen) == len(set(seen)) == 100_000 + 8192


@pytest.mark.parametrize(("budget", "read"), [(8192, 2), (8191, 1), (4096, 1), (4095, 0)])
def test_the_prefetch_uses_its_budget_up(budget, read):
    pieces = [ByteRange(0, 4096), ByteRange(8192, 12_288)]
    assert list(prefetch_order([], pieces, budget, 65_536)) == pieces[:read]


@given(st.integers(0, 200_000))
def test_the_prefetch_stays_in_its_budget(budget):
    pieces = prefetch_order([ByteRange(0, 96)], [ByteRange(4096, 150_000)], budget, 4096)
    assert total_bytes(pieces) <= budget


# Starts that read all of it

LARGE = 1 << 30


def large(run, shares, kind=COMPLETE):
    """A start that touches parts of an image, from and to a share of it."""
    touches = [Touch(int(a * LARGE), int(b * LARGE), 0) for a, b in shares]
    return Trace(DIGEST, LARGE, f"c.{run}", run, "n1", kind, tuple(touches))


ALL = [(0.0, 0.97)]
PART = [(0.1, 0.15)]


def hot_bytes(*traces):
    return merge(DIGEST, traces).hot_bytes / LARGE


@pytest.mark.parametrize("kind", [COMPLETE, PARTIAL])
def test_who_unpacks_an_image_makes_nothing_hot(kind):
    whole, part = large(1, ALL, kind), large(2, PART)
    assert hot_bytes(whole) == 0
    assert hot_bytes(whole, part) == hot_bytes(part) == pytest.approx(0.05)
    assert hot_bytes(large(1, PART), large(2, ALL, kind)) == pytest.approx(0.05)
    missed = large(3, [(0.3, 0.31)], MISSED)
    assert hot_bytes(whole, part, missed) == pytest.approx(0.06)


@pytest.mark.parametrize("kind", [COMPLETE, PARTIAL])
@pytest.mark.parametrize("to", [0.07, 0.4, 1.0])
def test_nor_does_who_had_not_unpacked_all_of_it_when_recording_ended(to, kind):
    step = to / 50  # what the kernel only read ahead is left out
    trace = large(1, [(n * step, (n + 0.95) * step) for n in range(50)], kind)
    usage = usage_of(kind, trace.touches)
    assert usage == UNPACKED
    assert hot_bytes(replace(trace, usage=usage)) == 0
    assert hot_bytes(replace(trace, usage=MOUNTED)) == pytest.approx(0.95 * to, rel=0.06)


@pytest.mark.parametrize(
    ("shares", "kind", "usage"),
    [
        (PART, COMPLETE, MOUNTED),
        ([(0.2, 0.9)], COMPLETE, MOUNTED),  # a large file, and nothing before
        ([(0.0, 0.05)], COMPLETE, MOUNTED),  # little
        ([(0.0, 0.5), (0.9, 0.95)], PARTIAL, MOUNTED),
        (ALL, MISSED, ""),
        ([], COMPLETE, ""),
    ],
)
def test_what_is_read_here_and_there_is_mounted(shares, kind, usage):
    assert usage_of(kind, large(1, shares).touches) == usage


def test_so_does_not_who_unpacks_it_after_a_prefetch():
    """What was prefetched is not missed, though it was read."""
    half = large(1, [(0.0, 0.5)])
    assert hot_bytes(half, large(2, [(0.5, 0.97)], MISSED)) == pytest.approx(0.5)
    assert hot_bytes(half, large(2, [(0.5, 0.9)], MISSED)) == pytest.approx(0.9)


@pytest.mark.parametrize(("hot", "own"), [(0.88, 0.09), (1.0, 0.0)])
def test_what_is_read_of_a_holdout_is_no_part_of_what_was_not_hot(hot, own):
    """Nine of the twelve per cent that are not hot: the holdout does not make it nearly all."""
    recorded = replace(large(1, [(0.0, hot)]), usage=MOUNTED)
    held = [(n / 100, n / 100 + 0.001) for n in range(32)]
    missed = large(2, [*held, *([(0.9, 0.9 + own)] if own else [])], MISSED)
    pieces = tuple(touch.range for touch in missed.touches[:32])
    assert hot_bytes(recorded, replace(missed, holdout=pieces)) == pytest.approx(hot + own)
    assert hotset.sort_out([recorded, missed], 5)[0] == [recorded, missed]


def test_where_all_starts_unpack_it_one_trace_says_so():
    whole = [large(run, ALL) for run in range(1, 6)]
    use, old = hotset.sort_out(whole, 3)
    assert (use, old) == (whole[-1:], [])
    part = large(9, PART)
    assert hotset.sort_out([*whole, part], 3)[0] == [part]


# Starts that read little of what was prefetched


def doubting(run, *, is_read, node="n1", touches=()):
    """A start with four pieces held out, of which it has read all or none."""
    held = tuple(ByteRange(100 * n, 100 * n + 50) for n in range(4))
    read = [Touch(r.start + 10, r.stop, 0) for r in held] if is_read else []
    both = (*read, *touches)
    return Trace(DIGEST, 1 << 20, f"c.{run}", run, node, MISSED, both, held)


def test_what_starts_in_a_row_have_not_read_is_given_up():
    recorded = trace(1, [page(1)])
    starts = [doubting(run, is_read=False, touches=[page(run)]) for run in (3, 4, 5)]
    known = [recorded, trace(2, [page(9)], MISSED), *starts]
    assert [merge(DIGEST, known[:n]).doubts for n in (2, 3, 4, 5)] == [0, 1, 2, 3]
    assert hotset.sort_out(known[:-1], 5) == (known[:-1], [])
    use, old = hotset.sort_out(known, 5)
    assert (use, old) == (starts, [])
    assert hot_pages(use) == [3, 4, 5]
    # Once more; and a recording that is newer than the doubts counts again.
    more = doubting(6, is_read=False, touches=[page(6)])
    assert hotset.sort_out([*use, more], 5)[0] == [*starts[1:], more]
    again = trace(7, [page(1)])
    assert hotset.sort_out([*use, more, again], 5)[0] == [again]


def test_one_that_has_read_it_ends_the_doubts():
    starts = [doubting(run, is_read=run == 4) for run in (2, 3, 4, 5, 6)]
    known = [trace(1, [page(1)]), *starts]
    assert [merge(DIGEST, known[:n]).doubts for n in (2, 3, 4, 5, 6)] == [1, 2, 0, 1, 2]
    assert hotset.sort_out(known, 9)[0] == known


@pytest.mark.parametrize("runs_kept", [1, 2, 5])
def test_doubts_are_remembered_however_many_starts_that_say_nothing_come_between(runs_kept):
    kept = [trace(1, [page(1)]), trace(2, [page(2)], MISSED)]
    for run in range(3, 3 + 3 * 20):
        says_nothing = trace(run, [page(run)], MISSED)
        kept.append(says_nothing if run % 20 else doubting(run, is_read=False))
        if merge(DIGEST, kept).doubts == 3:
            break
        use, old = hotset.sort_out(kept, runs_kept)
        kept = [t for t in use if t not in old] + ([hotset.fold(old)] if old else [])
        assert len(kept) <= 1 + 2 * (runs_kept + 1) + 2
    use, _ = hotset.sort_out(kept, runs_kept)
    assert run == 60
    assert hot_pages(use) == [*range(21, 40), *range(41, 60)], "what was before is given up"


def test_nodes_of_a_start_count_together():
    known = [trace(1, [page(1)])]
    for run in (2, 3, 4):
        known += [doubting(run, is_read=node == "n1", node=node) for node in ("n1", "n2", "n3")]
    assert merge(DIGEST, known).doubts == 3
    assert merge(DIGEST, known[:3]).doubts == 0  # half of it was read


@pytest.mark.parametrize(("held", "read", "doubts"), [(4, 1, 1), (4, 2, 0), (7, 3, 1), (1, 0, 1)])
def test_less_than_half_of_a_holdout_is_a_doubt(held, read, doubts):
    pieces = tuple(ByteRange(100 * n, 100 * n + 50) for n in range(held))
    start = trace(2, [Touch(r.start, r.stop, 0) for r in pieces[:read]], MISSED)
    known = [trace(1, [page(1)]), replace(start, holdout=pieces)]
    assert merge(DIGEST, known).doubts == doubts


@pytest.mark.parametrize(
    ("size_bytes", "hot_bytes"),
    [(1 << 20, 1 << 20), ((64 << 20) - 1, (64 << 20) - 1), (64 << 20, 0)],
)
def test_of_a_small_image_all_is_hot_that_is_touched(size_bytes, hot_bytes):
    touches = (Touch(0, size_bytes, 0),)
    small = Trace(DIGEST, size_bytes, "c.1", 1, "n1", COMPLETE, touches)
    assert merge(DIGEST, [small]).hot_bytes == hot_bytes


@pytest.mark.parametrize(("short_bytes", "is_whole"), [(0, True), (1, False)])
def test_nine_tenths_are_nearly_all(short_bytes, is_whole):
    """Of the image, or of it up to the last byte that was read."""
    read = (Touch(0, (90 << 20) - 1 - short_bytes, 0), Touch((100 << 20) - 1, 100 << 20, 0))
    assert usage_of(COMPLETE, read) == (UNPACKED if is_whole else MOUNTED)
    start = Trace(DIGEST, 100 << 20, "c.1", 1, "n1", COMPLETE, read)
    assert (merge(DIGEST, [start]).hot_bytes == 0) == is_whole


@pytest.mark.parametrize(("size_bytes", "usage"), [(64 << 20, UNPACKED), ((64 << 20) - 1, MOUNTED)])
def test_who_reads_a_little_from_the_beginning_on_does_not_unpack(size_bytes, usage):
    assert usage_of(COMPLETE, [Touch(0, size_bytes, 0)]) == usage


def test_a_hot_set_of_many_runs_can_be_read():
    merged = merge(DIGEST, [trace(run, [page(0)], MISSED) for run in range(1200)])
    assert merged.runs == tuple(f"c.{run}" for run in range(200, 1200))
    assert hotset.decode(merged.encode(), "it") == merged


def test_a_touch_beside_what_is_known_has_its_own_time():
    touches = [Touch(0, 10, 5), Touch(10, 20, 7), Touch(30, 40, 9)]
    assert touched_beyond(touches, [ByteRange(0, 10)]) == touches[1:]
    assert touched_beyond(touches, [ByteRange(5, 35)]) == [Touch(0, 5, 5), Touch(35, 40, 9)]


def test_what_was_touched_in_two_ways_is_put_together_once_each():
    one = [Touch(0, 10, 5), Touch(30, 40, 1)]
    other = [Touch(35, 50, 0), Touch(5, 20, 7), Touch(20, 34, 9), Touch(2, 4, 10)]
    assert join_touches(one, other) == [
        *(Touch(40, 50, 0), Touch(30, 40, 1), Touch(0, 10, 5)),
        *(Touch(10, 20, 7), Touch(20, 30, 9)),
    ]
