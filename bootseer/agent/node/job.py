"""A job as its prolog describes it, and the job's folder on the node.

    RUN_DIR/jobs/JOBID/        root, 0711 (RUN_DIR/dead/JOBID-TIME once its agent has died)
        job.json               the job as the prolog describes it; root, 0600
        asked                  the job's image, environment, checkpoint and key, a line each, for
                               the plugin to compare with a step's options; root, 0600
        broker.json            settings, see `bootseer.agent.node.broker_settings`; root, 0600
        process.json           the agent's process id and start time; root, 0600
        ended.json             once it has ended normally; root, 0600
        died.json              once it has died: why it was killed, if it was; root, 0644
        agent.log              a line for each stage, and unexpected errors; root, 0600
        agent.sock             control socket; the job's user, 0600
        mounts.sock            where slurmstepd requests mounts; root, 0600
        server.json            the image servers, in case the agent dies; root, 0600
        checkpoint, served     where the plugin finds the mounts, see `write_mounted`; root, 0600
        bootseer-env           `env run` for containers; executable by all users

        ckpt/                  the checkpoint's mount; the job's user alone
        image/, image-N/       mounts of served images and trees of environments; `image` is the
                               one named at submission; the job's user alone
        envs/N                 a target of an environment as tasks see it; root, 0700
        targets/N              an empty folder of the plugin's, where it shows envs/N in the mount
                               namespaces of tasks, for container runtimes to bind; root, 0711

        state/                 files of the supervisor; the service account's, 0700
            state.json         the agent's state, for `bootseer status`
            events.jsonl       events so far, in case the agent dies
            unreadable         there once tasks are known to be unable to read the job's image
            rooted, named      whether the kernel's mount of the image, and the job's environment,
                               are mounted, see `write_mounted`
            N.shown            where tasks see envs/N, see `write_mounted`

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from bootseer.agent.node.broker_settings import BrokerSettings

Read = TypeVar("Read")
_MAX_FILE_BYTES = 1024 * 1024
"""Limit of a JSON file in a job's folder."""


class Job(NamedTuple):
    """One job on one node.

    Attributes:
        job_id: Slurm's.
        cluster, node: their names.
        uid, gid, user, home: of the job's user.
        key: key of the warm plan.
        record_only: warm nothing, record as if for the first time.
        image: path of the container image, or the URI of one in the store; "" when it is to be
            found in the warm plan.
        wait_s: longest time that the prolog holds the job for its hot set; 0 for not at all.
        started_ns: when the prolog began, nanoseconds since the epoch.
        checkpoint: URL of the checkpoint folder, "" for none.
        mountpoint: absolute path at which the job's tasks also see it, "" for none.
        mountpoint_listed: the administrator lets all users mount there; otherwise it must be a
            folder of the user's.
        read_only: the job may not change the checkpoint.
        nodes: number of the job's nodes, 0 if unknown.
        node_index: index of this node among them, in Slurm's order.
        environment: name of the environment for its tasks, or path of a file that names it; "" for
            none.
        nodelist: Slurm's short form of the names of its nodes, "" if they are unknown.
        secret: that only nodes of the job know, in hexadecimal digits; "" for none.
        is_later: an image that the job itself requests, after its start.
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
    nodelist: str = ""
    secret: str = ""
    is_later: bool = False

    @property
    def run(self) -> str:
        """Return the name of the run, the same on all nodes of the job."""
        return f"{self.cluster}.{self.job_id}"

    @property
    def is_first_node(self) -> bool:
        """Return whether this is the job's first node; False if the nodes are unknown."""
        return bool(self.nodes) and not self.node_index

    def has_peers(self, min_nodes: int) -> bool:
        """Return whether its nodes give each other what they have read from the store.

        Args:
            min_nodes: the smallest job whose nodes do so; 0 for none.
        """
        is_large = 0 < min_nodes <= self.nodes and self.nodes > 1
        return is_large and bool(self.nodelist and self.secret)

    @property
    def is_served(self) -> bool:
        """Return whether its image comes from the store, through a mount of the agent's."""
        return "://" in self.image

    @property
    def groups(self) -> list[int]:
        return os.getgrouplist(self.user, self.gid)


class JobFolder:
    """The folder of a job under the run directory; only root writes to it, except `state`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.socket = f"{path}/agent.sock"
        self.mounts = f"{path}/mounts.sock"
        self.state = f"{path}/state"
        self.events = f"{path}/state/events.jsonl"
        self.mounted = f"{path}/checkpoint"
        self.mount = f"{path}/ckpt"
        self.served = f"{path}/served"
        self.asked = f"{path}/asked"
        self.unreadable = f"{path}/state/unreadable"
        self.rooted = f"{path}/state/rooted"
        self.root = f"{path}/root"
        self.image = f"{path}/image"
        self.environments = f"{path}/envs"
        self.named = f"{path}/state/named"
        self.program = f"{path}/bootseer-env"

    def shown(self, number: int) -> str:
        """Return the path of the file that names an environment's target for tasks."""
        return f"{self.state}/{number}.shown"

    def image_mount(self, number: int) -> str:
        """Return the path of a served image's mount; 0 is the image named at submission."""
        return f"{self.image}-{number}" if number else self.image

    def has_mounts(self) -> bool:
        """Return whether it may contain mounts; cheaper than reading all the node's mounts."""
        later = os.path.basename(self.image_mount(1)).removesuffix("1")
        try:
            names = os.listdir(self.path)
        except OSError:
            return False
        first = (self.mounted, self.served, self.environments)
        return any(map(os.path.exists, first)) or any(name.startswith(later) for name in names)

    @classmethod
    def of(cls, run_dir: str, job_id: int) -> JobFolder:
        return cls(f"{run_dir}/jobs/{job_id}")

    def write(self, name: str, document: Mapping[str, object], mode: int = 0o600) -> None:
        """Replace one of the folder's JSON files atomically."""
        target = f"{self.path}/{name}"
        descriptor = os.open(f"{target}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file)
        os.rename(f"{target}.new", target)

    def read(self, name: str) -> dict[str, Any] | None:
        """Read one of the folder's JSON files; None when it is missing or unfinished."""
        try:
            # The supervisor's files may be of any type.
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
        """Tell the prolog and the plugin whether a mount has been made.

        The file has two lines: the state and the mount point.

        Args:
            mark: the file to write: `mounted`, `served`, `rooted` or `named`.
            state: "failed" if mounting failed; "owned" or "listed" if it succeeded, by how the
                plugin must check the mount point; "plain" if there is no mount and tasks are told
                the mount point; "none" if there is nothing to tell.
            mountpoint: where the tasks also see it, "" for nowhere.

        Raises:
            OSError: the file cannot be written.
        """
        descriptor = os.open(f"{mark}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"%s\n%s\n" % (state.encode(), os.fsencode(mountpoint)))
        os.rename(f"{mark}.new", mark)

    def remove(self) -> None:
        """Remove the folder, but nothing inside a remaining mount: that is a user's.

        It contains files, empty folders for mounts, and folders of those. What cannot be removed
        stays.
        """
        _remove_folder(self.path, None, levels=2)


def _remove_folder(name: str, above: int | None, levels: int) -> None:
    """Remove a folder with up to ``levels`` levels below it, without following links.

    Args:
        name: of the folder.
        above: descriptor of its parent folder; None if ``name`` is a path.
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
                    continue  # in use; continue with the rest
        finally:
            os.close(folder)
    with suppress(OSError):
        os.rmdir(name, dir_fd=above)
