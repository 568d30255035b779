"""The broker: what takes root's rights for one job on one node, from its prolog to its epilog.

It carries out what the job's supervisor asks for, which runs under the service account, and gives
slurmstepd the job's mounts. It reads no JSON, no path and no word of the user's: what is asked for
are numbers of mounts and processes in this job, and descriptors.

Standard library and our own extension only.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore, Event, Thread

from bootseer.agent.broker import messages, mount_requests, residency
from bootseer.agent.broker.kernel_mount import mount_root
from bootseer.agent.broker.lending import Lender
from bootseer.agent.broker.messages import Mount, Reply, Role, close_all
from bootseer.agent.broker.mounts import Mounts, look_at
from bootseer.agent.broker.processes import LOOK_S, Processes
from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.job import Job, JobFolder
from bootseer.cache.size import EntrySize
from bootseer.errors import BootseerError, Corrupt, NotFound, Unavailable
from bootseer.image.residency import Residency

_MAX_AT_ONCE = 64
"""Requests under way, each in a thread; the next are read when one of them has ended."""
_RETRY_S = 0.1
_MAX_WATCHED = 64
"""Files that are looked at, over a job's life."""


class Broker:
    """The rights of one job."""

    def __init__(
        self, folder: JobFolder, job: Job, settings: BrokerSettings, processes: Processes
    ) -> None:
        """Begin with nothing.

        Args:
            folder, job: the job and its folder.
            settings: of the node.
            processes: starts and ends the user's processes.
        """
        self._folder = folder
        self._job = job
        self._settings = settings
        self._processes = processes
        scratch = f"{settings.cache_dir}/environments/{job.job_id}"
        self.mounts = Mounts(folder, job, processes, scratch, settings.run_dir)
        self._lender = Lender(job.uid, settings)
        self._at_once = BoundedSemaphore(_MAX_AT_ONCE)
        self._watched = 0
        self._has_ended = Event()

    def run(self, supervisor: socket.socket, listener: socket.socket) -> bool:
        """Do what the supervisor asks for until the job has ended, or the supervisor has.

        Args:
            supervisor: our end of the channel to it.
            listener: where slurmstepd asks for mounts.

        Returns:
            Whether it has said that the job has ended.
        """
        Thread(target=self._hand_out_mounts, args=(listener,), daemon=True).start()
        Thread(target=self._look_after_servers, daemon=True).start()
        try:
            return self._serve(supervisor)
        finally:
            self._has_ended.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)

    def _serve(self, supervisor: socket.socket) -> bool:
        is_finished = False
        while True:
            try:
                message, fds = messages.receive(supervisor)
            except OSError:  # it has ended, and has left a reply unread
                return is_finished
            if not message:
                return is_finished
            try:
                number, request = messages.decode(message)
            except Corrupt as error:
                close_all(fds)
                print(f"the supervisor is given up: {error}", file=sys.stderr)
                return False
            self._at_once.acquire()
            work = (supervisor, number, request, fds)
            if isinstance(request, messages.Start | messages.ServeImage):
                self._answer(*work)  # for workers die with the thread that has started them
            else:
                is_finished |= isinstance(request, messages.Finish)
                Thread(target=self._answer, args=work, daemon=True).start()

    def _answer(
        self, supervisor: socket.socket, number: int, request: messages.Request, fds: list[int]
    ) -> None:
        """Carry a request out and say what became of it; one that fails ends nothing else."""
        sent: list[int] = []
        try:
            reply = Reply(number, None, *self._carry_out(request, fds, sent))
        except BootseerError as error:
            reply = Reply(number, error)
        except OSError as error:
            reply = Reply(number, Unavailable(str(error)))
        except Exception as error:  # noqa: BLE001 (one request never ends the broker)
            with suppress(OSError):  # /run is full
                traceback.print_exc()
            reply = Reply(number, Unavailable(f"internal error: {type(error).__name__}"))
        finally:
            close_all(fds)
        try:
            with suppress(OSError):  # it has ended
                socket.send_fds(supervisor, [reply.encode()], sent)
        finally:
            close_all(sent)
            self._at_once.release()

    def _carry_out(
        self, request: messages.Request, fds: list[int], sent: list[int]
    ) -> tuple[int, int]:
        """Carry a request out; returns the two numbers of its reply.

        Args:
            request: see `messages`.
            fds: that came with it; stay the caller's.
            sent: takes the descriptors that go with the reply.

        Raises:
            BootseerError, OSError: it cannot be done.
        """
        match request:
            case messages.Start(role):
                handle, end = self._processes.start(_role(role).module)
                sent.append(end.detach())
                return handle, 0
            case messages.ServeImage(number, is_tree):
                server = self.mounts.make_image(number, bool(is_tree))
                sent += [server.channel.detach()] if server.channel is not None else []
                return server.handle, 0
            case messages.Kill(handle):
                self._processes.kill(handle)
            case messages.Unmount(mount, number):
                self.mounts.unmount(_mount(mount), number)
            case messages.ReadAhead(mount, number, kib):
                self.mounts.set_read_ahead(_mount(mount), number, kib)
            case messages.Overlay(image, count, read_only):
                return self.mounts.lay(image, count, bool(read_only)), 0
            case messages.LookAt(pid):
                in_container, namespace = look_at(pid, self._job.uid)
                sent += [] if namespace is None else [namespace]
                return in_container, 0
            case messages.Show(number):
                target, namespace = _exactly(fds, 2)
                self.mounts.show(number, target, namespace)
            case messages.Lend(token):
                return self._lent(self._lender.lend(token), sent)
            case messages.LendNew(manifest_bytes, image_bytes, blocks):
                size = EntrySize(manifest_bytes, image_bytes, blocks)
                return self._lent(self._lender.lend_new(size, *_exactly(fds, 1)), sent)
            case messages.MountRoot(entry):
                self._mount_root(entry)
            case messages.Watch():
                (fd,) = _exactly(fds, 1)
                return self._watch(fd, sent)
            case messages.Clear():
                self.mounts.clear()
            case messages.Finish():
                pass
        return 0, 0

    def _lent(self, lent: tuple[int, list[int]], sent: list[int]) -> tuple[int, int]:
        number, fds = lent
        sent += fds
        strange = self._lender.sweep()
        with suppress(OSError):  # /run is full
            for what in strange:
                print(what, file=sys.stderr)
        return number, len(strange)

    def _mount_root(self, entry: int) -> None:
        mount_root(
            self._lender.entry(entry),
            Path(self._folder.root),
            self._settings.kernel_mount,
            Path(self._settings.run_dir, "checked"),
            (self._job.uid, self._job.gid),
            self._settings.account,
        )

    def _watch(self, fd: int, sent: list[int]) -> tuple[int, int]:
        self._watched += 1
        if self._watched > _MAX_WATCHED:
            raise Unavailable(f"{_MAX_WATCHED} files of this job were watched already")
        pages = Residency(os.dup(fd))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        Thread(target=residency.serve, args=(pages, ours), daemon=True).start()
        sent.append(theirs.detach())
        return pages.size_bytes, 0

    def _hand_out_mounts(self, listener: socket.socket) -> None:
        """Give slurmstepd the mounts that it asks for."""
        with listener:
            while not self._has_ended.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:  # whoever came has gone again, or there are no descriptors left
                    self._has_ended.wait(_RETRY_S)
                    continue
                mount_requests.answer(connection, self.mounts)

    def _look_after_servers(self) -> None:
        while not self._has_ended.wait(LOOK_S):
            self._processes.kill_stopped()


def _role(number: int) -> Role:
    try:
        return Role(number)
    except ValueError as error:
        raise NotFound(f"there is no worker {number}") from error


def _mount(number: int) -> Mount:
    try:
        return Mount(number)
    except ValueError as error:
        raise NotFound(f"there is no kind of mount {number}") from error


def _exactly(fds: list[int], count: int) -> list[int]:
    if len(fds) != count:
        raise Corrupt(f"{len(fds)} descriptors, and not {count}, came with a request")
    return fds
