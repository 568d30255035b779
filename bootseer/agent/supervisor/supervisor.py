"""The supervisor: looks after one job on one node, from its prolog to its epilog.

It has workers started with the rights of the job's user, records what a start reads, answers on the
control socket, and at the epilog's word ends the workers and has the recording published. It has
the rights of the service account; what takes more, it asks the broker for.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

from bootseer import config as settings
from bootseer.agent.broker.start import SupervisorStart
from bootseer.agent.messages import lender as lender_messages
from bootseer.agent.messages.broker import VERBS, FinishJob, Role
from bootseer.agent.messages.client import RequestClient, decode_reply
from bootseer.agent.messages.message import MAX_BYTES
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.node.privileges import Confinement, confine, limit_changes
from bootseer.agent.node.process import leave, reset_priority
from bootseer.agent.supervisor import containment, control_server, spool
from bootseer.agent.supervisor.checkpoint_mount import MountedCheckpoint
from bootseer.agent.supervisor.context import JobContext
from bootseer.agent.supervisor.control_server import Peer
from bootseer.agent.supervisor.environment_mounts import EnvironmentMounts
from bootseer.agent.supervisor.image_mount import ServedImage
from bootseer.agent.supervisor.image_mounts import ServedImages
from bootseer.agent.supervisor.image_record import JobImage
from bootseer.agent.supervisor.import_uploads import ImportUploads
from bootseer.agent.supervisor.kernel_mount import KernelMount
from bootseer.agent.supervisor.recording_window import RecordingWindow
from bootseer.agent.supervisor.worker_process import Worker, fork_warming, start
from bootseer.core.event import FALLBACK, OK, Event, from_json, one_line
from bootseer.core.fields import Fields
from bootseer.env.snapshot.manifest import MAX_TARGETS
from bootseer.errors import BootseerError, Closed, ConfigError, Corrupt, Denied, Unavailable

MAX_EVENTS = 5000
MAX_TOLD_BYTES = 1024 * 1024
"""Of the events that the job's own processes tell: they take up memory, here and in /run."""
_LEAST_TOLD_BYTES = 300
"""What the shortest counts for, so that they leave room for the agent's own in MAX_EVENTS."""
MAX_URI_CHARS = 1024
MAX_PATH_CHARS = 4096
_WARMING = ("hotset.read", "checkpoint.prefetch")
_STATE_S = 1.0
_PUBLISH_S = 3.0
"""Of what the epilog gives, at least, for what was recorded; the rest is the checkpoint's."""
_KILL_S = 1.0
"""Of what the epilog gives, for the end of a worker that does not publish in time."""
_TIDY_S = 0.5
"""What a worker gets to clear old runs away, once it has published."""


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
    ) -> None:
        """Take over a job; nothing is started yet, but what serves its checkpoint and image."""
        self._broker = broker
        self._lender = lender
        self._folder = folder
        self._job = job
        self._config = config
        self._events: list[Event] = []
        self._told_bytes = 0
        self._checkpoint = checkpoint
        self._first = served
        parts = (folder, job, config, broker, lender)
        self._context = context = JobContext(*parts, self._hear, self.note_fallback)
        self._window = RecordingWindow(job, context, self._hear, served, checkpoint)
        self._served = ServedImages(context)
        self._keeping = ImportUploads(context)
        self._environments = EnvironmentMounts(context, self._served, self._image_digest)
        self._nursery: trio.Nursery | None = None
        self._ready = trio.Event()
        self._ready_detail = ""
        self._finishing = False
        self._last_answer: dict[str, Any] | None = None
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
                if self._checkpoint is not None:
                    self._start("checkpoint.mount", self._follow_checkpoint, self._checkpoint)
                if self._first is not None:
                    self._served.begin(self._first, nursery)
                self._start("agent.state", self._keep_state)

    def _start(self, stage: str, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start a task that ends by itself, whatever becomes of it."""
        if self._nursery is not None:
            self._context.start(stage, self._nursery, work, *args)

    async def publish_orphan(self) -> None:
        """Publish what a dead agent of this job has left.

        Raises:
            Closed: the broker has ended.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._broker.run)
            self._events = self._left_events()
            why = str((self._folder.read("died.json") or {}).get("why") or "it had died")
            self.note_fallback("agent.died", f"what it had recorded is lost; {why}")
            await self._publish(self._config.epilog.deadline_s)
            await self._broker.do(FinishJob())
            nursery.cancel_scope.cancel()

    def note(self, event: Event) -> None:
        """Keep an event, in memory and in the job's folder."""
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
            try:
                spool.append_event(self._folder.events, json.dumps(event.document()))
            except OSError:
                return  # the copy serves only should this process die

    def note_fallback(self, stage: str, detail: str) -> None:
        """Keep that something could not be done, and why."""
        now = time.time_ns()
        self.note(Event(stage, now, now, "agent", FALLBACK, detail=one_line(detail)))

    def _left_events(self) -> list[Event]:
        events = []
        with suppress(OSError), open(self._folder.events, "rb") as file:
            for line in file:
                with suppress(ValueError, RecursionError, Corrupt):  # cut short by a full disk
                    events.append(from_json(json.loads(line), "events.jsonl"))
        return events

    async def _follow_lender(self) -> None:
        """Hear what the lender answers, until it ends."""
        try:
            await self._lender.run()
        except Closed as error:
            self.note_fallback("image.cache", f"blocks are not kept on this node any more: {error}")

    async def _follow_checkpoint(self, checkpoint: MountedCheckpoint) -> None:
        """Have the checkpoint served until that ends."""
        try:
            await checkpoint.follow(self._job, self._config, self._hear)
        except BootseerError as error:
            if not self._finishing:
                self.note_fallback(
                    "checkpoint.mount", f"its files give errors, what serves them ended: {error}"
                )

    def _hear(self, message: dict[str, Any]) -> None:
        op = message.get("op")
        if op == "event":
            self.note(from_json(message.get("event"), "event from the worker"))
        elif op == "ready":
            self._now_ready(one_line(str(message.get("detail", ""))))
        elif op == "serve" and self._nursery is not None:
            self._start("image.mount", self._serve_again, message.get("image"), self._nursery)
        elif op == "environment" and self._nursery is not None:
            self._start("env.mount", self._name_environment, message, self._nursery)
        elif op == "environment-settled":
            with suppress(OSError):  # /run is full: the prolog has waited for nothing
                self._folder.write_mounted(self._folder.named, "none")

    async def _serve_again(self, image: Any, nursery: trio.Nursery) -> None:
        """Serve at once what the last run asked for later."""
        try:
            if isinstance(image, str):
                await self._served.mount(image, nursery)
        except BootseerError as error:
            self.note_fallback("image.mount", f"{image[:100]!a}, as in the last run: {error}")

    async def _name_environment(self, message: dict[str, Any], nursery: trio.Nursery) -> None:
        """Mount the environment that the job has named, for its tasks to find."""
        why, began_ns = "", time.time_ns()
        try:
            fields = Fields(message, "message from the worker")
            targets = fields.texts("targets", MAX_TARGETS)
            await self._environments.name(fields.text("key", 64), targets, nursery)
            detail = one_line(", ".join(targets))
            self.note(Event("env.mount", began_ns, time.time_ns(), "agent", detail=detail))
        except (BootseerError, OSError) as error:
            why = str(error)
            self.note_fallback("env.mount", why)
        await self._window.tell({"op": "environment", "why": why})

    def _now_ready(self, detail: str) -> None:
        if not self._ready.is_set():
            self._ready_detail = detail
            now = time.time_ns()
            self.note(Event("agent.ready", self._job.started_ns, now, "agent", detail=detail))
        self._ready.set()

    @property
    def _windows(self) -> list[RecordingWindow]:
        return [self._window, *self._served.windows]

    @property
    def _images(self) -> list[JobImage]:
        return [image for window in self._windows for image in window.images]

    def _image_digest(self) -> str:
        """Return the identity of the image that the job was given, "" while it is not known."""
        named = self._job.image
        return next((image.digest for image in self._images if image.path == named), "")

    # The control socket.

    async def _handle(self, request: dict[str, Any], peer: Peer) -> dict[str, Any] | None:
        op, uid = request.get("op"), peer.uid
        if op == "status":
            return self._status()
        if op == "event":
            return self._take_event(request, uid)
        if op == "wait":
            with trio.move_on_after(_seconds(request, "timeout_s", 3600)):
                await self._ready.wait()
            if uid == 0 and not self._ready.is_set():
                await self._window.detach()
            return {"ready": self._ready.is_set(), "detail": self._ready_detail}
        if op == "finish":
            if uid != 0:
                raise Denied("only root ends a job's agent")
            return await self._finish(_seconds(request, "timeout_s", 600))
        if op in ("env", "serve", "keep"):
            if self._nursery is None or self._finishing:
                raise Unavailable("the job is ending")
            if op == "env":
                await self._environments.converse(peer.connection(), peer.pid, self._nursery)
                return None
            uri = _text(request, "image", MAX_URI_CHARS)
            if op == "serve":
                return {"path": await self._served.serve(uri, self._nursery)}
            path = _text(request, "path", MAX_PATH_CHARS)
            return {"kept": await self._keeping.keep(uri, path, self._nursery)}
        raise Corrupt(f"unknown operation {op!r}")

    def _take_event(self, request: dict[str, Any], uid: int) -> dict[str, Any]:
        fields = {"status": OK, "bytes": 0, "rank": -1, "detail": "", **request}
        fields["source"] = fields.get("source", "plugin") if uid == 0 else "step"
        event = from_json(fields, "event")
        if not event.stage.replace(".", "").replace("-", "").replace("_", "").isalnum():
            raise ConfigError("a stage's name is letters, digits, dots, dashes and underscores")
        if event.stage == "mark.first-step":
            self._close_windows()
        if uid != 0:
            size_bytes = len(json.dumps(event.document()))
            self._told_bytes += max(size_bytes, _LEAST_TOLD_BYTES)
            if self._told_bytes > MAX_TOLD_BYTES:
                raise Unavailable("this job has told more events than are kept")
        self.note(event)
        return {"ok": True}

    def _close_windows(self, *, is_cut_short: bool = False) -> None:
        for window in self._windows:
            window.close(is_cut_short=is_cut_short)

    async def _finish(self, timeout_s: float) -> dict[str, Any]:
        if self._finishing:
            raise Unavailable("the agent is finishing already")
        self._finishing = True
        began_ns = time.time_ns()
        deadline = trio.current_time() + timeout_s - _KILL_S
        with trio.CancelScope(shield=True):
            self._keeping.end()
            self._close_windows(is_cut_short=True)
            for window in self._windows:
                await window.recorded.wait()
            if self._checkpoint is not None:
                left_s = deadline - _PUBLISH_S - trio.current_time()
                if not await self._checkpoint.end(left_s):
                    self.note_fallback(
                        "checkpoint.lost",
                        f"not all that was written could be stored within {left_s:.1f} s",
                    )
            await self._environments.end(deadline - _PUBLISH_S - trio.current_time())
            await self._served.end(min(_KILL_S, deadline - trio.current_time()))
            left_s = max(0.0, deadline - trio.current_time())
            published, detail = await self._publish(left_s, began_ns)
            with suppress(BootseerError):
                await self._broker.do(FinishJob())
        self._last_answer = {"published": published, "detail": detail}
        return self._last_answer

    def _answered(self, answer: dict[str, Any]) -> None:
        """End once the epilog has its answer."""
        if answer is self._last_answer:
            self._scope.cancel()

    def _status(self) -> dict[str, Any]:
        return {
            "job": self._job._asdict(),
            "state": "finishing"
            if self._finishing
            else ("ready" if self._ready.is_set() else "warming"),
            "detail": self._ready_detail,
            "window_open": not all(window.recorded.is_set() for window in self._windows),
            "images": [image.status() for image in self._images],
            "checkpoint": self._checkpoint is not None and self._checkpoint.served.is_set(),
            "events": len(self._events),
            "errors": containment.count(),
        }

    async def _keep_state(self) -> None:
        while True:
            with suppress(OSError):  # /run is full: no reason to end
                self._folder.write("state/state.json", self._status())
            await trio.sleep(_STATE_S)

    # Publishing.

    async def _publish(self, timeout_s: float, began_ns: int = 0) -> tuple[bool, str]:
        """Have a worker publish the recording; what fails to arrive waits in the spool."""
        kind = self._kind()
        cache_dir, uid = self._config.node.cache_dir, self._job.uid
        waiting: list[Any] = []
        with suppress(BootseerError, OSError):  # said below, where it matters
            waiting = spool.read_waiting(cache_dir, uid)
        published, detail = False, f"not within {timeout_s:.1f} s"
        left: list[Any] = []
        with trio.move_on_after(timeout_s):
            try:
                published, detail, left = await self._publish_by_worker(kind, waiting, began_ns)
            except (BootseerError, OSError) as error:
                detail = str(error)
        if published:
            for number, (path, _) in enumerate(waiting):
                if number not in left:
                    with suppress(OSError):  # the disk is read-only: it is published once more
                        path.unlink(missing_ok=True)
        else:
            self.note_fallback("publish", detail)
            try:
                spool.put(cache_dir, uid, self._run_document(kind))
            except (BootseerError, OSError) as error:
                detail += f"; and cannot be kept: {error}"
        return published, detail

    def _kind(self) -> str:
        """Say "warm" if something was read ahead; from the events, which outlive us."""
        known = any(e.stage in _WARMING and e.bytes for e in self._events)
        return "warm" if known else "cold"

    async def _publish_by_worker(
        self, kind: str, waiting: list[Any], began_ns: int
    ) -> tuple[bool, str, list[Any]]:
        """Have a worker publish this run and those that have waited.

        Returns:
            Whether this run has arrived; what is to be said of that; and the numbers of those that
            have to wait on.
        """
        worker = await start(self._broker, Role.PUBLISH)
        try:
            images = [image.recorded() for image in self._images if image.is_used]
            checkpoint = self._checkpoint
            told = {"reads": checkpoint.reads, "ahead": checkpoint.ahead} if checkpoint else {}
            await worker.send_task(self._job, self._config, images=images, kind=kind, **told)
            while True:
                message, fd = await worker.channel.receive()
                if fd is not None:
                    os.close(fd)
                self._hear(message)
                if message.get("op") == "events?":
                    now = time.time_ns()
                    if began_ns:
                        self.note(Event("epilog", began_ns, now, "epilog"))
                    runs = [self._run_document(kind), *(run for _, run in waiting)]
                    await worker.channel.send({"runs": runs})
                elif message.get("op") == "published":
                    # Now it clears old runs away, if there is time for that.
                    with trio.move_on_after(_TIDY_S, shield=True), suppress(Closed):
                        await worker.channel.receive()
                    left = message.get("left")
                    return (
                        message.get("ok") is True,
                        str(message.get("detail", "")),
                        left if isinstance(left, list) else [],
                    )
        finally:
            with trio.CancelScope(shield=True):
                await worker.end()

    def _run_document(self, kind: str) -> dict[str, Any]:
        job = self._job
        return {
            "run": job.run,
            "job": job.job_id,
            "key": job.key,
            "node": job.node,
            "kind": kind,
            "started_ns": job.started_ns,
            "events": [event.document() for event in self._events],
        }


