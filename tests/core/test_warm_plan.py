"""What a warm plan makes of what nodes say of their runs, and which documents it takes."""

import json

import pytest

from bootseer.core import warm_plan
from bootseer.core.speed import UNKNOWN, Speed
from bootseer.core.warm_plan import (
    MAX_IMAGES,
    MAX_RUNS,
    SAME_START_NS,
    PlannedImage,
    PlannedName,
    PlannedRun,
    WarmPlan,
)
from bootseer.errors import Corrupt

BEGIN_NS = 100 * SAME_START_NS


def run(number, later_ns=0):
    return PlannedRun(f"c.{number}", number, "cold", BEGIN_NS + later_ns)


def image(name, hot_bytes=0, **known):
    return PlannedImage(f"/{name}", f"sqfs1-{name}", 1000, hot_bytes, **known)


def name(path, digit="a"):
    return PlannedName(f"docker://{path}", digit * 64)


PLAN = WarmPlan("alice", "k", (image("a"),), (run(7),), (name("x"), name("y")))


# When a run began.


@pytest.mark.parametrize("later_ns", [-SAME_START_NS, -1, 0, 1, SAME_START_NS])
def test_a_node_that_began_a_little_earlier_or_later_is_of_the_same_start(later_ns):
    told = PLAN.with_run(run(7, later_ns), (image("b"),))
    assert told.runs == PLAN.runs
    assert set(told.images) == {image("a"), image("b")}


def test_a_node_of_an_earlier_start_changes_nothing():
    assert PLAN.with_run(run(7, -SAME_START_NS - 1), (image("b"),), (name("z"),)) == PLAN


def test_a_requeued_job_replaces_its_run():
    again = run(7, SAME_START_NS + 1)
    told = PLAN.with_run(again, (image("b"),))
    assert (told.runs, told.images) == ((again,), (image("b"),))


def test_a_run_before_all_that_are_kept_is_not_kept():
    runs = tuple(run(number, number) for number in range(1, MAX_RUNS + 1))
    full = WarmPlan("alice", "k", (image("a"),), runs)
    assert full.with_run(run(99, 0), (image("b"),)) == full
    told = full.with_run(run(99, MAX_RUNS), (image("b"),))
    assert (told.runs, told.images) == ((*runs[1:], run(99, MAX_RUNS)), (image("b"),))


# What it has used.


def test_facts_of_earlier_runs_are_kept():
    known = {"touched_bytes": 5, "touched_reads": 6, "store": Speed(1, 2, 3), "file": Speed(4, 5)}
    before = WarmPlan("alice", "k", (image("a", **known), image("b", **known)))
    newer = image("b", touched_bytes=7, touched_reads=8, store=Speed(9, 0, 4))
    told = before.with_run(run(8), (newer, image("a"), image("c")))
    assert told.images == (
        image("b", touched_bytes=7, touched_reads=8, store=Speed(9, 2, 3), file=Speed(4, 5)),
        image("a", **known),
        image("c"),
    )
    assert (told.images[2].store, told.images[2].touched_bytes) == (UNKNOWN, 0)


def test_the_first_hot_set_of_a_runs_nodes_is_kept():
    begun = WarmPlan("alice", "k", (image("a", 5), image("b")), (run(7),))
    told = begun.with_run(run(7, 3), (image("a", 9), image("b", 8)))
    assert told.images == (image("a", 5), image("b", 8))


def test_a_node_adds_images_as_long_as_there_is_room():
    begun = WarmPlan("alice", "k", tuple(image(str(n)) for n in range(MAX_IMAGES - 1)), (run(7),))
    full = begun.with_run(run(7), (image("x"),))
    assert set(full.images) == {*begun.images, image("x")}
    assert full.with_run(run(7), (image("y"),)) == full


def test_a_node_with_the_same_report_in_another_order_changes_nothing():
    begun = WarmPlan("alice", "k", (image("a"), image("b")), (run(7),), PLAN.names)
    assert begun.with_run(run(7, 3), begun.images[::-1], begun.names[::-1]) == begun
    assert begun.with_run(run(7, 3), begun.images[1:], begun.names[:1]) == begun


def test_a_node_of_a_run_adds_the_names_that_only_it_has_used():
    told = PLAN.with_run(run(7, 3), (), (name("y", "b"), name("x")))
    assert told.names == (name("y", "b"), name("x"))


def test_a_name_that_was_used_again_is_the_newest():
    assert PLAN.with_run(run(8, 3), (), (name("x"),)).names == (name("y"), name("x"))


# Documents.


def document(**change):
    return json.loads(PLAN.encode()) | change


def decode(value):
    return warm_plan.decode(json.dumps(value).encode(), "p")


def test_optional_fields_of_a_plan_default_to_unknown():
    listed = {"path": "/a", "digest": "sqfs1-a", "size_bytes": 1000, "hot_bytes": 0}
    value = document(images=[listed])
    del value["names"]
    assert decode(value) == WarmPlan("alice", "k", (image("a"),), (run(7),))
    assert decode(document(names=None)).names == ()


def test_a_rate_without_a_number_of_nodes_was_measured_by_one():
    measured = {"latency_us": 5, "bytes_per_s": 6, "nodes": 0}
    listed = json.loads(PLAN.encode())["images"][0] | {"store": measured}
    assert decode(document(images=[listed])).images[0].store == Speed(5, 6, 1)


@pytest.mark.parametrize("path", ["/a", "/", "/a/..b/c", "docker://a/../b", "env://k"])
def test_an_image_is_named_by_an_absolute_path_or_a_uri(path):
    listed = json.loads(PLAN.encode())["images"][0] | {"path": path}
    assert decode(document(images=[listed])).images[0].path == path


@pytest.mark.parametrize("path", ["", "a/b", "/..", "/a/..", "Docker://a", "://a", "a:/b"])
def test_an_image_is_named_by_nothing_else(path):
    listed = json.loads(PLAN.encode())["images"][0] | {"path": path}
    with pytest.raises(Corrupt, match="absolute"):
        decode(document(images=[listed]))


def test_a_plan_has_room_for_so_much():
    assert len(decode(document(runs=document()["runs"] * MAX_RUNS)).runs) == MAX_RUNS
    assert len(decode(document(images=document()["images"] * MAX_IMAGES)).images) == MAX_IMAGES
