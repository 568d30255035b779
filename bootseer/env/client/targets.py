"""The folders that a command installs to: make, check and open them."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import Iterator, NamedTuple, Sequence

from bootseer.env.client.temporary import remove_leftovers
from bootseer.errors import ConfigError


class OpenTargets(NamedTuple):
    """Targets with their descriptors.

    Attributes:
        names: of the targets in the folders above them.
        fds: two for each target: of the folder above it, and of itself.
    """

    names: tuple[str, ...]
    fds: tuple[int, ...]


def make_targets(targets: Sequence[str]) -> list[str]:
    """Make targets that are not there, for a mount needs a place; returns absolute paths.

    Raises:
        ConfigError: one cannot be a folder, or is in another, or the same by another name.
    """
    paths = [_make_target(target) for target in targets]
    _check_apart(paths)
    return paths


@contextmanager
def open_targets(targets: Sequence[str]) -> Iterator[OpenTargets]:
    """Have targets open for the length of a block.

    Raises:
        OSError: one cannot be opened.
    """
    with ExitStack() as opened:
        names, fds = [], []
        for target in targets:
            folder, name = os.path.split(os.path.realpath(target))
            names.append(name)
            # The folder above need not be readable.
            for path, flags in ((folder, os.O_PATH), (os.path.join(folder, name), os.O_RDONLY)):
                fds.append(os.open(path, flags | os.O_DIRECTORY | os.O_CLOEXEC))
                opened.callback(os.close, fds[-1])
        yield OpenTargets(tuple(names), tuple(fds))


def clean_targets(targets: Sequence[str]) -> None:
    """Remove temporary folders that killed processes have left in targets and beside them."""
    for target in targets:
        remove_leftovers(os.path.realpath(target))


def has_working_folder(targets: Sequence[str]) -> bool:
    """Whether the working folder, probably that of the calling shell, is a target."""
    here = os.stat(".")
    return any(os.path.samestat(here, os.stat(target)) for target in targets)


def _make_target(target: str) -> str:
    try:
        path = os.path.abspath(target)
        if path.strip("/") == "":
            raise ConfigError("--target / is not allowed: choose a folder below it")
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--target {target}: it cannot be made: {error.strerror}") from error
    return path


def _check_apart(targets: Sequence[str]) -> None:
    """Refuse targets of which one is in another, or the same by another name.

    Raises:
        ConfigError: they are.
    """
    folders: dict[tuple[int, int], str] = {}
    for target in targets:
        other = folders.setdefault(_identity(target), target)
        if other is not target:
            raise ConfigError(f"--target {target} is the same folder as {other}; name it once")
    for target in targets:
        above = os.path.dirname(os.path.realpath(target))
        while above != "/":
            other = folders.get(_identity(above), "")
            if other:
                raise ConfigError(f"--target {target} is in {other}; leave it out, or move it")
            above = os.path.dirname(above)


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
