"""`bootseer ckpt` as it is typed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bootseer_dev.material.damage import flip
from click.testing import CliRunner

from bootseer.checkpoint.admin import resumable_file
from bootseer.checkpoint.files.size_marks import SIZES_FOLDER
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER
from bootseer.cli.ckpt.ckpt import ckpt
from bootseer.errors import BootseerError, Conflict, Corrupt, NotFound

UNIT = 4096
BOOTSEER = str(Path(sys.executable).with_name("bootseer"))


def call(*words):
    """Run a command; returns its output, or raises its error."""
    result = CliRunner().invoke(ckpt, [str(word) for word in words], catch_exceptions=False)
    return result.exit_code, result.output


def says(*words):
    code, output = call(*words)
    assert code == 0, output
    return output


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "source"
    (root / "folder").mkdir(parents=True)
    (root / "large").write_bytes(os.urandom(64 * UNIT))
    (root / "folder" / "small").write_bytes(b"something")
    return root


@pytest.fixture
def url(tmp_path, source):
    store = tmp_path / "with space"
    says("import", source, store, "--unit", UNIT, "--width", 3, "--quiet")
    return store.as_uri()


@pytest.fixture
def part(tmp_path, url):
    """The path of the largest part: how units are dealt to parts is chance."""
    parts = (tmp_path / "with space" / PARTS_FOLDER).glob("*/*")
    return max(parts, key=lambda path: path.stat().st_size)


def test_ls(url):
    assert says("ls", url) == "folder/\nlarge\n"
    assert says("ls", "-R", url) == "folder/\nlarge\nfolder/small\n"
    assert says("ls", f"{url}/large") == "large\n"
    line = says("ls", "-l", f"{url}/large").split()
    assert line[:2] == ["-rw-r--r--", str(64 * UNIT)]
    assert line[4:6] == ["striped", "4"] and line[-1] == "large"
    listed = json.loads(says("ls", "-R", "--json", url))
    assert [(e["name"], e["kind"]) for e in listed] == [
        ("folder", "folder"),
        ("large", "striped"),
        ("folder/small", "plain"),
    ]
    assert listed[1]["unit_bytes"] == UNIT


def test_ls_marks_what_is_damaged(tmp_path, url):
    flip(tmp_path / "with space" / "large")
    assert "large  (damaged)" in says("ls", url)
    assert "damaged" in says("ls", "-l", url)
    assert json.loads(says("ls", "--json", url))[1]["problem"]


def test_stat(url, part):
    shown = says("show", f"{url}/large")
    assert "striped 4 KiB" in shown and "whole     yes" in shown
    found = json.loads(says("show", "--json", f"{url}/large"))
    assert found["whole"] and found["units"] == 64 and len(found["digest"]) == 64
    assert sum(one["size_bytes"] for one in found["parts"]) == 64 * UNIT
    part.unlink()
    assert "whole     no" in says("show", f"{url}/large")
    assert f"in part {part.name}: the part is missing" in says("show", f"{url}/large")


def test_verify(url, part):
    assert says("verify", "-R", url).startswith("verified 2 files, 262 kB")
    assert says("verify", "-R", "--quiet", url) == ""
    part.write_bytes(bytes(part.stat().st_size))
    code, output = call("verify", "-R", "--quiet", url)
    assert code == Corrupt.exit_code
    assert all(
        "/large: unit" in line and f"part {part.name}" in line for line in output.splitlines()
    )
    code, output = call("verify", "--json", url)
    assert code == Corrupt.exit_code
    assert {p["part"] for p in json.loads(output)["problems"]} == {int(part.name)}


def test_import_and_export(tmp_path, source, url):
    assert "2 were there already" in says("import", source, url, "--unit", UNIT)
    target = tmp_path / "target"
    assert says("export", url, target).startswith("exported 2 files, 262 kB in ")
    assert (target / "large").read_bytes() == (source / "large").read_bytes()
    assert (target / "folder" / "small").read_bytes() == b"something"
    assert "2 were there already" in says("export", "--checksum", url, target)


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["ls", "-R"],
        ["show"],
        ["verify"],
        ["verify", "-R"],
        ["rm"],
        ["gc"],
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_named_as_it_was_typed(url, words):
    with pytest.raises(NotFound) as told:
        call(*words, f"{url}/nope")
    assert str(told.value) == f"there is no file or folder {url}/nope"


def test_an_export_of_what_is_not_there(tmp_path, url):
    with pytest.raises(NotFound, match=f"there is no file or folder {url}/nope"):
        call("export", f"{url}/nope", tmp_path / "target")


def test_a_file_goes_into_a_folder(tmp_path, source, url):
    says("import", source / "large", f"{url}/folder")
    says("import", source / "large", f"{url}/new/")
    says("import", source / "large", f"{url}/name")
    assert says("ls", "-R", url).split() == [
        *("folder/", "large", "name", "new/", "folder/large", "folder/small", "new/large"),
    ]
    (tmp_path / "here").mkdir()
    says("export", f"{url}/name", tmp_path / "here")
    assert (tmp_path / "here" / "name").read_bytes() == (source / "large").read_bytes()


def test_what_fails_is_named_and_counted(tmp_path, url, part):
    part.unlink()
    code, output = call("export", url, tmp_path / "target")
    assert code == Corrupt.exit_code
    assert f"part '{part.name}' is missing" in output and "1 of 2 files failed" in output
    assert (tmp_path / "target" / "folder" / "small").exists()


def test_rm(tmp_path, url):
    with pytest.raises(Conflict, match="-r"):
        call("rm", url)
    says("rm", f"{url}/large")
    parts = tmp_path / "with space" / PARTS_FOLDER
    assert os.listdir(parts) == [SIZES_FOLDER] and os.listdir(parts / SIZES_FOLDER) == []
    says("rm", "-r", url)
    assert not (tmp_path / "with space").exists()
    with pytest.raises(NotFound):
        call("rm", url)
    with pytest.raises(BootseerError, match="all of a store"):
        call("rm", "-r", "file:///")


def test_gc(tmp_path, url, part):
    parts = part.parents[1]
    (parts / "making-1").mkdir()
    (parts / ("0" * 32)).mkdir()
    (parts.parent / ".bootseer-tmp-host-1-1").touch()
    for path in (parts / "making-1", parts / ("0" * 32), parts.parent / ".bootseer-tmp-host-1-1"):
        os.utime(path, ns=(0, 0))
    output = says("gc", "--dry-run", url)
    assert "given up" in output and "no file names" in output and "nothing was removed" in output
    kept = {part.parent.name, SIZES_FOLDER}
    assert set(os.listdir(parts)) == kept | {"making-1", "0" * 32}
    assert "2 removed" in says("gc", url)
    assert set(os.listdir(parts)) == kept
    assert not (parts.parent / ".bootseer-tmp-host-1-1").exists()
    assert "0 removed" in says("gc", url)
    assert call("gc", "--older-than", "soon", url)[0] == 2


def test_bench(tmp_path, url):
    before = sorted((tmp_path / "with space").rglob("*"))
    shown = says("bench", "--size", "64KiB", "--unit", UNIT, "--rounds", 2, url)
    assert shown.count("plain") == shown.count("striped") == 3
    found = json.loads(says("bench", "--size", "64KiB", "--repeats", 2, "--json", url))
    assert [len(row["rates"]) for row in found["bytes_per_s"]] == [2] * 6
    assert min(min(row["rates"]) for row in found["bytes_per_s"]) > 0
    assert sorted((tmp_path / "with space").rglob("*")) == before


@pytest.mark.parametrize("option", [("--unit", "5000"), ("--unit", "much"), ("--width", "0")])
def test_wrong_options_are_refused(source, tmp_path, option):
    assert call("import", source, tmp_path / "store", *option)[0] == 2
    assert not (tmp_path / "store").exists()


def test_every_command_has_help_and_an_example():
    for name, command in ckpt.commands.items():
        code, output = call(name, "--help")
        assert code == 0 and f"bootseer ckpt {command.name}" in output


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("bootseer ckpt ", {"ls", "show", "verify", "import", "export", "rm", "gc", "bench"}),
        ("bootseer ckpt ver", {"verify"}),
        ("bootseer ckpt verify --re", {"--repair"}),
        ("bootseer ckpt ls /", {"/"}),
        ("bootseer ckpt ls hdfs:", set()),
        ("bootseer ckp", {"ckpt"}),
    ],
)
def test_the_shell_completes(words, offered):
    typed = words.split(" ")
    env = os.environ | {
        "_BOOTSEER_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(typed) - 1),
    }
    shown = subprocess.run([BOOTSEER], env=env, capture_output=True, text=True, check=True).stdout
    assert {line.partition(",")[2] for line in shown.split()} == offered


def test_an_error_is_one_line_and_an_exit_code(tmp_path):
    command = [BOOTSEER, "ckpt", "ls", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == NotFound.exit_code
    assert ended.stderr.startswith("bootseer: ") and ended.stderr.count("\n") == 1


INTERRUPTED = """
import os, signal, sys, threading
from bootseer.checkpoint.admin import resumable_file
from bootseer.cli.main import main
from bootseer_dev.material.damage import flip
from bootseer import posix

