"""What the agent keeps of what it is told, and of what it sees."""

import errno
import json
import logging
import os
import random
import select
import shutil
import socket
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from bootseer._io import lib
from bootseer.agent.broker.processes import Processes
from bootseer.agent.messages.broker import (
    ClearOverlays,
    FinishJob,
    KillWorker,
    Role,
    StartImageServer,
    StartWorker,
)
from bootseer.agent.messages.control import (
    MAX_HOT_RANGES,
    MAX_LINE_BYTES,
    REQUESTS,
    Finish,
    Finished,
    HotRanges,
    Kept,
    Refusal,
)
from bootseer.agent.messages.worker import (
    FROM_WORKER,
    EnvironmentSettled,
    ImageFound,
    ImageMissing,
    MountImage,
    PrefetchBegun,
    Published,
    Ready,
    StartTask,
    StoreAway,
)
from bootseer.agent.node import log
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.supervisor import (
    containment,
    environment_overlays,
    event_log,
    publish_recording,
    spool,
    supervisor,
)
from bootseer.agent.supervisor.control_server import Peer
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.agent.supervisor.images.image_mount import ServedImage
from bootseer.agent.supervisor.images.image_mounts import MAX_MOUNTS
from bootseer.agent.supervisor.images.kernel_mount import KernelMount
from bootseer.agent.supervisor.images.recording_window import RecordingWindow
from bootseer.agent.supervisor.images.residency_record import SETTLE_S, WatchedImage
from bootseer.agent.supervisor.worker_process import fork_worker
from bootseer.agent.workers.base import Task
from bootseer.config import Config
from bootseer.core.event import MAX_DETAIL_CHARS, Event, from_json
from bootseer.core.ranges import ByteRange, subtract
from bootseer.errors import Closed, ConfigError, Corrupt, Denied, Unavailable
from bootseer.image.hot import residency
from bootseer.image.hot.recorder import ResidencyRecorder
from bootseer.image.hot.residency import KernelResidency
from bootseer.image.hot.trace import Touch
from bootseer.ipc.request import Reply
from bootseer.ipc.typed_json import encode

USER = 20001
JOB = Job(7, "c", "n1", USER, USER, "alice", "/home/alice", "k", False, "", 1.0, 1)


class NoBroker:
    """Takes what an agent asks the broker for, and does nothing."""

    def __init__(self):
        self.asked = []

    async def do(self, request, fds=()):
        self.asked.append(request)
        return Reply(1)


@pytest.fixture
def agent(tmp_path):
    config = Config({"node.cache_dir": str(tmp_path / "cache")})
    folder = JobFolder(str(tmp_path / "job"))
    os.makedirs(folder.state)
    return supervisor.Supervisor(folder, JOB, config, NoBroker(), NoBroker())


def event(**more):
    return {"op": "event", "stage": "mark.x", "start_ns": 1, "end_ns": 2, **more}


def peer(uid=USER):
    return Peer(uid, os.getpid(), lambda: None)


async def handle(agent, request, peer):
    """Have a request handled, as it comes in at the control socket."""
    return await agent._handle(REQUESTS.decode(json.dumps(request).encode()), peer)


def publish_with(agent, timeout_s=1.0, forked=None):
    return publish_recording.publish(agent._context, [], None, timeout_s, forked=forked)


def run_of(agent, number):
    return publish_recording._run_document(agent._context, "cold") | {"run": f"c.{number}"}


def left_events(agent):
    """Return what a dead agent has left."""
    log = EventLog(agent._folder.events)
    log.recover()
    return log._events


async def test_job_events_are_limited_and_leave_room_for_the_agents(agent):
    told = 0
    with pytest.raises(Unavailable, match="limit of events"):
        for _ in range(100_000):
            await handle(agent, event(), peer())
            told += 1
    assert 1000 < told < event_log.MAX_EVENTS * 3 / 4
    await handle(agent, event(stage="prolog", source="prolog"), peer(0))
    assert agent.events._events[-1].stage == "prolog"
    assert os.stat(agent._folder.events).st_size < 2 * event_log.MAX_TOLD_BYTES


