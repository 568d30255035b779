"""Credentials for S3: read from the user's own files, with no program run and no server asked."""

import os
import socket
import subprocess
import sys

import pytest

from bootseer.errors import ConfigError, Denied
from bootseer.store.arrow import filesystem
from bootseer.store.arrow.aws_profile import MAX_BYTES, AwsAccount, AwsOptions, read_account

KEYS = "aws_access_key_id = AKID\naws_secret_access_key = ge%heim\n"

OPEN = """
import sys, trio
from bootseer.errors import BootseerError
from bootseer.store.from_url import open_store

async def main():
    try:
        print(await open_store(sys.argv[1]).list())
    except BootseerError as error:
        print(type(error).__name__, error)

trio.run(main)
"""

OPEN_AS_PYARROW_DOES = """
import sys
from pyarrow import fs

filesystem, path = fs.FileSystem.from_uri(sys.argv[1])
try:
    filesystem.get_file_info(path)
except OSError as error:
    print(error)
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".aws").mkdir()
    return tmp_path


def write(home, *, credentials="", config=""):
    for name, text in (("credentials", credentials), ("config", config)):
        path = home / ".aws" / name
        if text:
            path.write_text(text)
            path.chmod(0o600)


def read(home, profile="", **environ):
    return read_account(AwsOptions(str(home), os.geteuid(), profile), environ)


def test_without_files_nothing_is_known(home):
    assert read(home) == AwsAccount()
    (home / ".aws").rmdir()
    assert read(home) == AwsAccount()


def test_both_files_are_read_and_credentials_counts_first(home):
    write(
        home,
        credentials=f"[default]\n{KEYS}\n[other]\naws_access_key_id=O\naws_secret_access_key=S\n",
        config="[default]\nregion = eu-west-1\naws_access_key_id = old\ns3 =\n  signature = 4\n"
        "endpoint_url = https://s3.site\n[profile other]\naws_session_token = T\n[other]\nregion=x",
    )
    assert read(home) == AwsAccount("AKID", "ge%heim", "", "eu-west-1", "https://s3.site")
    assert read(home, "other") == AwsAccount("O", "S", "T")
    assert read(home, AWS_PROFILE="other") == AwsAccount("O", "S", "T")
    assert read(home, "default", AWS_PROFILE="other").access_key == "AKID"


def test_the_environment_of_a_command_counts_before_the_files(home):
    write(home, credentials=f"[default]\n{KEYS}aws_session_token = T\n")
    given = {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "F", "AWS_REGION": "r"}
    assert read(home, **given) == AwsAccount("E", "F", "", "r")
    elsewhere = home / "elsewhere"
    elsewhere.write_text("[default]\naws_access_key_id=A\naws_secret_access_key=B\n")
    elsewhere.chmod(0o600)
    assert read(home, AWS_SHARED_CREDENTIALS_FILE=str(elsewhere)) == AwsAccount("A", "B")
    assert read(home, AWS_CONFIG_FILE=str(elsewhere)) == AwsAccount("AKID", "ge%heim", "T")


@pytest.mark.parametrize("given", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_of_a_key_in_the_environment_is_none(home, given):
    write(home, credentials=f"[default]\n{KEYS}")
    assert read(home, **{given: "E"}) == AwsAccount("AKID", "ge%heim")


def test_a_profile_of_the_options_counts_before_keys_of_the_environment(home):
    write(home, credentials=f"[train]\n{KEYS}")
    given = {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "F"}
    assert read(home, "train", **given) == AwsAccount("AKID", "ge%heim")
    assert read(home, AWS_PROFILE="train", **given) == AwsAccount("E", "F")


def test_region_and_endpoint_of_the_environment_count_before_the_files(home):
    write(home, config="[default]\nregion = file\nendpoint_url = http://file\n")
    endpoint = {"AWS_ENDPOINT_URL": "http://any"}
    default = {"AWS_DEFAULT_REGION": "default"}
    for given, region, url in (
        ({}, "file", "http://file"),
        (default, "default", "http://file"),
        ({**default, "AWS_REGION": "r"}, "r", "http://file"),
        (endpoint, "file", "http://any"),
        ({**endpoint, "AWS_ENDPOINT_URL_S3": "http://s3"}, "file", "http://s3"),
    ):
        assert read(home, **given) == AwsAccount(region=region, endpoint_url=url)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("credential_process = /bin/geheim", "by credential_process, which is not supported"),
        ("role_arn = geheim\nsource_profile = x", "by role_arn, which is not supported in a job"),
        ("sso_session = geheim", "write temporary ones .*into .*/.aws/credentials"),
        ("sso_start_url = geheim", "export-credentials"),
        ("web_identity_token_file = geheim", "web_identity_token_file"),
        ("credential_source = geheim\nsso_session = x", "by credential_source"),
        ("aws_access_key_id = geheim", "write both"),
        ("aws_secret_access_key = geheim", "write both"),
        ("geheim", "not a configuration file"),
    ],
)
def test_ways_that_are_not_supported_are_refused_with_what_to_do(home, text, says):
    write(home, config=f"[default]\n{text}\n")
    with pytest.raises(ConfigError, match=says) as raised:
        read(home)
    assert "geheim" not in str(raised.value)


def test_keys_count_where_there_is_another_way_too(home):
    write(home, credentials=f"[default]\n{KEYS}", config="[default]\ncredential_process = /x\n")
    assert read(home).access_key == "AKID"


def test_a_profile_that_is_named_must_be_there(home):
    write(home, credentials=f"[default]\n{KEYS}")
    with pytest.raises(ConfigError, match="no profile 'train'"):
        read(home, "train")


@pytest.mark.parametrize(
    ("name", "section"), [("credentials", "train"), ("config", "profile train")]
)
def test_a_profile_that_is_in_one_of_the_files_is_there(home, name, section):
    write(home, **{name: f"[{section}]\n{KEYS}"})
    assert read(home, "train") == AwsAccount("AKID", "ge%heim")


def test_what_is_said_twice_counts_as_it_is_said_last(home):
    write(home, credentials=f"[default]\naws_access_key_id = old\n{KEYS}[default]\nregion = r\n")
    assert read(home) == AwsAccount("AKID", "ge%heim", "", "r")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(home, mode):
    write(home, credentials=f"[default]\n{KEYS}")
    (home / ".aws/credentials").chmod(mode)
    with pytest.raises(Denied, match=r"others can write .*chmod 600"):
        read(home)


@pytest.mark.root
@pytest.mark.parametrize("name", ["credentials", "config"])
def test_a_file_of_another_user_is_refused(home, name):
    write(home, **{name: f"[default]\n{KEYS}"})
    os.chown(home / ".aws" / name, 4242, 4242)
    with pytest.raises(Denied, match="belongs to uid 4242"):
        read(home)


def test_what_is_no_small_text_file_is_refused(home):
    path = home / ".aws/credentials"
    write(home, credentials=f"[default]\n{KEYS}".ljust(MAX_BYTES, "#"))
    assert read(home).access_key == "AKID"
    write(home, credentials="#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read(home)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read(home)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(Denied, match="regular file"):
        read(home)


def test_what_may_not_be_read_is_denied(home, monkeypatch):
    def refuse(path, flags):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Denied, match=r"cannot read .*/\.aws/config: Permission denied"):
        read(home)


def test_a_file_in_the_place_of_the_folder_has_no_profiles(home):
    (home / ".aws").rmdir()
    (home / ".aws").write_text("")
    assert read(home) == AwsAccount()


class Machine:
    """A home whose profile would run a program, and a metadata server that notices connections."""

    def __init__(self, home):
        self.home = home
        self.touched = home / "touched"
        self.metadata = socket.create_server(("127.0.0.1", 0))
        self.metadata.setblocking(False)
        program = home / "credentials.sh"
        program.write_text(f"#!/bin/sh\ntouch {self.touched}\nexit 1\n")
        program.chmod(0o755)
        self.process = f"credential_process = {program}\n"

    def run(self, script, url):
        environ = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_METADATA_SERVICE_TIMEOUT": "1",
        }
        argv = [sys.executable, "-P", "-c", script, url]
        answer = subprocess.run(
            argv, env=environ, text=True, stdout=subprocess.PIPE, timeout=120, check=True
        )
        return answer.stdout

    @property
    def port(self):
        return self.metadata.getsockname()[1]

    @property
    def is_asked(self):
        try:
            self.metadata.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def machine(home):
    made = Machine(home)
    yield made
    made.metadata.close()


def test_pyarrow_itself_would_run_the_program_and_ask_the_server(machine, s3_server):
    """What the tests below compare with: the traps work."""
    write(machine.home, config=f"[default]\n{machine.process}")
    machine.run(OPEN_AS_PYARROW_DOES, s3_server.url())
    assert machine.touched.exists()
    assert machine.is_asked


def test_a_program_for_credentials_is_not_run(machine, s3_server):
    write(machine.home, config=f"[default]\n{machine.process}")
    said = machine.run(OPEN, s3_server.url())
    assert said.startswith("ConfigError") and "credential_process" in said
    write(machine.home, credentials=f"[default]\n{KEYS}")
    assert machine.run(OPEN, s3_server.url()) == "[]\n"
    assert not machine.touched.exists()
    assert not machine.is_asked


def test_without_credentials_nobody_is_asked_and_the_message_says_what_to_do(machine, s3_server):
    said = machine.run(OPEN, s3_server.url())
    assert said.startswith("ConfigError") and ".aws/credentials" in said
    assert machine.run(OPEN, f"{s3_server.url()}&anonymous=true") == "[]\n"
    assert not machine.is_asked


def test_region_and_endpoint_come_from_the_profile(machine, s3_server):
    bucket = s3_server.url().partition("?")[0]
    write(
        machine.home,
        credentials=f"[default]\n{KEYS}",
        config=f"[default]\nendpoint_url = http://{s3_server.address}\nregion = eu-west-1\n"
        f"{machine.process}",
    )
    assert machine.run(OPEN, bucket) == "[]\n"
    assert not machine.touched.exists()


def test_the_environment_is_as_before(monkeypatch):
    monkeypatch.setenv("AWS_CONFIG_FILE", "/mine")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    filesystem.connect("s3://id:geheim@bucket?region=r")
    assert os.environ["AWS_CONFIG_FILE"] == "/mine"
    assert "AWS_EC2_METADATA_DISABLED" not in os.environ


@pytest.mark.parametrize(
    "url",
    [
        "gs://bucket/a",
        "gcs://bucket/a",
        "gs://anonymous:geheim@bucket/a",
        "abfs://box@account.host/a",
        "abfs://box@account.host/a?client_id=geheim",
        "abfs://box@account.host/a?credential_kind=default",
        "abfs://box:a2V5@account.host/a?credential_kind=workload_identity",
        "abfs://box:a2V5@account.host/a?credential_kind=",
        "abfs://box@account.host/a?sig=",
        "abfs://box@account.host/a?tenant_id=t&client_id=c&client_secret=",
    ],
)
def test_what_would_look_for_credentials_elsewhere_is_refused(url):
    with pytest.raises(ConfigError, match="not supported in a job") as raised:
        filesystem.connect(url)
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "gs://anonymous@bucket/a",
        "abfs://box@account.host/a?credential_kind=anonymous",
        "abfs://box@account.host/a?sv=2021&sig=abc",
        "abfs://box:a2V5@account.host/a",
        "abfs://box@account.host/a?tenant_id=t&client_id=c&client_secret=s",
    ],
)
def test_credentials_in_the_url_are_enough(url):
    assert filesystem.connect(url)[1].endswith("a")
