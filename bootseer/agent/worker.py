"""The agent's hands: a process with the rights of the job's user and nothing more.

The agent starts one per task and talks to it over a channel. A worker lives until its task is done
or the channel closes, whichever comes first; then everything it held is gone with it.
"""

from __future__ import annotations

import importlib
import os
import pwd
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from bootseer._io import ffi, lib
from bootseer.agent.channel import Channel
from bootseer.agent.job import Job
from bootseer.agent.process import take_time
from bootseer.core.event import FALLBACK, Event
from bootseer.errors import BootseerError, Closed, ConfigError
from bootseer.store.base import Store
from bootseer.store.connect import connect

MAX_DATA_BYTES = 4 << 30
"""Traces of 16 MB take 250 MB each to merge; stacks of 256 threads count with 2 GB."""


MAX_DETAIL_CHARS = 500


class Task:
    """What a worker was asked for, and how it reports."""

    def __init__(self, channel: Channel, message: dict[str, Any]) -> None:
        """Take the task from the agent's first message."""
        self.channel = channel
        self.job = Job(**message["job"])
        self.config: dict[str, Any] = message["config"]
        self.message = message

    def store(self) -> Store:
        """Open the user's store; nothing is read yet.

        Raises:
            ConfigError: the configured place is not one that this version can use.
        """
        url = self.job.store_url(self.config["store.url"])
        return connect(url, self.job.uid, self.config["store.deadline_s"])

    @asynccontextmanager
    async def stage(self, name: str) -> AsyncIterator[dict[str, Any]]:
        """Time a block and tell the agent; the dictionary takes ``bytes`` and ``detail``.

        An error of ours is told as a fallback, with its message, and raised on.
        """
        said: dict[str, Any] = {}
        start_ns = time.time_ns()
        try:
            yield said
        except BootseerError as error:
            said |= {"status": FALLBACK, "detail": str(error)}
            raise
        finally:
            with trio.CancelScope(shield=True):
                # One line that the agent accepts, whatever a path in it looks like.
                said["detail"] = " ".join(str(said.get("detail", "")).split())[:MAX_DETAIL_CHARS]
                event = Event(name, start_ns, time.time_ns(), "worker", **said)
                await self.channel.send({"op": "event", "event": event.document()})


def become(user: str, uid: int, gid: int, keep_lock: bool) -> None:
    """Take on the user's rights for good, before anything is read from anywhere.

    Args:
        user: name, for the groups.
        uid, gid: of the user.
        keep_lock: keep the right to lock memory, and no other.

    Raises:
        OSError: it could not be done; the process must end.
    """
    groups = os.getgrouplist(user, gid)
    result = lib.bs_become(uid, gid, ffi.new("uint32_t[]", groups), len(groups), keep_lock)
    if result != 0:
        raise OSError(-result, os.strerror(-result))


def act_for(user: str | None) -> None:
    """Take on a user's rights for good where root asks for their data; otherwise do nothing.

    What lies in a store may be made to harm whoever reads it, and what is written there must be
    the user's own.
    """
    if os.geteuid() == 0 and user:
        try:
            entry = pwd.getpwnam(user)
        except KeyError as error:
            raise ConfigError(f"there is no user {user}") from error
        become(entry.pw_name, entry.pw_uid, entry.pw_gid, keep_lock=False)
        os.umask(0o077)


def limit() -> None:
    """Keep this process's memory in bounds, and let it be the first to go where memory is short.

    What it holds is charged to nobody's job, and depends on what lies in the user's store.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    data_bytes = MAX_DATA_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_DATA_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def serve(role: str, end: socket.socket, user: str, uid: int, gid: int) -> None:
    """Become the user, take a task from the channel and carry it out; does not return.

    Args:
        role: "warm" or "publish".
        end: of the channel.
        user, uid, gid: whose rights to take on.
    """
    # Imported before the rights go: the user may not be able to read this installation.
    work = importlib.import_module(f"bootseer.agent.{role}").run
    limit()
    become(user, uid, gid, keep_lock=role == "warm")
    os.umask(0o077)
    os.chdir("/")
    end.setblocking(False)

    async def take_task() -> None:
        channel = Channel(end)
        try:
            message, _ = await channel.receive()
            await work(Task(channel, message))
        except Closed:
            return  # the agent has ended, and with it the reason for this process

    take_time()
    trio.run(take_task)
    # Threads abandoned in a hanging read must not keep the process.
    os._exit(0)


def main() -> None:
    """Serve as the command line says: role, descriptor of the channel, user, uid, gid."""
    role, fd, user, uid, gid = sys.argv[1:6]
    serve(role, socket.socket(fileno=int(fd)), user, int(uid), int(gid))
