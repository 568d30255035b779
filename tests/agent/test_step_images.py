"""Which image files of steps are prefetched, and which are recorded."""

from types import SimpleNamespace
from typing import ClassVar

import pytest
import trio

from bootseer.agent.node.job import Job
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.agent.supervisor.images import step_images
from bootseer.agent.supervisor.images.step_images import MAX_FILES, OWN_IMAGE_S, StepImages
from bootseer.agent.workers.warm_up import images_of_steps
from bootseer.core.warm_plan import PlannedImage, WarmPlan
from bootseer.errors import Unavailable

JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "/own", 1.0, 1)


class Window:
    """A window that stays open until it is told to end."""

    made: ClassVar = []

    def __init__(self, job, context, *, is_used):
        self.job, self.is_used = job, is_used
        self.recorded, self.images = trio.Event(), []
        self.made.append(self)

    async def run(self, worker):
        await self.recorded.wait()

    def use(self):
        self.is_used = True


@pytest.fixture
def steps(monkeypatch):
    async def start(broker, role):
        return "worker"

    monkeypatch.setattr(Window, "made", [])
    monkeypatch.setattr(step_images, "RecordingWindow", Window)
    monkeypatch.setattr(step_images, "start", start)
    events = EventLog("/nowhere/events.jsonl")

    def begin(stage, nursery, work, *args):
        async def contained():
            try:
                await work(*args)
            except Unavailable as error:
                events.fall_back(stage, str(error))

        nursery.start_soon(contained)

    own = SimpleNamespace(images=[SimpleNamespace(path="/of/the/plan")], settled=trio.Event())
    context = SimpleNamespace(job=JOB, broker=None, events=events, start=begin)
    return StepImages(context, own)


def used():
    return [(window.job.image, window.is_used) for window in Window.made]


async def test_a_step_opens_one_window_for_each_file(steps, nursery):
    for path in ("/a", "/own", "/of/the/plan", "/a", "/b"):
        steps.use(path, nursery)
    assert used() == [("/a", True), ("/b", True)]
    assert all(w.job.checkpoint == w.job.environment == "" for w in steps.windows)
    await trio.testing.wait_all_tasks_blocked()
    steps.windows[0].recorded.set()
    steps.use("/a", nursery)
    assert len(Window.made) == 2  # it has been recorded in this job


async def test_a_planned_file_is_recorded_only_once_it_is_used(steps, nursery):
    for path in ("/a", "/own", "/b", "/a"):
        steps.prefetch(path, nursery)
    assert used() == [("/a", False), ("/b", False)]
    steps.use("/a", nursery)
    assert used() == [("/a", True), ("/b", False)]
    steps.windows[1].recorded.set()  # its window has closed before the step began
    steps.use("/b", nursery)
    assert used()[2:] == [("/b", True)]
    assert [window.is_used for window in steps.windows] == [True, True]
    assert [window.job.is_later for window in steps.windows] == [False, True]


async def test_a_first_step_brings_the_image_of_the_last_run_again(steps, nursery, autojump_clock):
    steps._context.job = JOB._replace(image="")
    planned, steps._own.images = steps._own.images, []
    for path in ("/of/the/plan", "/a"):
        steps.use(path, nursery)
    await trio.testing.wait_all_tasks_blocked()
    assert used() == []
    steps._own.images = planned
    steps._own.settled.set()
    await trio.testing.wait_all_tasks_blocked()
    assert used() == [("/a", True)]
    steps.use("/b", nursery)
    assert used()[1:] == [("/b", True)]


async def test_a_first_step_does_not_wait_for_a_slow_store(steps, nursery, autojump_clock):
    steps._context.job = JOB._replace(image="")
    steps.use("/a", nursery)
    await trio.sleep(OWN_IMAGE_S + 0.1)
    assert used() == [("/a", True)]
    steps.use("/b", nursery)
    steps.end()
    await trio.sleep(OWN_IMAGE_S + 0.1)
    assert used() == [("/a", True)]


async def test_a_job_has_a_limited_number_of_them(steps, nursery):
    for number in range(MAX_FILES + 3):
        steps.use(f"/{number}", nursery)
    assert len(steps.windows) == MAX_FILES


async def test_the_epilog_does_not_wait_for_a_worker_that_could_not_start(
    steps, nursery, monkeypatch
):
    async def start(broker, role):
        raise Unavailable("too many processes")

    monkeypatch.setattr(step_images, "start", start)
    steps.use("/a", nursery)
    await steps.windows[0].recorded.wait()
    (event,) = steps._context.events._events
    assert (event.stage, event.status) == ("image.prefetch", "fallback")


@pytest.mark.parametrize(
    ("planned", "image", "expected"),
    [
        ([], "", []),
        (["/a", "/b", "docker://c", "env://k"], "", ["/b", "docker://c"]),
        (["docker://c", "/a"], "", ["/a"]),
        (["/a", "/b"], "/b", ["/a"]),
        (["/a", "/b"], "/new", []),
        (["env://k"], "", []),
    ],
)
def test_images_beside_the_jobs_own(planned, image, expected):
    plan = WarmPlan("u", "k", tuple(PlannedImage(path, "d", 1, 0) for path in planned))
    assert images_of_steps(plan, image) == expected
    assert images_of_steps(None, image) == []
