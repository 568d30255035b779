"""Names of objects and folders: what every store accepts, checked in one place."""

from __future__ import annotations

import os
import re
import secrets
import socket

from bootseer.errors import ConfigError

TEMPORARY_PREFIX = ".bootseer-tmp-"
"""Begins the last component of an object that is not complete yet: no caller can name one."""

MAX_COMPONENT_BYTES = 255
MAX_NAME_BYTES = 1024
MAX_COMPONENTS = (MAX_NAME_BYTES + 1) // 2

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_name(name: str) -> tuple[str, ...]:
    """Return the components of an object's or a folder's name: ``"a/b"`` is ``("a", "b")``.

    A name is relative, its components are separated by one ``/``, and it means the same in every
    store. What could leave the store's root (``..``, a leading ``/``), mean two things (``a//b``,
    ``.``), damage a terminal (control characters) or be cut short by a file system is refused.

    Raises:
        ConfigError: the name is not acceptable. Names come from options, configuration and warm
            plans, and no attempt later or elsewhere makes a bad one good: hence this error, and
            not NotFound, which would have the caller record and publish again.
    """
    if problem := problem_of(name):
        raise ConfigError(problem)
    return tuple(name.split("/"))


def check_folder(name: str) -> tuple[str, ...]:
    """Return the components of a folder's name, where ``""`` is the store's root.

    Raises:
        ConfigError: the name is not acceptable.
    """
    return check_name(name) if name else ()


def check_rename(source: str, target: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the components of both names of a rename.

    Raises:
        ConfigError: a name is not acceptable, or the target lies inside the source.
    """
    if target.startswith(f"{source}/"):
        raise ConfigError(f"{source!r} cannot be moved into itself, to {target!r}")
    return check_name(source), check_name(target)


def temporary_name() -> str:
    """Return a name for an object that is not complete yet.

    The random part makes it unique; host and process are for a person who finds one left behind.
    """
    host = socket.gethostname().split(".")[0][:64]
    return f"{TEMPORARY_PREFIX}{host}-{os.getpid()}-{secrets.token_hex(8)}"


def is_component(text: str) -> bool:
    """Tell whether a name found in a folder is one that callers can use."""
    return "/" not in text and not _problem(text)


def problem_of(name: str) -> str:
    """Say why a name is not acceptable, as `check_name` does; "" where it is."""
    problem = _problem(name)
    return f"{name[:80]!r} cannot name an object: {problem}" if problem else ""


def _problem(name: str) -> str:
    """Say what is wrong with a name; nothing when it is good."""
    try:
        sizes = [len(component.encode()) for component in name.split("/")]
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if 0 in sizes:
        return "it is empty, or begins or ends with '/', or has '//' in it"
    if max(sizes) > MAX_COMPONENT_BYTES or sum(sizes) + len(sizes) - 1 > MAX_NAME_BYTES:
        return f"at most {MAX_NAME_BYTES} bytes, {MAX_COMPONENT_BYTES} between two '/', are allowed"
    if _CONTROL.search(name):
        return "it contains a control character"
    if any(component in (".", "..") for component in name.split("/")):
        return "'.' and '..' are not allowed in it"
    if any(component.startswith(TEMPORARY_PREFIX) for component in name.split("/")):
        return f"names beginning with {TEMPORARY_PREFIX!r} are kept for objects being written"
    return ""
