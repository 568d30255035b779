"""Whether a command still gives what was kept."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import trio
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.material.wheels import write_index, write_wheel
from packaging.requirements import Requirement

from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.admin import drift as drift_module
from bootseer.env.admin import sandbox
from bootseer.env.client.options import RunOptions
from bootseer.errors import ConfigError, NotFound, Unavailable

pytestmark = pytest.mark.root


def drift(installed, *words):
    return ("drift", "--target", installed.target, *words[:-1], "--", *words[-1])


@pytest.fixture
def wheels(tmp_path):
    """Add to a folder of wheels with an index."""
    folder = tmp_path / "wheels"
    folder.mkdir()

    def add(need, content):
        shutil.rmtree(folder / "simple", ignore_errors=True)
        write_wheel(folder, Requirement(need), {"thing.py": content, "sub/__init__.py": b""})
        write_index(folder)

    add("thing==1.0", b"version = 1\n")
    add.url = (folder / "simple").as_uri()
    return add


def test_pip(says, call, installed, wheels):
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    pip += ["--no-cache-dir", "--root-user-action=ignore", "-i", wheels.url]
    pip += ["--target", str(installed.target), "thing"]
    installed.run_words(pip)
    before = sorted(installed.target.rglob("*"))
    assert "no drift" in says(*drift(installed, pip))
    assert "no drift" in says("run", "--check-drift", "--target", installed.target, "--", *pip)
    wheels("thing==2.0", b"version = 2\n")
    code, output = call(*drift(installed, pip))
    assert code == 1
    assert ["thing", "1.0", "2.0"] in [line.split() for line in output.splitlines()]
    assert "1 changed" in output and "--force" in output
    code, output = call(*drift(installed, "--json", pip))
    found = json.loads(output[output.index("{") :])
    assert code == 1 and found["versions"] == [{"name": "thing", "before": "1.0", "after": "2.0"}]
    assert {row["path"] for row in found["changed"]} == {f"{installed.target}/thing.py"}
    assert sorted(installed.target.rglob("*")) == before
    assert not list(installed.target.parent.glob("bootseer-drift-*"))


def test_files_and_their_names(call, installed, tmp_path):
    source = tmp_path / "source"
    source.write_text("one")
    # What a program reads is no part of its key.
    code = (
        f"import pathlib; said = pathlib.Path('{source}').read_text(); "
        f"top = pathlib.Path('{installed.target}'); "
        "(top / 'a').write_text(said); (top / said).touch()"
    )
    words = [sys.executable, "-P", "-c", code]
    installed.run_words(words)
    source.write_text("two")
    code, output = call(*drift(installed, "-l", words))
    assert code == 1
    assert f"~ {installed.target}/a  3 B -> 3 B\n- {installed.target}/one  0 B\n" in output
    assert f"+ {installed.target}/two" in output
    code, output = call(*drift(installed, "-q", "-l", words))
    assert code == 1 and f"~ {installed.target}/a  3 B -> 3 B\n" in output
    assert "drift from" not in output and "--force" not in output
    source.write_text("one")
    assert "no drift" in call(*drift(installed, words))[1]
    assert call(*drift(installed, "--quiet", words)) == (0, "")


def test_lines_of_a_record_count_but_for_what_tells_of_a_run(says, call, installed, tmp_path):
    source = tmp_path / "source"
    code = (
        f"import pathlib; said = pathlib.Path('{source}').read_text()\n"
        f"top = pathlib.Path('{installed.target}/a-1.dist-info'); top.mkdir()\n"
        "(top / 'direct_url.json').write_text(said)\n"
        "lines = ['a.py,', 'b.py,', 'a-1.dist-info/direct_url.json,' + said, 'c.pyc,' + said]\n"
        "lines += ['d.py,'] * (said == '3')\n"
        "(top / 'RECORD').write_text('\\n'.join(sorted(lines, reverse=said == '2')))"
    )
    words = [sys.executable, "-P", "-c", code]
    source.write_text("1")
    installed.run_words(words)
    source.write_text("2")
    assert "no drift" in says(*drift(installed, words))
    source.write_text("3")
    code, output = call(*drift(installed, "-l", words))
    assert code == 1 and "1 changed" in output and "a-1.dist-info/RECORD" in output


def test_a_file_is_read_from_the_chunks_that_have_it(source, take):
    snapshot = take(source, chunk_bytes=1000)
    _, chunks = snapshot.opened()

    def read(chunk):
        asked.append(chunk)
        return snapshot.read(chunk)

    for path, node in snapshot.tree.items():
        if node.kind == "file":
            asked = []
            first = node.same_as or path
            found = drift_module._read_file(chunks, read, first)
            assert found == (source / os.fsdecode(path)).read_bytes()
            assert asked == [c for c in chunks if any(p.path == first for p in c.pieces)]
            assert len(asked) == -(-node.size_bytes // BLOCK_BYTES)


def test_a_target_that_is_not_there_is_not_there_afterwards(says, call, installed):
    words = installed.words("echo x >TARGET/x; mkdir TARGET/__pycache__; date >TARGET/t.pyc")
    snapshot = installed.run_words(words)
    (installed.target / "__pycache__").rmdir()
    for path in installed.target.iterdir():
        path.unlink()
    installed.target.rmdir()
    assert snapshot.key[:12] in says(*drift(installed, words))
    assert not installed.target.exists()
    with pytest.raises(NotFound, match="env run"):
        call(*drift(installed, installed.words("echo y >TARGET/x")))
    assert not installed.target.exists()


def test_a_command_that_fails(call, installed, tmp_path):
    other = installed.words(f"if [ -d {tmp_path}/gone ]; then exit 3; fi; echo >TARGET/x")
    installed.run_words(other)
    (tmp_path / "gone").mkdir()
    with pytest.raises(Unavailable, match="failed with 3"):
        call(*drift(installed, other))


def test_of_folders_that_held_something(call, installed):
    installed.target.mkdir()
    (installed.target / "before").write_text("x")
    words = installed.words("echo x >TARGET/x")
    installed.run_words(words, keep=True)
    # Aside they hold nothing, which is another key.
    with pytest.raises(NotFound):
        call(*drift(installed, words))


def test_no_key_is_no_drift(call, installed):
    with pytest.raises(ConfigError, match="no such file"):
        call("drift", "--key-file", "/none", "--target", installed.target, "--", "true")


NO_NAMESPACES = """
import ctypes
class Refusing:
    def unshare(self, flags):
        ctypes.set_errno(1)
        return -1
