"""From a URL to pyarrow's file system, with deadlines that fit a job's start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from bootseer.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
"""What pyarrow knows besides directories and HDFS."""

CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 10.0
"""On Linux, the AWS SDK goes by its own 3 s without a byte instead."""

ATTEMPTS = 3
"""Of each request, by the AWS SDK: one part of a large upload must not be the end of all of it. A
thread is then back from a server that hangs after 32 s; left to itself, the SDK took 99 s."""

_S3_TEXTS = ("region", "scheme", "endpoint_override", "tls_ca_file_path")
_S3_SWITCHES = ("allow_bucket_creation", "force_virtual_addressing")
_SECRETS = ("secret", "token", "password", "key", "sig", "credential")


def shown(url: str) -> str:
    """Return a URL without what is nobody's business, for messages.

    What stands before ``@`` goes, but for the container that Azure's URLs have there.
    """
    parsed = urlsplit(url)
    before, at, host = parsed.netloc.rpartition("@")
    kept = before.partition(":")[0] if parsed.scheme.startswith("abfs") else ""
    query = [
        (name, value)
        for name, value in parse_qsl(parsed.query)
        if not any(secret in name.lower() for secret in _SECRETS)
    ]
    netloc = f"{kept}{at}{host}" if kept else host
    return parsed._replace(netloc=netloc, query=urlencode(query, safe=":/")).geturl()


def connect(url: str) -> tuple[FileSystem, str]:
    """Return the file system of a URL and the path in it; may ask servers, for a bucket's region.

    Raises:
        ConfigError: pyarrow does not understand the URL. The text has nothing of what it says,
            which might be the password.
    """
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    parsed = urlsplit(url)
    try:
        if parsed.scheme == "s3":
            return _s3(parsed)
        if parsed.scheme in ("gs", "gcs") and "retry_limit_seconds" not in parsed.query:
            # By default it would be a quarter of an hour.
            limit = f"retry_limit_seconds={REQUEST_TIMEOUT_S:g}"
            url = f"{url}{'&' if parsed.query else '?'}{limit}"
        filesystem, path = FileSystem.from_uri(url)
    except (ArrowException, ValueError) as error:
        raise ConfigError(
            f"store {shown(url).partition('?')[0]!r}: pyarrow does not understand the URL; see the "
            "documentation of its file systems for the options that it may have after '?'"
        ) from error
    return filesystem, path


def _s3(parsed: SplitResult) -> tuple[FileSystem, str]:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    options: dict[str, Any] = {}
    for name, value in parse_qsl(parsed.query, keep_blank_values=True):
        if name in _S3_SWITCHES and value in ("true", "false"):
            options[name] = value == "true"
        elif name in _S3_TEXTS and value:
            options[name] = value
        else:
            raise ValueError(f"the option {name!r}")
    credentials, _, bucket = parsed.netloc.rpartition("@")
    access, _, secret = credentials.partition(":")
    if access:
        options |= {"access_key": unquote(access), "secret_key": unquote(secret)}
    if "region" not in options and "endpoint_override" not in options:
        options["region"] = resolve_s3_region(bucket)
    filesystem = S3FileSystem(
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        **options,
    )
    return filesystem, bucket + unquote(parsed.path)
