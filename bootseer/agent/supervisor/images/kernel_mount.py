"""The kernel's squashfs mount of a job's image, if the administrator lists the image."""

from __future__ import annotations

import time
from contextlib import suppress

import trio

from bootseer.agent.messages.broker import MountKind, MountRoot, Unmount
from bootseer.agent.node.job import JobFolder
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.core.event import FALLBACK, OK, Event, one_line
from bootseer.errors import BootseerError, NotFound
from bootseer.ipc.descriptors import close_all
from bootseer.ipc.request_client import RequestClient

_MOUNT_S = 700.0
"""Timeout of the mount: the whole image is checked first, once per boot."""


class KernelMount:
    """The kernel's mount of a job's image, if the administrator lists the image.

    Attributes:
        path: path of the mount, "" if there is none.
        settled: set when ``path`` is final.
    """

    def __init__(self, folder: JobFolder, broker: RequestClient, listed: list[str]) -> None:
        """Create the object for images of listed digests; nothing is mounted yet."""
        self.path = ""
        self.settled = trio.Event()
        self._folder = folder
        self._broker = broker
        self._listed = listed

    async def make(self, digest: str, fds: list[int], events: EventLog) -> None:
        """Mount the image, if it is listed and complete.

        Args:
            digest: digest of the image.
            fds: descriptors of its cached manifest, data and map; closed here.
            events: log for the result.
        """
        try:
            if digest in self._listed:
                await self._make(fds, events)
        finally:
            close_all(fds)
        self.settle()

    async def _make(self, fds: list[int], events: EventLog) -> None:
        began_ns, status, detail = time.time_ns(), OK, "mounted by the kernel"
        try:
            await self._broker.ask(MountRoot(), fds, answer_s=_MOUNT_S)
            self.path = f"{self._folder.root}/rootfs"
        except NotFound as error:
            detail = str(error)
        except BootseerError as error:
            status, detail = FALLBACK, str(error)
        events.note(
            Event(
                "image.kernel", began_ns, time.time_ns(), "agent", status, detail=one_line(detail)
            )
        )

    def settle(self) -> None:
        """Tell the prolog and the plugin the final state; only the first call has an effect."""
        if not self.settled.is_set():
            self.settled.set()
            with suppress(OSError):  # /run is full: prolog and plugin assume no mount
                if self.path:
                    self._folder.write_mounted(self._folder.rooted, "owned")
                elif self._listed:
                    self._folder.write_mounted(self._folder.rooted, "none")

    async def remove(self) -> None:
        """Unmount, even while in use."""
        if self.path:
            with suppress(BootseerError):
                await self._broker.do(Unmount(MountKind.ROOT, 0))
