"""What the worker that serves a checkpoint does at the agent's word."""

import socket
from types import SimpleNamespace

import trio

from bootseer.agent.messages.worker import (
    CloseWindow,
    StopCheckpoint,
    supervisor_end,
    worker_end,
)
from bootseer.agent.workers import serve_checkpoint
from bootseer.checkpoint.read.recorder import ReadRecorder
from bootseer.store.memory import MemoryStore


class Silent(MemoryStore):
    """A store that does not answer."""

    async def list(self, folder=""):
        await trio.sleep_forever()


async def test_a_mount_ends_while_the_store_is_asked_for_the_record_of_its_reads():
    """Nothing that was written would be published meanwhile."""
    service = SimpleNamespace(reads=ReadRecorder(Silent()), settle_s=30.0)
    service.reads.opened("step_1000/shard_0")
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    agent, worker = supervisor_end(ends[0]), worker_end(ends[1])
    stop = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        task = SimpleNamespace(channel=worker)
        nursery.start_soon(serve_checkpoint._handle_messages, task, service, stop)
        await agent.send(CloseWindow())
        await agent.send(StopCheckpoint(4.0))
        with trio.move_on_after(10):
            while not stop.cancel_called:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    agent.close()
    worker.close()
    assert stop.cancel_called and service.settle_s == 4.0
