"""A run's events in the store: a file for each node and start of the job there, or for several.

runs/RUN/NODE-STARTED.json.gz   of one node
runs/RUN/NODE-STARTED.jsonl.gz  of a group of nodes, written by one of them: a pack
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass

import trio

from bootseer.core.event import Event, from_json
from bootseer.core.fields import Fields, open_document
from bootseer.errors import BootseerError, Corrupt, NotFound
from bootseer.parallel import for_each
from bootseer.store.api.base import ObjectInfo, Store, publish, read_all

FORMAT = "bootseer events"
VERSION = 1
PACK_VERSION = 2
"""Of what begins a pack: what knows files of one node only refuses it."""
MAX_BYTES = 8 * 1024 * 1024
"""Of a node, uncompressed: an agent keeps less of a job. Decoded, JSON takes 20 times as much."""
MAX_GIVEN_BYTES = MAX_BYTES
"""Of all other nodes of a pack, compressed."""
MAX_PACKED = 1024
"""Nodes of a pack."""
MAX_EVENTS = 10_000
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
_PACK = ".jsonl.gz"
_HEADER = gzip.compress(
    json.dumps({"format": FORMAT, "version": PACK_VERSION}).encode() + b"\n", mtime=0
)
_MAX_PACK_BYTES = MAX_GIVEN_BYTES + MAX_BYTES + len(_HEADER)
_AT_ONCE = 16
"""Files that are read at once."""


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
    def from_fields(cls, about: Fields, name: str) -> NodeRun:
        """Check and take over what was decoded.

        Args:
            about: the document; a newer version may have added fields.
            name: of the document, for the error.

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
            events=tuple(from_json(event, name) for event in about.items("events", MAX_EVENTS)),
        )

    def encode(self) -> bytes:
        """Return the file's content. Characters that UTF-8 does not have become question marks."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return gzip.compress(text.encode(errors="replace") + b"\n", mtime=0)


def decode(data: bytes | bytearray, name: str) -> NodeRun:
    """Decode a node's file of events.

    Args:
        data: the file's content.
        name: the file's name, for errors.

    Raises:
        UnknownVersion: it has another version.
        Corrupt: it is damaged, or too long.
    """
    text, _ = _decompress(data, name)
    return NodeRun.from_fields(open_document(text, name, FORMAT, VERSION), name)


def decode_pack(data: bytes, name: str) -> list[NodeRun]:
    """Decode a pack, in the order of its nodes; arguments and errors as for `decode`."""
    text, rest = _decompress(data, name)
    open_document(text, name, FORMAT, PACK_VERSION)
    found: list[NodeRun] = []
    while rest:
        if len(found) == MAX_PACKED:
            raise Corrupt(f"{name}: events of more than {MAX_PACKED} nodes")
        text, rest = _decompress(rest, name)
        found.append(NodeRun.from_fields(open_document(text, name, FORMAT, VERSION), name))
    return found


def _decompress(data: bytes | bytearray, name: str) -> tuple[bytes, bytes]:
    """Return the text of the first gzip member, and what is behind it; errors as for `decode`."""
    decompressor = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        text = decompressor.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise Corrupt(f"{name}: not a BootSeer events file: {error}") from error
    if not decompressor.eof:
        raise Corrupt(f"{name}: cut short, or more than {MAX_BYTES} bytes of events")
    return text, decompressor.unused_data


async def publish_events(store: Store, node_run: NodeRun) -> str:
    """Write a node's events; returns the object's name."""
    name = f"{_name(node_run)}.json.gz"
    await publish(store, name, node_run.encode())
    return name


async def publish_pack(store: Store, node_run: NodeRun, given: bytes) -> None:
    """Write the events of several nodes.

    Args:
        store: the user's.
        node_run: of the node that writes.
        given: of other nodes, each as `NodeRun.encode` has it, one behind the other: no more than
            `MAX_GIVEN_BYTES`, of fewer than `MAX_PACKED` nodes.
    """
    await publish(store, _name(node_run) + _PACK, _HEADER + node_run.encode() + given)


def _name(node_run: NodeRun) -> str:
    return f"{_RUNS}/{node_run.run}/{node_run.node}-{node_run.started_ns:020d}"


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

    Of a start that was written twice, by the node and in a pack, what has more events counts.

    Raises:
        NotFound: nothing is known of this run.
        Corrupt: a file is damaged.
    """
    latest: dict[str, NodeRun] = {}

    async def read(info: ObjectInfo) -> None:
        if info.name.endswith(_PACK):
            pack = await read_all(store, info.name, _MAX_PACK_BYTES, info)
            found = decode_pack(pack, info.name)
        else:
            found = [decode(await read_all(store, info.name, MAX_BYTES, info), info.name)]
        for node_run in found:
            known = latest.get(node_run.node)
            if known is None or _newness(node_run) > _newness(known):
                latest[node_run.node] = node_run

    await for_each(await store.list(f"{_RUNS}/{run}"), read, _AT_ONCE)
    if not latest:
        raise NotFound(f"no events of run {run} in {store.url}")
    return [latest[node] for node in sorted(latest)]


def _newness(node_run: NodeRun) -> tuple[int, int]:
    return node_run.started_ns, len(node_run.events)


async def runs_of_job(store: Store, job: int) -> list[str]:
    """Name the runs of a job id, which several clusters may have used."""
    return [
        name
        for name in (info.name.rsplit("/", 1)[-1] for info in await store.list(_RUNS))
        if name.rsplit(".", 1)[-1] == str(job)
    ]
