"""Traces, hot sets and warm plans: what is written is read back, what is damaged is refused."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core import event, table, warm_plan
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.image.hot import hotset, trace
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.hot.trace import COMPLETE, Touch, Trace
from bootseer.testing import strategies as bst

TRACE = Trace("sqfs1-x", 8192, "c.1", 7, "n1", COMPLETE, (Touch(0, 4096, 3), Touch(4096, 8192, 5)))
HOT = HotSet("sqfs1-x", 8192, ("c.1",), (HotRange(0, 4096, 3, 1_000_000),), 2)
CODECS = {"trace": (trace.decode, TRACE), "hot set": (hotset.decode, HOT)}


@given(bst.traces(usages=trace.USAGES))
def test_a_trace_is_read_back(t):
    assert trace.decode(t.encode(), "t") == t


@given(st.lists(bst.traces(), min_size=1, max_size=6))
def test_a_hot_set_is_read_back(traces):
    hot_set = hotset.merge("sqfs1-test", traces)
    assert hotset.decode(hot_set.encode(), "h") == hot_set


@given(bst.plans())
def test_a_plan_is_read_back(p):
    assert warm_plan.decode(p.encode(), "p") == p


@pytest.mark.parametrize("kind", CODECS)
@given(data=st.data())
def test_one_changed_byte_is_noticed(kind, data):
    decode, value = CODECS[kind]
    encoded = bytearray(value.encode())
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        decode(bytes(encoded), "damaged")


@pytest.mark.parametrize("kind", CODECS)
@given(st.binary(max_size=200))
def test_anything_else_is_refused(kind, data):
    decode, value = CODECS[kind]
    with pytest.raises(Corrupt):
        decode(data, "garbage")
    with pytest.raises(Corrupt):
        decode(value.encode()[:-1], "cut")
    with pytest.raises(Corrupt):
        decode(value.encode() + data + b"x", "longer")


@pytest.mark.parametrize(
    "touches",
    [
        (Touch(0, 4096, 0), Touch(4000, 8192, 0)),
        (Touch(4096, 12288, 0),),
        (Touch(4096, 4096, 0),),
    ],
    ids=["overlapping", "past the end", "empty"],
)
def test_ranges_that_cannot_be_are_refused(touches):
    bad = Trace("d", 8192, "c.1", 7, "n1", COMPLETE, touches)
    with pytest.raises(Corrupt, match="range"):
        trace.decode(bad.encode(), "t")


@pytest.mark.parametrize(
    "pieces",
    [[(0, 4096), (4000, 8192)], [(4096, 8193)], [(0, 8192), (0, 8192)]],
    ids=["overlapping", "past the end", "twice"],
)
def test_hot_ranges_and_holdouts_that_cannot_be_are_refused(pieces):
    hot_set = replace(HOT, ranges=tuple(HotRange(*piece, 3, 9) for piece in pieces))
    with pytest.raises(Corrupt, match="range"):
        hotset.decode(hot_set.encode(), "h")
    held_out = replace(TRACE, holdout=tuple(ByteRange(*piece) for piece in pieces))
    with pytest.raises(Corrupt, match="range"):
        trace.decode(held_out.encode(), "t")


def test_ranges_side_by_side_that_fill_an_image_are_accepted():
    pieces = [(4096, 8192), (0, 4096)]
    hot_set = replace(HOT, ranges=tuple(HotRange(*piece, 3, 9) for piece in pieces))
    assert hotset.decode(hot_set.encode(), "h") == hot_set
    held_out = replace(TRACE, holdout=tuple(ByteRange(*piece) for piece in pieces))
    assert trace.decode(held_out.encode(), "t") == held_out


def test_fields_missing_in_earlier_versions_are_unknown():
    def header_of(value, *left_out):
        fields = asdict(value)
        return {key: fields[key] for key in fields if key not in left_out}

    header = header_of(TRACE, "touches", "holdout", "usage")
    old = table.encode(trace.MAGIC, trace.VERSION, header, trace._ROW, TRACE.touches)
    assert trace.decode(old, "t") == replace(TRACE, holdout=(), usage="")
    header = header_of(HOT, "ranges", "doubts")
    old = table.encode(hotset.MAGIC, hotset.VERSION, header, hotset._ROW, HOT.ranges)
    found = hotset.decode(old, "h")
    assert found == HotSet(HOT.digest, HOT.size_bytes, HOT.runs, HOT.ranges)
    assert found.doubts == 0


def test_versions_to_come_are_refused():
    newer = bytearray(TRACE.encode())
    newer[8] = 99
    with pytest.raises(UnknownVersion, match="version 99"):
        trace.decode(bytes(newer), "t")


PLAN = warm_plan.WarmPlan("alice", "k", (warm_plan.PlannedImage("/i", "d", 1, 0),))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version"),
        ({"images": [{"path": "../../etc/shadow", "digest": "", "size_bytes": 0}]}, "absolute"),
        ({"images": [{"path": "/a/../b", "digest": "", "size_bytes": 0}]}, "absolute"),
        ({"images": [{"path": "/a\nb", "digest": "", "size_bytes": 0}]}, "path"),
        ({"images": [{"path": "/a", "digest": "", "size_bytes": -1}]}, "size_bytes"),
        ({"images": [{"path": "/a", "digest": "", "size_bytes": True}]}, "size_bytes"),
        ({"images": {}}, "images"),
        ({"images": [[]]}, "object"),
        ({"runs": [{}] * 1000}, "more than"),
        ({"names": [{"path": "a", "digest": ""}]}, "absolute"),
        ({"names": [{"path": "a://b", "digest": "x" * 65}]}, "digest"),
        ({"names": [{"path": "a://b", "digest": ""}] * 33}, "more than"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(change, said):
    document = json.loads(PLAN.encode())
    document.update(change)
    for image in document["images"]:
        if isinstance(image, dict):
            image.setdefault("hot_bytes", 0)
    with pytest.raises(Corrupt, match=said):
        warm_plan.decode(json.dumps(document).encode(), "p")


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{", b"[" * 100_000, b"null"])
def test_an_invalid_plan_document_is_refused(data):
    with pytest.raises(Corrupt):
        warm_plan.decode(data, "p")


def test_a_plan_keeps_the_newest_runs_and_their_images():
    image = warm_plan.PlannedImage("/new", "d", 1, 0)
    p = PLAN
    for number in range(warm_plan.MAX_RUNS + 3):
        run = warm_plan.PlannedRun(f"c.{number}", number, "cold", number)
        p = p.with_run(run, (image,) if number == 2 else ())
    assert len(p.runs) == warm_plan.MAX_RUNS
    assert p.runs[-1].run == f"c.{warm_plan.MAX_RUNS + 2}"
    assert p.images == (image,)
    late = warm_plan.PlannedRun("c.0", 0, "cold", 0)
    assert p.with_run(late, (PLAN.images[0],)).images == (image,), "an older run does not count"


@given(bst.plans(), bst.plans())
def test_adding_a_run_twice_is_adding_it_once(p, other):
    run = warm_plan.PlannedRun("c.9", 9, "warm", 1 << 62)
    once = p.with_run(run, other.images)
    assert once.with_run(run, other.images) == once


@pytest.mark.parametrize("key", ["a", "../../x", "ä" * 100, "x/y"])
def test_the_name_of_a_plan_is_safe(key):
    name = warm_plan.object_name(key)
    assert name.startswith("plans/") and name.count("/") == 1 and name.isascii()


def test_an_event_defaults_to_the_whole_node_and_ok():
    assert event.Event("image.prefetch", 1, 2, "agent").document() == {
        "stage": "image.prefetch",
        "start_ns": 1,
        "end_ns": 2,
        "source": "agent",
        "status": "ok",
        "bytes": 0,
        "rank": -1,
        "detail": "",
    }


def test_a_detail_is_one_line_of_an_accepted_length():
    assert event.one_line(" a\n\tb\0c\r\n") == "a b c"
    detail = event.one_line("x" * 5000)
    assert detail == "x" * event.MAX_DETAIL_CHARS
    told = event.Event("s", 1, 2, "agent", event.FALLBACK, detail=detail)
    assert event.from_json(told.document(), "e") == told
    assert event.from_json(told.document() | {"status": "unheard"}, "e").status == event.OK


def test_an_event_is_read_back_and_checked():
    e = event.Event("image.prefetch", 1, 2, "agent", bytes=3, detail="x")
    assert event.from_json(e.document(), "e") == e
    for wrong in ({"stage": 1}, {"start_ns": -1}, {"rank": -2}, {"detail": "a\nb"}):
        with pytest.raises(Corrupt):
            event.from_json(e.document() | wrong, "e")


def test_a_hot_set_of_too_many_ranges_is_refused(monkeypatch):
    monkeypatch.setattr(hotset, "MAX_RANGES", 1)
    assert hotset.decode(HOT.encode(), "h") == HOT
    monkeypatch.setattr(hotset, "MAX_RANGES", 0)
    with pytest.raises(Corrupt, match="1 ranges"):
        hotset.decode(HOT.encode(), "h")


@pytest.mark.parametrize(("field", "value"), [("kind", "most"), ("usage", "eaten")])
def test_a_trace_of_another_kind_is_refused(field, value):
    bad = replace(TRACE, **{field: value})
    with pytest.raises(Corrupt, match=value):
        trace.decode(bad.encode(), "t")
