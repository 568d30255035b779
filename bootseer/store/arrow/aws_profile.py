"""Credentials for S3 from the user's own files, without the AWS SDK's provider chain.

The SDK would run a profile's `credential_process` in this process, and ask the metadata servers of
clouds. Only what stands in the files themselves is used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from bootseer.errors import ConfigError, Denied

MAX_BYTES = 256 * 1024
"""Of one file; those with a few hundred profiles are smaller."""

_VARIABLES = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}
_UNSUPPORTED = ("credential_process", "role_arn", "web_identity_token_file", "credential_source")


@dataclass(frozen=True, slots=True)
class AwsOptions:
    """Whose credentials to use.

    Attributes:
        home: the user's home, with ``.aws/credentials`` and ``.aws/config``.
        uid: who must own these files.
        profile: which profile; "" for that of ``AWS_PROFILE``, else ``default``.
    """

    home: str
    uid: int
    profile: str = ""


@dataclass(frozen=True, slots=True)
class AwsAccount:
    """What a profile says; empty where it says nothing."""

    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    region: str = ""
    endpoint_url: str = ""


def own_options() -> AwsOptions:
    """Return the options of who runs this process."""
    return AwsOptions(os.path.expanduser("~"), os.geteuid())


def read_account(options: AwsOptions, environ: Mapping[str, str]) -> AwsAccount:
    """Find the user's credentials: in the environment, then in the two files.

    Args:
        options: whose.
        environ: of this process; a worker's has none of these variables.

    Returns:
        What is known; without keys if there are none.

    Raises:
        ConfigError: the profile is missing or damaged, or gets its credentials in a way that is
            not supported. No value is part of the text.
        Denied: a file is not the user's, or others can write it.
    """
    profile = options.profile or environ.get("AWS_PROFILE", "")
    name = profile or "default"
    config_path = environ.get("AWS_CONFIG_FILE") or f"{options.home}/.aws/config"
    keys_path = environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{options.home}/.aws/credentials"
    section = name if name == "default" else f"profile {name}"
    in_config = _read_section(config_path, section, options.uid)
    in_keys = _read_section(keys_path, name, options.uid)
    if profile and in_config is None and in_keys is None:
        raise ConfigError(f"there is no profile {name!a} in {keys_path} or {config_path}")
    found = {**(in_config or {}), **(in_keys or {})}
    given = {key: environ.get(variable, "") for key, variable in _VARIABLES.items()}
    if given["aws_access_key_id"] and given["aws_secret_access_key"] and not options.profile:
        found |= given
    account = AwsAccount(
        found.get("aws_access_key_id", ""),
        found.get("aws_secret_access_key", ""),
        found.get("aws_session_token", ""),
        environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or found.get("region", ""),
        environ.get("AWS_ENDPOINT_URL_S3")
        or environ.get("AWS_ENDPOINT_URL")
        or found.get("endpoint_url", ""),
    )
    if bool(account.access_key) != bool(account.secret_key):
        raise ConfigError(
            f"profile {name!a} in {keys_path} has one of aws_access_key_id and "
            "aws_secret_access_key without the other: write both"
        )
    unsupported = [key for key in found if key in _UNSUPPORTED or key.startswith("sso_")]
    if unsupported and not account.access_key:
        raise ConfigError(
            f"profile {name!a} gets its credentials by {unsupported[0]}, which is not supported in "
            "a job: before you submit, write temporary ones (aws_access_key_id, "
            f"aws_secret_access_key, aws_session_token) into {keys_path}, as "
            "`aws configure export-credentials` prints them"
        )
    return account


def _read_section(path: str, section: str, uid: int) -> dict[str, str] | None:
    """Read a section of a file; None if there is no such file or section."""
    text = _read(path, uid)
    if text is None:
        return None
    # No section is the default of others, and '%' in a secret means nothing.
    from configparser import ConfigParser, Error  # most have no store in S3

    parser = ConfigParser(interpolation=None, default_section="", strict=False)
    try:
        parser.read_string(text)
    except Error:
        # What the parser says has lines of the file in it.
        raise ConfigError(f"{path} is not a configuration file of AWS's form; correct it") from None
    if not parser.has_section(section):
        return None
    return {key: value.strip() for key, value in parser.items(section)}


def _read(path: str, uid: int) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise Denied(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Denied(f"{path} is not a regular file: not used for credentials")
        if status.st_uid != uid:
            raise Denied(
                f"{path} belongs to uid {status.st_uid}: credentials are read from files of uid "
                f"{uid} alone; put them into a file of your own"
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Denied(f"others can write {path}; check its content and run `chmod 600 {path}`")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes: not used for credentials")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text; correct it") from error
