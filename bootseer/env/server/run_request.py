"""What `env run` asks for: the client's request, checked, with its descriptors."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bootseer.env.client import key as env_key
from bootseer.env.client.messages import VARIABLES, Request
from bootseer.env.client.options import MAX_WAIT_S, MODES
from bootseer.env.restore.atomic import RestoreTarget
from bootseer.env.snapshot.manifest import MAX_TARGETS
from bootseer.errors import Corrupt

_NAME = "message 'env'"
_MAX_CHARS = 4096
_LINE = re.compile("[^\\0\\n\\r]*")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a client asks for, with the descriptors of its targets.

    Attributes:
        message: what it asks for.
        places: where the targets are.
        folders: descriptors of the targets.
    """

    message: Request
    places: tuple[RestoreTarget, ...]
    folders: tuple[int, ...]

    @property
    def key(self) -> str:
        return env_key.key_of(self.message.key)


def read_request(message: Request, fds: Sequence[int]) -> RunRequest:
    """Check what a client asks for, and the descriptors that came with it.

    Raises:
        Corrupt: it is not what `bootseer.env.client.run` asks for.
    """
    names, environ = message.names, message.environ
    message = message._replace(environ={n: environ[n] for n in VARIABLES if n in environ})
    check_lines(f"{_NAME}: field 'targets'", message.targets, MAX_TARGETS)
    check_lines(f"{_NAME}: field 'names'", names, MAX_TARGETS, 255)
    check_lines(f"{_NAME}: field 'environ'", message.environ.values(), len(VARIABLES))
    if not message.targets or not len(fds) / 2 == len(names) == len(message.targets):
        raise Corrupt(f"{_NAME}: its targets do not come with their descriptors")
    if message.mode not in MODES or message.wait_s > MAX_WAIT_S:
        raise Corrupt(f"{_NAME}: its mode, or its longest wait, is not acceptable")
    if any(name in ("", ".", "..") or "/" in name for name in names):
        raise Corrupt(f"{_NAME}: the name of a target is not acceptable")
    if any(not stat.S_ISDIR(os.fstat(fd).st_mode) for fd in fds):
        raise Corrupt(f"{_NAME}: a target is no folder")
    return RunRequest(
        message,
        places=tuple(
            RestoreTarget(fd, name, message.stays) for fd, name in zip(fds[::2], names, strict=True)
        ),
        folders=tuple(fds[1::2]),
    )


def check_lines(
    title: str, lines: Collection[str], most: int, most_chars: int = _MAX_CHARS
) -> None:
    """Check a field that is a list of lines.

    Args:
        title: of the field, for messages.
        lines: its value.
        most: lines that it may have.
        most_chars: that a line may have.

    Raises:
        Corrupt: there are more, or one is longer or has a NUL or a line break in it.
    """
    if len(lines) > most:
        raise Corrupt(f"{title} has more than {most} entries")
    if any(len(line) > most_chars or not _LINE.fullmatch(line) for line in lines):
        raise Corrupt(f"{title} is not acceptable")
