"""A run's events: into the store and back, and what a report makes of them."""

import gzip
import json
import re
from dataclasses import replace

import pytest

from bootseer.cli.report import timeline
from bootseer.core.event import FALLBACK, Event
from bootseer.errors import Corrupt, NotFound, UnknownVersion
from bootseer.startup import run_events
from bootseer.startup.report import READY_STAGE, build
from bootseer.startup.run_events import (
    NodeRun,
    drop_old_runs,
    publish_events,
    publish_pack,
    read_run,
    runs_of_job,
)
from bootseer.store.api.base import FolderListing, publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore

S = 1_000_000_000


def node_run(node, ready_s=None, *, kind="cold", run="c.7", started_s=100, more=()):
    def event(stage, start, end, **rest):
        return Event(stage, int(start * S), int(end * S), "agent", **rest)

    events = [event("prolog", started_s, started_s + 0.5), *more]
    if ready_s is not None:
        at = started_s + ready_s
        events.append(event(READY_STAGE, at, at))
    return NodeRun(run, 7, "train", node, kind, started_s * S, tuple(events))


def written(reports, *, width):
    """What is shown without the styles that reports use; red, which texts may ask for, stays."""
    return re.sub(r"\x1b\[(0|1|2|3[2-6])m", "", "\n".join(timeline.write(reports, width)))


async def test_events_are_read_back_by_node():
    store = MemoryStore()
    runs = [node_run("n2", 3), node_run("n1", 2)]
    for one in runs:
        await publish_events(store, one)
    assert await read_run(store, "c.7") == [runs[1], runs[0]]
    assert await runs_of_job(store, 7) == ["c.7"]
    assert await runs_of_job(store, 77) == []


async def test_of_a_requeued_job_the_latest_start_counts():
    store = MemoryStore()
    await publish_events(store, node_run("n1", started_s=100))
    later = node_run("n1", started_s=200, kind="warm")
    await publish_events(store, later)
    assert await read_run(store, "c.7") == [later]


async def test_a_pack_and_files_of_single_nodes_are_read_alike():
    store = MemoryStore()
    runs = [node_run(f"n{number}", number) for number in range(1, 6)]
    await publish_pack(store, runs[1], runs[2].encode() + runs[0].encode())
    await publish_events(store, runs[4])
    await publish_pack(store, runs[3], b"")
    assert await read_run(store, "c.7") == runs
    assert len(await store.list("runs/c.7")) == 3


@pytest.mark.parametrize("is_packed_last", [False, True])
async def test_of_a_start_that_is_there_twice_what_has_more_events_counts(is_packed_last):
    """A node merges hot sets after its events are stored, or did not hear that they were."""
    store, other = MemoryStore(), node_run("n2", 3)
    early, whole = node_run("n1"), node_run("n1", 2)
    packed, single = (whole, early) if is_packed_last else (early, whole)
    await publish_pack(store, other, packed.encode())
    await publish_events(store, single)
    assert await read_run(store, "c.7") == [whole, other]


async def test_of_a_requeued_job_a_pack_of_the_first_start_is_old():
    store = MemoryStore()
    nodes = [node_run(name, 3, started_s=100) for name in ("n1", "n2")]
    await publish_pack(store, nodes[0], nodes[1].encode())
    later = [node_run(name, started_s=200) for name in ("n1", "n2")]
    await publish_events(store, later[1])
    assert await read_run(store, "c.7") == [nodes[0], later[1]]
    await publish_pack(store, later[0], later[1].encode())
    assert await read_run(store, "c.7") == later


async def test_a_pack_is_a_file_of_lines_that_other_tools_read():
    store = MemoryStore()
    await publish_pack(store, node_run("n1", 2), node_run("n2", 3).encode())
    (info,) = await store.list("runs/c.7")
    assert info.name == f"runs/c.7/n1-{100 * S:020d}.jsonl.gz"
    lines = gzip.decompress(await read_all(store, info.name, 1 << 20)).splitlines()
    assert json.loads(lines[0]) == {"format": "bootseer events", "version": 2}
    assert [json.loads(line)["node"] for line in lines[1:]] == ["n1", "n2"]
    with pytest.raises(UnknownVersion):  # as a version that knows no packs would read it
        run_events.decode(await read_all(store, info.name, 1 << 20), "events")


HEADER = {"format": run_events.FORMAT, "version": run_events.PACK_VERSION}


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ([], Corrupt),
        ([b"no gzip"], Corrupt),
        ([{"format": "x"}], Corrupt),
        ([{**HEADER, "version": 3}], UnknownVersion),
        ([HEADER, b"no gzip"], Corrupt),
        ([HEADER, node_run("n1").encode()[:-1]], Corrupt),
        ([HEADER, node_run("n1").encode(), bytes(1)], Corrupt),
        ([HEADER, HEADER], UnknownVersion),
        ([HEADER, {"format": run_events.FORMAT, "version": 1}], Corrupt),
        ([HEADER, gzip.compress(bytes(9 << 20))], Corrupt),
        ([HEADER, *[node_run("n1").encode()] * (run_events.MAX_PACKED + 1)], Corrupt),
    ],
)
async def test_a_damaged_pack_is_refused(members, error):
    data = b"".join(packed(each) if isinstance(each, dict) else each for each in members)
    store = MemoryStore()
    await publish(store, "runs/c.7/n1-1.jsonl.gz", data)
    with pytest.raises(error, match="n1-1"):
        await read_run(store, "c.7")


