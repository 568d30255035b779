"""Carry one `bootseer env run` through, which talks on a socket of its own."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from bootseer.agent.workers.base import Task, owner_of
from bootseer.env.server.connection import HELLO, Connection
from bootseer.env.server.request import make_context
from bootseer.env.server.session import serve
from bootseer.errors import Closed, Unavailable


class AgentPrivileges:
    """Root's side, by way of the agent."""

    def __init__(self, task: Task) -> None:
        """Ask through a task's channel."""
        self._task = task

    async def mount(self, key: str, folders: Sequence[int], read_only: bool) -> None:
        """Have a snapshot mounted; see `bootseer.env.server.request.PrivilegedOperations`."""
        channel = self._task.channel
        await channel.send(
            {"op": "mount", "key": key, "folders": len(folders), "read_only": read_only}
        )
        for folder in folders:
            await channel.send({"op": "folder"}, fd=folder)
        answer, _ = await channel.receive()
        if answer.get("ok") is not True:
            raise Unavailable(str(answer.get("why")))


async def run(task: Task) -> None:
    """Serve the one conversation whose socket the agent hands over."""
    _, fd = await task.channel.receive()
    if fd is None:
        raise Closed("the agent hands nothing over")
    job = task.job
    connection = Connection(socket.socket(fileno=fd))
    await connection.send({**HELLO, "image": task.message["image"]})
    hands = AgentPrivileges(task)
    here = (owner_of(job), job.node, job.nodes, task.stage, hands, task.mksquashfs)
    await serve(connection, make_context(task.config, *here))