async def test_long_events_are_charged_by_size(agent):
    with pytest.raises(Unavailable, match="limit of events"):
        for _ in range(200):
            await handle(agent, event(detail="\U0001f600" * 1000), peer())
    assert os.stat(agent._folder.events).st_size < event_log.MAX_TOLD_BYTES


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"op": None},
        {"op": ["finish"]},
        {"op": "finish", "timeout_s": 1, "uid": 0},
        {"op": "wait"},
        {"op": "wait", "timeout_s": float("nan")},
        {"op": "wait", "timeout_s": float("inf")},
        {"op": "wait", "timeout_s": -1},
        {"op": "wait", "timeout_s": "1"},
        {"op": "event"},
        event(stage=""),
        event(stage="a b"),
        event(stage="../x"),
        event(stage="x\x1b[31m"),
        event(stage="[red]x"),
        event(stage="x" * 65),
        event(stage=5),
        event(detail="a\nb"),
        event(detail="x" * 1001),
        event(start_ns=-1),
        event(start_ns=2**63),
        event(start_ns=1.5),
        event(end_ns=True),
        event(rank=2**31),
        event(status=None),
        event(bytes="1"),
    ],
)
async def test_requests_that_make_no_sense_are_refused(agent, request_):
    with pytest.raises((Corrupt, ConfigError, Denied)):
        await handle(agent, request_, peer())
    assert agent.events._events == []
    assert not agent._finishing


async def test_hot_ranges_are_told_once_they_are_prefetched(
    agent, nursery, autojump_clock, tmp_path
):
    agent._nursery = nursery
    (tmp_path / "image").write_bytes(bytes(4096))
    pages = KernelResidency(os.open(tmp_path / "image", os.O_RDONLY))
    image = WatchedImage(ImageFound("/images/a.sqsh", "d", []), pages)
    agent._window.images.append(image)
    ask = {"op": "hot", "path": "/images/a.sqsh", "timeout_s": 5}
    answers = []

    async def wait():
        answers.append(await handle(agent, ask, peer()))

    nursery.start_soon(wait)
    await trio.sleep(2)
    assert answers == []
    hot = [ByteRange(500, 600), ByteRange(10, 20), ByteRange(200, 300)]
    image.note_prefetch(PrefetchBegun(hot, [], 0))
    await trio.sleep(1)
    assert answers == [HotRanges([500, 600, 10, 20, 200, 300])]
    began = trio.current_time()
    assert await handle(agent, ask | {"path": "/images/b.sqsh"}, peer()) == HotRanges([])
    assert trio.current_time() - began == 5
    for _ in range(9):
        nursery.start_soon(handle, agent, ask | {"path": "/images/b.sqsh"}, peer())
    await trio.testing.wait_all_tasks_blocked()
    began = trio.current_time()
    assert await handle(agent, ask | {"path": "/images/c.sqsh"}, peer()) == HotRanges([])
    assert trio.current_time() == began, "enough wait"
    many = [ByteRange(2 * i, 2 * i + 1) for i in range(10_000)]
    image.note_prefetch(PrefetchBegun(many, [], 0))
    bounds = (await handle(agent, ask, peer())).bounds
    assert bounds[-2:] == list(many[MAX_HOT_RANGES - 1])
    large = HotRanges([1 << 40] * len(bounds))
    assert len(encode(large)) < MAX_LINE_BYTES, "it has to fit into an answer"
    image._recorder.close()


async def test_a_user_cannot_speak_for_root(agent):
    with pytest.raises(Denied):
        await handle(agent, {"op": "finish", "timeout_s": 1}, peer())
    await handle(agent, event(source="prolog"), peer())
    assert agent.events._events[-1].source == "step"


