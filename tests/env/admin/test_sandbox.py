"""A command that runs beside its targets, and what is left of it."""

import os
import sys
from contextlib import suppress

import psutil
import pytest
from bootseer_dev.cluster.poll import wait_until

from bootseer.env.admin import sandbox as aside_module
from bootseer.env.admin.sandbox import Sandbox
from bootseer.env.client.options import RunOptions
from bootseer.errors import Unavailable

pytestmark = pytest.mark.root


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a shell script aside; returns its status, and what is in the folders afterwards."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (tmp_path / "scratch").mkdir()

    def run(script, *targets):
        targets = targets or (tmp_path / "target",)
        run_options = RunOptions(["sh", "-c", script], [str(target) for target in targets])
        with Sandbox(run_options, "", str(tmp_path / "scratch")) as aside:
            aside.parts()
            status = aside.run()
            found = [sorted(os.listdir(folder)) for folder in aside.folders]
        assert os.listdir(tmp_path / "scratch") == []
        return status, found

    return run


def test_the_status_is_the_commands_and_its_output_goes_to_standard_error(run, capfd):
    assert run("echo out; echo told >&2; exit 3") == (3, [[]])
    assert capfd.readouterr() == ("", "out\ntold\n")
    assert run("kill -TERM $$") == (143, [[]])


@pytest.mark.parametrize(
    ("word", "status", "why"),
    [("no-such-command", 127, "command not found"), ("/etc/passwd", 126, "Permission denied")],
)
def test_a_command_that_cannot_be_run_is_told(tmp_path, capfd, word, status, why):
    with Sandbox(RunOptions([word], [str(tmp_path / "target")]), "", str(tmp_path)) as aside:
        aside.parts()
        assert aside.run() == status
    assert capfd.readouterr().err == f"bootseer: '{word}': {why}\n"


def test_targets_that_are_not_there_are_not_there_afterwards(run, tmp_path):
    (tmp_path / "there").mkdir()
    deep = tmp_path / "there/not/yet/there"
    assert run(f": > {deep}/x; [ ! -e {tmp_path}/there/x ]", deep) == (0, [["x"]])
    assert list((tmp_path / "there").iterdir()) == []


def test_targets_in_each_other_are_seen_so(run, tmp_path):
    outer, inner = tmp_path / "outer", tmp_path / "outer/inner"
    status, found = run(f": > {inner}/x; : > {outer}/y", inner, outer)
    assert (status, found) == (0, [["x"], ["inner", "y"]])
    assert not outer.exists()


def test_the_command_sees_the_mode_of_its_target(run, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target").chmod(0o2751)
    assert run(f"[ $(stat -c %a {tmp_path}/target) = 2751 ]")[0] == 0


def test_a_command_in_its_target_is_in_the_one_aside(run, tmp_path, monkeypatch):
    (tmp_path / "target").mkdir()
    monkeypatch.chdir(tmp_path / "target")
    assert run(": > x") == (0, [["x"]])
    assert os.listdir(tmp_path / "target") == []


@pytest.mark.parametrize("is_early", [False, True])
def test_who_cannot_run_it_is_told(tmp_path, monkeypatch, is_early):
    monkeypatch.setattr(aside_module, "_BOOT", "")
    with (
        Sandbox(RunOptions(["true"], [str(tmp_path / "target")]), "", str(tmp_path)) as aside,
        pytest.raises(Unavailable, match="the process that should run the command aside has ended"),
    ):
        if is_early:
            aside._process.wait()
        aside.parts()
    assert os.listdir(tmp_path) == []


def test_what_the_kernel_refuses_is_told(tmp_path):
    (tmp_path / "scratch").mkdir()
    run_options = RunOptions(["true"], [str(tmp_path / "target")])
    with Sandbox(run_options, "", str(tmp_path / "scratch")) as aside:
        os.rmdir(aside.folders[0])
        with pytest.raises(Unavailable, match="/target: No such file or directory; be root"):
            aside.parts()


def test_without_a_place_for_it_nothing_is_run(tmp_path):
    with (
        pytest.raises(Unavailable, match="cannot create a folder for the sandbox"),
        Sandbox(RunOptions(["true"], [str(tmp_path / "target")]), "", str(tmp_path / "none")),
    ):
        pytest.fail("there is a place")
    assert os.listdir(tmp_path) == []


def test_what_is_not_told_to_go_does_not_run(tmp_path):
    (tmp_path / "scratch").mkdir()
    run_options = RunOptions(["touch", str(tmp_path / "ran")], [str(tmp_path / "target")])
    with Sandbox(run_options, "", str(tmp_path / "scratch")) as aside:
        aside.parts()
    assert sorted(os.listdir(tmp_path)) == ["scratch"]


def test_a_command_that_does_not_end_is_killed_with_all_that_it_has_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(aside_module, "_END_S", 0.1)
    script = f"trap '' TERM; sleep 99 & : > {tmp_path}/ready; wait; sleep 99"
    run_options = RunOptions(["sh", "-c", script], [str(tmp_path / "target")])
    (tmp_path / "scratch").mkdir()
    with Sandbox(run_options, "", str(tmp_path / "scratch")) as aside:
        aside.parts()
        (child,) = [
            process
            for process in psutil.Process().children()
            if process.exe() == os.path.realpath(sys.executable)
        ]
        aside._send("go")
        wait_until((tmp_path / "ready").exists, "the command to begin")
        begun = [child, *child.children(recursive=True)]
        assert len(begun) > 1
    wait_until(lambda: not any(map(runs, begun)), "all of it to end")


def runs(process):
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