ctypes.CDLL = lambda *args, **options: Refusing()
"""


def test_where_it_cannot_be_done_it_is_refused(call, installed, monkeypatch):
    boot = sandbox._BOOT.replace("main()", f"exec({NO_NAMESPACES!r}); main()")
    monkeypatch.setattr(sandbox, "_BOOT", boot)
    words = installed.words("echo x >TARGET/x")
    installed.run_words(words)
    with pytest.raises(Unavailable, match=r"its own mount namespace.*user namespaces"):
        call(*drift(installed, words))


NOBODY = """
import os, sys
from bootseer.env.admin.sandbox import Sandbox
from bootseer.env.client.options import RunOptions
target = os.path.join(sys.argv[1], "target")
script = f"test $(id -u) = 65534 && echo there >{target}/x"
with Sandbox(RunOptions(command=["sh", "-c", script], targets=[target]), "", sys.argv[1]) as aside:
    assert len(aside.parts()) > 3
    assert aside.run() == 0
    print(os.listdir(aside.folders[0]), os.listdir(target))
print(os.listdir(sys.argv[1]))
"""


def test_who_is_not_root_stays_who_they_are():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [sys.executable, "-P", "-c", NOBODY, folder],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={"HOME": folder, "PATH": os.environ["PATH"]},
            user=65534,
            group=65534,
            extra_groups=[],
        )
    if "user namespace" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.stdout == "['x'] []\n[]\n", done.stderr


async def test_a_command_that_is_not_wanted_any_more_is_ended(installed, tmp_path):
    pid = tmp_path / "pid"
    code = (
        f"import os, pathlib, time; top = pathlib.Path('{tmp_path}')\n"
        "if (top / 'flag').exists(): (top / 'pid').write_text(f'{os.getpid()}'); time.sleep(999)"
    )
    words = [sys.executable, "-P", "-c", code]
    await trio.to_thread.run_sync(installed.run_words, words)
    (tmp_path / "flag").touch()
    run_options = RunOptions(command=words, targets=[str(installed.target)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            drift_module.drift, [installed.store], run_options, "", installed.scratch
        )

        def runs():
            return pid.exists() and pid.read_text().strip()

        await trio.to_thread.run_sync(wait_until, runs, "the command to run")
        nursery.cancel_scope.cancel()
    assert not Path("/proc", pid.read_text().strip()).exists()
    assert not list(tmp_path.glob("bootseer-drift-*"))


def test_what_a_killed_one_has_left_goes_with_the_next(says, installed):
    left = {age: Path(installed.scratch, f"bootseer-drift-{age:08}") for age in (0, 3600)}
    for age, folder in left.items():
        (folder / "0").mkdir(parents=True)
        os.utime(folder, (time.time() - age,) * 2)
    words = ["sh", "-c", f": > {installed.target}/x"]
    installed.run_words(words)
    assert "no drift" in says(*drift(installed, words))
    assert list(Path(installed.scratch).glob("bootseer-drift-*")) == [left[0]]
