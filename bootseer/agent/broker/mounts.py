"""The mounts of a job: made for its user, shown to its processes, and taken away.

All are in the job's folder, where only root makes names; the supervisor names them by numbers.

Standard library and our own extension only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock

from bootseer._io import lib
from bootseer.agent.broker.processes import Processes
from bootseer.agent.broker.supervisor_start import ServerProcess
from bootseer.agent.messages.broker import MountKind
from bootseer.agent.node.job import Job, JobFolder
from bootseer.core.reference import ENVIRONMENT
from bootseer.errors import BootseerError, Denied, NotFound, Unavailable
from bootseer.folder_ownership import check_alone
from bootseer.fuse import root_mounts
from bootseer.fuse.root_mounts import MountOptions

MAX_IMAGES = 32
"""Mounts of images for a job on a node, with those whose server has ended."""
MAX_OVERLAYS = 64
"""The same of targets of environments; spank/mounts.c looks for as many."""
_PID_1 = "/proc/1/ns/mnt"
_OURS = "/proc/self/ns/mnt"


class Mounts:
    """What is mounted for a job.

    Concurrency: any number of threads.
    """

    def __init__(self, folder: JobFolder, job: Job, processes: Processes, scratch: str) -> None:
        """Begin with none.

        Args:
            folder, job: the job and its folder.
            processes: starts their servers.
            scratch: folder of the node's that takes what is written over environments, root's.
        """
        self._folder = folder
        self._job = job
        self._processes = processes
        self._scratch = scratch
        self._overlays = 0
        self._lock = Lock()  # guards the overlays: they are numbered

    def make_checkpoint(self) -> ServerProcess:
        """Mount the job's checkpoint and tell prolog and plugin, which do not wait for more."""
        job = self._job
        options = MountOptions(read_only=job.read_only, checks_modes=False)
        made = self._make(self._folder.mount, "serve_checkpoint", options)
        whose = "listed" if job.mountpoint_listed else "owned"
        state = "failed" if made.error else whose
        self._folder.write_mounted(self._folder.mounted, state, job.mountpoint)
        return made

    def make_first_image(self) -> ServerProcess:
        """Mount the image that the job was given; as for `make_checkpoint`."""
        options = MountOptions(read_only=True, confined=self._job.image.startswith(ENVIRONMENT))
        made = self._make(self._folder.image, "serve_image", options)
        self._folder.write_mounted(self._folder.served, "failed" if made.error else "owned")
        return made

    def make_image(self, number: int, is_tree: bool) -> ServerProcess:
        """Mount another image.

        Args:
            number: of the mount, from 1.
            is_tree: it is shown in namespaces that its user may own.

        Raises:
            Unavailable: it cannot be mounted.
        """
        if not 1 <= number <= MAX_IMAGES:
            raise Unavailable(f"{MAX_IMAGES} mounts of this job were made already")
        options = MountOptions(read_only=True, confined=is_tree)
        path = self._folder.image_mount(number)
        made = self._make(path, "serve_image", options)
        if made.error:
            with suppress(OSError):  # something is mounted there
                os.rmdir(path)
            raise Unavailable(made.error)
        return made

    def path(self, mount: MountKind, number: int) -> str:
        """Name a mount.

        Raises:
            NotFound: a job has none of that number.
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
        """See `root_mounts.set_read_ahead`."""
        if mount in (MountKind.CHECKPOINT, MountKind.IMAGE) and 0 <= kib <= 1 << 16:
            root_mounts.set_read_ahead(Path(self.path(mount, number)), kib)

    def unmount(self, mount: MountKind, number: int) -> None:
        """Take a mount away, whoever uses it.

        Raises:
            OSError: it cannot be unmounted.
        """
        path = self.path(mount, number)
        if mount in (MountKind.CHECKPOINT, MountKind.IMAGE):
            root_mounts.detach(Path(path))
        else:
            root_mounts.uncover(Path(path))
        if mount == MountKind.IMAGE and number:
            with suppress(OSError):
                os.rmdir(path)

    def create_overlay(self, image: int, count: int, read_only: bool) -> int:
        """Lay writable file systems over the folders of a served tree; returns the first's number.

        Raises:
            NotFound: a job has no such image.
            Unavailable, OSError: they cannot be made.
        """
        with self._lock:
            first = self._overlays + 1
            if not 0 < count <= MAX_OVERLAYS - self._overlays:
                raise Unavailable(f"{MAX_OVERLAYS} targets of this job were mounted already")
            os.makedirs(self._folder.environments, 0o700, exist_ok=True)
            tree = Path(self.path(MountKind.IMAGE, image))
            user = (self._job.uid, self._job.gid, self._groups)
            for number in range(first, first + count):
                self._overlays = number
                mount = Path(self.path(MountKind.ENVIRONMENT, number))
                mount.mkdir(0o755)
                lower, scratch = tree / str(number - first), self._make_scratch(number)
                root_mounts.overlay(mount, lower, scratch, *user, read_only=read_only)
        return first

    def show(self, number: int, target: int, namespace: int) -> None:
        """Show an overlay on a folder of the user's in a mount namespace that is not the node's.

        Args:
            number: of the overlay.
            target: descriptor of the folder.
            namespace: descriptor of the namespace that it is in.

        Raises:
            NotFound: a job has no such overlay.
            Denied: the folder is not the user's, or the namespace is the node's.
            OSError: it cannot be shown.
        """
        path = self.path(MountKind.ENVIRONMENT, number)
        if lib.bs_folder_owner(target) != self._job.uid:
            raise Denied("a target is not a folder owned by the user")
        if is_the_nodes(namespace):
            raise Denied("refusing to mount in the node's own mount namespace")
        root_mounts.show(Path(path), namespace, target)

    def clear(self) -> None:
        """Take the overlays away; what was written over them is the epilog's."""
        with self._lock:
            for number in range(1, self._overlays + 1):
                with suppress(OSError):
                    root_mounts.uncover(Path(self.path(MountKind.ENVIRONMENT, number)))

    def _make(self, path: str, role: str, options: MountOptions) -> ServerProcess:
        job = self._job
        try:
            os.mkdir(path, 0o755)
            connection = root_mounts.attach(Path(path), job.uid, job.gid, options, self._groups)
            try:
                # Whatever becomes of that process: without it the kernel answers with errors.
                return ServerProcess(*self._processes.start(role, connection))
            except BaseException:
                with suppress(OSError):
                    root_mounts.detach(Path(path))
                raise
            finally:
                os.close(connection)
        except (BootseerError, OSError) as error:
            return ServerProcess(error=str(error) or repr(error))

    @cached_property
    def _groups(self) -> Sequence[int]:
        return self._job.groups

    def _make_scratch(self, number: int) -> Path:
        """Make the folder that takes what is written over a tree."""
        scratch = Path(self._scratch)
        if not scratch.exists():
            os.makedirs(scratch.parent, 0o700, exist_ok=True)
            check_alone(str(scratch.parent))
            scratch.mkdir(0o700)
        made = scratch / str(number)
        made.mkdir(0o700)
        for folder in (made / "upper", made / "work"):
            folder.mkdir(0o700)
            os.chown(folder, self._job.uid, self._job.gid)
        return made


def is_the_nodes(namespace: int) -> bool:
    """Whether a mount namespace is one that processes of other users are in."""
    status = os.fstat(namespace)
    return any(os.path.samestat(status, os.stat(path)) for path in (_OURS, _PID_1))


def look_at(pid: int, uid: int) -> tuple[bool, int | None]:
    """Say where a process is.

    The process may have ended, and another have its number: one of the same user's will do.

    Args:
        pid: of the process.
        uid: of its user.

    Returns:
        Whether it sees another root folder than we do, so that its paths mean nothing here; and a
        descriptor of its mount namespace, None if that is the node's, or cannot be had.
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
