"""What a command reads and its key does not tell."""

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from bootseer.env.client.inputs.recorder import MOST, InputRecorder, RecordedInputs, without_record
from bootseer.env.client.key import KeyPart

SETUP = """
import os
from setuptools import setup
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "..", "version.txt")) as file:
    version = file.read().strip()
setup(name="built", version=version, py_modules=["built"], keywords=os.environ["FLAVOUR"])
"""


@pytest.fixture
def place(tmp_path):
    """A folder with files that were there before the command."""
    (tmp_path / "target").mkdir()
    return tmp_path


def reads(place, code, parts=(), **environ):
    """What a Python reads that runs some code in `place`."""
    environ = {"PATH": os.environ["PATH"], **environ}
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    with InputRecorder(environ, [str(place / "target")]) as record:
        subprocess.run(argv, env=record.environ, cwd=place, check=True)
        return record.not_in([KeyPart(name, "") for name in parts], str(place))


def test_variables_that_were_set_are_named(place):
    code = """
        import os
        os.environ["ONE"], os.environ.get("TWO"), os.getenv("THREE"), "FOUR" in os.environ
        os.environ.get("NOT_SET"), os.environ.get("HOME"), os.environ.get("TOLD")
    """
    given = dict.fromkeys(["ONE", "TWO", "THREE", "FOUR", "FIVE", "HOME", "TOLD", "SET"], "x")
    found = reads(place, code, ["setting TOLD"], **given)
    assert found == RecordedInputs(("FOUR", "ONE", "THREE", "TWO"))


def test_who_copies_all_variables_has_asked_for_none(place):
    code = (
        "import os; dict(os.environ), os.environ.copy(), {**os.environ}, list(os.environ.items())"
    )
    assert reads(place, code, ONE="x").variables == ()


