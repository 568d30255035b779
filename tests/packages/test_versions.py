"""The folders of versions that packages bring, and what the packages' scripts do."""

import json
import os
import subprocess
import sys

import pytest

from bootseer.agent.node import registry
from bootseer.doctor import plugin as doctor_plugin
from bootseer.errors import Conflict
from bootseer.slurm.package import installed, maintainer, versions
from bootseer.slurm.plugin import install, program_link


@pytest.fixture
def top(tmp_path):
    """/opt/bootseer with the files of a package."""
    packaged = tmp_path / "opt/packaged"
    (packaged / "bin").mkdir(parents=True)
    (packaged / "bin/bootseer").write_text("one")
    (packaged / "bin/python3").symlink_to("/usr/bin/python3")
    (packaged / "lib64").symlink_to("lib")
    return packaged.parent


def upgrade(top, text):
    """Replace a packaged file as dpkg does: by another of the same name."""
    new = top / "packaged/bin/new"
    new.write_text(text)
    new.replace(top / "packaged/bin/bootseer")


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def run_from(proc, pid, path):
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes(os.fsencode(path) + b"\0-c\0")


def test_a_version_keeps_its_files_when_the_packaged_ones_are_replaced(top):
    first = versions.put_version(top, "1-1")
    upgrade(top, "two")
    second = versions.put_version(top, "1-2")
    assert (first / "bin/bootseer").read_text() == "one"
    assert (second / "bin/bootseer").read_text() == "two"
    assert (top / "current").readlink().name == "1-2"
    assert (second / "lib64").is_symlink() and (second / "bin/python3").is_symlink()
    # It takes no space of its own.
    assert (second / "bin/bootseer").samefile(top / "packaged/bin/bootseer")


def test_the_same_version_again_mends_its_folder_while_it_is_used(top):
    folder = versions.put_version(top, "1-1")
    (folder / "bin/bootseer").unlink()
    (folder / "bin/other").touch()
    with open(folder / "bin/python3", "rb") as in_use:
        versions.put_version(top, "1-1")
        assert in_use.read(4) == b"\x7fELF"
    assert (folder / "bin/bootseer").read_text() == "one"
    assert sorted(path.name for path in (folder / "bin").iterdir()) == [
        "bootseer",
        "other",
        "python3",
    ]


def test_an_interrupted_copy_is_made_again(top):
    (top / "1-1.new").mkdir()
    (top / "1-1.new/half").touch()
    folder = versions.put_version(top, "1-1")
    assert sorted(path.name for path in folder.iterdir()) == ["bin", "lib64"]
    assert not (top / "1-1.new").exists()


def test_only_versions_from_which_nothing_runs_are_removed(top, proc):
    for version in ("1-1", "1-10", "1-2"):
        versions.put_version(top, version)
    run_from(proc, 7, f"{top}/1-10/bin/python3")
    assert versions.remove_unused(top, str(proc)) == ["1-10"]
    names = sorted(path.name for path in top.iterdir())
    assert names == ["1-10", "1-2", "current", "packaged"]


def test_removal_leaves_what_the_package_manager_removes(top):
    for version in ("1-1", "1-2"):
        versions.put_version(top, version)
    versions.remove_all(top)
    assert [path.name for path in top.iterdir()] == ["packaged"]


@pytest.fixture
def site(tmp_path):
    line = tmp_path / "bootseer/plugstack.conf"
    line.parent.mkdir()
    line.write_text("optional /usr/lib/bootseer/bootseer.so\n")
    folder = tmp_path / "slurm/plugstack.conf.d"
    folder.mkdir(parents=True)
    return line, folder


@pytest.mark.parametrize("before", [None, "include plugstack.conf.d/*.conf\n", "required other.so"])
def test_the_line_is_added_once_and_removed_again(site, before):
    line, folder = site
    plugstack = folder.parent / "plugstack.conf"
    if before is not None:
        plugstack.write_text(before)
    for _ in range(2):
        assert "restart slurmd" in maintainer.add_line(line, folder)
        assert (folder / "bootseer.conf").readlink() == line
        text = plugstack.read_text()
        assert text.count("\ninclude") + text.startswith("include") == 1
    assert maintainer.remove_line(line, folder)
    assert list(folder.iterdir()) == []
    assert (plugstack.read_text() if plugstack.exists() else None) == before
    assert not maintainer.remove_line(line, folder)
    assert line.exists()  # it is the administrator's


def test_the_line_of_an_earlier_installation_is_left_to_it(site):
    line, folder = site
    (folder / "bootseer.conf").write_text("optional /usr/local/libexec/bootseer/bootseer.so\n")
    assert "earlier installation" in maintainer.add_line(line, folder)
    assert not maintainer.remove_line(line, folder)
    assert (folder / "bootseer.conf").read_text().startswith("optional /usr/local")


def test_removal_is_refused_while_an_agent_runs(tmp_path, monkeypatch):
    maintainer.refuse_while_used(str(tmp_path))
    (tmp_path / "jobs/42").mkdir(parents=True)
    maintainer.refuse_while_used(str(tmp_path))  # a dead one's
    monkeypatch.setattr(registry, "agent_pid", lambda folder: 7)
    with pytest.raises(Conflict, match=r"jobs on this node use BootSeer \(42\)"):
        maintainer.refuse_while_used(str(tmp_path))


def test_a_script_of_a_package_that_calls_a_wrong_step_fails():
    argv = [sys.executable, "-IB", "-m", maintainer.__name__, "put"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 2 and "no step" in done.stderr


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """This BootSeer is of a package, as is its plugin."""
    marker = {"version": "1-1+deb12", "plugin": "bootseer-plugin-slurm22.05", "is_rpm": False}
    (tmp_path / "package.json").write_text(json.dumps(marker))
    (tmp_path / "bootseer.so").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(installed, "PLUGIN", tmp_path / "bootseer.so")
    return tmp_path


def test_install_and_uninstall_leave_the_package_its_plugin(packaged):
    with pytest.raises(Conflict, match=r"the package bootseer-plugin-slurm22\.05 has installed"):
        install.install(packaged / "libexec", packaged / "plugstack.conf.d")
    with pytest.raises(Conflict, match=r"/etc/bootseer/plugstack\.conf"):
        install.uninstall(packaged / "libexec", packaged / "plugstack.conf.d")
    assert "reinstall bootseer-plugin-slurm22.05" in doctor_plugin._install()
    assert "/etc/bootseer/plugstack.conf" in doctor_plugin._set_argument("run_dir=/run/other")


def test_a_plugin_of_the_sites_own_uses_the_scripts_of_the_package(packaged):
    (packaged / "bootseer.so").unlink()
    built = packaged / "built"
    built.mkdir()
    (built / "bootseer.so").write_text("plugin")
    folder = packaged / "slurm/plugstack.conf.d"
    for arguments in ((), ("max_wait=9",), ()):
        install.install(packaged / "libexec", folder, built=built, arguments=arguments)
    line = (folder / "bootseer.conf").read_text()
    ours = packaged / "libexec/bootseer.so"
    assert line == f"optional {ours} libexec=/opt/bootseer/current/libexec max_wait=9\n"
    assert [path.name for path in ours.parent.iterdir()] == ["bootseer.so"]
    assert program_link.program() == installed.CURRENT / "bin/bootseer"


def test_an_installation_by_pip_is_none_of_a_package():
    assert installed.package() is None and installed.plugin_package() is None