async def test_a_stage_ends_with_the_connection_that_began_it(agent, nursery):
    ours, theirs = socket.socketpair()
    before = time.time_ns()
    begin = {"op": "begin", "stage": "step.start", "start_ns": before, "end_ns": before + 1}
    nursery.start_soon(handle, agent, begin, Peer(USER, os.getpid(), lambda: theirs))
    await trio.testing.wait_all_tasks_blocked()
    assert agent.events._events == []
    closed = time.time_ns()
    ours.close()
    while not agent.events._events:
        await trio.sleep(0.001)
    (event,) = agent.events._events
    assert (event.stage, event.start_ns, event.source) == ("step.start", before, "step")
    assert event.end_ns >= closed


async def test_a_connection_that_has_ended_before_tells_the_end_itself(agent):
    ours, theirs = socket.socketpair()
    ours.close()
    begin = {"op": "begin", "stage": "step.start", "start_ns": 1, "end_ns": 5}
    await handle(agent, begin, Peer(USER, os.getpid(), lambda: theirs))
    (event,) = agent.events._events
    assert (event.start_ns, event.end_ns) == (1, 5)


@pytest.mark.root
async def test_a_stopped_publisher_is_killed_after_its_timeout(agent, tmp_path, monkeypatch):
    pids, processes = [], Processes(None, None, None)

    async def ask(request):
        assert request == StartWorker(Role.PUBLISH)
        ours, theirs = socket.socketpair()
        theirs.detach()  # never read from
        pids.append(os.posix_spawn("/bin/sleep", ["sleep", "60"], {}))
        return Reply(1, value=processes.adopt(pids[-1])), [ours.detach()]

    async def do(request):
        assert isinstance(request, KillWorker)
        processes.kill(request.handle)

    monkeypatch.setattr(agent._broker, "ask", ask, raising=False)
    monkeypatch.setattr(agent._broker, "do", do)
    agent.events._events = [Event("x", 1, 2, "agent", detail="x" * 1000) for _ in range(3000)]
    (tmp_path / "cache/unpublished").mkdir(mode=0o700, parents=True)
    began_s = time.monotonic()
    published, detail = await publish_with(agent, 0.3)
    assert not published and "within" in detail
    assert time.monotonic() - began_s < 8
    assert len(spool.read_waiting(str(tmp_path / "cache"), USER)) == 1
    with pytest.raises(ChildProcessError):
        os.waitpid(pids[0], 0)


async def test_a_run_that_cannot_be_removed_is_still_published(agent, monkeypatch):
    class OnReadOnlyDisk:
        def unlink(self, missing_ok):
            raise OSError(errno.EROFS, "read-only file system")

    async def publish(context, forked, recording, waiting, began_ns, told):
        told.append(Published(True, "x", []))

    monkeypatch.setattr(spool, "read_waiting", lambda *_: [(OnReadOnlyDisk(), {})])
    monkeypatch.setattr(publish_recording, "_publish_by_worker", publish)
    assert await publish_with(agent) == (True, "x")


