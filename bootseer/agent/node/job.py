"""What the prolog knows of a job, and the job's folder on the node.

    RUN_DIR/jobs/JOBID/        root, 0711 (RUN_DIR/dead/JOBID-TIME once its agent has died)
        job.json               what the prolog was asked for; root, 0600
        asked                  image, environment and checkpoint as they were asked for, a line
                               each, for the plugin to compare with what a step asks for; root, 0600
        broker.json            settings, see `bootseer.agent.node.broker_settings`; root, 0600
        process.json           the agent's process id and start time; root, 0600
        ended.json             once it has ended as it should; root, 0600
        died.json              once it has died, why it was ended by force, if it was; root, 0644
        agent.log              a line for each stage, and unexpected errors; root, 0600
        agent.sock             control socket; the job's user, 0600
        mounts.sock            where slurmstepd gets mounts; root, 0600
        server.json            the servers of images, should the agent die; root, 0600
        checkpoint, served     where the plugin finds the mounts, see `write_mounted`; root, 0600
        bootseer-env           `env run` for containers; everybody's to run
        ckpt/                  the checkpoint's mount; the job's user alone
        image/, image-N/       mounts of served images and trees of environments, the first is the
                               one that the prolog knew of; the job's user alone
        envs/N                 a target of an environment as tasks see it; root, 0700
        state/                 what the supervisor writes; the service account's, 0700
            state.json         what is being done, for `bootseer status`
            events.jsonl       events so far, in case the agent dies
            rooted, named      the kernel's mount of the image, and the environment that the job has
                               named, are there or will not be, see `write_mounted`
            N.shown            where tasks are to see envs/N, see `write_mounted`

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from bootseer.agent.node.broker_settings import BrokerSettings

Read = TypeVar("Read")
_MAX_FILE_BYTES = 1024 * 1024
"""Of the JSON files in a job's folder."""


class Job(NamedTuple):
    """One job on one node.

    Attributes:
        job_id: Slurm's.
        cluster, node: their names.
        uid, gid, user, home: of the job's user.
        key: of the warm plan.
        record_only: warm nothing, record as if for the first time.
        image: path of the container image, or the URI of one in the store; "" when it is to be
            found in the warm plan.
        wait_s: longest that the prolog holds the job for its hot set; with 0 it does not.
        started_ns: when the prolog began, nanoseconds since the epoch.
        checkpoint: URL of the checkpoint folder, "" for none.
        mountpoint: absolute path where the job's tasks are to see it as well, "" for none.
        mountpoint_listed: the administrator lets anybody mount there; otherwise it is to be a
            folder of the user's.
        read_only: the job may not change it.
        nodes: how many the job has, 0 where that is not known.
        node_index: of this one among them, in Slurm's order.
        environment: name of the environment that its tasks are to find, or path of a file that says
            which; "" for none.
    """

    job_id: int
    cluster: str
    node: str
    uid: int
    gid: int
    user: str
    home: str
    key: str
    record_only: bool
    image: str
    wait_s: float
    started_ns: int
    checkpoint: str = ""
    mountpoint: str = ""
    mountpoint_listed: bool = False
    read_only: bool = False
    nodes: int = 0
    node_index: int = 0
    environment: str = ""

    @property
    def run(self) -> str:
        """Name of the run, the same on all nodes of the job."""
        return f"{self.cluster}.{self.job_id}"

    @property
    def is_first_node(self) -> bool:
        """Whether this node does what one of the job has to do; none does if they are not known."""
        return bool(self.nodes) and not self.node_index

    @property
    def is_served(self) -> bool:
        """Whether its image comes from the store, through a mount of the agent's."""
        return "://" in self.image

    @property
    def groups(self) -> list[int]:
        """All groups of the job's user."""
        return os.getgrouplist(self.user, self.gid)


