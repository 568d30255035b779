"""What the parts of a supervisor share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from bootseer.agent.messages.client import RequestClient
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.supervisor.containment import contained
from bootseer.config import Config


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job, those who have the rights for it, and those who are told what happens.

    Attributes:
        folder, job: the job and its folder.
        config: effective settings.
        broker: starts processes, and mounts.
        lender: lends what the node has of images.
        hear: takes the events of workers.
        fall_back: takes the stage and the reason of what could not be done.
    """

    folder: JobFolder
    job: Job
    config: Config
    broker: RequestClient
    lender: RequestClient
    hear: Callable[[dict[str, Any]], None]
    fall_back: Callable[[str, str], None]

    def start(
        self, stage: str, nursery: trio.Nursery, work: Callable[..., Awaitable[Any]], *args: Any
    ) -> None:
        """Start a task that ends by itself, whatever becomes of it.

        Args:
            stage: that is told of if it ends by an error.
            nursery: where it runs.
            work, args: the task.
        """
        nursery.start_soon(contained, stage, partial(self.fall_back, stage), work, *args)
