"""The decoders of what processes tell each other over sockets."""

import random
import socket
import struct
from contextlib import suppress
from functools import partial

import trio
from fuzz_base import Decoder
from fuzz_tables import image_manifest

from bootseer.agent.messages import broker, lender
from bootseer.agent.messages.client import decode_reply, encode_request
from bootseer.agent.messages.message import Reply
from bootseer.agent.node.channel import Channel
from bootseer.agent.supervisor import control_server
from bootseer.cache.link import serve_keeper
from bootseer.env.server.connection import Connection
from bootseer.errors import Closed, Corrupt, NotFound

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
        talk = Connection(theirs)
        try:
            while True:
                message, fds = await talk.receive()
                assert isinstance(message, dict) and not fds
        finally:
            talk.close()


async def _channel(data):
    ours, theirs = _sent(data)
    theirs.setblocking(False)
    with ours:
        channel = Channel(theirs)
        try:
            while True:
                message, fd = await channel.receive()
                assert isinstance(message, dict) and fd is None
        finally:
            channel.close()


async def _control(data):
    ours, theirs = _sent(data)
    theirs.setblocking(False)
    with ours, trio.socket.from_stdlib_socket(theirs) as connection:
        request = await control_server._request(connection)
        assert request is None or isinstance(request, dict)


def _said(*messages):
    return [b"".join(struct.pack("<I", len(m)) + m for m in messages)]


class Keeper:
    """Takes what a link asks of it as the real one does, without an entry of the cache."""

    def __init__(self, made):
        self.made = made

    def claim(self, blocks, *, anew):
        assert 0 <= blocks.start < blocks.stop <= self.made.blocks
        return [1] * len(blocks)

    def release(self, blocks):
        assert 0 <= blocks.start < blocks.stop <= self.made.blocks

    def keep(self, first, data):
        if len(data) == 0:
            raise Corrupt("nothing")
        assert 0 <= first < self.made.blocks


def _link_seeds():
    block = random.Random(1).randbytes(20_000)[:4096]
    asked = [struct.pack("<BxxxII2I", what, 2, 0, 0, 1) for what in (1, 2, 3)]
    return [b"".join(asked), struct.pack("<BxxxIII", 4, 1, 4096, 0) + block]


def run_link(data):
    made = image_manifest()
    ours, theirs = _sent(data)
    # For the answers, which nobody reads.
    theirs.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _ANSWERS_BYTES)
    with ours:
        serve_keeper(Keeper(made), made, theirs)


REQUESTS = (
    *(broker.StartWorker(2), broker.ServeImage(3, 1), broker.KillWorker(9), broker.Unmount(1, 3)),
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
MESSAGES = [
    Decoder("talk", lambda: [b'{"a":[1]}\n{"b":{}}\n'], partial(trio.run, _talk), GONE),
    Decoder("channel", lambda: _said(b'{"a":1}', b"{}"), partial(trio.run, _channel), GONE),
    Decoder("control", lambda: [b'{"command":"status"}\n'], partial(trio.run, _control), ()),
    Decoder("link", _link_seeds, run_link, ()),
    _requests("request", broker.VERBS, REQUESTS),
    _requests("loan", lender.VERBS, LOANS),
    Decoder("reply", _replies, _run_reply),
]
