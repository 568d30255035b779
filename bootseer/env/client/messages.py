"""The messages of `bootseer env run` between client and server: lines of JSON.

The other end may be of another version: fields that are not known are ignored, and those that it
does not send have their defaults. `Hello` says what the server can do.
"""

# No `from __future__ import annotations`: Python 3.8 would look types up that it has not.

from typing import Dict, NamedTuple, Tuple, Union

from bootseer.env.client import key as env_key
from bootseer.env.client.key import KeyPart
from bootseer.ipc.typed_json import Messages, add_form, check_not_negative

VARIABLES = ("PYTHONNOUSERSITE", "TMPDIR", "SLURM_TMPDIR")
"""Variables of the command that decide which findings its result has."""

# From the server.


class Hello(NamedTuple):
    """The server's first message.

    Attributes:
        locks: the server takes the locks of the targets; see `Locks`.
        image: digest of the client's image, "" for none or unknown.
    """

    locks: bool = False
    image: str = ""


class Refused(NamedTuple):
    """There is no server for this client; instead of `Hello`, and without a name.

    Attributes:
        error: why.
        kind: class of the error.
    """

    error: str
    kind: str = ""


class Notice(NamedTuple):
    """A line for the user."""

    text: str


class KeepWaiting(NamedTuple):
    """The server is still at work."""


class RestoreProgress(NamedTuple):
    """How much of a snapshot is unpacked."""

    done_bytes: int
    total_bytes: int

    def check(self, name: str) -> None:
        """Check the numbers."""
        check_not_negative(self, name)


class Restored(NamedTuple):
    """The targets hold the result; the command need not run.

    Attributes:
        how: "mounted", "unpacked", or "there" if the targets held it before.
        key: of the snapshot.
        files: their number.
        bytes: size of their content.
        captured_ns: when the snapshot was captured.
        took_s: time that the restore took.
    """

    how: str
    key: str
    files: int
    bytes: int
    captured_ns: int
    took_s: float

    def check(self, name: str) -> None:
        check_not_negative(self, name)


class RunCommand(NamedTuple):
    """The command is to run.

    Attributes:
        why: its result is not captured; "" if it is.
        key: that its result is stored under.
    """

    why: str
    key: str = ""


class CaptureDone(NamedTuple):
    """The client need not wait any longer after the command.

    Attributes:
        why: the result is not stored; "" if it is, or still being stored.
        key: of the snapshot that is stored, "" for none yet.
        files: their number.
        bytes: size of their content.
        findings: number of findings.
    """

    why: str = ""
    key: str = ""
    files: int = 0
    bytes: int = 0
    findings: int = 0

    def check(self, name: str) -> None:
        check_not_negative(self, name)


# From the client.


class Locks(NamedTuple):
    """The descriptors that come with this have the locks of the targets.

    The server shares them: if the client ends, nobody else has the targets before the server has
    stopped work there. Sent before `Request`, and only if `Hello` says that the server takes them.
    """


class Request(NamedTuple):
    """Ask for the result of a command.

    Two descriptors come with this for each target: of the folder above it, and of itself.

    Attributes:
        key: parts of the command's key.
        as_empty: parts of the key that it would have if the targets held nothing.
        targets: absolute paths.
        names: of the targets in the folders above them.
        mode: "auto", "mount" or "unpack".
        read_only: nothing needs to be written to the targets afterwards.
        force: run the command even if there is a snapshot.
        captures: capture the result if the command runs.
        waits: the client waits until the result is stored.
        wait_s: longest wait for another node that captures the same.
        stays: the client's working folder is a target, where it would not see a mount.
        environ: those of `VARIABLES` that the command has.
    """

    key: Tuple[KeyPart, ...]
    as_empty: Tuple[KeyPart, ...]
    targets: Tuple[str, ...]
    names: Tuple[str, ...]
    mode: str
    read_only: bool
    force: bool
    captures: bool
    waits: bool
    wait_s: int
    environ: Dict[str, str]
    stays: bool = False

    def check(self, name: str) -> None:
        check_not_negative(self, name)


class CommandEnded(NamedTuple):
    """The command has ended.

    Attributes:
        status: its exit status.
        took_ms: time that it took.
        variables: names of variables that it read and that are not in its key.
        files: paths of files that it read and that are not in its key.
    """

    status: int
    took_ms: int
    variables: Tuple[str, ...] = ()
    files: Tuple[str, ...] = ()

    def check(self, name: str) -> None:
        check_not_negative(self, name)


FromServer = Union[
    Hello, Refused, Notice, KeepWaiting, RestoreProgress, Restored, RunCommand, CaptureDone
]
FromClient = Union[Locks, Request, CommandEnded]

FROM_SERVER: Messages[FromServer] = Messages(
    "message of the server",
    {
        "hello": Hello,
        None: Refused,
        "say": Notice,
        "wait": KeepWaiting,
        "progress": RestoreProgress,
        "restored": Restored,
        "run": RunCommand,
        "seen": CaptureDone,
    },
)
FROM_CLIENT: Messages[FromClient] = Messages(
    "message of `env run`", {"locks": Locks, "env": Request, "ran": CommandEnded}
)


def _read_key(document: object) -> Tuple[KeyPart, ...]:
    return env_key.from_document(document, "key of a message")


add_form(Tuple[KeyPart, ...], env_key.to_document, _read_key)
