"""Read a job's warm plan once for all parts of a worker."""

from __future__ import annotations

import trio

from bootseer.agent.workers.base import Task
from bootseer.core.warm_plan import WarmPlan
from bootseer.startup.plans import read_plan
from bootseer.store.api.base import Store


class PlanReader:
    """The warm plan of one job."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._lock = trio.Lock()
        self._has_read = False
        self._plan: WarmPlan | None = None

    async def read(self, store: Store) -> WarmPlan | None:
        """Return the plan, None if there is none or an earlier call could not read it.

        Raises:
            BootseerError: it cannot be read; reported as a fallback.
        """
        job = self._task.job
        async with self._lock:
            if not self._has_read:
                self._has_read = True
                async with self._task.stage("plan.read") as report:
                    self._plan = await read_plan(store, job.user, job.key)
                    runs = len(self._plan.runs) if self._plan else 0
                    report.detail = f"key {job.key}: {runs} earlier runs"
            return self._plan
