"""A run's events in the store: one Parquet file for each node and start of the job there.

runs/RUN/NODE-STARTED.parquet
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import trio

from bootseer.core.event import VERSION, Event, from_json
from bootseer.core.fields import Fields
from bootseer.errors import BootseerError, Corrupt, NotFound, UnknownVersion
from bootseer.parallel import for_each
from bootseer.store.api.base import ObjectInfo, Store, publish, read_all

MAX_BYTES = 16 * 1024 * 1024
MAX_ROWS = 10_000
RUNS_KEPT = 500
"""Of a user, whatever the keys: some MB."""
SPARE_RUNS = 50
"""So many more may come before old ones are dropped."""
LOOKED_AT = 32
"""Of runs whose folders have no time, drawn by chance; to look into all takes too long."""
DROPPED = 4
"""Of these, the oldest: that one of the newer half is among them happens once in 700,000 times."""
TEMPORARY_S = 86400.0
"""No writer of ours is at work for longer."""

_RUNS = "runs"
_AT_ONCE = 16
"""Files that are read at once."""

_SCHEMA = pa.schema(
    [
        ("stage", pa.string()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("source", pa.string()),
        ("status", pa.string()),
        ("bytes", pa.int64()),
        ("rank", pa.int32()),
        ("detail", pa.string()),
    ]
)
_TEXTS = [field.name for field in _SCHEMA if field.type == pa.string()]
_READ_SCHEMA = pa.schema(
    (field.name, pa.dictionary(pa.int32(), pa.string()) if field.name in _TEXTS else field.type)
    for field in _SCHEMA
)
_METADATA_KEY = b"bootseer"


@dataclass(frozen=True, slots=True)
class NodeRun:
    """What one node did in one run.

    Attributes:
        run: its name.
        job: Slurm's job id.
        key: of the warm plan.
        node: name.
        kind: "warm" when an image was prefetched, else "cold".
        started_ns: when the prolog began.
        events: in the order they ended.
    """

    run: str
    job: int
    key: str
    node: str
    kind: str
    started_ns: int
    events: tuple[Event, ...]

    @classmethod
    def from_fields(cls, about: Fields, events: Iterable[object], name: str) -> NodeRun:
        """Check and take over what was decoded.

        Args:
            about: all but the events.
            events: as `bootseer.core.event.from_json` takes them.
            name: of what they come from, for the error.

        Raises:
            Corrupt: a field is missing or not acceptable.
        """
        return cls(
            run=about.text("run"),
            job=about.count("job"),
            key=about.text("key"),
            node=about.text("node"),
            kind=about.text("kind"),
            started_ns=about.count("started_ns"),
            events=tuple(from_json(event, name) for event in events),
        )


async def publish_events(store: Store, node_run: NodeRun) -> str:
    """Write a node's events; returns the object's name."""
    about = {f.name: getattr(node_run, f.name) for f in fields(node_run) if f.name != "events"}
    about["version"] = VERSION
    table = pa.Table.from_pylist([_row(event) for event in node_run.events], _SCHEMA)
    table = table.replace_schema_metadata({_METADATA_KEY: json.dumps(about).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    name = f"{_RUNS}/{node_run.run}/{node_run.node}-{node_run.started_ns:020d}.parquet"
    await publish(store, name, sink.getvalue().to_pybytes())
    return name


async def drop_old_runs(store: Store) -> None:
    """Keep the newest RUNS_KEPT runs; then remove what writers that died have left in a folder.

    Only some of the starts have anything to do: folders are dropped when SPARE_RUNS have come. It
    may be cancelled: the oldest are dropped first, and a later call drops the others.

    Concurrency: nodes that do this at once get in no other's way.
    """
    runs = await store.list(_RUNS)
    if len(runs) <= RUNS_KEPT + SPARE_RUNS:
        return
    for old in await _oldest(store, runs):
        with suppress(NotFound):  # another node was first
            await store.delete_tree(old)
    others = [info.name for info in await store.list() if info.is_folder and info.name != _RUNS]
    if others:
        await store.reap_temporaries(TEMPORARY_S, random.choice(others))


async def _oldest(store: Store, runs: list[ObjectInfo]) -> list[str]:
    """Name runs to drop: those beyond RUNS_KEPT, or a few of them where folders have no time."""
    if all(run.mtime_ns for run in runs):
        ordered = sorted(runs, key=lambda run: (run.mtime_ns, run.name))
        return [run.name for run in ordered[:-RUNS_KEPT]]
    some = random.sample(runs, min(LOOKED_AT, len(runs)))
    written: dict[str, tuple[int, int]] = {}

    async def look(run: str) -> None:
        with suppress(BootseerError):  # that one stays for now
            written[run] = max(map(_written, await store.list(run)), default=(0, 0))

    async with trio.open_nursery() as nursery:
        for run in some:
            nursery.start_soon(look, run.name)
    beyond = min(DROPPED, len(runs) - RUNS_KEPT)
    return sorted(written, key=lambda run: (written[run], run))[:beyond]


def _written(info: ObjectInfo) -> tuple[int, int]:
    """Return when a file of events was written, and when its node's start began, both in ns."""
    started = info.name.rpartition("-")[2].partition(".")[0]
    return info.mtime_ns, int(started) if started.isdecimal() else 0


