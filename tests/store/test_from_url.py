import os
from pathlib import Path

import pytest

from bootseer.errors import ConfigError, Denied
from bootseer.store.api.base import publish, read_all
from bootseer.store.from_url import divide, needs_network, open_store
from bootseer.store.hdfs import options
from bootseer.store.hdfs.options import find_conf_dir


@pytest.mark.parametrize("form", ["{path}", "{path}/", "file://{path}", "file://{path}/"])
async def test_finds_a_directory(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(path=tmp_path))
    await publish(store, "object", b"1")
    assert (tmp_path / "object").read_bytes() == b"1"
    assert store.url == tmp_path.as_uri()


@pytest.mark.parametrize("name", ["with space", "100%", "question?", "hash#", "ünï"])
async def test_the_url_of_a_store_opens_it(tmp_path: Path, name: str) -> None:
    plain = open_store(str(tmp_path / name))
    await publish(plain, "object", b"1")
    assert await read_all(open_store(plain.url), "object", 1) == b"1"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "absolute"),
        ("relative/path", "absolute"),
        ("./here", "absolute"),
        ("~/store", "absolute"),
        ("file:relative", "absolute"),
        ("file:", "absolute"),
        ("file://host/path", "three slashes"),
        ("file:///path?query", "three slashes"),
        ("file:///path#fragment", "three slashes"),
        ("/a/../b", "'..'"),
        ("file:///a/..", "'..'"),
        ("file:///a/%2e%2e/b", "'..'"),
        ("file:///a%00b", "control"),
        ("/a\nb", "control"),
        ("hdfs:///path", "HOST:PORT"),
        ("hdfs://namenode/path?query", "HOST:PORT"),
        ("hdfs://namenode/path#fragment", "HOST:PORT"),
        ("hdfs://user@namenode/path", "HOST:PORT"),
        ("hdfs://namenode/a/../b", "'..'"),
        ("ftp://bucket", "this version has file://"),
        ("s3:///path", "name a bucket"),
        ("s3://bucket/path#fragment", "name a bucket"),
        ("s3://bucket/a/../b", "'..'"),
        ("http://[broken", "not a URL"),
    ],
)
def test_refuses_what_it_does_not_know(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store(url)


def test_finds_hadoops_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert find_conf_dir("/etc") == "/etc"
    assert find_conf_dir("") == str(tmp_path)
    for missing in (str(tmp_path / "missing"), ".", str(Path(__file__))):
        with pytest.raises(ConfigError, match=r"hdfs\.conf_dir"):
            find_conf_dir(missing)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "missing"))
    assert find_conf_dir("") == ""


def test_hadoops_own_packages_have_the_configuration_at_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setattr(options, "DEFAULT_CONF_DIR", str(tmp_path))
    assert find_conf_dir("") == str(tmp_path)
    assert options.HdfsOptions() == options.HdfsOptions("", "", "")


async def test_hands_the_owner_on(tmp_path: Path) -> None:
    with pytest.raises(Denied):
        await open_store(str(tmp_path), owner_uid=os.geteuid() + 1).list()


@pytest.mark.parametrize(
    ("url", "store", "name"),
    [
        ("hdfs://nn:8020/user/alice/run%2042/", "hdfs://nn:8020/", "user/alice/run 42"),
        ("hdfs://nn/", "hdfs://nn/", ""),
        ("s3://bucket/a/b?region=eu", "s3://bucket/?region=eu", "a/b"),
        ("file:///", "file:///", ""),
        ("/", "file:///", ""),
        ("/usr/none/of%20this", "file:///", "usr/none/of%20this"),
        ("file:///usr/none/of%20this", "file:///", "usr/none/of this"),
    ],
)
def test_divides_a_url_into_store_and_name(url: str, store: str, name: str) -> None:
    assert divide(url) == (store, name)


def test_a_divided_path_is_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    real = str(tmp_path.resolve()).lstrip("/")
    assert divide(f"{tmp_path}/link/file") == ("file:///", f"{real}/folder/file")
    assert divide(f"{tmp_path}/link/") == ("file:///", f"{real}/folder")
    assert divide(f"{tmp_path}/link") == ("file:///", f"{real}/link")
    with pytest.raises(ConfigError, match=r"'\.\.'"):
        divide(f"{tmp_path}/a/../b")


@pytest.mark.parametrize(
    ("closed", "store", "name"),
    [
        ("", "file:///", "a/b/c"),
        ("/", "file:///a", "b/c"),
        ("/a", "file:///a/b", "c"),
        ("/a/b", "file:///", "a/b/c"),
    ],
)
def test_a_divided_path_begins_where_the_folders_above_can_be_read(
    monkeypatch: pytest.MonkeyPatch, closed: str, store: str, name: str
) -> None:
    """Of whoever is not root: listed and walked through, both."""

    def access(path: str, mode: int) -> bool:
        assert mode == os.R_OK | os.X_OK
        return path != closed

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    assert divide("/a/b/c") == (store, name)


@pytest.mark.parametrize(
    ("url", "is_needed"),
    [
        ("/shared/store", False),
        ("file:///shared/store", False),
        ("hdfs://namenode/store", True),
        ("s3://bucket/store", True),
        ("FILE:///shared/store", True),  # what is not known for sure may need it
    ],
)
def test_tells_which_stores_need_the_network(url: str, is_needed: bool) -> None:
    assert needs_network(url) is is_needed