async def test_an_unknown_run_and_a_damaged_file_are_told_apart():
    store = MemoryStore()
    with pytest.raises(NotFound):
        await read_run(store, "c.7")
    await publish(store, "runs/c.7/n1-1.json.gz", b"no events")
    with pytest.raises(Corrupt, match="n1-1"):
        await read_run(store, "c.7")


async def test_old_runs_are_dropped(monkeypatch):
    monkeypatch.setattr(run_events, "RUNS_KEPT", 2)
    monkeypatch.setattr(run_events, "SPARE_RUNS", 2)
    store = MemoryStore()
    left = []
    for number in range(6):
        await publish_events(store, node_run("n1", run=f"c.{number}"))
        await drop_old_runs(store)
        left.append([int(info.name[-1]) for info in await store.list("runs")])
    assert left[3] == [0, 1, 2, 3]
    assert left[4:] == [[3, 4], [3, 4, 5]]


async def test_what_dead_writers_have_left_is_dropped_from_one_folder_at_a_time(monkeypatch):
    monkeypatch.setattr(run_events, "RUNS_KEPT", 0)
    monkeypatch.setattr(run_events, "SPARE_RUNS", 0)
    monkeypatch.setattr(run_events, "TEMPORARY_S", 0)
    store = FlakyStore(MemoryStore(), lambda *_: False)
    for folder in ("hot", "plans"):
        await publish(store, f"{folder}/object", b"")
    for number in range(40):  # in one of 10^12 cases one of the two is not drawn
        await publish_events(store, node_run("n1", run=f"c.{number}"))
        await drop_old_runs(store)
    reaped = [call[1] for call in store.calls if call[0] == "reap_temporaries"]
    assert len(reaped) == 40 and set(reaped) == {"hot", "plans"}


class Timeless(WrappedStore):
    """As object stores: folders have no time, and objects have one to the second."""

    async def around(self, operation, name, call):
        found = await call()
        if operation == "list":
            return FolderListing(replace(info, mtime_ns=not info.is_folder) for info in found)
        return found


async def test_old_runs_are_dropped_where_folders_have_no_time(monkeypatch):
    monkeypatch.setattr(run_events, "RUNS_KEPT", 4)
    monkeypatch.setattr(run_events, "SPARE_RUNS", 1)
    store = Timeless(MemoryStore())
    for number in range(9995, 10_003):  # the names get one digit more
        await publish_events(store, node_run("n1", run=f"c.{number}", started_s=number))
        await drop_old_runs(store)
    left = [info.name for info in await store.list("runs")]
    assert left == [f"runs/c.{number}" for number in (10_000, 10_001, 10_002, 9999)]


async def test_of_many_runs_without_a_time_few_are_looked_into(monkeypatch):
    monkeypatch.setattr(run_events, "RUNS_KEPT", 90)
    monkeypatch.setattr(run_events, "SPARE_RUNS", 9)
    store = FlakyStore(Timeless(MemoryStore()), lambda *_: False)
    for number in range(100):
        await publish_events(store, node_run("n1", run=f"c.{number}", started_s=number))
    store.calls.clear()
    await drop_old_runs(store)
    lists = [c[0] for c in store.calls].count("list")
    assert lists == 2 + run_events.LOOKED_AT
    left = {int(info.name.rpartition(".")[2]) for info in await store.list("runs")}
    assert len(left) == 100 - run_events.DROPPED
    assert left >= set(range(80, 100))


def test_the_slowest_node_is_the_time_to_ready():
    report = build([node_run("n1", 2), node_run("n2", 4, started_s=101), node_run("n3", 2)])
    assert report.ready_s == 5
    assert report.straggler == pytest.approx(2.5)
    assert [n.ready_s for n in report.nodes] == [2, 5, 2]
    assert report.kind == "cold"


def test_without_a_mark_there_is_no_time_to_ready():
    report = build([node_run("n1")])
    assert (report.ready_s, report.straggler) == (None, None)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_reports_show_cold_beside_warm_at_any_width(width):
    long = Event("plan.read", 100 * S, 101 * S, "worker", FALLBACK, detail="x" * 300)
    cold = build([node_run("n1", 8, more=(long,))])
    warm = build([node_run("n1", 2, kind="warm")])
    text = written([cold, warm], width=width)
    assert "plan.read" in text
    assert "n1" in text
    assert "4.00x" in text
    rows = [line for line in text.splitlines() if line.startswith(("n1 ", "  "))]
    assert max(map(len, rows)) <= width
    assert any(line.endswith("…") for line in rows)


