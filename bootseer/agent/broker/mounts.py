"""The mounts of a job: make, show in other namespaces, unmount.

All are in the job's folder, which only root can write to. The supervisor refers to them by number.

Imports the standard library and bootseer's C extension only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from threading import Lock

from bootseer._io import lib
from bootseer.agent.broker.processes import Processes
from bootseer.agent.broker.supervisor_start import NewMount
from bootseer.agent.messages.broker import MountKind, Role
from bootseer.agent.node.job import Job, JobFolder
from bootseer.core.reference import ENVIRONMENT
from bootseer.errors import BootseerError, Denied, NotFound, Unavailable
from bootseer.folder_ownership import check_alone
from bootseer.fuse import root_mounts
from bootseer.fuse.root_mounts import MountOptions

MAX_IMAGES = 32
"""Image mounts of a job on a node, including those whose server has ended."""
MAX_OVERLAYS = 64
"""Environment targets of a job on a node; spank/mounts.c has the same limit."""
_PID_1 = "/proc/1/ns/mnt"
_OURS = "/proc/self/ns/mnt"


class Mounts:
    """The mounts of one job.

    Concurrency: any number of threads.
    """

    def __init__(self, folder: JobFolder, job: Job, processes: Processes, scratch: str) -> None:
        """Create an object without mounts.

        Args:
            folder, job: the job and its folder.
            processes: starts the mounts' servers.
            scratch: root's folder for files written over environments.
        """
        self._folder = folder
        self._job = job
        self._processes = processes
        self._scratch = scratch
        self._overlays = 0
        self._lock = Lock()  # guards the numbering of overlays

    def make_checkpoint(self) -> NewMount:
        """Mount the job's checkpoint and tell the prolog and the plugin."""
        job = self._job
        options = MountOptions(read_only=job.read_only, checks_modes=False)
        made = self._make(self._folder.mount, options)
        whose = "listed" if job.mountpoint_listed else "owned"
        state = "failed" if isinstance(made, str) else whose
        self._folder.write_mounted(self._folder.mounted, state, job.mountpoint)
        return made

    def make_first_image(self) -> NewMount:
        """Mount the image that the job was given and tell the prolog and the plugin."""
        options = MountOptions(read_only=True, confined=self._job.image.startswith(ENVIRONMENT))
        made = self._make(self._folder.image, options)
        state = "failed" if isinstance(made, str) else "owned"
        self._folder.write_mounted(self._folder.served, state)
        return made

    def serve_image(self, number: int, is_tree: bool) -> tuple[int, socket.socket]:
        """Mount another image and start its server; returns what `Processes.start` does.

        Args:
            number: the mount's number, from 1.
            is_tree: the mount may be shown in namespaces that its user owns.

        Raises:
            BootseerError, OSError: the image cannot be mounted.
        """
        if not 1 <= number <= MAX_IMAGES:
            raise Unavailable(f"this job may have only {MAX_IMAGES} image mounts")
        options = MountOptions(read_only=True, confined=is_tree)
        connection = self._attach(self._folder.image_mount(number), options)
        try:
            return self._processes.start(Role.SERVE_IMAGE, connection)
        except BaseException:
            self.unmount(MountKind.IMAGE, number)
            raise
        finally:
            os.close(connection)

    def path(self, mount: MountKind, number: int) -> str:
        """Return the path of a mount.

        Raises:
            NotFound: a job has no mount of that number.
        """
        if not 0 <= number <= max(MAX_IMAGES, MAX_OVERLAYS):
            raise NotFound(f"a job has no mount {number}")
        return {
            MountKind.CHECKPOINT: self._folder.mount,
            MountKind.IMAGE: self._folder.image_mount(number),
            MountKind.ROOT: f"{self._folder.root}/rootfs",
            MountKind.ENVIRONMENT: f"{self._folder.environments}/{number}",
        }[mount]

    def set_read_ahead(self, mount: MountKind, number: int, kib: int) -> None:
        if mount in (MountKind.CHECKPOINT, MountKind.IMAGE) and 0 <= kib <= 1 << 16:
            root_mounts.set_read_ahead(self.path(mount, number), kib)

    def unmount(self, mount: MountKind, number: int) -> None:
        """Unmount, even while in use.

        Raises:
            OSError: unmounting failed.
        """
        path = self.path(mount, number)
        if mount in (MountKind.CHECKPOINT, MountKind.IMAGE):
            root_mounts.detach(path)
        else:
            root_mounts.uncover(path)
        if mount == MountKind.IMAGE and number:
            with suppress(OSError):
                os.rmdir(path)

    def create_overlay(self, image: int, count: int, read_only: bool) -> int:
        """Create overlays over the folders of a served tree; returns the first one's number.

        Raises:
            NotFound: a job has no such image.
            Unavailable, OSError: an overlay cannot be created.
        """
        with self._lock:
            first = self._overlays + 1
            if not 0 < count <= MAX_OVERLAYS - self._overlays:
                raise Unavailable(f"this job may mount only {MAX_OVERLAYS} environment targets")
            os.makedirs(self._folder.environments, 0o700, exist_ok=True)
            tree = self.path(MountKind.IMAGE, image)
            user = (self._job.uid, self._job.gid, self._groups)
            for number in range(first, first + count):
                self._overlays = number
                mount = self.path(MountKind.ENVIRONMENT, number)
                os.mkdir(mount, 0o755)
                lower, scratch = f"{tree}/{number - first}", self._make_scratch(number)
                root_mounts.overlay(mount, lower, scratch, *user, read_only=read_only)
        return first

    def show(self, number: int, target: int, namespace: int) -> None:
        """Show an overlay on a user's folder, in a mount namespace other than the node's.

        Args:
            number: the overlay's number.
            target: descriptor of the folder.
            namespace: descriptor of the folder's mount namespace.

        Raises:
            NotFound: a job has no such overlay.
            Denied: the folder is not the user's, or the namespace is the node's.
            OSError: the overlay cannot be attached there.
        """
        path = self.path(MountKind.ENVIRONMENT, number)
        if lib.bs_folder_owner(target) != self._job.uid:
            raise Denied("a target is not a folder owned by the user")
        if is_the_nodes(namespace):
            raise Denied("refusing to mount in the node's own mount namespace")
        root_mounts.show(path, namespace, target)

    def clear(self) -> None:
        """Unmount the overlays; the epilog removes the files written over them."""
        with self._lock:
            for number in range(1, self._overlays + 1):
                with suppress(OSError):
                    root_mounts.uncover(self.path(MountKind.ENVIRONMENT, number))

    def _make(self, path: str, options: MountOptions) -> NewMount:
        try:
            return self._attach(path, options)
        except (BootseerError, OSError) as error:
            return str(error) or repr(error)

    def _attach(self, path: str, options: MountOptions) -> int:
        """Mount; returns the FUSE connection: once it is closed everywhere, reads return errors.

        Raises:
            BootseerError, OSError: mounting failed, or there is a mount already.
        """
        job = self._job
        os.mkdir(path, 0o755)
        try:
            return root_mounts.attach(path, job.uid, job.gid, options, self._groups)
        except BaseException:
            os.rmdir(path)
            raise

    @cached_property
    def _groups(self) -> Sequence[int]:
        return self._job.groups

    def _make_scratch(self, number: int) -> str:
        """Create the folder for files written over a tree."""
        if not os.path.exists(self._scratch):
            above = os.path.dirname(self._scratch)
            os.makedirs(above, 0o700, exist_ok=True)
            check_alone(above)
            os.mkdir(self._scratch, 0o700)
        made = f"{self._scratch}/{number}"
        os.mkdir(made, 0o700)
        for folder in (f"{made}/upper", f"{made}/work"):
            os.mkdir(folder, 0o700)
            os.chown(folder, self._job.uid, self._job.gid)
        return made


def is_the_nodes(namespace: int) -> bool:
    """Return whether a mount namespace is the node's own, which all users share."""
    status = os.fstat(namespace)
    return any(os.path.samestat(status, os.stat(path)) for path in (_OURS, _PID_1))


def locate_process(pid: int, uid: int) -> tuple[bool, int | None]:
    """Return whether a process has another root folder, and its mount namespace.

    The process may have ended and its id been reused: any process of the same user is accepted.

    Args:
        pid: the process's id.
        uid: the process's user.

    Returns:
        Whether its root folder differs from ours, so that its paths mean nothing here; and a
        descriptor of its mount namespace, None if that is the node's or cannot be opened.
    """
    try:
        folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return True, None
    try:
        if os.fstat(folder).st_uid != uid:
            return True, None
        namespace = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        in_container = lib.bs_has_our_root(folder) != 1
    except OSError:
        return True, None
    finally:
        os.close(folder)
    if is_the_nodes(namespace):
        os.close(namespace)
        return in_container, None
    return in_container, namespace
