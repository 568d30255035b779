"""The objects that all parts of a supervisor share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.supervisor import spool
from bootseer.agent.supervisor.containment import contained
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.agent.supervisor.images.images_first import ImagesFirst
from bootseer.config import Config, User
from bootseer.ipc.request_client import RequestClient
from bootseer.store.outages import Outages


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job, the channels to its broker and lender, and its events.

    Attributes:
        folder, job: the job and its folder.
        config: effective settings.
        broker: starts processes and makes mounts.
        lender: lends cached image blocks.
        events: the job's events on this node.
        images_first: what the checkpoint's prefetch waits for.
    """

    folder: JobFolder
    job: Job
    config: Config
    broker: RequestClient
    lender: RequestClient
    events: EventLog
    images_first: ImagesFirst = field(default_factory=ImagesFirst)

    @property
    def store_url(self) -> str:
        """Return the URL of the user's store."""
        job = self.job
        return User(job.user, job.uid, job.home).fill(self.config.store.url)

    @property
    def outages(self) -> Outages:
        """Return the outages of the user's stores that this node's agents have seen."""
        return Outages(spool.folder_of(self.config.node.cache_dir, self.job.uid))

    def start(
        self, stage: str, nursery: trio.Nursery, work: Callable[..., Awaitable[Any]], *args: Any
    ) -> None:
        """Start a task whose errors do not end its siblings.

        Args:
            stage: stage of the fallback event if it ends by an error.
            nursery: where it runs.
            work, args: the task.
        """
        nursery.start_soon(contained, stage, partial(self.events.fall_back, stage), work, *args)
