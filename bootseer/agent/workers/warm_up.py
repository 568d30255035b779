"""Carry out a warm plan: prefetch image and checkpoint, mount environments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

import trio

from bootseer.agent.messages.worker import (
    CheckpointReadable,
    EnvironmentMounted,
    EnvironmentSettled,
    HoldPrefetch,
    ImageCopied,
    ImageReadable,
    ImagesPrefetched,
    ImageUnreadable,
    MountEnvironment,
    MountImage,
    PrefetchFile,
    Ready,
    YieldToJob,
)
from bootseer.agent.workers.base import Task
from bootseer.agent.workers.images.prefetch_image import ImagePrefetch
from bootseer.agent.workers.job_peers import JobPeers
from bootseer.agent.workers.plan_reader import PlanReader
from bootseer.agent.workers.prefetch_checkpoint import read_checkpoint_ahead
from bootseer.agent.workers.provide_environment import provide
from bootseer.core.reference import ENVIRONMENT
from bootseer.core.warm_plan import WarmPlan
from bootseer.env.snapshot.manifest import Snapshot
from bootseer.errors import BootseerError, Closed
from bootseer.ipc.channel import Awaited, unexpected
from bootseer.rate_limit import RateLimit
from bootseer.store.api.base import Store
from bootseer.units import MIB

FIRST_ANSWER_S = 5.0
"""Longer than a busy store takes when a thousand nodes start; a job may be held for its data."""


class WarmUp:
    """The warm-up of one job's image, checkpoint and environments."""

    def __init__(self, task: Task, peers: JobPeers) -> None:
        self._task = task
        self._peers = peers
        self._budget = RateLimit(task.config.prefetch.mib_per_s * MIB)
        self._plan = PlanReader(task)
        self._image = ImagePrefetch(task, self._plan, self._budget, peers)
        self._checkpoint = Awaited[CheckpointReadable]()
        self._environment = Awaited[EnvironmentMounted]()
        self._opened: Store | None = None

    def _store(self) -> Store:
        """Return the user's store, one for all parts: an outage of one is known to the others."""
        if self._opened is None:
            self._opened = self._task.watched_store(FIRST_ANSWER_S)
        return self._opened

    def _start_reads(self) -> Store:
        """Return the same for what all nodes read."""
        return self._peers.start_reads(self._store())

    async def listen(self, scope: trio.CancelScope) -> None:
        """Handle the agent's messages; end the worker when the agent ends."""
        try:
            while True:
                match message := await self._task.channel.receive_only():
                    case CheckpointReadable():
                        self._checkpoint.set(message)
                    case ImageReadable() | ImageUnreadable():
                        self._image.readable.set(message)
                    case EnvironmentMounted():
                        self._environment.set(message)
                    case ImageCopied():
                        self._image.copied.set()
                    case HoldPrefetch():
                        self._image.hold(is_held=message.is_held)
                    case YieldToJob():
                        self._image.yield_to_job()
                    case _:
                        raise unexpected(message)
        except Closed:
            scope.cancel()

    async def carry_out(self) -> None:
        """Prefetch the image and then the checkpoint, and keep the image pinned.

        Failures are reported as fallbacks and do not hold up the job.
        """
        details = []

        async def tell(part: Callable[[], Awaitable[str]]) -> None:
            try:
                details.append(await part())
            except Closed:
                return  # `listen` sees the same and ends this worker
            except BootseerError as error:
                details.append(str(error))

        async def images_and_environments() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tell, self._images)
                is_environments_own = self._task.job.image.startswith(ENVIRONMENT)
                if not self._task.job.record_only and not is_environments_own:
                    nursery.start_soon(self._environments)
                if self._task.job.environment:
                    nursery.start_soon(tell, self._named_environment)
            with suppress(Closed):
                await self._task.channel.send(ImagesPrefetched())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(images_and_environments)
            if self._task.job.checkpoint:
                nursery.start_soon(tell, self._warm_checkpoint)
        with suppress(Closed):
            await self._task.channel.send(Ready("; ".join(details)))

    async def _images(self) -> str:
        """Prefetch the job's image, then have those of the last run's steps prefetched."""
        job, store = self._task.job, self._start_reads()
        try:
            return await self._image.run(store)
        finally:
            with suppress(BootseerError):  # reported by the plan's reader, or the agent has ended
                plan = None if job.record_only else await self._plan.read(store)
                for image in images_of_steps(plan, job.image):
                    message = MountImage(image) if "://" in image else PrefetchFile(image)
                    await self._task.channel.send(message)

    async def _environments(self) -> None:
        """Mount the environments of the last run where only root sees them, for `env run`."""
        with suppress(BootseerError):  # reported by the plan's reader, or the agent has ended
            plan = await self._plan.read(self._start_reads())
            for image in plan.images if plan is not None else ():
                if image.path.startswith(ENVIRONMENT):
                    await self._task.channel.send(MountImage(image.path))

    async def _named_environment(self) -> str:
        async def mount(snapshot: Snapshot) -> str:
            wanted = MountEnvironment(snapshot.key, list(snapshot.targets))
            await self._task.channel.send(wanted)
            return (await self._environment.wait()).why

        try:
            return await provide(self._task, self._store(), self._peers, mount)
        finally:
            with trio.CancelScope(shield=True), suppress(Closed):
                await self._task.channel.send(EnvironmentSettled())

    async def _warm_checkpoint(self) -> str:
        async def is_served() -> bool:
            return (await self._checkpoint.wait()).ok

        return await read_checkpoint_ahead(self._task, self._store(), is_served, self._budget)


def images_of_steps(plan: WarmPlan | None, image: str) -> list[str]:
    """Return the names of the last run's images beside the job's own.

    Args:
        plan: the job's plan.
        image: what the job names, "" for the image of the last run. If the last run did not use
            it, the steps' images may have changed too, and none are returned.
    """
    planned = plan.images if plan is not None else ()
    names = [each.path for each in planned if not each.path.startswith(ENVIRONMENT)]
    own = image or next(iter(names), "")
    return [name for name in names if name != own] if own in names else []


async def run(task: Task) -> None:
    """Carry out the job's warm plan until the agent ends the worker."""
    async with trio.open_nursery() as nursery:
        peers = JobPeers(task, nursery)
        warm = WarmUp(task, peers)
        nursery.start_soon(warm.listen, nursery.cancel_scope)
        with closing(peers):
            await warm.carry_out()