class JobFolder:
    """The folder of a job under the run directory; only root makes names there, but in `state`."""

    def __init__(self, path: str) -> None:
        """Name the folder; nothing is touched."""
        self.path = path
        self.socket = f"{path}/agent.sock"
        self.mounts = f"{path}/mounts.sock"
        self.state = f"{path}/state"
        self.events = f"{path}/state/events.jsonl"
        self.mounted = f"{path}/checkpoint"
        self.mount = f"{path}/ckpt"
        self.served = f"{path}/served"
        self.asked = f"{path}/asked"
        self.rooted = f"{path}/state/rooted"
        self.root = f"{path}/root"
        self.image = f"{path}/image"
        self.environments = f"{path}/envs"
        self.named = f"{path}/state/named"
        self.program = f"{path}/bootseer-env"

    def shown(self, number: int) -> str:
        """Name the file that tells tasks where to see a target of an environment."""
        return f"{self.state}/{number}.shown"

    def image_mount(self, number: int) -> str:
        """Name the mount of one of the images that are served, 0 for what the prolog knew of."""
        return f"{self.image}-{number}" if number else self.image

    def has_mounts(self) -> bool:
        """Whether something may be mounted in it; to look at all the node's mounts takes longer."""
        later = os.path.basename(self.image_mount(1)).removesuffix("1")
        try:
            names = os.listdir(self.path)
        except OSError:
            return False
        first = (self.mounted, self.served, self.environments)
        return any(map(os.path.exists, first)) or any(name.startswith(later) for name in names)

    @classmethod
    def of(cls, run_dir: str, job_id: int) -> JobFolder:
        """Name the folder of a job."""
        return cls(f"{run_dir}/jobs/{job_id}")

    def write(self, name: str, document: dict[str, Any], mode: int = 0o600) -> None:
        """Replace one of the folder's JSON files in one step."""
        target = f"{self.path}/{name}"
        descriptor = os.open(f"{target}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file)
        os.rename(f"{target}.new", target)

    def read(self, name: str) -> dict[str, Any] | None:
        """Read one of the folder's JSON files; None when it is missing or unfinished."""
        try:
            # Those of the supervisor may be anything.
            fd = os.open(f"{self.path}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(fd) as file:
                document = json.loads(file.read(_MAX_FILE_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def job(self) -> Job | None:
        """Read back the job that the prolog wrote."""
        return self._read_as("job.json", lambda document: Job(**document))

    def broker_settings(self) -> BrokerSettings | None:
        """Read back the settings that the prolog wrote for the broker."""
        return self._read_as("broker.json", BrokerSettings.read)

    def _read_as(self, name: str, read: Callable[[dict[str, Any]], Read]) -> Read | None:
        document = self.read(name)
        try:
            return read(document) if document is not None else None
        except (TypeError, KeyError):
            return None

    def write_mounted(self, mark: str, state: str, mountpoint: str = "") -> None:
        """Tell the prolog and the plugin that something is mounted, or will not be.

        Two lines: the state and the mount point.

        Args:
            mark: the file that says so, `mounted`, `served`, `rooted` or `named`.
            state: "failed" if it is not mounted; "owned" or "listed" if it is, as the plugin has to
                check the mount point; "plain" if nothing is to be mounted and tasks are told the
                mount point; "none" if there is nothing to tell.
            mountpoint: where the tasks are to see it as well, "" for nowhere.

        Raises:
            OSError: it cannot be told.
        """
        descriptor = os.open(f"{mark}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"%s\n%s\n" % (state.encode(), os.fsencode(mountpoint)))
        os.rename(f"{mark}.new", mark)

    def remove(self) -> None:
        """Remove the folder, but nothing of a mount that were still there: it is a user's.

        All that is in it are files, empty folders for mounts, and folders of those. What cannot be
        removed stays.
        """
        _remove_folder(self.path, None, levels=2)


def _remove_folder(name: str, above: int | None, levels: int) -> None:
    """Remove a folder, and so many levels below it; no link is followed.

    Args:
        name: of the folder.
        above: descriptor of the one that it is in; None if ``name`` is its path.
        levels: how deep.
    """
    with suppress(OSError):
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        try:
            for entry in os.listdir(folder) if levels else ():
                try:
                    os.unlink(entry, dir_fd=folder)
                except IsADirectoryError:
                    _remove_folder(entry, folder, levels - 1)
                except OSError:
                    continue  # in use; the rest goes all the same
        finally:
            os.close(folder)
    with suppress(OSError):
        os.rmdir(name, dir_fd=above)
