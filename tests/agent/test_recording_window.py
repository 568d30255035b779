"""A start-up window ends, whatever becomes of what is recorded in it."""

import socket
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from bootseer.agent.messages.worker import (
    CheckpointReadable,
    ImageFound,
    ImagesPrefetched,
    StageEnded,
)
from bootseer.agent.node.job import Job
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.agent.supervisor.images.images_first import ImagesFirst
from bootseer.agent.supervisor.images.recording_window import RecordingWindow
from bootseer.agent.supervisor.images.residency_client import ResidencyClient
from bootseer.agent.supervisor.images.residency_record import WatchedImage
from bootseer.config import Config
from bootseer.core.event import Event
from bootseer.errors import Closed
from bootseer.image.hot.trace import Touch
from bootseer.store.outages import Outages

JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "/i", 1.0, 1)
CONFIG = Config({"image.window_s": 30, "image.sample_interval_s": 0.1})


class Silent:
    """A worker that has handed its image over."""

    def __init__(self, *says):
        self.channel = self
        self.told = []
        self.says = list(says)

    async def send(self, message):
        self.told.append(message)

    async def send_task(self, job, config, outage):
        pass

    async def receive(self):
        if self.says:
            return self.says.pop(), []
        await trio.sleep_forever()

    async def end(self):
        pass


@pytest.fixture
def image():
    """An image whose first sample was taken: nobody looks at its pages after that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.send(b"=")
    watched = WatchedImage(ImageFound("/i", "d", []), ResidencyClient(ours, 1 << 20))
    watched._recorder.touches = [Touch(0, 4096, 1)]
    theirs.close()
    yield watched
    ours.close()


def new_window(job=JOB, checkpoint=None):
    """A window, and the events that it will tell."""
    events = EventLog("/nowhere/events.jsonl")
    outages = Outages("/nowhere")
    context = SimpleNamespace(config=CONFIG, broker=None, events=events, store_url="file:///s")
    context.outages = outages
    context.images_first = ImagesFirst()
    return RecordingWindow(job, context, checkpoint=checkpoint), events._events


async def run_with(image):
    """Run a window with an image; returns the events that it tells."""
    worker = Silent()
    window, events = new_window()
    window.images.append(image)
    try:
        await window.run(worker)
    finally:
        assert window.recorded.is_set()
    assert worker.told == []
    return events


async def test_a_lost_watch_of_an_image_is_reported_once(image, autojump_clock):
    """And nothing is held that is read ahead of it: whether it is read cannot be seen."""
    image.is_worth = lambda: False
    (event,) = await run_with(image)
    assert (event.stage, event.status) == ("image.record", "fallback")
    assert image._recorder._pages._end.fileno() == -1
    assert image.is_cut_short
    assert image.recorded().touches == [Touch(0, 4096, 1)]


async def test_an_unexpected_error_does_not_keep_the_epilog_waiting(image, autojump_clock):
    async def close(deadline):
        raise RuntimeError("something unforeseen")

    image.close = close
    with pytest.RaisesGroup(RuntimeError):
        await run_with(image)


IDENTIFIED = StageEnded(Event("image.identify", 1, 2, "agent", "ok"))


@pytest.mark.parametrize(
    ("job", "says", "told"),
    [
        (JOB, [], ["fallback"]),
        (JOB, [IDENTIFIED], ["ok"]),
        (JOB._replace(image=""), [], []),
        (JOB._replace(image="bootseer://i"), [], []),
    ],
    ids=["still reads the image", "has read it", "has none", "is served"],
)
async def test_a_job_that_ends_before_its_image_is_identified_says_so(
    job, says, told, autojump_clock
):
    window, events = new_window(job)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(window.run, Silent(*says))
        await trio.testing.wait_all_tasks_blocked()
        window.close(is_cut_short=True)
        window.close(is_cut_short=True)
    assert [event.status for event in events] == told
    assert {event.stage for event in events} <= {"image.identify"}


class Checkpoint:
    """A mounted checkpoint, or one that could not be mounted."""

    def __init__(self, ok):
        self.ok = ok

    async def is_served(self):
        return self.ok

    async def close_window(self):
        pass


class Prefetching(Silent):
    """A worker that says when its image is prefetched, or dies before."""

    def __init__(self):
        super().__init__()
        self.prefetched = trio.Event()
        self.dies = False

    async def receive(self):
        await self.prefetched.wait()
        if self.dies:
            raise Closed("it has died")
        self.prefetched = trio.Event()
        return ImagesPrefetched(), []


WITH_CHECKPOINT = JOB._replace(image="", checkpoint="hdfs://h/c")


async def test_the_checkpoint_is_prefetched_after_images_and_environments(nursery, autojump_clock):
    window, _ = new_window(WITH_CHECKPOINT, Checkpoint(True))
    worker = Prefetching()
    with window._images_first.hold():  # another image
        nursery.start_soon(window.run, worker)
        await trio.sleep(1)
        with window._images_first.hold():
            worker.prefetched.set()
            await trio.sleep(1)
        await trio.sleep(1)
        assert worker.told == []
    await trio.testing.wait_all_tasks_blocked()
    assert worker.told == [CheckpointReadable(True)]
    window.close()


@pytest.mark.parametrize("dies", [False, True])
async def test_the_checkpoint_waits_for_the_windows_own_image(dies, nursery, autojump_clock):
    """A worker that has died holds nothing: the window itself stays open for much longer."""
    window, _ = new_window(WITH_CHECKPOINT, Checkpoint(True))
    worker = Prefetching()
    worker.dies = dies
    nursery.start_soon(window.run, worker)
    await trio.sleep(5)
    assert worker.told == [] and not window.prefetched.is_set()
    worker.prefetched.set()
    await trio.testing.wait_all_tasks_blocked()
    assert worker.told == [CheckpointReadable(True)]
    assert window.prefetched.is_set() and not window.recorded.is_set()
    window.close()


async def test_that_there_is_no_checkpoint_is_told_at_once(nursery, autojump_clock):
    window, _ = new_window(WITH_CHECKPOINT, Checkpoint(False))
    worker = Prefetching()
    with window._images_first.hold():
        nursery.start_soon(window.run, worker)
        await trio.testing.wait_all_tasks_blocked()
        assert worker.told == [CheckpointReadable(False)]
    window.close()
