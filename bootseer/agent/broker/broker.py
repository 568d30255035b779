"""The broker: runs as root for one job on one node, from its prolog to its epilog.

It serves requests from the job's supervisor, which runs under the service account, and gives
slurmstepd the job's mounts. It reads no JSON, paths or other input from the user: requests hold
only descriptors and the numbers of this job's mounts and processes.

Imports the standard library and bootseer's C extension only.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from threading import Event, Thread
from typing import Any, TypeVar

from bootseer.agent.broker import mount_requests, residency_server
from bootseer.agent.broker.mounts import Mounts, locate_process
from bootseer.agent.broker.processes import STOP_CHECK_S, Processes
from bootseer.agent.messages import broker as messages
from bootseer.agent.messages.broker import MountKind, Role
from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.job import Job, JobFolder
from bootseer.errors import NotFound, Unavailable
from bootseer.image.hot.residency import KernelResidency
from bootseer.ipc.descriptors import exactly
from bootseer.ipc.request_server import RequestServer

Known = TypeVar("Known", Role, MountKind)
_RETRY_S = 0.1
_MAX_WATCHED = 64
"""Files whose residency one job may watch."""


class Broker:
    """Serves the privileged requests of one job."""

    def __init__(
        self, folder: JobFolder, job: Job, settings: BrokerSettings, processes: Processes
    ) -> None:
        """Create a broker without mounts or workers.

        Args:
            folder, job: the job and its folder.
            settings: the node's settings for brokers.
            processes: starts and ends the user's processes.
        """
        self._folder = folder
        self._job = job
        self._settings = settings
        self._processes = processes
        scratch = f"{settings.scratch}/{job.job_id}"
        self.mounts = Mounts(folder, job, processes, scratch)
        self._watched = 0
        self._has_ended = Event()
        self._is_finished = False

    def run(self, supervisor: socket.socket, listener: socket.socket) -> bool:
        """Serve the supervisor's requests until the job or the supervisor ends.

        Args:
            supervisor: our end of the channel to the supervisor.
            listener: socket on which slurmstepd requests mounts.

        Returns:
            Whether the supervisor reported the end of the job.
        """
        Thread(target=self._hand_out_mounts, args=(listener,), daemon=True).start()
        Thread(target=self._watch_servers, daemon=True).start()
        try:
            # Workers die with the thread that started them, so start them in this one.
            here = (messages.StartWorker, messages.StartImageServer)
            RequestServer(supervisor, messages.VERBS, self._carry_out, here).run()
        finally:
            self._has_ended.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        return self._is_finished

    def _carry_out(self, request: Any, fds: list[int], sent: list[int]) -> int:
        """Carry out a request; returns the value of its reply.

        Args:
            request: see `messages`.
            fds: descriptors sent with the request; stay the caller's.
            sent: list to which the reply's descriptors are added.

        Raises:
            BootseerError, OSError: the request failed.
        """
        match request:
            case messages.StartWorker(role):
                handle, end = self._processes.start(_known(Role, role))
                sent.append(end.detach())
                return handle
            case messages.StartImageServer(number, is_tree):
                handle, end = self.mounts.serve_image(number, bool(is_tree))
                sent.append(end.detach())
                return handle
            case messages.KillWorker(handle):
                self._processes.kill(handle)
            case messages.Unmount(mount, number):
                self.mounts.unmount(_known(MountKind, mount), number)
            case messages.SetReadAhead(mount, number, kib):
                self.mounts.set_read_ahead(_known(MountKind, mount), number, kib)
            case messages.CreateOverlay(image, count, read_only):
                return self.mounts.create_overlay(image, count, bool(read_only))
            case messages.LocateProcess(pid):
                in_container, namespace = locate_process(pid, self._job.uid)
                sent += [] if namespace is None else [namespace]
                return in_container
            case messages.ShowOverlay(number):
                target, namespace = exactly(fds, 2)
                self.mounts.show(number, target, namespace)
            case messages.MountRoot():
                # Imported only now: few jobs ask for it, and the prolog waits for the imports.
                from bootseer.agent.broker.mount_squashfs import mount_root

                mount_root(
                    exactly(fds, 3),
                    self._folder.root,
                    self._settings.kernel_mount,
                    f"{self._settings.run_dir}/checked",
                    (self._job.uid, self._job.gid),
                    self._settings.cache_account,
                )
            case messages.WatchResidency():
                (fd,) = exactly(fds, 1)
                return self._watch(fd, sent)
            case messages.ClearOverlays():
                self.mounts.clear()
            case messages.FinishJob():
                self._is_finished = True
        return 0

    def _watch(self, fd: int, sent: list[int]) -> int:
        self._watched += 1
        if self._watched > _MAX_WATCHED:
            raise Unavailable(f"this job may watch only {_MAX_WATCHED} files")
        pages = KernelResidency(os.dup(fd))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        Thread(target=residency_server.serve, args=(pages, ours), daemon=True).start()
        sent.append(theirs.detach())
        return pages.size_bytes

    def _hand_out_mounts(self, listener: socket.socket) -> None:
        """Answer slurmstepd's requests for mounts."""
        with listener:
            while not self._has_ended.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:  # the client has gone, or no descriptors are left
                    self._has_ended.wait(_RETRY_S)
                    continue
                mount_requests.answer(connection, self.mounts)

    def _watch_servers(self) -> None:
        while not self._has_ended.wait(STOP_CHECK_S):
            self._processes.kill_stopped()


def _known(kind: type[Known], number: int) -> Known:
    try:
        return kind(number)
    except ValueError as error:
        raise NotFound(f"there is no {kind.__name__.lower()} {number}") from error
