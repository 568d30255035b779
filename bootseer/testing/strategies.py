"""Hypothesis strategies for BootSeer's own types."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from bootseer.checkpoint.files.stripe_manifest import StripeManifest, UnitPlace
from bootseer.core.speed import Speed
from bootseer.core.warm_plan import PlannedImage, PlannedRun, WarmPlan
from bootseer.image.hot.trace import KINDS, MISSED, MOUNTED, Touch, Trace

IMAGE_BYTES = 1 << 20
_PAGE = 4096

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789.", min_size=1, max_size=12)


@st.composite
def touches(draw: st.DrawFn, size_bytes: int = IMAGE_BYTES) -> tuple[Touch, ...]:
    """Draw page-aligned ranges that do not overlap, in first-touch order."""
    pages = size_bytes // _PAGE
    edges = sorted(draw(st.sets(st.integers(0, pages), max_size=16)))
    found = [
        Touch(start * _PAGE, stop * _PAGE, draw(st.integers(0, 60_000)))
        for start, stop in zip(edges[::2], edges[1::2], strict=False)
    ]
    return tuple(sorted(found, key=lambda t: (t.first_ms, t.start)))


@st.composite
def traces(
    draw: st.DrawFn, digest: str = "sqfs1-test", usages: Sequence[str] = ("", MOUNTED)
) -> Trace:
    """Draw a trace of one image; runs and nodes repeat."""
    run = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(KINDS))
    held = draw(touches()) if kind == MISSED else ()
    return Trace(
        digest=digest,
        size_bytes=IMAGE_BYTES,
        run=f"cluster.{run}",
        started_ns=run * 1_000_000_000 + draw(st.integers(0, 3)),
        node=draw(st.sampled_from(["n1", "n2", "n3"])),
        kind=kind,
        touches=draw(touches()),
        holdout=tuple(touch.range for touch in held),
        usage=draw(st.sampled_from(usages)),
    )


@st.composite
def plans(draw: st.DrawFn) -> WarmPlan:
    """Draw a warm plan."""
    speeds = st.builds(
        Speed,
        latency_us=st.integers(0, 1 << 30),
        bytes_per_s=st.integers(0, 1 << 40),
        nodes=st.integers(1, 1 << 16),
    )
    images = st.builds(
        PlannedImage,
        path=names.map(lambda name: f"/images/{name}x"),
        digest=names,
        size_bytes=st.integers(0, 1 << 40),
        hot_bytes=st.integers(0, 1 << 40),
        touched_bytes=st.integers(0, 1 << 40),
        touched_reads=st.integers(0, 1 << 20),
        store=speeds,
        file=speeds,
    )
    runs = st.builds(
        PlannedRun,
        run=names,
        job=st.integers(1, 1 << 31),
        kind=st.sampled_from(["cold", "warm"]),
        started_ns=st.integers(0, 1 << 62),
    )
    return WarmPlan(
        user=draw(names),
        key=draw(names),
        images=tuple(draw(st.lists(images, max_size=3))),
        runs=tuple(draw(st.lists(runs, max_size=5, unique_by=lambda run: run.run))),
    )


@st.composite
def layouts(draw: st.DrawFn) -> StripeManifest:
    """Draw a striped file: units dealt at random, with gaps where a part broke."""
    unit_bytes = _PAGE << draw(st.integers(0, 6))
    parts = draw(st.integers(1, 6))
    dealt = draw(st.lists(st.integers(0, parts - 1), max_size=20))
    size_bytes = len(dealt) * unit_bytes
    if dealt:
        size_bytes -= draw(st.integers(0, unit_bytes - 1))
    ends = [0] * parts
    units = []
    for index in draw(st.permutations(range(len(dealt)))):
        part = dealt[index]
        offset = ends[part] + draw(st.sampled_from([0, 0, 1, unit_bytes]))
        ends[part] = offset + unit_bytes
        units.append((index, UnitPlace(part, offset, draw(st.integers(0, 2**128 - 1)))))
    return StripeManifest(
        size_bytes=size_bytes,
        unit_bytes=unit_bytes,
        parts_id=draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        parts=parts,
        units=tuple(unit for _, unit in sorted(units)),
    )
