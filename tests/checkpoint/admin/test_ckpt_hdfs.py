"""`bootseer ckpt` on a real HDFS, as a user of it."""

import json
import os
import shutil
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pytest
import trio
from click.testing import CliRunner

from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.cli.ckpt.ckpt import ckpt
from bootseer.errors import Corrupt, Denied
from bootseer.store.hdfs.store import HdfsStore
from bootseer.units import MIB

pytestmark = [pytest.mark.root, pytest.mark.hdfs]


@pytest.fixture(scope="module")
def network(hdfs):
    with hdfs.cluster.network():
        yield


@pytest.fixture
def call(hdfs, network, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.cluster.state_dir / "etc" / "hadoop"))

    def call(*words, code=0):
        result = CliRunner().invoke(ckpt, list(map(str, words)), catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.output

    return call


def shape(root):
    return {
        str(path.relative_to(root)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns // 10**6,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(root.rglob("*"))
    }


def test_a_listing_of_striped_files_opens_none_of_them(hdfs, folder, tree, call, tmp_path):
    """HDFS tells versions apart by length and time alone, in a listing as in a stat."""
    files = 30
    (tmp_path / "source").mkdir()
    for number in range(files):
        (tmp_path / "source" / f"{number:02}").write_bytes(os.urandom(64 * 1024 + number))
    words = ("--unit", "16KiB", "--replication", 1, "--width", 2)
    call("import", tmp_path / "source", f"{tree}/run", *words)
    hdfs.fs("-mv", f"{folder}/run", f"{folder}/moved", user="alice")
    before = hdfs.calls()

    async def show():
        store = HdfsStore(urlsplit(tree).netloc, PurePosixPath(f"{folder}/moved"))
        return await CheckpointTree(store).show_folder()

    shown = trio.run(show)
    assert [entry.size_bytes for entry in shown] == [64 * 1024 + n for n in range(files)]
    assert all(entry.is_unread for entry in shown)
    made = hdfs.calls_since(before)
    assert "GetBlockLocations" not in made and made["GetListing"] == 2


def test_a_checkpoint_goes_there_and_back(hdfs, folder, tree, call, tmp_path, monkeypatch):
    source, target, url = tmp_path / "source", tmp_path / "target", f"{tree}/run"
    (source / "folder").mkdir(parents=True)
    (source / "large").write_bytes(os.urandom(90 * MIB + 17))
    (source / "folder" / "small").write_bytes(b"small")
    (source / "folder" / "small").chmod(0o640)
    (source / "folder").chmod(0o750)
    for path in (*source.rglob("*"), source):
        os.utime(path, ns=(0, 1_234_567_890_123_000_000))

    call("import", source, url, "--replication", 1, "--width", 6)
    assert "2 were there already" in call("import", source, url)
    listed = json.loads(call("ls", "-R", "--json", url))
    assert [(e["name"], e["kind"]) for e in listed] == [
        ("folder", "folder"),
        ("large", "striped"),
        ("folder/small", "plain"),
    ]
    found = json.loads(call("show", "--json", f"{url}/large"))
    assert found["whole"] and found["owner"] == "alice"
    assert sum(part["size_bytes"] for part in found["parts"]) == 90 * MIB + 17
    assert {len(part["hosts"]) for part in found["parts"] if part["size_bytes"]} == {1}
    assert call("verify", "-R", url).startswith("verified 2 files, 94.4 MB")

    call("export", url, target)
    assert shape(target) == shape(source)
    assert target.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert "2 were there already" in call("export", "--checksum", url, target)

    call("import", source / "large", f"{url}/plain", "--plain", "--replication", 1)
    assert json.loads(call("show", "--json", f"{url}/plain"))["kind"] == "plain"
    shutil.rmtree(target)
    call("export", f"{url}/plain", target)
    assert target.read_bytes() == (source / "large").read_bytes()

    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    with pytest.raises(Denied, match="mallory"):
        call("rm", f"{url}/large")
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")

    parts = f"/{found['parts_folder']}"
    part = f"{max(found['parts'], key=lambda part: part['size_bytes'])['index']:04d}"
    hdfs.fs("-rm", "-skipTrash", f"{parts}/{part}")
    output = call("verify", "-R", url, code=Corrupt.exit_code)
    assert f"in part {part}: the part is missing" in output.splitlines()[0]

    call("rm", f"{url}/large")
    assert parts not in hdfs.fs("-ls", "-R", folder).stdout
    hdfs.fs("-mkdir", f"{parts.rpartition('/')[0]}/{'0' * 32}")
    assert "1 removed" in call("gc", "--older-than", "0s", url)
    call("rm", "-r", url)
    assert hdfs.fs("-ls", folder).stdout == ""


def test_what_a_bench_makes_is_removed(hdfs, folder, tree, call):
    output = call(
        *("bench", "--size", "64MiB", "--repeats", 2, "--replication", 1, "--width", 4, "--json"),
        tree,
    )
    assert len(json.loads(output)["bytes_per_s"]) == 6
    assert hdfs.fs("-ls", folder).stdout == ""