async def read_run(store: Store, run: str) -> list[NodeRun]:
    """Read the events of all nodes of a run, for each the latest start, sorted by node.

    Raises:
        NotFound: nothing is known of this run.
        Corrupt: a file is damaged.
    """
    latest: dict[str, NodeRun] = {}

    async def read(info: ObjectInfo) -> None:
        node_run = _decode(await read_all(store, info.name, MAX_BYTES, info), info.name)
        known = latest.get(node_run.node)
        if known is None or node_run.started_ns > known.started_ns:
            latest[node_run.node] = node_run

    await for_each(await store.list(f"{_RUNS}/{run}"), read, _AT_ONCE)
    if not latest:
        raise NotFound(f"no events of run {run} in {store.url}")
    return [latest[node] for node in sorted(latest)]


async def runs_of_job(store: Store, job: int) -> list[str]:
    """Name the runs of a job id, which several clusters may have used."""
    return [
        name
        for name in (info.name.rsplit("/", 1)[-1] for info in await store.list(_RUNS))
        if name.rsplit(".", 1)[-1] == str(job)
    ]


def _row(event: Event) -> dict[str, object]:
    """Return a row, as UTF-8 whatever bytes a path or halved characters a JSON string had."""
    return {
        name: value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        for name, value in asdict(event).items()
    }


def _decode(data: bytes, name: str) -> NodeRun:
    try:
        # Of a text that many rows have, there is one copy.
        with pq.ParquetFile(pa.BufferReader(data), read_dictionary=_TEXTS) as file:
            schema, sizes = file.schema_arrow, file.metadata
            groups = [sizes.row_group(i).total_byte_size for i in range(sizes.num_row_groups)]
            if sizes.num_rows > MAX_ROWS or sum(groups) > MAX_BYTES:
                raise Corrupt(f"{name}: more events than are kept of a run")
            if not schema.equals(_READ_SCHEMA):
                raise Corrupt(f"{name}: not a BootSeer events file: other columns")
            about = Fields(json.loads((schema.metadata or {})[_METADATA_KEY]), name)
            # No threads for some kB: pyarrow's may abort a process that ends soon after.
            table = file.read(use_threads=False)
            table.validate(full=True)  # reading does not check that what refers to a text finds one
            if sum(_text_bytes(table[text]) for text in _TEXTS) > MAX_BYTES:
                raise Corrupt(f"{name}: more text than is kept of a run")
            rows = table.to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError, RecursionError) as error:
        text = str(error)[:200]
        raise Corrupt(f"{name}: not a BootSeer events file: {text!a}") from error
    if about.count("version") != VERSION:
        raise UnknownVersion(f"{name}: only version {VERSION} of events is understood")
    return NodeRun.from_fields(about, rows, name)


def _text_bytes(column: Any) -> int:
    """Add up the lengths of a column's texts, each as often as it is there.

    Without `pyarrow.compute`, whose import takes a fifth of the time of a report.
    """
    total_bytes = 0
    for chunk in column.chunks:
        lengths = [len(text.encode()) for text in chunk.dictionary.to_pylist()]
        total_bytes += sum(lengths[i] for i in chunk.indices.to_pylist() if i is not None)
    return total_bytes