@pytest.mark.root
async def test_a_store_that_does_not_answer_costs_the_next_epilog_nothing(
    agent, tmp_path, monkeypatch
):
    cache_dir = str(tmp_path / "cache")
    (tmp_path / "cache/unpublished").mkdir(mode=0o700, parents=True)
    spool.make_folder(cache_dir, USER)
    answers = [StoreAway("connection refused"), Published(False, "no", [])]
    started = []

    class Publisher:
        channel = SimpleNamespace()

        async def send_task(self, job, config):
            started.append(job)

        async def end(self):
            pass

    async def send(message):
        pass

    async def receive_only():
        if not answers:
            raise Closed("it has ended")
        return answers.pop(0)

    async def start(broker, role):
        return Publisher()

    Publisher.channel.send, Publisher.channel.receive_only = send, receive_only
    monkeypatch.setattr(publish_recording, "start", start)
    assert await publish_with(agent) == (False, "no")
    published, detail = await publish_with(agent)
    assert not published and "is not asked: connection refused" in detail
    assert agent._config.store.url.startswith("file://{home}")
    assert "file:///home/alice/.bootseer" in detail  # the user is told which
    assert len(started) == 1 and len(spool.read_waiting(cache_dir, USER)) == 1
    (outage,) = (tmp_path / f"cache/unpublished/{USER}").glob("outage-*")
    os.utime(outage, (1, 1))
    answers.append(Published(True, "x", []))
    assert await publish_with(agent) == (True, "x")
    assert not outage.exists() and spool.read_waiting(cache_dir, USER) == []
    answers.append(Published(True, "y", [], is_last=False))  # then it dies in the merge
    assert await publish_with(agent) == (True, "y")
    assert spool.read_waiting(cache_dir, USER) == []


@pytest.mark.parametrize("is_dead", [False, True])
async def test_a_forked_publisher_is_used_and_another_in_its_place_once_it_is_dead(
    agent, monkeypatch, is_dead
):
    started, ended = [], []

    class Publisher:
        def __init__(self, is_dead):
            self._is_dead = is_dead
            self.channel = SimpleNamespace(send=self._send, receive_only=self._receive)

        async def send_task(self, job, config):
            if self._is_dead:
                raise Closed("it has ended")

        async def _send(self, message):
            pass

        async def _receive(self):
            return Published(True, "x", [])

        async def end(self):
            ended.append(self)

    async def start(broker, role):
        started.append(Publisher(is_dead=False))
        return started[-1]

    monkeypatch.setattr(publish_recording, "start", start)
    forked = Publisher(is_dead)
    assert await publish_with(agent, forked=forked) == (True, "x")
    assert (len(started), set(ended)) == (is_dead, {forked, *started})


async def test_an_outage_at_the_start_is_known_to_the_next_job(agent, tmp_path):
    cache_dir = str(tmp_path / "cache")
    (tmp_path / "cache/unpublished").mkdir(mode=0o700, parents=True)
    spool.make_folder(cache_dir, USER)
    sent = []

    class Warming:
        async def send_task(self, job, config, outage):
            sent.append(outage)
            raise Closed("it has ended")

    await agent._window._handle(StoreAway("connection refused"), [])
    for window in (agent._window, RecordingWindow(JOB, agent._context)):
        await window._follow(Warming())
    assert [outage.partition(",")[0] for outage in sent] == ["connection refused"] * 2
    details = [event.detail for event in agent.events._events if event.stage == "store.outage"]
    assert "file:///home/alice/.bootseer is not asked: connection refused" in details[0]


def test_waiting_runs_are_removed_if_damaged_but_not_on_disk_errors(agent, tmp_path, monkeypatch):
    cache_dir = str(tmp_path / "cache")
    (tmp_path / "cache/unpublished").mkdir(mode=0o700, parents=True)
    for number in (1, 2):
        spool.put(cache_dir, USER, run_of(agent, number))
    first, second = sorted((tmp_path / "cache/unpublished" / str(USER)).iterdir())
    first.write_text("[" * 100_000)

    def fails(self):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(Path, "read_bytes", fails)
    assert spool.read_waiting(cache_dir, USER) == []
    assert first.exists() and second.exists()
    monkeypatch.undo()
    assert [path for path, _ in spool.read_waiting(cache_dir, USER)] == [second]
    assert not first.exists() and second.exists()


