"""Store the events of a group of nodes as one object, written by one of them.

See design/036.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from bootseer.agent.messages.worker import EventsWanted, PublishEvents
from bootseer.agent.node.job import Job
from bootseer.agent.workers.base import Task
from bootseer.agent.workers.job_peers import connect_peers
from bootseer.config import Config
from bootseer.core.fields import Fields
from bootseer.image.hot.repository import is_among
from bootseer.ipc.channel import unexpected
from bootseer.peers.client import PeerClient
from bootseer.peers.gathering import EventGathering, give, take, tell_stored
from bootseer.peers.grid import PeerGrid
from bootseer.startup.run_events import MAX_GIVEN_BYTES, NodeRun, publish_events, publish_pack
from bootseer.store.api.base import Store

_ALIVE_S = 10.0
"""For how long servers were there: the client waits for none to start, and one that does not listen
has ended, as its node's epilog has."""
PLAN_WRITERS = 2
"""Of a job's nodes, besides those that merge: a job may record no image, and a node may be dead."""


class EventGroup(NamedTuple):
    """Nodes whose events are stored together.

    Attributes:
        gatherer: index of the node that stores them.
        givers: number of the other nodes.
    """

    gatherer: int
    givers: int


def event_group(job: Job, config: Config) -> EventGroup | None:
    """Return this node's group; None if it stores its events by itself.

    So do the nodes that write more than events: the others would have to wait for them.
    """
    if not job.has_peers(config.peers.min_nodes):
        return None
    recording = config.image.traces_per_run
    nodes = [
        node
        for node in PeerGrid(job.nodes, job.node_index).row_nodes
        if not (is_among(recording, job.nodes, node) or is_among(PLAN_WRITERS, job.nodes, node))
    ]
    if len(nodes) < 2 or job.node_index not in nodes:
        return None
    return EventGroup(nodes[0], len(nodes) - 1)


def gathering(job: Job, config: Config) -> EventGathering | None:
    """Return what takes the events of other nodes on this one; None if these go to another node."""
    group = event_group(job, config)
    if group is None or group.gatherer != job.node_index:
        return None
    return EventGathering(group.givers, MAX_GIVEN_BYTES)


async def publish_in_group(task: Task, store: Store) -> list[dict[str, object]]:
    """Publish this run's events so far, by another node if that is quick.

    Arguments, result and errors as for `publish_own`.
    """
    job, group = task.job, event_group(task.job, task.config)
    lost: list[str] = []
    client = connect_peers(job, task.config, lost.append) if group else None
    if group is None or client is None:
        return await publish_own(task, store)
    client.begun_s = time.monotonic() - _ALIVE_S
    try:
        if group.gatherer == job.node_index:
            return await _gather(task, store, client, group, lost)
        return await _give(task, store, client, group, lost)
    finally:
        client.close()


async def publish_own(task: Task, store: Store) -> list[dict[str, object]]:
    """Publish this run's events so far; returns the runs that wait on the node.

    Raises:
        BootseerError: they are not in the store.
    """
    wanted = await _wanted(task)
    await publish_events(store, decode_run(wanted.run))
    return wanted.waiting


def decode_run(document: dict[str, object]) -> NodeRun:
    """Decode a run.

    Raises:
        Corrupt: a field is missing or not acceptable.
    """
    name = "events from the agent"
    return NodeRun.from_fields(Fields(document, name), name)


async def _wanted(task: Task) -> PublishEvents:
    # The agent has received the stages so far and sends the whole list back.
    await task.channel.send(EventsWanted())
    events = await task.channel.receive_only()
    if not isinstance(events, PublishEvents):
        raise unexpected(events)
    return events


async def _give(
    task: Task, store: Store, client: PeerClient, group: EventGroup, lost: list[str]
) -> list[dict[str, object]]:
    """Give the events to the gatherer; `lost` takes what is wrong with it."""
    wanted = await _wanted(task)
    gatherer = client.hosts[group.gatherer]
    async with task.stage("peers.give") as report:
        encoded = decode_run(wanted.run).encode()
        is_stored = await give(client, group.gatherer, task.job.node, encoded)
        if lost:
            report.fall_back(f"this node stores its events by itself: {', '.join(lost)}")
        elif not is_stored:
            report.detail = f"too late for {gatherer}: this node stores its events by itself"
    return wanted.waiting if is_stored else await publish_own(task, store)


async def _gather(
    task: Task, store: Store, client: PeerClient, group: EventGroup, lost: list[str]
) -> list[dict[str, object]]:
    """Store what other nodes give with this node's events; `lost` takes why that is impossible."""
    async with task.stage("peers.gather") as report:
        taken = await take(client, MAX_GIVEN_BYTES)
        nodes, given = taken or (0, b"")
        report.bytes = len(given)
        report.detail = f"{nodes} of {group.givers} nodes have given their events"
        if taken is None:
            why = ", ".join(lost) or "this node's server has ended"
            report.fall_back(f"nodes store their events by themselves: {why}")
    if not nodes:
        return await publish_own(task, store)
    wanted = await _wanted(task)
    await publish_pack(store, decode_run(wanted.run), given)
    await tell_stored(client)
    return wanted.waiting
