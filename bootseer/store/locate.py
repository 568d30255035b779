"""From a URL to the store it names."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bootseer.errors import ConfigError
from bootseer.store.base import Store
from bootseer.store.local import LocalStore

SCHEMES = ("file",)
"""What this version has."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def open_store(url: str, *, owner_uid: int | None = None) -> Store:
    """Return the store that a URL names, without touching it.

    Args:
        url: ``file:///abs/path``, with ``%20`` and the like for what URLs don't allow, or a plain
            ``/abs/path``.
        owner_uid: the only user who may own and write the store's directory; see `LocalStore`.

    Raises:
        ConfigError: there is no such scheme, or the path is relative or contains ``..``.
    """
    path = url if url.startswith("/") else _path_of(url)
    if not path.startswith("/"):
        raise ConfigError(f"store {url!r}: give an absolute path, such as file:///shared/bootseer")
    if ".." in path.split("/"):
        raise ConfigError(f"store {url!r}: '..' is not allowed in the path")
    if _CONTROL.search(path):
        raise ConfigError(f"store {url!r}: the path contains a control character")
    return LocalStore(Path("/", *path.split("/")), owner_uid)


def _path_of(url: str) -> str:
    """Return the path of a ``file:`` URL, or a relative path as it is."""
    try:
        parsed = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"store {url!r} is not a URL: {error}") from error
    if not parsed.scheme:
        return url
    if parsed.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(f"store {url!r}: this version has {known} and plain absolute paths")
    if parsed.netloc or parsed.query or parsed.fragment:
        raise ConfigError(
            f"store {url!r}: file URLs are file:///abs/path, with three slashes and no '?' or '#'"
        )
    return unquote(parsed.path)