resumable_file.JOURNAL_LEAST_BYTES = 4096
left = 5
lock = threading.Lock()

def interrupted(call):
    def called(*given):
        global left
        with lock:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGINT)
        return call(*given)
    return called

posix.write_fully = interrupted(posix.write_fully)
resumable_file.ResumableFile.put = interrupted(resumable_file.ResumableFile.put)
main()
"""


def interrupt(*words):
    command = [sys.executable, "-P", "-c", INTERRUPTED, "ckpt", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def test_an_interrupted_import_leaves_nothing_and_says_how_to_go_on(tmp_path, source):
    store = tmp_path / "store"
    ended = interrupt("import", source / "large", store / "large", "--unit", UNIT, "--width", 3)
    assert ended.returncode == 128 + signal.SIGINT
    assert ended.stderr == "bootseer: interrupted: run the same command again to continue\n"
    assert [path.name for path in store.rglob("*")] == [PARTS_FOLDER]
    says("import", source / "large", store / "large", "--unit", UNIT)


def test_an_interrupted_export_goes_on(tmp_path, url, source, monkeypatch):
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", UNIT)
    target = tmp_path / "target"
    ended = interrupt("export", f"{url}/large", target)
    assert ended.returncode == 128 + signal.SIGINT
    assert "run the same command again" in ended.stderr
    assert not target.exists()
    shown = says("export", f"{url}/large", target)
    assert "exported 1 file, " in shown and "exported 1 file, 262 kB" not in shown
    assert target.read_bytes() == (source / "large").read_bytes()


def test_an_interrupted_bench_removes_what_it_made(tmp_path):
    ended = interrupt("bench", "--size", "1MiB", "--unit", UNIT, tmp_path / "store")
    assert ended.returncode == 128 + signal.SIGINT
    assert list((tmp_path / "store").rglob("*")) == []