def test_files_that_were_there_before_are_named(place):
    known = ("told", "target/old", "project/setup.cfg", "links/a.whl", "pip.conf", "v/bin/a")
    for name in ("a", "b", "a\x1bb", *known, "v/pyvenv.cfg"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("x")
    (place / "link").symlink_to("b")
    code = """
        import os
        open("a").close(); os.close(os.open("link", os.O_RDONLY)); open("target/old").close()
        for name in KNOWN: open(name).close()
        open("b", "a").close(); open("a\\x1bb").close(); os.close(os.open(".", os.O_RDONLY))
        open("new", "w").close(); open("new").close(); open("/etc/passwd").close()
        try: open("missing")
        except OSError: pass
    """
    code = code.replace("KNOWN", repr(known))
    found = reads(place, code, ["file told", "project project", "distributions in links"])
    assert found.files == (str(place / "a"), str(place / "b"))


def test_a_file_that_is_as_old_as_the_command_is_made_by_it(place, monkeypatch):
    (place / "a").touch()
    monkeypatch.setattr(
        "bootseer.env.client.inputs.recorder.time.time", lambda: (place / "a").stat().st_ctime
    )
    assert reads(place, "open('a').close()").files == ()


def test_a_command_without_a_python_has_read_nothing(place):
    with InputRecorder({}, []) as record:
        assert record.not_in([], str(place)) == RecordedInputs()


def test_nothing_is_written_to_files_of_a_program_that_closes_all_descriptors(place):
    (place / "a").write_text("x")
    code = """
        import os
        os.closerange(3, 256)
        with open("target/made", "wb", buffering=0) as file:
            open("a").close(); os.environ.get("ONE")
            file.write(b"made")
    """
    reads(place, code, ONE="x")
    assert (place / "target/made").read_text() == "made"


def test_programs_that_it_starts_are_noted_whatever_they_are_given(place):
    """As pip does, which has builds look for modules in folders of their own."""
    (place / "modules").mkdir()
    (place / "modules/sitecustomize.py").write_text("import os; os.environ['SEEN'] = 'yes'")
    code = """
        import os, subprocess, sys
        inner = "import os; os.environ['ONE']; print(os.environ['SEEN'])"
        environ = {**os.environ, "PYTHONPATH": "modules"}
        assert subprocess.check_output([sys.executable, "-c", inner], env=environ) == b"yes\\n"
    """
    assert reads(place, code, ONE="x").variables == ("ONE",)


def test_the_one_that_would_have_been_found_is_run(place):
    (place / "theirs").mkdir()
    (place / "theirs/sitecustomize.py").write_text("print('theirs')")
    environ = {"PYTHONPATH": str(place / "theirs")}
    code = "import sys; print([p for p in sys.path if 'bootseer-reads' in p])"
    with InputRecorder(environ, []) as record:
        argv = [sys.executable, "-c", code]
        done = subprocess.run(argv, env=record.environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("theirs\n[]\n", "")


@pytest.mark.parametrize("given", [{}, {"PYTHONPATH": "/a:/b"}])
def test_a_key_within_a_command_is_the_same_as_without(given):
    with InputRecorder(given, []) as record:
        assert record.environ["PYTHONPATH"].startswith(record.environ["BOOTSEER_ENV_RECORD"])
        assert without_record(record.environ) == given
    assert without_record(given) == given


def test_nothing_of_it_stays(place, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(place / "target"))
    with InputRecorder({}, []) as record:
        assert len(os.listdir(place / "target")) == 1
    assert os.listdir(place / "target") == []
    with InputRecorder({}, [str(place)]):  # as it would be captured
        assert os.listdir(place / "target") == []
    monkeypatch.setattr("tempfile.tempdir", str(place / "nowhere"))
    with InputRecorder({"A": "b"}, []) as record:
        assert record.environ == {"A": "b"}
        assert record.not_in([], "/") == RecordedInputs()


def test_what_a_killed_one_has_left_goes_with_the_next(place, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(place / "target"))
    left = {age: Path(tempfile.mkdtemp(prefix="bootseer-reads-")) for age in (0, 3600)}
    for age, folder in left.items():
        (folder / "sitecustomize.py").touch()
        os.utime(folder, (time.time() - age,) * 2)
    with InputRecorder({}, []) as used:
        os.utime(used.environ["BOOTSEER_ENV_RECORD"], (0, 0))
        with InputRecorder({}, []):
            assert len(os.listdir(place / "target")) == 3
    # What is young may belong to one that begins.
    assert os.listdir(place / "target") == [left[0].name]


def test_there_are_never_too_many(place):
    for number in range(3 * MOST):
        (place / f"{number:03}").write_text("")
    code = f"for n in range({3 * MOST}): open(f'{{n:03}}').close()"
    assert len(reads(place, code).files) == MOST


def test_a_command_can_write_what_it_likes(place):
    code = """
        import os
        with open(os.environ["BOOTSEER_ENV_RECORD"] + "/reads", "ab") as file:
            file.write(b"vA\\nB\\0v\\xff\\0f/\\x1b[2J\\0x\\0f\\0v\\0no end")
    """
    assert reads(place, code, **{"A\nB": "x"}) == RecordedInputs()


def test_what_a_build_reads_is_found(place):
    """A project whose version is in a file above it, installed by pip."""
    (place / "project").mkdir()
    (place / "project/setup.py").write_text(SETUP)
    (place / "project/built.py").write_text("")
    (place / "version.txt").write_text("1.5\n")
    pytest.importorskip("setuptools")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation"]
    install += ["--no-deps", "--target", place / "target", "./project"]
    environ = {**os.environ, "FLAVOUR": "x"}
    with InputRecorder(environ, [str(place / "target")]) as record:
        subprocess.run(install, env=record.environ, cwd=place, check=True)
        found = record.not_in([KeyPart("project project", "")], str(place))
    assert found == RecordedInputs(("FLAVOUR",), (str(place / "version.txt"),))
    assert (place / "target/built-1.5.dist-info").exists()