async def test_a_run_that_has_to_wait_on_stays(agent, tmp_path, monkeypatch):
    cache_dir = str(tmp_path / "cache")
    (tmp_path / "cache/unpublished").mkdir(mode=0o700, parents=True)
    for number in (1, 2, 3):
        spool.put(cache_dir, USER, run_of(agent, number))

    async def publish(context, forked, recording, waiting, began_ns, told):
        assert [run["run"] for _, run in waiting] == ["c.1", "c.2", "c.3"]
        told.append(Published(True, "x", [1]))

    monkeypatch.setattr(publish_recording, "_publish_by_worker", publish)
    await publish_with(agent)
    assert [run["run"] for _, run in spool.read_waiting(cache_dir, USER)] == ["c.2"]


async def test_the_epilogs_timeout_covers_the_whole_end(agent, autojump_clock, monkeypatch):
    given = []

    async def publish(context, images, checkpoint, timeout_s, began_ns, forked):
        given.append(timeout_s)
        return False, ""

    async def record(takes_s):
        await trio.sleep(takes_s)
        agent._window.recorded.set()

    monkeypatch.setattr(supervisor, "publish", publish)
    for takes_s in (3, 30):
        agent._finishing, agent._window.recorded = False, trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(record, takes_s)
            await handle(agent, {"op": "finish", "timeout_s": 13}, peer(0))
    assert given == [pytest.approx(13 - 3 - supervisor._KILL_S), 0]


async def test_the_agent_ends_with_its_last_answer_and_no_other(agent, monkeypatch):
    async def publish(context, images, checkpoint, timeout_s, began_ns, forked):
        return True, "x"

    monkeypatch.setattr(supervisor, "publish", publish)
    agent._window.recorded.set()
    answer = await agent._handle(Finish(1.0), peer(0))
    with pytest.raises(Unavailable):
        await agent._handle(Finish(1.0), peer(0))
    agent._answered(Finished(*answer))
    agent._answered(Refusal("the agent is finishing already"))
    assert not agent._scope.cancel_called
    agent._answered(answer)
    assert agent._scope.cancel_called
    assert agent._broker.asked == [ClearOverlays(), FinishJob()]


@pytest.mark.parametrize("timeout_s", [-3.0, 0.0, 9.0])
async def test_no_environment_is_lost_where_there_was_none(agent, timeout_s):
    await agent._environments.end(timeout_s)
    assert agent.events._events == []


async def test_mounts_that_do_not_go_hold_up_no_epilog(agent, autojump_clock, monkeypatch):
    async def do(request):
        await trio.sleep_forever()

    monkeypatch.setattr(agent._broker, "do", do)
    for timeout_s, takes_s in ((9.0, 9.0), (-3.0, environment_overlays._CLEAR_S)):
        began = trio.current_time()
        await agent._environments.end(timeout_s)
        assert trio.current_time() - began == pytest.approx(takes_s)


@pytest.mark.parametrize(
    "rubbish", [b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000, b'{"stage": "x"}', b"9" * 5000]
)
def test_one_bad_line_spoils_no_other(agent, rubbish):
    for stage in ("a", "b"):
        agent.events.note(Event(stage, 1, 2, "agent"))
        with open(agent._folder.events, "ab") as file:
            file.write(b"\n" + rubbish)
    assert left_events(agent) == agent.events._events
    assert len(agent.events._events) == 2


def test_a_line_that_a_full_disk_has_cut_short_spoils_no_other(agent, monkeypatch):
    write = os.write
    for stage, share in (("a", 1), ("b", 0.5), ("c", 1)):
        monkeypatch.setattr(
            os, "write", lambda fd, data, s=share: write(fd, data[: int(len(data) * s)])
        )
        agent.events.note(Event(stage, 1, 2, "agent"))
    assert [event.stage for event in left_events(agent)] == ["a", "c"]


async def test_a_full_run_directory_ends_no_agent(agent, autojump_clock):
    shutil.rmtree(agent._folder.path)
    with trio.move_on_after(5):
        await agent._keep_state()
    await handle(agent, event(), peer())
    agent._on_message(EnvironmentSettled())
    assert agent.events._events


