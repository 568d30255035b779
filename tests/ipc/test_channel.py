"""Messages between agent and worker, and what a hostile worker may send."""

import os
import socket
import struct
from typing import NamedTuple

import pytest
import trio
import trio.testing

from bootseer.errors import Closed, Corrupt
from bootseer.ipc.channel import MAX_FDS, Channel
from bootseer.ipc.typed_json import Messages

MAX_BYTES = 8_000_000


class Text(NamedTuple):
    n: int
    text: str


class Next(NamedTuple):
    pass


MESSAGES = Messages.by_union("message from the worker", Text | Next)


def channel(end):
    return Channel(end, MESSAGES, MESSAGES, MAX_BYTES)


@pytest.fixture
def ends():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    left.setblocking(False)
    right.setblocking(False)
    with left, right:
        yield left, right


async def test_messages_arrive_in_order_and_whole(ends):
    sender, receiver = map(channel, ends)
    messages = [Text(n, "ä" * n * 1000) for n in range(30)]

    async with trio.open_nursery() as nursery:

        async def send():
            for message in messages:
                await sender.send(message)

        nursery.start_soon(send)
        assert [(await receiver.receive())[0] for _ in messages] == messages


async def test_descriptors_come_with_their_message(ends, tmp_path):
    sender, receiver = map(channel, ends)
    (tmp_path / "file").write_text("content")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    await sender.send(Text(1, "image"), [fd, fd])
    os.close(fd)
    await sender.send(Next())
    message, received = await receiver.receive()
    assert message == Text(1, "image")
    for each in received:
        assert os.pread(each, 100, 0) == b"content"
        assert not os.get_inheritable(each)
        os.close(each)
    assert len(received) == 2
    assert await receiver.receive() == (Next(), [])


async def test_a_cancelled_sender_leaves_no_half_message(ends):
    sender, receiver = map(channel, ends)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, Text(1, "x" * 2_000_000))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            assert (await read_shielded(receiver)).text == "x" * 2_000_000
    await sender.send(Next())
    assert (await receiver.receive())[0] == Next()


async def read_shielded(receiver):
    with trio.CancelScope(shield=True):
        return (await receiver.receive())[0]


async def test_the_end_of_the_other_side_is_noticed(ends):
    sender, receiver = map(channel, ends)
    sender.close()
    with pytest.raises(Closed):
        await receiver.receive()
    with pytest.raises(Closed):
        for _ in range(3):
            await receiver.send(Next())


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", MAX_BYTES + 1),
        struct.pack("<I", 3) + b"\xff\xfe\xfd",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 100_000) + b"[" * 100_000,
    ],
    ids=["too long", "not UTF-8", "not an object", "too deep"],
)
async def test_invalid_messages_are_refused(ends, data):
    left, right = ends
    receiver = channel(right)
    left.setblocking(True)
    left.sendall(data)
    with pytest.raises(Corrupt):
        await receiver.receive()


async def test_descriptors_that_were_not_asked_for_are_closed(ends):
    left, right = ends
    receiver = channel(right)
    before = len(os.listdir("/proc/self/fd"))
    body = MESSAGES.encode(Next())
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(MAX_FDS + 5)]
    socket.send_fds(left, [struct.pack("<I", len(body))], fds)
    left.send(body)
    for fd in fds:
        os.close(fd)
    assert await receiver.receive_only() == Next()
    assert len(os.listdir("/proc/self/fd")) == before
    # And with a message that is refused.
    fd = os.open("/dev/null", os.O_RDONLY)
    socket.send_fds(left, [struct.pack("<I", 2)], [fd])
    os.close(fd)
    left.send(b"[]")
    with pytest.raises(Corrupt):
        await receiver.receive()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_stopped_peer_closes_the_channel_for_all_tasks(ends, autojump_clock):
    """Its user can stop a worker; no shield against cancellation may hold the agent for that."""
    sender, _ = map(channel, ends)
    began_s = trio.current_time()
    with trio.CancelScope() as scope:
        scope.cancel()
        await trio.lowlevel.cancel_shielded_checkpoint()
        with pytest.raises(Closed, match="does not read"):
            await sender.send(Text(1, "x" * 4_000_000))
    assert trio.current_time() - began_s < 10


async def test_a_channel_that_is_closed_meanwhile_ends_the_send(ends):
    sender, _ = map(channel, ends)
    async with trio.open_nursery() as nursery:

        async def send():
            with pytest.raises(Closed):
                await sender.send(Text(1, "x" * 4_000_000))

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        sender.close()
