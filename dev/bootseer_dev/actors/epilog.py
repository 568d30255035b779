"""The epilogs of a job's nodes: what each publishes to the store, without agents and Slurm."""

from __future__ import annotations

import random
import time
from typing import Any, cast

from bootseer.agent.messages.worker import (
    EventsWanted,
    Published,
    PublishEvents,
    PublishRecording,
    RecordedImage,
    StageEnded,
    StartTask,
    WorkerEnd,
)
from bootseer.agent.node.job import Job
from bootseer.agent.workers import publish
from bootseer.agent.workers.base import Task
from bootseer.core.event import Event
from bootseer.image.hot.trace import COMPLETE, MISSED, Touch
from bootseer.store.api.base import Store
from bootseer.units import MIB, NS_PER_S

IMAGE = "/images/train.sqsh"
_IMAGE_BYTES = 3_200_000_000
_FIRST_JOB_S = 1_700_000_000
_DIGEST = "sqfs1-" + "5ca1e" * 8


def recording(node: int, *, is_warm: bool, ranges: int = 2000) -> PublishRecording:
    """Return what the start of a node has read: much the same as that of others.

    Args:
        node: its index.
        is_warm: the start had a hot set, and has missed a handful of ranges.
        ranges: number of ranges that some node has read.
    """
    chance = random.Random(node)
    starts = range(0, _IMAGE_BYTES - MIB, _IMAGE_BYTES // ranges)
    read = [start for start in starts if chance.random() < (4 / ranges if is_warm else 0.95)]
    touches = [Touch(start, start + MIB // 4, number) for number, start in enumerate(read)]
    kind = MISSED if is_warm else COMPLETE
    image = RecordedImage(IMAGE, _DIGEST, _IMAGE_BYTES, kind, touches, [])
    return PublishRecording("warm" if is_warm else "cold", [image], [], [])


class _Agent:
    """The agent's end of a publisher's channel."""

    def __init__(self, job: Job, recorded: PublishRecording) -> None:
        self._job = job
        self._messages: list[object] = [recorded]
        self._kind = recorded.kind
        self._events: list[Event] = []
        self.published: Published | None = None
        self.published_at_s = 0.0

    async def send(self, message: object) -> None:
        match message:
            case StageEnded():
                self._events.append(message.event)
            case EventsWanted():
                self._messages.append(PublishEvents(self._run(), []))
            case Published():
                self.published, self.published_at_s = message, time.monotonic()

    async def receive_only(self) -> object:
        return self._messages.pop()

    def _run(self) -> dict[str, object]:
        job = self._job
        about = {"run": job.run, "job": job.job_id, "key": job.key, "node": job.node}
        events = [event.document() for event in self._events]
        return {**about, "kind": self._kind, "started_ns": job.started_ns, "events": events}


class Epilog(Task):
    """One node's publication.

    Attributes:
        published: what the agent was told; None before that.
        published_at_s: when, by the monotonic clock.
    """

    def __init__(self, job: Job, recorded: PublishRecording, config: dict[str, Any]) -> None:
        """Prepare it.

        Args:
            job: the node's job.
            recorded: what its start has read.
            config: settings.
        """
        self._agent = _Agent(job, recorded)
        super().__init__(cast(WorkerEnd, self._agent), StartTask(job, config))

    @property
    def published(self) -> Published | None:
        return self._agent.published

    @property
    def published_at_s(self) -> float:
        return self._agent.published_at_s

    async def run(self) -> None:
        """Publish; returns when the worker would end."""
        await publish.run(self)


class EpilogInStore(Epilog):
    """A node's publication in a given store."""

    def __init__(
        self, job: Job, recorded: PublishRecording, config: dict[str, Any], store: Store
    ) -> None:
        """Prepare it; arguments as for `Epilog`, and the user's store."""
        super().__init__(job, recorded, config)
        self._store = store

    def store(self) -> Store:
        return self._store


def jobs(user: str, number: int, nodes: int) -> list[Job]:
    """Return a job of a user as each of its nodes has it; all nodes start within a second.

    A job with a greater number starts later.
    """
    began_ns = (_FIRST_JOB_S + 600 * number) * NS_PER_S
    chance = random.Random(number)
    return [
        Job(
            number,
            "scale",
            f"node{node:05d}",
            1000,
            1000,
            user,
            f"/home/{user}",
            "train",
            record_only=False,
            image=IMAGE,
            wait_s=0.0,
            started_ns=began_ns + chance.randrange(NS_PER_S),
            nodes=nodes,
            node_index=node,
        )
        for node in range(nodes)
    ]
