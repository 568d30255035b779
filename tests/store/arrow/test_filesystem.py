"""From a URL to pyarrow's file system: what it says, and what a user's account adds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from bootseer.errors import ConfigError
from bootseer.store.arrow import filesystem
from bootseer.store.arrow.aws_profile import AwsOptions

KEYS = {"access_key": "AKID", "secret_key": "geheim"}


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")


@pytest.fixture
def account(tmp_path: Path) -> AwsOptions:
    (tmp_path / ".aws").mkdir()
    credentials = tmp_path / ".aws/credentials"
    credentials.write_text(
        "[default]\naws_access_key_id = AKID\naws_secret_access_key = geheim\n"
        "[other]\naws_access_key_id = AKID\naws_secret_access_key = geheim\n"
        "aws_session_token = token\nregion = of-profile\nendpoint_url = http://s3.site:9000/\n"
    )
    credentials.chmod(0o600)
    return AwsOptions(str(tmp_path), os.geteuid())


def other(account: AwsOptions) -> AwsOptions:
    return AwsOptions(account.home, account.uid, "other")


def s3(**options: Any) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        connect_timeout=filesystem.CONNECT_TIMEOUT_S,
        request_timeout=filesystem.REQUEST_TIMEOUT_S,
        **options,
    )


def connected(url: str, aws: AwsOptions | None = None) -> fs.FileSystem:
    return filesystem.connect(url, aws)[0]


def test_a_users_account_is_added_to_the_url(account: AwsOptions) -> None:
    found = connected("s3://bucket?region=r", account)
    assert found.equals(s3(**KEYS, region="r"))
    assert not found.equals(s3(**KEYS, region="s"))


def test_all_of_a_profile_is_taken(account: AwsOptions) -> None:
    found = connected("s3://bucket", other(account))
    expected = {
        "session_token": "token",
        "region": "of-profile",
        "endpoint_override": "s3.site:9000",
        "scheme": "http",
    }
    assert found.equals(s3(**KEYS, **expected))
    for name in expected:
        assert not found.equals(s3(**KEYS, **{**expected, name: "https"}))


def test_what_the_url_says_counts_before_the_profile(account: AwsOptions) -> None:
    url = "s3://bucket?region=r&endpoint_override=here:1"
    found = connected(url, other(account))
    expected = {"session_token": "token", "region": "r", "endpoint_override": "here:1"}
    assert found.equals(s3(**KEYS, **expected))
    found = connected("s3://bucket?scheme=https", other(account))
    expected |= {"region": "of-profile", "endpoint_override": "s3.site:9000", "scheme": "https"}
    assert found.equals(s3(**KEYS, **expected))
    found = connected("s3://E:F@bucket?region=r", other(account))
    assert found.equals(s3(access_key="E", secret_key="F", region="r"))


@pytest.mark.parametrize("url", ["ftp://s3.site", "s3.site", "http:s3.site", "http", "https://"])
def test_an_endpoint_of_a_profile_is_an_address(account: AwsOptions, url: str) -> None:
    path = Path(account.home, ".aws/config")
    path.write_text(f"[default]\nendpoint_url = {url}\n")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"s3://bucket/a': endpoint_url of its profile is not"):
        connected("s3://bucket/a?region=r", account)
    assert connected("s3://bucket/a?region=r&endpoint_override=here:1", account)


def test_without_credentials_none_are_used_if_the_url_says_so() -> None:
    found = connected("s3://bucket?region=r&anonymous=true")
    assert found.equals(s3(anonymous=True, region="r"))
    for options in ("", "&anonymous=false"):
        with pytest.raises(ConfigError, match="there are no credentials: write aws_access_key_id"):
            connected(f"s3://bucket?region=r{options}")


def test_switches_are_true_or_false() -> None:
    for value in (True, False):
        text = str(value).lower()
        found = connected(f"s3://bucket?region=r&anonymous=true&allow_bucket_creation={text}")
        assert found.equals(s3(anonymous=True, region="r", allow_bucket_creation=value))
        assert not found.equals(s3(anonymous=True, region="r", allow_bucket_creation=not value))


@pytest.mark.parametrize(
    "option", ["region=", "scheme=", "anonymous=", "anonymous=1", "nosuch=true"]
)
def test_an_option_without_a_value_of_its_kind_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="does not understand the URL"):
        connected(f"s3://A:S@bucket?region=r&{option}")


def test_a_region_is_asked_for_of_amazon_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resolve(bucket: str) -> str:
        asked.append(bucket)
        return "eu-north-1"

    monkeypatch.setattr(fs, "resolve_s3_region", resolve)
    assert connected("s3://A:S@bucket/a").region == "eu-north-1"
    assert asked == ["bucket"]
    assert connected("s3://A:S@bucket/a?endpoint_override=here:1").region == "us-east-1"
    assert connected("s3://A:S@bucket/a?region=r").region == "r"
    assert asked == ["bucket"]


@pytest.mark.parametrize(
    ("options", "limit_s"),
    [("", 10), ("?scheme=http", 10), ("?retry_limit_seconds=2", 2)],
)
def test_google_s_library_gives_up_in_time(
    monkeypatch: pytest.MonkeyPatch, options: str, limit_s: int
) -> None:
    """Unless the URL says when."""
    asked = []
    real = fs.FileSystem.from_uri

    class FileSystem:
        @staticmethod
        def from_uri(url: str) -> Any:
            asked.append(url)
            return real(url)

    monkeypatch.setattr(fs, "FileSystem", FileSystem)
    assert filesystem.connect(f"gs://anonymous@bucket/a{options}")[1] == "bucket/a"
    [url] = asked
    assert url.count("?") == 1
    assert url.endswith(f"retry_limit_seconds={limit_s}")
    assert url.startswith(f"gs://anonymous@bucket/a{options}")


class Tagged:
    """An open file of which its server says something."""

    def __init__(self, metadata: dict[bytes, bytes] | None) -> None:
        self.tags = metadata

    def metadata(self) -> dict[bytes, bytes] | None:
        return self.tags


def test_versions_are_told_apart_by_all_that_is_said_of_them() -> None:
    first, second = {b"ETag": b"1", b"Length": b"5"}, {b"Length": b"5", b"ETag": b"1"}
    assert filesystem.version(Tagged(first)) == filesystem.version(Tagged(second))
    assert filesystem.version(Tagged(first)) != filesystem.version(Tagged(first | {b"ETag": b"2"}))
    assert filesystem.version(Tagged(None)) == filesystem.version(Tagged({}))
