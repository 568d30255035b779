"""Checks of the plugin's line and files."""

import os
import sys

import pytest

from bootseer.doctor import plugin
from bootseer.doctor.check import Severity

CONF = "etc/slurm/plugstack.conf.d/bootseer.conf"
STACK = "etc/slurm/plugstack.conf"
INCLUDE = "include /etc/slurm/plugstack.conf.d/*.conf\n"


@pytest.mark.parametrize("name", [check.name for check in plugin.CHECKS])
def test_nothing_is_found_where_nothing_is_wrong(site, name, monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/usr/libexec/bootseer")
    assert site.look(name) == []


def test_a_folder_that_is_not_included(site):
    site.write(STACK, "# nothing\n")
    found = site.finding("plugin.listed")
    assert "does not include /etc/slurm/plugstack.conf.d/bootseer.conf" in found.what
    assert found.mend.endswith("include /etc/slurm/plugstack.conf.d/*.conf")


def test_a_plugin_that_is_not_installed(site):
    (site.root / CONF).unlink()
    found = site.finding("plugin.listed")
    assert "bootseer plugin install" in found.mend
    assert "see plugin.listed" in site.unchecked("plugin.file")


@pytest.mark.parametrize(
    "second", [INCLUDE, "include plugstack.conf.d/*.conf\n", f"include /{CONF}\n"]
)
def test_the_folder_included_twice_and_mended(site, second):
    site.write(STACK, INCLUDE + second)
    found = site.finding("plugin.once")
    assert "loaded 2 times" in found.what
    assert "plugstack.conf:2" in found.mend
    assert found.severity is Severity.ERROR
    assert found.fix is not None
    for _ in range(2):  # a second time it does nothing
        found.fix()
        lines = (site.root / STACK).read_text().splitlines()
        assert lines[0] == INCLUDE.strip()
        assert lines[1].startswith("# include")
        assert len(lines) == 2
    assert site.look("plugin.once") == []


def test_another_files_include_is_not_changed(site):
    site.write("etc/slurm/site.conf", INCLUDE)
    site.write(STACK, INCLUDE + "include site.conf\n")
    found = site.finding("plugin.once")
    assert "/etc/slurm/site.conf:1" in found.mend
    assert found.fix is None


def test_two_lines_of_two_copies(site):
    site.write("etc/slurm/plugstack.conf.d/old.conf", "optional /opt/old/bootseer.so\n")
    assert "loaded 2 times" in site.finding("plugin.once").what
    assert "/opt/old/bootseer.so" in site.finding("plugin.copies").what


def test_a_required_plugin(site):
    site.write(CONF, "required /usr/libexec/bootseer/bootseer.so max_wait=60\n")
    found = site.finding("plugin.optional")
    assert found.severity is Severity.WARNING
    assert found.mend.endswith("optional /usr/libexec/bootseer/bootseer.so max_wait=60")


def test_a_path_that_is_wrong(site):
    site.write(CONF, "optional /opt/nowhere/bootseer.so\n")
    found = site.finding("plugin.file")
    assert "/opt/nowhere/bootseer.so, which is not there" in found.what
    assert "see plugin.file" in site.unchecked("plugin.release")


def test_a_path_without_a_folder(site):
    site.write(CONF, "optional bootseer.so\n")
    assert "without its folder" in site.finding("plugin.file").what


def test_a_folder_that_is_closed_to_users(site):
    (site.root / "usr/libexec/bootseer").chmod(0o750)
    found = site.finding("plugin.file")
    assert found.mend == "chmod o+rx /usr/libexec/bootseer"
    assert found.fix is None


@pytest.mark.root
def test_a_library_that_is_closed_to_users_is_opened(site):
    library = site.root / "usr/libexec/bootseer/bootseer.so"
    library.chmod(0o700)
    found = site.finding("plugin.file")
    assert found.fix is not None
    assert "bootseer.so" in found.fix()
    assert library.stat().st_mode & 0o777 == 0o755
    assert site.look("plugin.file") == []


@pytest.mark.parametrize(
    ("version", "release"), [(0x170B04, "23.11.4"), (0x1A0500, "26.05.0"), (0x160208, "22.02.8")]
)
def test_a_plugin_of_another_release(site, version, release):
    site.library(version)
    found = site.finding("plugin.release")
    assert f"compiled for Slurm {release}, but 22.05.8 is installed" in found.what


def test_a_plugin_of_another_micro_release_is_loaded(site):
    site.library(0x160501)
    assert site.look("plugin.release") == []
    assert site.notes("plugin.release") == ["plugin for Slurm 22.05.1, installed is 22.05.8"]


@pytest.mark.parametrize("text", ["", "no library", "\x7fELF\x02\x01" + "\0" * 100])
def test_what_is_no_plugin(site, text):
    site.write("usr/libexec/bootseer/bootseer.so", text)
    assert "bootseer.so: n" in site.finding("plugin.release").what


def test_a_script_that_is_missing_or_not_executable(site):
    folder = site.root / "usr/libexec/bootseer"
    (folder / "bootseer-prolog").unlink()
    (folder / "bootseer-importer").chmod(0o644)
    prolog, importer = site.look("plugin.scripts")
    assert "bootseer-prolog is not there" in prolog.what
    assert prolog.severity is Severity.ERROR
    assert "not executable (mode 0644)" in importer.what
    assert importer.severity is Severity.WARNING


@pytest.mark.root
def test_a_script_is_made_executable(site):
    script = site.root / "usr/libexec/bootseer/bootseer-epilog"
    script.chmod(0o644)
    found = site.finding("plugin.scripts")
    assert found.fix is not None
    found.fix()
    assert os.access(script, os.X_OK)
    assert site.look("plugin.scripts") == []


def test_an_interpreter_that_is_gone(site):
    site.write("usr/libexec/bootseer/bootseer-prolog", "#!/opt/gone/python -IS\n", 0o755)
    assert "/opt/gone/python, which cannot be run" in site.finding("plugin.interpreter").what


def test_an_installation_that_is_closed_to_users(site, monkeypatch):
    site.folder("opt/bootseer/bin")
    site.folder("opt/bootseer", 0o700)
    monkeypatch.setattr(sys, "prefix", "/opt/bootseer")
    found = site.finding("plugin.environment")
    assert "/opt/bootseer is closed" in found.what
    assert "chmod o+rx /opt/bootseer" in found.mend
    site.folder("opt/bootseer", 0o755)
    site.folder("opt", 0o750)
    assert "/opt is closed" in site.finding("plugin.environment").what


@pytest.mark.parametrize(
    ("line", "settings", "what"),
    [
        ("run_dir=/run/other", {}, "run_dir=/run/other, but node.run_dir is /run/bootseer"),
        ("max_wait=10", {}, "max_wait=10, less than the prolog's longest wait of 60 s"),
        ("", {"epilog__deadline_s": 30}, "epilog_timeout=20, not more than"),
    ],
)
def test_arguments_that_do_not_fit(site, line, settings, what):
    site.write(CONF, f"optional /usr/libexec/bootseer/bootseer.so {line}\n")
    assert what in site.finding("plugin.arguments", **settings).what