def test_an_error_that_cannot_be_logged_is_still_counted(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "/run is full")

    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=full, flush=full))
    log.set_up(is_debugging=False)
    before = containment.count()
    try:
        raise RuntimeError("something unforeseen")
    except RuntimeError:
        containment.contain("a task")
    assert containment.count() == before + 1


def test_waiters_for_the_kernel_mount_are_notified_though_run_is_full(tmp_path):
    gone = JobFolder(str(tmp_path / "gone"))
    for path in ("", "/somewhere"):
        kernel = KernelMount(gone, NoBroker(), ["d"])
        kernel.path = path
        kernel.settle()
        assert kernel.settled.is_set()


async def test_waiters_for_an_image_get_the_servers_end_first(monkeypatch):
    """Whatever else fails then."""

    class Kernel:
        def settle(self):
            raise RuntimeError("something unforeseen")

    class Gone:
        async def send_task(self, job, config):
            raise Closed("it has ended")

    image = ServedImage(NoBroker(), NoBroker(), 0, "/m", Gone(), "bootseer://x", Kernel())
    with pytest.raises(RuntimeError):
        await image.follow(JOB, Config({}), None)
    assert image.served.is_set() and not image.is_served


@pytest.mark.parametrize("is_served", [True, False])
async def test_the_plugin_is_told_once_a_served_image_cannot_be_read(agent, tmp_path, is_served):
    mark = tmp_path / "job/state/unreadable"
    image = SimpleNamespace(served=trio.Event(), is_served=is_served)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent._follow_image, image)
        await trio.testing.wait_all_tasks_blocked()
        assert not mark.exists()
        image.served.set()
    assert mark.exists() == (not is_served)


@pytest.mark.parametrize("message", [ImageMissing(), Ready("the worker has ended")])
def test_the_plugin_is_told_once_an_image_file_cannot_be_read(agent, tmp_path, message):
    """Not if it only could not be identified: tasks may read it all the same."""
    agent._on_message(message)
    is_missing = isinstance(message, ImageMissing)
    assert (tmp_path / "job/state/unreadable").exists() == is_missing


def test_a_prefetch_worker_whose_broker_has_ended_ends():
    """It is still root's: the fork is made before rights are dropped."""
    born, end = os.pipe()
    start = SimpleNamespace(job=JOB, broker_pid=2**22 + 1, born=end, opener=None)
    with fork_worker(start, Role.WARM_UP) as channel, os.fdopen(born, "rb") as told:
        os.close(end)
        assert select.select([told], [], [], 10)[0] == [told] and told.read() == b""
        assert channel.recv(1) == b""


# What it sees.


@pytest.fixture
def watch(tmp_path):
    watched = []

    def start(size_bytes=1 << 30):
        path = tmp_path / "image"
        with path.open("wb") as file:
            file.truncate(size_bytes)
        pages = KernelResidency(os.open(path, os.O_RDONLY))
        image = WatchedImage(ImageFound(str(path), "d", []), pages)
        watched.append(image)
        return image

    yield start
    for image in watched:
        image._recorder.close()