def _text(request: dict[str, Any], name: str, maximum: int) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= maximum or not value.isprintable():
        raise Corrupt(f"{name} is not a text of up to {maximum} printable characters")
    return value


def _seconds(request: dict[str, Any], name: str, maximum: float) -> float:
    value = request.get(name)
    if not isinstance(value, int | float) or not 0 <= value <= maximum:
        raise Corrupt(f"{name} is not a number from 0 to {maximum:g}")
    return float(value)


def begin(start: SupervisorStart) -> None:
    """Give up root's rights and look after a job until its epilog has been answered.

    Called in a copy of the broker's process that has one thread.

    Args:
        start: what there is of the job.
    """
    config, control = settings.load(), start.control
    warming = fork_warming(start) if control is not None else None
    os.close(start.warming)
    if start.opener is not None:
        start.opener.close()  # the worker that warms has it
    ends = [*start.sockets, *([warming] if warming is not None else [])]
    give_up_rights(start, config.node.cache_dir, [end.fileno() for end in ends])
    warming_handle = decode_reply(start.broker.recv(MAX_BYTES)).value
    broker = RequestClient(start.broker, VERBS, "broker")
    lender = RequestClient(start.lender, lender_messages.VERBS, "lender")
    reset_priority()
    if control is None or warming is None:
        trio.run(Supervisor(start.folder, start.job, config, broker, lender).publish_orphan)
        leave(0)
    checkpoint, image = _checkpoint(start, broker), _image(start, broker, lender, config)
    agent = Supervisor(start.folder, start.job, config, broker, lender, checkpoint, image)
    for stage, server in (("checkpoint.mount", start.checkpoint), ("image.mount", start.image)):
        if server is not None and server.error:
            agent.note_fallback(stage, server.error)
    trio.run(agent.run, Worker(broker, warming_handle, warming), control)
    leave(0)


