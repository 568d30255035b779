"""What the parts of a supervisor share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.supervisor.containment import contained
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.config import Config
from bootseer.ipc.request_client import RequestClient


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job, the processes that have rights for it, and its events.

    Attributes:
        folder, job: the job and its folder.
        config: effective settings.
        broker: starts processes, and mounts.
        lender: lends what the node has of images.
        events: of the job on this node.
    """

    folder: JobFolder
    job: Job
    config: Config
    broker: RequestClient
    lender: RequestClient
    events: EventLog

    def start(
        self, stage: str, nursery: trio.Nursery, work: Callable[..., Awaitable[Any]], *args: Any
    ) -> None:
        """Start a task that ends by itself, whatever becomes of it.

        Args:
            stage: that is told of if it ends by an error.
            nursery: where it runs.
            work, args: the task.
        """
        nursery.start_soon(contained, stage, partial(self.events.fall_back, stage), work, *args)
