"""The supervisor: coordinates one job on one node, from its prolog to its epilog.

It starts workers with the rights of the job's user, records what a start reads and serves the
control socket. When the epilog asks, it ends the workers and publishes the recording. It runs under
the service account; the broker does what takes more rights.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

from bootseer import config as settings
from bootseer.agent.messages.broker import FinishJob
from bootseer.agent.messages.control import (
    MAX_HOT_RANGES,
    AgentStatus,
    AnnounceImport,
    Answer,
    AwaitImport,
    BeginStage,
    Done,
    Finish,
    Finished,
    GetHotRanges,
    GetStatus,
    HotRanges,
    ImagePath,
    KeepImport,
    Kept,
    Readiness,
    Refusal,
    Request,
    RunEnvironment,
    ServeImage,
    TellEvent,
    UseImage,
    WaitReady,
)
from bootseer.agent.messages.worker import (
    EnvironmentMounted,
    EnvironmentSettled,
    FromWorker,
    ImageMissing,
    MountEnvironment,
    MountImage,
    PrefetchFile,
    Ready,
)
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.supervisor import containment, control_server
from bootseer.agent.supervisor.checkpoint_mount import MountedCheckpoint
from bootseer.agent.supervisor.control_server import Peer
from bootseer.agent.supervisor.environment_overlays import EnvironmentOverlays
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.agent.supervisor.images.image_mount import ServedImage
from bootseer.agent.supervisor.images.image_mounts import ServedImages
from bootseer.agent.supervisor.images.image_record import JobImage
from bootseer.agent.supervisor.images.import_waits import ImportWaits
from bootseer.agent.supervisor.images.recording_window import RecordingWindow
from bootseer.agent.supervisor.images.step_images import StepImages
from bootseer.agent.supervisor.import_uploads import ImportUploads
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.peer_server import PeerServerProcess
from bootseer.agent.supervisor.publish_recording import publish
from bootseer.agent.supervisor.worker_process import Worker
from bootseer.core.event import Event, from_json, one_line
from bootseer.core.ranges import ByteRange
from bootseer.core.warm_plan import is_file_path
from bootseer.errors import BootseerError, Closed, ConfigError, Denied, Unavailable
from bootseer.ipc.channel import unexpected
from bootseer.ipc.request_client import RequestClient

_STATE_S = 1.0
_LOOK_S = 0.1
_MOST_LOOKING = 8
"""That wait for an image's hot ranges: more would take the connections that others need."""
_PUBLISH_S = 3.0
"""Minimum share of the epilog's time for the recording; the checkpoint gets the rest."""
_KILL_S = 1.0
"""Part of the epilog's time for killing a worker that does not publish in time."""