def give_up_rights(start: SupervisorStart, cache_dir: str, keep: list[int]) -> None:
    """Take on the service account's rights, and of these no more than this job's supervisor needs.

    The account has the folders of all jobs; where the kernel can, changes to others' are refused.

    Args:
        start: what there is of the job.
        cache_dir: the node's.
        keep: descriptors that stay open.

    Raises:
        OSError: it could not be done; the process must end.
    """
    profile = Confinement.SERVE
    confine(*start.account, start.broker_pid, keep=keep, profile=profile, expendable=False)
    folders = [start.folder.state]
    with suppress(OSError, Denied):  # said once something is to be kept there
        folders.append(spool.make_folder(cache_dir, start.job.uid))
    limit_changes(*filter(os.path.isdir, folders))


def _checkpoint(start: SupervisorStart, broker: RequestClient) -> MountedCheckpoint | None:
    server = start.checkpoint
    if server is None or server.channel is None:
        return None
    return MountedCheckpoint(broker, Worker(broker, server.handle, server.channel))


def _image(
    start: SupervisorStart, broker: RequestClient, lender: RequestClient, config: settings.Config
) -> ServedImage | None:
    server = start.image
    if server is None or server.channel is None:
        return None
    kernel = KernelMount(start.folder, broker, config.image.kernel_mount)
    worker = Worker(broker, server.handle, server.channel)
    return ServedImage(broker, lender, 0, start.folder.image, worker, start.job.image, kernel)
