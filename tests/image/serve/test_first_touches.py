"""First touches: every byte once, at its first time, in the order of these."""

from hypothesis import given
from hypothesis import strategies as st

from bootseer.image.hot.trace import Touch
from bootseer.image.serve import touch_log
from bootseer.image.serve.touch_log import FirstTouches

reads = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=40)


@given(reads)
def test_each_byte_is_touched_when_it_was_first(reads):
    found, first = FirstTouches(), {}
    for now_ms, (start, size) in enumerate(reads):
        found.add(start, start + size, now_ms)
        for byte in range(start, start + size):
            first.setdefault(byte, now_ms)
    told = [(byte, t.first_ms) for t in found.touches for byte in range(t.start, t.stop)]
    assert sorted(told) == sorted(first.items())
    assert all(t.start < t.stop for t in found.touches)
    assert [t.first_ms for t in found.touches] == sorted(t.first_ms for t in found.touches)


def test_no_more_is_kept_than_a_trace_can_hold(monkeypatch):
    monkeypatch.setattr(touch_log, "MAX_TOUCHES", 3)
    found = FirstTouches()
    for number in range(10):
        found.add(2 * number, 2 * number + 1, number)
    assert found.touches == [Touch(0, 1, 0), Touch(2, 3, 1), Touch(4, 5, 2)]