class Supervisor:
    """The state of one job on this node, and the tasks that change it."""

    def __init__(
        self,
        folder: JobFolder,
        job: Job,
        config: settings.Config,
        broker: RequestClient,
        lender: RequestClient,
        checkpoint: MountedCheckpoint | None = None,
        served: ServedImage | None = None,
        peers: Worker | None = None,
        publisher: Worker | None = None,
    ) -> None:
        """Take over a job, and the workers that were forked from this process."""
        self._broker = broker
        self._lender = lender
        self._folder = folder
        self._job = job
        self._config = config
        self.events = EventLog(folder.events)
        self._checkpoint = checkpoint
        self._first = served
        context = JobContext(folder, job, config, broker, lender, self.events)
        self._context = context
        self._window = RecordingWindow(job, context, served, checkpoint, self._on_message)
        self._served = ServedImages(context)
        self._steps = StepImages(context, self._window)
        self._keeping = ImportUploads(context)
        self._waits = ImportWaits(context)
        self._publisher = publisher
        self._peers = PeerServerProcess(context, peers) if peers is not None else None
        self._environments = EnvironmentOverlays(context, self._served, self._image_digest)
        self._nursery: trio.Nursery | None = None
        self._ready = trio.Event()
        self._ready_detail = ""
        self._looking = 0
        self._finishing = False
        self._last_answer: Finished | None = None
        self._scope = trio.CancelScope()

    async def run(self, worker: Worker, listener: socket.socket) -> None:
        """Serve the job until its epilog has been answered.

        Raises:
            Closed: the broker has ended.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._broker.run)
                nursery.start_soon(
                    control_server.serve, listener, self._job.uid, self._handle, self._answered
                )
                self._start("image.cache", self._follow_lender)
                self._start("agent.worker", self._window.run, worker)
                if self._peers is not None:
                    self._start("peers.serve", self._peers.run)
                if self._checkpoint is not None:
                    self._start("checkpoint.mount", self._follow_checkpoint, self._checkpoint)
                if self._first is not None:
                    self._served.begin(self._first, nursery)
                    self._start("image.mount", self._follow_image, self._first)
                self._start("agent.state", self._keep_state)

    def _start(self, stage: str, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start a task whose errors do not end its siblings."""
        if self._nursery is not None:
            self._context.start(stage, self._nursery, work, *args)

    async def publish_orphan(self) -> None:
        """Publish the events that a dead agent of this job has left.

        Raises:
            Closed: the broker has ended.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._broker.run)
            self.events.recover()
            why = str((self._folder.read("died.json") or {}).get("why") or "it had died")
            self.events.fall_back(
                "agent.died", f"the agent died and its recordings are lost: {why}"
            )
            await publish(self._context, [], None, self._config.epilog.deadline_s)
            await self._broker.do(FinishJob())
            nursery.cancel_scope.cancel()

    async def _follow_lender(self) -> None:
        """Receive the lender's answers until it ends."""
        try:
            await self._lender.run()
        except Closed as error:
            self.events.fall_back(
                "image.cache", f"blocks are not kept on this node any more: {error}"
            )

    async def _follow_checkpoint(self, checkpoint: MountedCheckpoint) -> None:
        """Follow the checkpoint's server until it ends."""
        try:
            await checkpoint.follow(self._job, self._config, self.events)
        except BootseerError as error:
            if not self._finishing:
                self.events.fall_back(
                    "checkpoint.mount",
                    f"its files return errors: the checkpoint server has ended: {error}",
                )

    async def _follow_image(self, image: ServedImage) -> None:
        """Find out whether tasks can read the served image."""
        await image.served.wait()
        if not image.is_served:
            self._note_unreadable()

    def _note_unreadable(self) -> None:
        """Have the plugin set no variable for the job's image from now on."""
        with suppress(OSError):  # /run is full: tasks find no image at the variable's path
            os.close(os.open(self._folder.unreadable, os.O_WRONLY | os.O_CREAT, 0o600))

    def _on_message(self, message: FromWorker) -> None:
        """Handle messages of the prefetch worker that concern more than its window."""
        match message:
            case Ready():
                self._mark_ready(one_line(message.detail))
            case MountImage() if self._nursery is not None:
                self._start("image.mount", self._serve_again, message.image, self._nursery)
            case ImageMissing():
                self._note_unreadable()
            case PrefetchFile() if self._nursery is not None:
                self._steps.prefetch(message.path, self._nursery)
            case MountEnvironment() if self._nursery is not None:
                self._start("env.mount", self._mount_named_environment, message, self._nursery)
            case EnvironmentSettled():
                with suppress(OSError):  # /run is full: the prolog waits until its timeout
                    self._folder.write_mounted(self._folder.named, "none")
            case _:
                raise unexpected(message)

    async def _serve_again(self, image: str, nursery: trio.Nursery) -> None:
        """Serve an image that the last run requested later."""
        try:
            await self._served.mount(image, nursery, is_later=False)
        except BootseerError as error:
            self.events.fall_back("image.mount", f"{image[:100]!a}, as in the last run: {error}")

    async def _mount_named_environment(
        self, wanted: MountEnvironment, nursery: trio.Nursery
    ) -> None:
        """Mount the job's environment for its tasks."""
        why, began_ns = "", time.time_ns()
        try:
            await self._environments.name(wanted.key, wanted.targets, nursery)
            detail = one_line(", ".join(wanted.targets))
            self.events.note(Event("env.mount", began_ns, time.time_ns(), "agent", detail=detail))
        except (BootseerError, OSError) as error:
            why = str(error)
            self.events.fall_back("env.mount", why)
        await self._window.tell(EnvironmentMounted(why))

    def _mark_ready(self, detail: str) -> None:
        if not self._ready.is_set():
            self._ready_detail = detail
            now = time.time_ns()
            self.events.note(
                Event("agent.ready", self._job.started_ns, now, "agent", detail=detail)
            )
        self._ready.set()

    @property
    def _windows(self) -> list[RecordingWindow]:
        return [self._window, *self._served.windows, *self._steps.windows]

    @property
    def _images(self) -> list[JobImage]:
        return [image for window in self._windows for image in window.images]

    def _image_digest(self) -> str:
        """Return the identity of the job's image, "" while unknown."""
        named = self._job.image
        return next((image.digest for image in self._images if image.path == named), "")

    # The control socket.

    async def _handle(self, request: Request, peer: Peer) -> Answer | None:
        match request:
            case GetStatus():
                return self._status()
            case TellEvent():
                return self._record_event(request, peer.uid)
            case BeginStage():
                end_ns = request.end_ns
                with peer.connection() as connection:
                    if control_server.is_open(connection):
                        await control_server.until_closed(connection)
                        end_ns = time.time_ns()
                self._record_event(TellEvent(request.stage, request.start_ns, end_ns), peer.uid)
                return None
            case WaitReady():
                with trio.move_on_after(request.timeout_s):
                    await self._ready.wait()
                if peer.uid == 0 and not self._ready.is_set():
                    await self._window.detach()
                return Readiness(self._ready.is_set(), self._ready_detail)
            case Finish():
                if peer.uid != 0:
                    raise Denied("only root may end a job's agent")
                return await self._finish(request.timeout_s)
        if self._nursery is None or self._finishing:
            raise Unavailable("the job is ending")
        match request:
            case RunEnvironment():
                await self._environments.converse(peer.connection(), peer.pid, self._nursery)
                return None
            case ServeImage():
                return ImagePath(await self._served.serve(request.image, self._nursery))
            case UseImage():
                if not is_file_path(request.path):
                    raise ConfigError(f"{request.path[:100]!a} is not the path of an image file")
                self._steps.use(request.path, self._nursery)
                return Done()
            case GetHotRanges():
                return await self._hot_ranges(request.path, request.timeout_s)
            case AnnounceImport():
                self._keeping.announce(request.image, peer.connection(), self._nursery)
                return Done()
            case AwaitImport():
                return await self._waits.wait(request.image, peer.connection())
            case KeepImport():
                kept = await self._keeping.keep(request.image, request.path, self._nursery)
                return Kept(kept)

    async def _hot_ranges(self, path: str, timeout_s: float) -> HotRanges:
        """Wait until it is known what of an image is prefetched; returns that."""

        def hot() -> list[ByteRange] | None:
            for window in self._windows:
                for image in window.images:
                    if image.file == path and (image.is_prefetched or window.prefetched.is_set()):
                        return image.prefetched
            return None

        if self._looking < _MOST_LOOKING:
            self._looking += 1
            try:
                with trio.move_on_after(timeout_s):
                    while hot() is None:
                        await trio.sleep(_LOOK_S)
            finally:
                self._looking -= 1
        ranges = (hot() or [])[:MAX_HOT_RANGES]
        return HotRanges([bound for r in ranges for bound in (r.start, r.stop)])

    def _record_event(self, told: TellEvent, uid: int) -> Answer:
        event = from_json(
            {**told._asdict(), "source": told.source if uid == 0 else "step"}, "event"
        )
        if not event.stage.replace(".", "").replace("-", "").replace("_", "").isalnum():
            raise ConfigError(
                "the stage's name may hold only letters, digits, dots, dashes and underscores"
            )
        if event.stage == "mark.first-step":
            self._close_windows()
        if uid == 0:
            self.events.note(event)
        else:
            self.events.note_from_job(event)
        return Done()

    def _close_windows(self, *, is_cut_short: bool = False) -> None:
        for window in self._windows:
            window.close(is_cut_short=is_cut_short)

    async def _finish(self, timeout_s: float) -> Answer:
        if self._finishing:
            raise Unavailable("the agent is finishing already")
        self._finishing = True
        began_ns = time.time_ns()
        deadline = trio.current_time() + timeout_s - _KILL_S
        with trio.CancelScope(shield=True):
            self._keeping.end()
            self._steps.end()
            self._close_windows(is_cut_short=True)
            for window in self._windows:
                await window.recorded.wait()
            if self._checkpoint is not None:
                left_s = deadline - _PUBLISH_S - trio.current_time()
                if not await self._checkpoint.end(left_s):
                    self.events.fall_back(
                        "checkpoint.lost",
                        f"some written files could not be stored within {left_s:.1f} s",
                    )
            await self._environments.end(deadline - _PUBLISH_S - trio.current_time())
            await self._served.end(min(_KILL_S, deadline - trio.current_time()))
            if self._peers is not None:
                await self._peers.report()
            left_s = max(0.0, deadline - trio.current_time())
            recorded = (self._context, self._images, self._checkpoint)
            answer = Finished(*await publish(*recorded, left_s, began_ns, self._publisher))
            if self._peers is not None:
                self._peers.end()
            with suppress(BootseerError):
                await self._broker.do(FinishJob())
        self._last_answer = answer
        return answer

    def _answered(self, answer: Answer | Refusal) -> None:
        """End the supervisor once the epilog has its answer."""
        if answer is self._last_answer:
            self._scope.cancel()

    def _status(self) -> AgentStatus:
        return AgentStatus(
            job=self._job._asdict(),
            state="finishing"
            if self._finishing
            else ("ready" if self._ready.is_set() else "warming"),
            detail=self._ready_detail,
            window_open=not all(window.recorded.is_set() for window in self._windows),
            images=[image.status() for image in self._images],
            checkpoint=self._checkpoint is not None and self._checkpoint.served.is_set(),
            events=len(self.events),
            errors=containment.count(),
        )

    async def _keep_state(self) -> None:
        while True:
            with suppress(OSError):  # /run is full: continue
                self._folder.write("state/state.json", self._status()._asdict())
            await trio.sleep(_STATE_S)
