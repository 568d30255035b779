"""From a URL to the store it names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from bootseer.errors import ConfigError
from bootseer.store.api.base import Store
from bootseer.store.arrow import filesystem
from bootseer.store.arrow.aws_profile import AwsOptions
from bootseer.store.hdfs.options import HdfsOptions, find_conf_dir
from bootseer.store.local.owner_rules import PrivateOwner, TrustedOwners
from bootseer.store.local.store import LocalStore

if TYPE_CHECKING:
    from bootseer.store.hdfs.store import HdfsStore

SCHEMES = ("file", "hdfs", *filesystem.SCHEMES)
"""What this version has."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def open_store(
    url: str,
    *,
    owner_uid: int | None = None,
    owner_name: str = "",
    trusted: TrustedOwners | None = None,
    hdfs: HdfsOptions | None = None,
    aws: AwsOptions | None = None,
) -> Store:
    """Return the store that a URL names, without touching it.

    Args:
        url: ``file:///abs/path``, with ``%20`` and the like for what URLs don't allow, or a plain
            ``/abs/path``; ``hdfs://HOST:PORT/path``, or ``hdfs://NAMESERVICE/path`` of Hadoop's
            configuration; for ``s3://`` and pyarrow's other file systems, see `ArrowStore`.
        owner_uid: the only user who may own and write the store's directory; see `LocalStore`. In
            HDFS what is made is then private; in an object store its rules decide.
        owner_name: of that user, who alone may own and write what is in HDFS; "" for anybody.
        trusted: who may own and write a store that many users run things from, in a directory or in
            HDFS. An object store does not tell.
        hdfs: how to reach an HDFS; as `find_conf_dir("")` says if None.
        aws: whose credentials to use for S3; those of this process' user if None.

    Raises:
        ConfigError: there is no such scheme, or the path is relative or contains ``..``.
    """
    if url.startswith("/"):
        return LocalStore(_root(url, url), owner_uid, trusted=trusted)
    try:
        parsed = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"store {url!r} is not a URL: {error}") from error
    if parsed.scheme and parsed.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(f"store {url!r}: this version has {known} and plain absolute paths")
    if parsed.scheme in filesystem.SCHEMES:
        return _open_arrow(url, parsed, aws)
    if parsed.scheme == "hdfs":
        from bootseer.store.hdfs.trusted import PrivateStore, TrustedStore  # 25 ms, as of HdfsStore

        options = hdfs or HdfsOptions(find_conf_dir(""))
        store = _open_hdfs(url, parsed, options, owner_uid is not None)
        if trusted is not None:
            return TrustedStore(store, trusted)
        if owner_name:
            names = (owner_name, re.split("[/@]", options.kerberos_principal)[0])
            return PrivateStore(store, PrivateOwner(tuple(filter(None, names))))
        return store
    if parsed.netloc or parsed.query or parsed.fragment:
        raise ConfigError(
            f"store {url!r}: file URLs are file:///abs/path, with three slashes and no '?' or '#'"
        )
    root = _root(url, unquote(parsed.path) if parsed.scheme else url)
    return LocalStore(root, owner_uid, trusted=trusted)


def needs_network(url: str) -> bool:
    """Whether the store that a URL names is reached over the network by this process itself."""
    return not url.startswith(("/", "file:"))


def divide(url: str) -> tuple[str, str]:
    """Return the URL of the largest store that has what a URL names, and its name there.

    So all that may belong to it is within reach, and a file has one name however it is come by. Of
    a local path, links on the way are followed, and the store begins where the folders above can
    be read; a link at the end is followed if ``/`` comes after it.

    Raises:
        ConfigError: as for `open_store`.
    """
    open_store(url)
    parsed = urlsplit("" if url.startswith("/") else url)
    if parsed.scheme and parsed.scheme != "file":
        return parsed._replace(path="/").geturl(), unquote(parsed.path).strip("/")
    given = unquote(parsed.path) if parsed.scheme else url
    folder, last = os.path.split(given)
    path = os.path.normpath(os.path.join(os.path.realpath(folder), last))
    root = os.path.dirname(path)
    while root != "/" and (
        not os.path.exists(root) or os.access(os.path.dirname(root), os.R_OK | os.X_OK)
    ):
        root = os.path.dirname(root)
    return Path(root).as_uri(), os.path.relpath(path, root) if path != "/" else ""


def _open_hdfs(
    url: str,
    parsed: SplitResult,
    options: HdfsOptions,
    private: bool,
) -> HdfsStore:
    from bootseer.store.hdfs.store import HdfsStore  # 25 ms that other stores do without

    if not parsed.netloc or "@" in parsed.netloc or parsed.query or parsed.fragment:
        raise ConfigError(
            f"store {url!r}: HDFS URLs are hdfs://HOST:PORT/path or hdfs://NAMESERVICE/path, with "
            "no '?' or '#'"
        )
    root = _root(url, unquote(parsed.path) or "/")
    return HdfsStore(parsed.netloc, root, options, private=private)


def _open_arrow(url: str, parsed: SplitResult, aws: AwsOptions | None) -> Store:
    from bootseer.store.arrow.object_store import ArrowStore

    if not parsed.netloc or parsed.fragment:
        raise ConfigError(
            f"store {filesystem.redacted(url)!r}: name a bucket, as s3://BUCKET/path, without '#'"
        )
    _root(filesystem.redacted(url), unquote(parsed.path) or "/")
    return ArrowStore(url, aws)


def _root(url: str, path: str) -> Path:
    if not path.startswith("/"):
        raise ConfigError(f"store {url!r}: give an absolute path, such as file:///shared/bootseer")
    if ".." in path.split("/"):
        raise ConfigError(f"store {url!r}: '..' is not allowed in the path")
    if _CONTROL.search(path):
        raise ConfigError(f"store {url!r}: the path contains a control character")
    return Path("/", *path.split("/"))