def test_touches_beyond_the_prefetch_are_separated(watch):
    image = watch()
    chance = random.Random(1)

    def ranges(count):
        edges = sorted(chance.sample(range(1000), 2 * count))
        return [ByteRange(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]

    for _ in range(100):
        touches = [Touch(*r, chance.randrange(9)) for r in ranges(20)]
        chance.shuffle(touches)
        image._recorder.touches, image.prefetched = touches, ranges(20)
        assert image.touched() == [
            Touch(start, stop, t.first_ms)
            for t in touches
            for start, stop in subtract([ByteRange(t.start, t.stop)], image.prefetched)
        ]


def test_telling_them_apart_takes_no_time_to_speak_of(watch):
    """A hot set is the user's to write, and the agent has but one thread."""
    image = watch()
    image.prefetched = [ByteRange(i * 8192, i * 8192 + 4096) for i in range(100_000)]
    image._recorder.touches = [Touch(i * 8192, i * 8192 + 8192, 1) for i in range(100_000)]
    began_s = time.monotonic()
    assert len(image.touched()) == 100_000
    assert time.monotonic() - began_s < 3


async def test_read_ahead_that_cannot_be_separated_in_time_is_kept(
    watch, autojump_clock, monkeypatch
):
    image = watch()
    image._recorder.touches = [Touch(0, 8192, 1), Touch(16384, 20480, 2)]
    goes_on, ended = threading.Event(), threading.Event()

    def settle():
        goes_on.wait(5)
        ResidencyRecorder.settle(image._recorder)
        ended.set()

    monkeypatch.setattr(image._recorder, "settle", settle)
    event = await image.close(trio.current_time() + SETTLE_S)
    assert (event.stage, event.status, event.bytes) == ("image.record", "fallback", 12288)
    assert "not separated within 2 s" in event.detail
    looked_at = []
    monkeypatch.setattr("bootseer.image.hot.recorder._runs", lambda *touch: looked_at.append(touch))
    goes_on.set()
    assert ended.wait(5)
    assert looked_at == []
    assert len(image._recorder.touches) == 2


def test_a_file_too_large_to_map_is_not_watched(watch):
    with pytest.raises(Unavailable, match="more than an image has"):
        watch(residency.MAX_FILE_BYTES + 1)


class OldKernel:
    """Our C extension, as before Linux 6.5."""

    bs_has_cachestat = staticmethod(lambda fd: 0)

    def __getattr__(self, name):
        return getattr(lib, name)


def test_without_cachestat_only_files_that_mincore_can_inspect_are_watched(watch, monkeypatch):
    monkeypatch.setattr(residency, "lib", OldKernel())
    watch(residency.MAX_MINCORE_BYTES)
    with pytest.raises(Unavailable, match="cachestat"):
        watch(residency.MAX_MINCORE_BYTES + 1)
    monkeypatch.undo()
    has_cachestat = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 5)
    with nullcontext() if has_cachestat else pytest.raises(Unavailable, match="cachestat"):
        watch(residency.MAX_MINCORE_BYTES + 1)


