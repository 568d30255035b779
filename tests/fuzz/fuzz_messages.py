"""The decoders of what processes tell each other over sockets."""

import os
import socket
import struct
from contextlib import suppress
from functools import partial

import trio
from fuzz_base import Decoder
from fuzz_documents import parts
from fuzz_tables import image_manifest

from bootseer.agent.messages import broker, control, lender, worker
from bootseer.agent.node.job import Job
from bootseer.cache.keeper_link import serve_keeper, shared_memory
from bootseer.core.access_log import AccessedFile
from bootseer.core.event import Event
from bootseer.core.ranges import ByteRange
from bootseer.core.speed import Speed
from bootseer.env.client import messages
from bootseer.env.server.connection import ServerConnection
from bootseer.errors import Closed, Corrupt, NotFound
from bootseer.image.hot.holdout import HeldOutPiece
from bootseer.image.hot.trace import Touch
from bootseer.ipc.request import Reply
from bootseer.ipc.request_client import decode_reply, encode_request
from bootseer.peers import whole_object, wire
from bootseer.store.api.base import ObjectInfo

# What processes tell each other.

_SO_SNDBUFFORCE = 32
_ANSWERS_BYTES = 16 << 20


def _sent(data):
    """Return a socket from which this can be read, and no more."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with suppress(BlockingIOError):
        ours.sendall(data[:100_000])
    ours.shutdown(socket.SHUT_WR)
    return ours, theirs


async def _talk(data):
    ours, theirs = _sent(data)
    with ours:
        talk = ServerConnection(theirs)
        count = 0
        try:
            while True:
                message, fds = await talk.receive()
                count += 1
                assert messages.FROM_CLIENT.decode(messages.FROM_CLIENT.encode(message)) == message
                assert not fds
        except Closed:
            if not count:
                raise
        finally:
            talk.close()


def _asked():
    """The messages of a client, one after the other."""
    request = messages.Request(
        key=parts(), as_empty=parts(), targets=("/venv",), names=("venv",), mode="auto",
        read_only=False, force=True, captures=True, waits=False, wait_s=5,
        environ={"TMPDIR": "/tmp"}, stays=True,
    )  # fmt: skip
    ended = messages.CommandEnded(0, 5, ("A",), ("/f",))
    sent = (messages.Locks(), request, ended)
    return [b"".join(messages.FROM_CLIENT.encode(message) + b"\n" for message in sent)]


def _answers():
    return [
        messages.FROM_SERVER.encode(message)
        for message in (
            messages.Hello(locks=True, image="sha256:12"),
            messages.Refused("too many"),
            messages.Notice("waiting"),
            messages.KeepWaiting(),
            messages.RestoreProgress(5, 7),
            messages.Restored("mounted", "ab", 1, 2, 3, 0.5),
            messages.RunCommand(why="", key="ab"),
            messages.CaptureDone(key="ab", files=1, bytes=2, findings=3),
        )
    ]


def _run_answer(data):
    message = messages.FROM_SERVER.decode(data)
    assert messages.FROM_SERVER.decode(messages.FROM_SERVER.encode(message)) == message


async def _channel(take, data):
    ours, theirs = _sent(data)
    theirs.setblocking(False)
    with ours:
        channel = take(theirs)
        count = 0
        try:
            while True:
                message, fds = await channel.receive()
                count += 1
                assert isinstance(message, tuple) and not fds
        except Closed:
            if not count:
                raise
        finally:
            channel.close()


RANGES = [ByteRange(0, 5), ByteRange(7, 1 << 62)]
TOUCHES = [Touch(0, 5, 1), Touch(7, 9, 1 << 40)]
FILES = [AccessedFile("step_1/shard", (0,), RANGES, 2)]
AHEAD = worker.CheckpointFileAhead("step_1/shard", RANGES)
JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "/i", 1.0, 1)
RECORDED = worker.RecordedImage("/i", "d", 9, "complete", TOUCHES, RANGES, "c", Speed(), None)
FROM_WORKER = (
    *(worker.StageEnded(Event("image.x", 1, 2, "worker")), worker.Ready("it is")),
    *(
        worker.MountImage("bootseer://x"),
        worker.PrefetchFile("/x"),
        worker.MountEnvironment("k" * 64, ["/a", "/b"]),
    ),
    *(worker.EnvironmentSettled(), worker.ImageFound("/i", "d", RANGES)),
    worker.ImagesPrefetched(),
    worker.PrefetchBegun(RANGES, [HeldOutPiece(0, 5, 9)], 3),
    *(worker.PrefetchProgress(1, 2), worker.ServedImageOpened(), AHEAD),
    *(
        worker.BorrowBlocks("d" * 64, "0f" * 32),
        worker.ImageServed("d", "c", 9, RANGES, True, False),
    ),
    *(worker.ImageMissing(True), worker.ImageCopied(), worker.ImageRecorded(TOUCHES)),
    *(worker.ImageReported(Speed(1, 2, 3), Speed()), worker.CheckpointServed()),
    *(worker.CheckpointReads(FILES), worker.CheckpointEnded(), worker.MountSnapshot("k", True)),
    *(
        worker.ImportOpened(),
        worker.ImportWatched("n1 has failed"),
        worker.EventsWanted(),
        worker.StoreAway("refused"),
        worker.Published(True, "there", [1]),
    ),
)
TO_WORKER = (
    *(
        worker.StartTask(JOB, {"image.streams": 4}),
        worker.ImageReadable("/i", "", "d", 9, RANGES, False),
    ),
    *(worker.ImageUnreadable(), worker.CheckpointReadable(True), worker.EnvironmentMounted("no")),
    *(worker.HoldPrefetch(True), worker.YieldToJob(), worker.CloseWindow(), worker.ReportImage()),
    worker.FetchAhead(RANGES),
    *(worker.StopCheckpoint(1.5), worker.BlocksLent(), worker.BlocksRefused(True)),
    *(
        worker.ServeConnection("d"),
        worker.SnapshotMounted(""),
        worker.UploadImport("docker://x", "/x"),
    ),
    *(worker.LeaseImport("docker://x"), worker.CancelImport(), worker.WatchImport("docker://x")),
    worker.PublishRecording("cold", [RECORDED], FILES, [AHEAD]),
    worker.PublishEvents({"run": "c.7"}, [{}, {"events": []}]),
    worker.ReportPeers(),
)
REQUESTED = (
    *(control.GetStatus(), control.TellEvent("mark.x", 1, 2), control.WaitReady(1.5)),
    *(control.Finish(2.0), control.RunEnvironment(), control.ServeImage("bootseer://x")),
    *(control.AnnounceImport("docker://x"), control.AwaitImport("docker://x")),
    control.KeepImport("docker://x", "/x"),
    control.UseImage("/x"),
    control.BeginStage("step.start", 1, 2),
)


def _framed(messages, sent):
    """Return each message as it is sent, and all of them after each other."""
    encoded = [messages.encode(message) for message in sent]
    framed = [struct.pack("<I", len(data)) + data for data in encoded]
    return [*framed, b"".join(framed)]


def _run_control(data):
    request = control.REQUESTS.decode(data)
    assert control.REQUESTS.decode(control.REQUESTS.encode(request)) == request


class Keeper:
    """Takes what a link asks of it as the real one does, without an entry of the cache."""

    def __init__(self, made):
        self.made = made

    def claim(self, blocks, *, replace):
        assert 0 <= blocks.start < blocks.stop <= self.made.blocks
        return [1] * len(blocks)

    def release(self, blocks):
        assert 0 <= blocks.start < blocks.stop <= self.made.blocks

    def keep(self, first, data):
        if len(data) == 0:
            raise Corrupt("nothing")
        assert 0 <= first < self.made.blocks


def _link_seeds():
    asked = [struct.pack("<BxxxII2I", what, 2, 0, 0, 1) for what in (1, 2, 3)]
    return [b"".join(asked), struct.pack("<BxxxIII", 4, 1, 4096, 0)]


def run_link(data):
    made = image_manifest()
    ours, theirs = _sent(data)
    # For the answers, which nobody reads.
    theirs.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _ANSWERS_BYTES)
    memory = shared_memory()
    with ours:
        serve_keeper(Keeper(made), made, theirs, memory)
    os.close(memory)


REQUESTS = (
    *(
        broker.StartWorker(2),
        broker.StartImageServer(3, 1),
        broker.KillWorker(9),
        broker.Unmount(1, 3),
    ),
    *(broker.SetReadAhead(1, 3, 4096), broker.CreateOverlay(3, 2, 0), broker.LocateProcess(4711)),
    *(broker.ShowOverlay(2), broker.MountRoot(), broker.WatchResidency(), broker.ClearOverlays()),
    broker.FinishJob(),
)
LOANS = (lender.OpenEntry(bytes(range(32))), lender.CreateEntry(1000, -1, 1 << 62))


def _run_request(verbs, data):
    number, request = verbs.decode(data)
    assert encode_request(verbs, number, request) == data


def _requests(name, verbs, requests):
    seeds = [encode_request(verbs, 7, request) for request in requests]
    return Decoder(name, lambda: seeds, partial(_run_request, verbs))


def _run_reply(data):
    found = decode_reply(data)
    again = decode_reply(found.encode())
    assert (again.number, again.value) == (found.number, found.value)
    assert type(again.error) is type(found.error)


def _replies():
    errors = (None, NotFound("nothing"), Corrupt("\u20ac" * 1000))
    return [Reply(n << 62, error, -n).encode() for n, error in enumerate(errors)]


GONE = (Corrupt, Closed)
PEER_REQUESTS = (
    wire.PeerRequest(wire.Kind.DESCRIBE, 0, "images/x"),
    wire.PeerRequest(wire.Kind.READ, 1, "images/x", wire.PIECE_BYTES + 5, 100),
    wire.PeerRequest(wire.Kind.OBJECT, 2, "plans/x"),
    wire.PeerRequest(wire.Kind.SHARED, 3, "0" * 32, 7),
    wire.PeerRequest(wire.Kind.EVENTS, 0, "n1", 0, 6, b"events"),
    wire.PeerRequest(wire.Kind.EVENTS_STORED, 0, "events"),
)


def _run_peer_request(data):
    header, name = data[: wire.REQUEST_BYTES], data[wire.REQUEST_BYTES :]
    request, name_bytes = wire.decode_request(header.ljust(wire.REQUEST_BYTES, b"\0"))
    assert request.offset // wire.PIECE_BYTES == request.piece
    assert request.offset % wire.PIECE_BYTES + request.size_bytes <= wire.PIECE_BYTES
    assert 0 < name_bytes <= wire.MAX_NAME_BYTES
    named = request._replace(name=name.decode(errors="replace")[:200] or "x")
    again, _ = wire.decode_request(named.encode()[: wire.REQUEST_BYTES])
    assert again == request


def _peer_answers():
    info = wire.encode_info(ObjectInfo("x", 7, 8, version="v"))
    return [wire.encode_answer(wire.Status.DATA, len(info)) + info]


def _run_peer_answer(data):
    header = data[: wire.ANSWER_BYTES].ljust(wire.ANSWER_BYTES, b"\0")
    status, size_bytes = wire.decode_answer(header, wire.MAX_INFO_BYTES)
    assert size_bytes <= (wire.MAX_INFO_BYTES if status is wire.Status.DATA else 0)
    info = wire.decode_info(data[wire.ANSWER_BYTES :], "x")
    assert wire.decode_info(wire.encode_info(info), "x") == info


def _peer_objects():
    infos = (ObjectInfo("x", 3, 8, version="v"), ObjectInfo("x", 4, 8), None)
    said = [whole_object.encode(0, "x", info, b"abc") for info in infos]
    return [answer[whole_object.DIGEST_BYTES :] for answer in said]


def _run_peer_object(data):
    """Decode what has the right digest, as a peer can send anything."""
    try:
        found = whole_object.decode(whole_object.with_digest(0, "x", data), 0, "x")
    except NotFound:
        return
    assert found.size_bytes == len(found.data)
    again = whole_object.encode(0, "x", found.info, found.data)
    assert whole_object.decode(again, 0, "x").data == found.data


MESSAGES = [
    Decoder("peer_request", lambda: [r.encode() for r in PEER_REQUESTS], _run_peer_request),
    Decoder("peer_answer", _peer_answers, _run_peer_answer),
    Decoder("peer_object", _peer_objects, _run_peer_object),
    Decoder("talk", _asked, partial(trio.run, _talk), GONE),
    Decoder("answer", _answers, _run_answer),
    Decoder(
        "from-worker",
        lambda: _framed(worker.FROM_WORKER, FROM_WORKER),
        partial(trio.run, _channel, worker.supervisor_end),
        GONE,
    ),
    Decoder(
        "to-worker",
        lambda: _framed(worker.TO_WORKER, TO_WORKER),
        partial(trio.run, _channel, worker.worker_end),
        GONE,
    ),
    Decoder("control", lambda: [control.REQUESTS.encode(r) for r in REQUESTED], _run_control),
    Decoder("link", _link_seeds, run_link, ()),
    _requests("request", broker.VERBS, REQUESTS),
    _requests("loan", lender.VERBS, LOANS),
    Decoder("reply", _replies, _run_reply),
]
