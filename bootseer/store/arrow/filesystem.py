"""From a URL to pyarrow's file system, with deadlines that fit a job's start."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from bootseer.errors import ConfigError
from bootseer.store.arrow.aws_profile import AwsAccount, AwsOptions, own_options, read_account

if TYPE_CHECKING:
    from pyarrow import NativeFile
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
_S3_SWITCHES = ("allow_bucket_creation", "force_virtual_addressing", "anonymous")
_ANY_REGION = "us-east-1"
"""What servers other than Amazon's are told, which mostly don't care."""
_SDK_OFF = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
_CLOSED = threading.Lock()
"""Guards the environment while `_SDK_OFF` is in it."""
_SECRETS = ("secret", "token", "password", "key", "sig", "credential")


def redacted(url: str) -> str:
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


def version(file: NativeFile) -> str:
    """Return what tells what was opened from what had its name before, and will have it."""
    tags = sorted((file.metadata() or {}).items())
    return hashlib.sha256(repr(tags).encode()).hexdigest()


def _place(url: str) -> str:
    """Return a URL without its options, of which any might be a secret that is misspelt."""
    return redacted(url).partition("?")[0]


def connect(url: str, aws: AwsOptions | None = None) -> tuple[FileSystem, str]:
    """Return the file system of a URL and the path in it; may ask servers, for a bucket's region.

    Nothing but the URL and the user's files decides who this is: no program is run for credentials
    and no metadata server is asked.

    Args:
        url: of a store.
        aws: whose credentials to use for S3; those of this process' user if None.

    Raises:
        ConfigError: pyarrow does not understand the URL, or it has no credentials that can be used.
            The text has nothing of what it says, which might be the password.
        Denied: others could have written the user's credentials.
    """
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    parsed = urlsplit(url)
    try:
        if parsed.scheme == "s3":
            return _s3(parsed, aws or own_options())
        if parsed.scheme in ("gs", "gcs"):
            url = _gcs(url, parsed)
        else:
            _check_azure(url, parsed)
        filesystem, path = FileSystem.from_uri(url)
    except (ArrowException, ValueError) as error:
        raise ConfigError(
            f"store {_place(url)!r}: pyarrow does not understand the URL; see the "
            "documentation of its file systems for the options that it may have after '?'"
        ) from error
    return filesystem, path


def _gcs(url: str, parsed: SplitResult) -> str:
    """Return the URL with a deadline.

    Raises:
        ConfigError: Google's library would look for credentials in files that can name others to
            ask, and at the metadata server.
    """
    if parsed.username != "anonymous" or parsed.password:
        raise ConfigError(
            f"store {_place(url)!r}: Google's credentials are not supported in a job. For a public "
            "bucket give gs://anonymous@BUCKET/path; otherwise make an HMAC key and use "
            "s3://BUCKET/path?endpoint_override=storage.googleapis.com"
        )
    if "retry_limit_seconds" in parsed.query:
        return url
    # By default it would be a quarter of an hour.
    limit = f"retry_limit_seconds={REQUEST_TIMEOUT_S:g}"
    return f"{url}{'&' if parsed.query else '?'}{limit}"


def _check_azure(url: str, parsed: SplitResult) -> None:
    """Refuse a URL whose credentials Azure's library would look for: it runs `az`, for one.

    Raises:
        ConfigError: the URL has none.
    """
    options = dict(parse_qsl(parsed.query, keep_blank_values=True))
    kind = options.get("credential_kind")
    is_whole = (
        bool(parsed.password)
        or bool(options.get("sig"))
        or all(options.get(name) for name in ("tenant_id", "client_id", "client_secret"))
    )
    if kind == "anonymous" or (is_whole and kind is None):
        return
    raise ConfigError(
        f"store {_place(url)!r}: Azure's default credentials are not supported in a job. Give an "
        "account key (abfs://CONTAINER:KEY@ACCOUNT…), a SAS token, tenant_id, client_id and "
        "client_secret, or credential_kind=anonymous in the URL"
    )


def _s3(parsed: SplitResult, aws: AwsOptions) -> tuple[FileSystem, str]:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    options: dict[str, str | bool] = {}
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
    elif not options.get("anonymous"):
        _add_account(options, read_account(aws, os.environ), _place(parsed.geturl()), aws)
    with _CLOSED, _without_sdk_files():
        if "region" not in options:
            is_aws = "endpoint_override" not in options
            options["region"] = resolve_s3_region(bucket) if is_aws else _ANY_REGION
        filesystem = S3FileSystem(
            connect_timeout=CONNECT_TIMEOUT_S,
            request_timeout=REQUEST_TIMEOUT_S,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            **options,
        )
    return filesystem, bucket + unquote(parsed.path)


def _add_account(
    options: dict[str, str | bool], account: AwsAccount, url: str, aws: AwsOptions
) -> None:
    """Add the user's account to what the URL says.

    Raises:
        ConfigError: there are no keys.
    """
    if not account.access_key:
        raise ConfigError(
            f"store {url!r}: there are no credentials: write aws_access_key_id and "
            f"aws_secret_access_key into {aws.home}/.aws/credentials, or add anonymous=true after "
            "the '?' of the URL for a public bucket"
        )
    options |= {"access_key": account.access_key, "secret_key": account.secret_key}
    if account.session_token:
        options["session_token"] = account.session_token
    if account.region:
        options.setdefault("region", account.region)
    if account.endpoint_url and "endpoint_override" not in options:
        scheme, _, host = account.endpoint_url.rstrip("/").partition("://")
        if scheme not in ("http", "https") or not host:
            raise ConfigError(f"store {url!r}: endpoint_url of its profile is not http(s)://HOST")
        options |= {"endpoint_override": host, "scheme": options.get("scheme", scheme)}


@contextmanager
def _without_sdk_files() -> Iterator[None]:
    """Keep the SDK from files and metadata servers while it starts and a client is made.

    It looks for a region there even where all credentials are given. What the environment says is
    put back for programs that this process may start.
    """
    before = {name: os.environ.get(name) for name in _SDK_OFF}
    os.environ.update(_SDK_OFF)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