@pytest.mark.parametrize("flags", [os.O_PATH, os.O_WRONLY])
def test_a_descriptor_that_cannot_be_inspected_raises_a_bootseer_error(tmp_path, flags):
    (tmp_path / "image").write_bytes(b"x" * 8192)
    fd = os.open(tmp_path / "image", flags)
    with pytest.raises(Unavailable):
        KernelResidency(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize(
    "leading",
    [None, {}, [[1]], [[2, 1]], [[0, 0]], [["0", "1"]], [[-1, 1]], [[0, 2**63]], [[0, True]]],
)
def test_a_workers_message_is_checked(leading):
    message = {"op": "ImageFound", "path": "/x", "digest": "d", "leading": leading}
    with pytest.raises(Corrupt):
        FROM_WORKER.decode(json.dumps(message).encode())


async def test_a_workers_detail_is_one_line_that_the_agent_accepts():
    sent = []

    class Channel:
        async def send(self, message):
            sent.append(message)

    task = Task(Channel(), StartTask(JOB, {}))
    with pytest.raises(Unavailable):
        async with task.stage("image.identify"):
            raise Unavailable("image /" + "a" * 4000 + "\n\0 cannot be read")
    told = FROM_WORKER.decode(FROM_WORKER.encode(sent[0]))
    assert told == sent[0]
    assert len(told.event.detail) == MAX_DETAIL_CHARS


async def test_the_agents_own_detail_is_one_line_that_a_worker_accepts(agent):
    """Of an error of a store's, whose text may have any."""
    error = "cannot list 'runs': called `unwrap()`:\n  at x\0" + "a" * 1000
    agent._on_message(Ready(error))
    agent.events.fall_back("publish", error)
    documents = run_of(agent, 1)["events"]
    assert len(documents) == 2
    for document in documents:
        from_json(document, "event")


@pytest.mark.parametrize("op", ["serve", "keep"])
@pytest.mark.parametrize(
    "image", [None, "", 5, ["x"], "x" * 2000, "docker://a\nb", "bootseer://\0"]
)
async def test_images_that_make_no_sense_are_not_mounted(agent, nursery, op, image):
    agent._nursery = nursery
    with pytest.raises(Corrupt, match="image"):
        await handle(agent, {"op": op, "image": image, "path": "/x"}, peer())
    assert os.listdir(agent._folder.path) == ["state"]
    assert agent._broker.asked == []


@pytest.mark.parametrize("image", ["train:v2", "/images/train.sqsh", "a" * 64])
async def test_only_uris_are_served(agent, nursery, image):
    agent._nursery = nursery
    with pytest.raises(ConfigError, match="not the URI"):
        await handle(agent, {"op": "serve", "image": image}, peer())
    assert os.listdir(agent._folder.path) == ["state"]
    assert agent._broker.asked == []


async def test_images_that_cannot_be_served_use_up_no_numbers(agent, nursery, monkeypatch):
    asked = []

    async def ask(request):
        asked.append(request)
        ours, theirs = socket.socketpair()
        theirs.close()  # it has ended already
        return Reply(1, value=len(asked)), [ours.detach()]

    monkeypatch.setattr(agent._broker, "ask", ask, raising=False)
    agent._nursery = nursery
    for number in range(3 * MAX_MOUNTS):
        with pytest.raises(Unavailable, match="has ended"):
            await handle(agent, {"op": "serve", "image": f"bootseer://x{number}"}, peer())
        await trio.testing.wait_all_tasks_blocked()
    numbers = [request.number for request in asked if isinstance(request, StartImageServer)]
    assert len(numbers) == 3 * MAX_MOUNTS
    assert set(numbers) <= set(range(1, MAX_MOUNTS + 1))


async def test_a_refused_image_of_the_last_start_is_reported(agent, nursery, monkeypatch):
    async def ask(request):
        raise Unavailable("too many processes")

    monkeypatch.setattr(agent._broker, "ask", ask, raising=False)
    agent._nursery = nursery
    agent._on_message(MountImage("bootseer://train"))
    await trio.testing.wait_all_tasks_blocked()
    (event,) = agent.events._events
    assert (event.stage, event.status) == ("image.mount", "fallback")
    assert "'bootseer://train'" in event.detail and "too many processes" in event.detail


async def test_only_registry_images_are_uploaded_and_by_one_node(agent, nursery):
    agent._nursery = nursery
    with pytest.raises(ConfigError, match="registry"):
        await handle(agent, {"op": "keep", "image": "bootseer://x", "path": "/x"}, peer())
    request = {"op": "keep", "image": "docker://x", "path": "/x"}
    for job in (JOB._replace(nodes=2, node_index=1), JOB._replace(nodes=0)):
        agent._keeping._context = replace(agent._context, job=job)
        assert await handle(agent, request, peer()) == Kept(False)
    config = Config({"image.keep_imports": False})
    agent._keeping._context = replace(agent._context, config=config)
    assert await handle(agent, request, peer()) == Kept(False)


async def test_an_agent_that_ends_serves_nothing_more(agent, nursery):
    agent._nursery, agent._finishing = nursery, True
    with pytest.raises(Unavailable, match="ending"):
        await handle(agent, {"op": "serve", "image": "bootseer://x"}, peer())


async def test_a_lender_that_ends_costs_the_block_cache_and_no_more(agent):
    async def run():
        raise Closed("the lender has ended")

    agent._lender.run = run
    await agent._follow_lender()
    (event,) = agent.events._events
    assert (event.stage, event.status) == ("image.cache", "fallback")
    assert event.detail == "blocks are not kept on this node any more: the lender has ended"
