"""What pyarrow's errors mean for an object in an object store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bootseer.errors import (
    BootseerError,
    ConfigError,
    Conflict,
    Denied,
    NotFound,
    Transient,
    Unavailable,
)

# What the AWS SDK calls an error, and what a server says that it has no name for.
_AWS = re.compile(r"AWS Error (\w+)")
_STATUS = re.compile(r"HTTP status (\d{3})")
_REQUEST_ID = re.compile(r"\s*\(?Request ID: [^)\s]*\)?")

_AWS_MEANINGS: dict[str, tuple[type[BootseerError], str]] = {
    "NO_SUCH_KEY": (NotFound, "there is no such object"),
    "RESOURCE_NOT_FOUND": (NotFound, "there is no such object"),
    "NO_SUCH_BUCKET": (Unavailable, "there is no such bucket"),
    "ACCESS_DENIED": (Denied, "access denied; check the credentials and the bucket's policy"),
    "INVALID_ACCESS_KEY_ID": (Denied, "the access key is not known"),
    "INVALID_CLIENT_TOKEN_ID": (Denied, "the access key is not known"),
    "SIGNATURE_DOES_NOT_MATCH": (Denied, "the secret key is not the access key's"),
    "INVALID_SIGNATURE": (Denied, "the secret key is not the access key's"),
    "EXPIRED_TOKEN": (Denied, "the credentials have expired"),
}
_STATUS_MEANINGS: dict[str, type[BootseerError]] = {
    "401": Denied,
    "403": Denied,
    "404": NotFound,
    "409": Conflict,
    "412": Conflict,
}
_TEXT_LENGTH = 300


def translate(error: BaseException, operation: str, name: str, url: str) -> BootseerError:
    """Return the error of ours that says what an error of pyarrow's means.

    What is not the server's verdict is a matter of connections and time, and Transient.

    Args:
        error: what was raised.
        operation, name: what it was about.
        url: of the store, without credentials.
    """
    text = str(error)
    meaning: type[BootseerError] = Transient
    reason = ""
    if isinstance(error, FileNotFoundError):
        meaning, reason = NotFound, "there is no such object"
    elif isinstance(error, (IsADirectoryError, NotADirectoryError, FileExistsError)):
        meaning = Conflict
    elif isinstance(error, PermissionError):
        meaning = Denied
    elif "KeyTooLong" in text:
        meaning, reason = ConfigError, "the name is too long"
    elif "EntityTooLarge" in text or "copy source is larger" in text:
        meaning, reason = Unavailable, "it is larger than the store copies in one piece"
    elif (found := _AWS.search(text)) and found[1] in _AWS_MEANINGS:
        meaning, reason = _AWS_MEANINGS[found[1]]
    elif found := _STATUS.search(text):
        meaning = _STATUS_MEANINGS.get(found[1], Transient)
    elif isinstance(error, (ValueError, NotImplementedError)):
        meaning = Unavailable
    if not reason:
        reason = " ".join(_REQUEST_ID.sub("", text).split())[:_TEXT_LENGTH] or type(error).__name__
    return meaning(f"cannot {operation} {name!r} in {url}: {reason}")


@contextmanager
def translated(operation: str, name: str, url: str) -> Iterator[None]:
    """Turn every error that pyarrow raises in the block into the error of ours."""
    try:
        yield
    except BootseerError:
        raise
    except Exception as error:
        raise translate(error, operation, name, url) from error
