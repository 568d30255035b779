"""Serve one `bootseer env run` on its own socket."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing

from bootseer.agent.messages.worker import MountSnapshot, ServeConnection, SnapshotMounted
from bootseer.agent.workers.base import Task, owner_of
from bootseer.agent.workers.job_peers import JobPeers
from bootseer.env.client.messages import Hello
from bootseer.env.server.connection import ServerConnection
from bootseer.env.server.session import serve
from bootseer.env.server.session_context import make_context
from bootseer.errors import Unavailable
from bootseer.ipc.channel import unexpected
from bootseer.ipc.descriptors import exactly
from bootseer.parallel import background


class AgentMounter:
    """Asks the agent to mount snapshots."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def mount(self, key: str, folders: Sequence[int], read_only: bool) -> None:
        """Ask the agent to mount a snapshot; see
        `bootseer.env.server.session_context.SnapshotMounter`.
        """
        channel = self._task.channel
        await channel.send(MountSnapshot(key, read_only), folders)
        answer = await channel.receive_only()
        if not isinstance(answer, SnapshotMounted):
            raise unexpected(answer)
        if answer.why:
            raise Unavailable(answer.why)


async def run(task: Task) -> None:
    """Serve the one `env run` whose socket the agent sends."""
    message, fds = await task.channel.receive()
    if not isinstance(message, ServeConnection):
        raise unexpected(message)
    (fd,) = exactly(fds, 1)
    job = task.job
    connection = ServerConnection(socket.socket(fileno=fd))
    await connection.send(Hello(locks=True, image=message.image))
    async with background() as nursery:
        peers = JobPeers(task, nursery)
        context = make_context(
            task.config,
            owner_of(job),
            job.node,
            job.nodes,
            task.stage,
            AgentMounter(task),
            task.mksquashfs,
            peers.through,
        )
        with closing(peers):
            await serve(connection, context)
