"""Give the other nodes of a job what this node has read from the job's stores for them."""

from __future__ import annotations

import socket
from contextlib import suppress

import trio

from bootseer.agent.messages.worker import ReportPeers
from bootseer.agent.node.privileges import limit_changes
from bootseer.agent.workers.base import Task
from bootseer.agent.workers.event_group import gathering
from bootseer.agent.workers.job_peers import JobPeers, job_stores, ports
from bootseer.errors import BootseerError, Unavailable
from bootseer.ipc.channel import unexpected
from bootseer.large_buffers import keep_large_buffers
from bootseer.peers.piece_cache import PieceCache
from bootseer.peers.server import PeerServer
from bootseer.rate_limit import RateLimit
from bootseer.units import MIB, format_size

_BACKLOG = 1024


async def run(task: Task) -> None:
    """Serve until the agent closes the channel."""
    limit_changes()  # it only reads
    keep_large_buffers()
    job, settings = task.job, task.config.peers
    async with trio.open_nursery() as nursery:
        client = JobPeers(task, nursery).client
        assert client is not None  # the agent has seen to that
        server = PeerServer(
            bytes.fromhex(job.secret),
            list(job_stores(task)),
            PieceCache(settings.memory_mib * MIB),
            client,
            RateLimit(settings.mib_per_s * MIB),
            gathering(job, task.config),
        )
        with suppress(BootseerError):  # reported, unless the agent has ended
            async with task.stage("peers.serve") as report:
                host = client.hosts[job.node_index]
                listener = await trio.to_thread.run_sync(_listen, host, ports(job, task.config))
                nursery.start_soon(server.serve, listener)
                message = await task.channel.receive_only()
                if not isinstance(message, ReportPeers):
                    raise unexpected(message)
                served = server.served
                report.bytes = served.sent_bytes
                report.detail = (
                    f"sent to {job.nodes} nodes, of {format_size(served.read_bytes)} read from "
                    "the store for them"
                )
                if served.strangers:
                    report.detail += f"; {served.strangers} connections were no node's"
            raise unexpected(await task.channel.receive_only())
        nursery.cancel_scope.cancel()


def _listen(host: str, tried: list[int]) -> socket.socket:
    """Listen where this node's name leads, at the first port that is free.

    Raises:
        Unavailable: it cannot.
    """
    why = ""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"this node's name {host!a} leads nowhere: {error.strerror}") from error
    family, kind, _, _, address = found[0]
    for port in tried:
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address[0], port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            why = f"port {port}: {error.strerror}"
        else:
            listener.setblocking(False)
            return listener
    raise Unavailable(f"cannot listen at {address[0]}: {why}; see peers.first_port")