@pytest.mark.parametrize("has_marks", [False, True])
def test_of_many_nodes_the_slowest_are_shown_slowest_first(has_marks):
    """By name, the first ones were: of a hundred nodes hardly ever the one that all wait for."""

    def run(number):
        took_s = number + 1
        read = Event("image.prefetch", 100 * S, (100 + took_s) * S, "worker")
        step = Event("step", 100 * S, 1000 * S, "step")
        name = f"n{number:02}"
        return node_run(name, took_s if has_marks else None, more=(read, step))

    count = timeline.MAX_TABLE_NODES + 4
    report = build([run(number) for number in range(count)])
    text = written([report], width=120)
    shown = [
        line.split()[0] for line in text.splitlines() if line.startswith("n") and "█" not in line
    ]
    slowest = [f"n{number:02}" for number in range(count - 1, 3, -1)]
    assert [name for name in dict.fromkeys(shown) if name not in ("node", "n19:")] == slowest
    assert "the 16 slowest nodes; 4 faster ones: see --json" in text


def test_what_comes_after_the_start_is_no_part_of_its_timeline():
    ahead = Event("checkpoint.prefetch", 101 * S, 104 * S, "worker")
    after = Event("epilog", 105 * S, 107 * S, "agent")
    text = written([build([node_run("n1", 4, more=(ahead, after))])], width=100)
    bars = {line.split()[1] for line in text.splitlines() if "█" in line}
    assert bars == {"prolog", "checkpoint.prefetch"}


def test_the_time_that_no_stage_explains_is_told():
    container = Event("step.start", 102 * S, 105 * S, "plugin")
    image = Event("image.get", 103 * S, 106 * S, "step")
    late = Event("env.mount", 109 * S, 120 * S, "agent")
    beside = Event("image.prefetch", 100 * S, 200 * S, "worker")
    step = Event("step", 102 * S, 300 * S, "plugin")
    report = build([node_run("n1", 10, more=(container, image, late, beside, step))])
    prolog = next(s for s in report.nodes[0].stages if s.stage == "prolog")
    explained_s = prolog.end_s + (106 - 102) + (110 - 109)
    assert report.nodes[0].unexplained_s == pytest.approx(10 - explained_s)
    assert build([node_run("n1")]).nodes[0].unexplained_s is None
    text = written([report], width=80)
    assert f"n1: {10 - explained_s:.1f} s of 10 s in no stage" in text


EVIL = "[red]x[/nonsense]\x1b]0;t\x07\x1b[31m\u009b31m\u202e\u2028\udcff\ud800"


async def test_whatever_an_event_says_is_published_and_shown_harmlessly():
    store = MemoryStore()
    evil = Event("mark.x", 0, 2**63 - 1, "step", FALLBACK, bytes=2**63 - 1, detail=EVIL)
    back = Event(EVIL[:64], 2**63 - 1, 0, "step", detail=EVIL)
    await publish_events(store, node_run("n1", 2, more=(evil, back)))
    report = build(await read_run(store, "c.7"))
    named = NodeRun(EVIL, 1, EVIL, EVIL, EVIL, 0, (evil, back))
    text = written([report, build([named])], width=300)
    assert "[red]x[/nonsense]" in text
    assert all(c.isprintable() or c == "\n" for c in text)


DOCUMENT = json.loads(gzip.decompress(node_run("n1").encode()))
TOO_LONG = {**DOCUMENT, "more": "x" * run_events.MAX_BYTES}
TOO_MANY = {**DOCUMENT, "events": DOCUMENT["events"] * (run_events.MAX_EVENTS + 1)}


def packed(document):
    return gzip.compress(json.dumps(document).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no events",
        gzip.compress(b""),
        gzip.compress(b"\xff"),
        gzip.compress(b"[" * 100_000),
        gzip.compress(bytes(10 * run_events.MAX_BYTES)),
        packed(DOCUMENT)[:-1],
        packed(DOCUMENT)[:-8] + bytes(8),
        packed([]),
        packed({**DOCUMENT, "format": "another"}),
        packed({**DOCUMENT, "started_ns": -1}),
        packed({**DOCUMENT, "events": {}}),
        packed({**DOCUMENT, "events": [[]]}),
        packed(TOO_LONG),
        packed(TOO_MANY),
        *(packed({n: v for n, v in DOCUMENT.items() if n != name}) for name in DOCUMENT),
    ],
    ids=lambda data: f"{len(data)}-{data[:4].hex()}",
)
async def test_what_is_no_events_file_is_refused(data):
    store = MemoryStore()
    await publish(store, "runs/c.7/n1-1.json.gz", data)
    with pytest.raises(Corrupt) as refused:
        await read_run(store, "c.7")
    assert str(refused.value).isprintable()


def test_of_a_newer_version_the_version_is_told():
    with pytest.raises(UnknownVersion, match="only version 1"):
        run_events.decode(packed({**DOCUMENT, "version": 2}), "events")


def test_a_file_may_have_fields_of_a_newer_release():
    assert run_events.decode(packed({**DOCUMENT, "more": 1}), "events") == node_run("n1")
