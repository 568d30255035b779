"""Start a job's supervisor: drop root's rights and take over the broker's sockets."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import trio

from bootseer import config as settings
from bootseer.agent.broker.supervisor_start import SupervisorStart
from bootseer.agent.messages import lender as lender_messages
from bootseer.agent.messages.broker import FORKED, VERBS, Role
from bootseer.agent.node import log, role_name
from bootseer.agent.node.privileges import Confinement, confine, limit_changes
from bootseer.agent.node.spawn import leave, reset_priority
from bootseer.agent.supervisor import spool
from bootseer.agent.supervisor.checkpoint_mount import MountedCheckpoint
from bootseer.agent.supervisor.images.image_mount import ServedImage
from bootseer.agent.supervisor.images.kernel_mount import KernelMount
from bootseer.agent.supervisor.supervisor import Supervisor
from bootseer.agent.supervisor.worker_process import Worker, fork_worker
from bootseer.errors import Denied
from bootseer.ipc.request import MAX_BYTES
from bootseer.ipc.request_client import RequestClient, decode_reply


def begin(start: SupervisorStart) -> None:
    """Drop root's rights and run the supervisor until the epilog has been answered.

    Call it in a single-threaded fork of the broker.

    Args:
        start: the job's state, from the broker.
    """
    role_name.show("supervisor")
    config, control = settings.load(), start.control
    log.set_up(is_debugging=config.node.debug_log)
    forked = _fork_workers(start, config) if control is not None else {}
    start.close_workers_ends()
    ends = [*start.sockets, *forked.values()]
    give_up_rights(start, config.node.cache_dir, [end.fileno() for end in ends])
    handles = {role: decode_reply(start.broker.recv(MAX_BYTES)).value for role in FORKED}
    broker = RequestClient(start.broker, VERBS, "broker")
    lender = RequestClient(start.lender, lender_messages.VERBS, "lender")
    reset_priority()
    if control is None:
        trio.run(Supervisor(start.folder, start.job, config, broker, lender).publish_orphan)
        leave(0)
    workers = {role: Worker(broker, handles[role], end) for role, end in forked.items()}
    checkpoint = image = None
    if Role.SERVE_CHECKPOINT in workers:
        checkpoint = MountedCheckpoint(broker, workers[Role.SERVE_CHECKPOINT])
    if Role.SERVE_IMAGE in workers:
        kernel = KernelMount(start.folder, broker, config.image.kernel_mount)
        server, path = workers[Role.SERVE_IMAGE], start.folder.image
        image = ServedImage(broker, lender, 0, path, server, start.job.image, kernel)
    agent = Supervisor(
        *(start.folder, start.job, config, broker, lender, checkpoint, image),
        peers=workers.get(Role.SERVE_PEERS),
        publisher=workers[Role.PUBLISH],
    )
    for stage, mount in (("checkpoint.mount", start.checkpoint), ("image.mount", start.image)):
        if isinstance(mount, str):
            agent.events.fall_back(stage, mount)
    trio.run(agent.run, workers[Role.WARM_UP], control)
    leave(0)


def _fork_workers(start: SupervisorStart, config: settings.Config) -> dict[Role, socket.socket]:
    """Fork the workers that this job has; returns our ends of their channels."""
    ends: dict[Role, socket.socket] = {}

    def fork(role: Role, connection: int | None = None) -> None:
        ends[role] = fork_worker(start, role, connection)

    if isinstance(start.image, int):
        fork(Role.SERVE_IMAGE, start.image)
    if isinstance(start.checkpoint, int):
        fork(Role.SERVE_CHECKPOINT, start.checkpoint)
    fork(Role.WARM_UP)
    if start.job.has_peers(config.peers.min_nodes):
        fork(Role.SERVE_PEERS)
    fork(Role.PUBLISH)
    return ends


def give_up_rights(start: SupervisorStart, cache_dir: str, keep: list[int]) -> None:
    """Take on the service account's rights, limited to this job's needs.

    The account owns the folders of all jobs; the kernel (5.13) refuses changes to other jobs'.

    Args:
        start: the job's state, from the broker.
        cache_dir: `node.cache_dir`.
        keep: descriptors that stay open.

    Raises:
        OSError: a system call failed; the process must exit.
    """
    profile = Confinement.SERVE
    confine(*start.account, start.broker_pid, keep=keep, profile=profile, expendable=False)
    folders = [start.folder.state]
    with suppress(OSError, Denied):  # reported when a run has to be stored there
        folders.append(spool.make_folder(cache_dir, start.job.uid))
    limit_changes(*filter(os.path.isdir, folders))
