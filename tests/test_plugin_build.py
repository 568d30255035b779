"""bootseer plugin build, install, uninstall: the real libraries, in folders of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bootseer.cli.plugin import plugin as command
from bootseer.errors import ConfigError, NotFound, Unavailable
from bootseer.slurm import plugin

pytestmark = pytest.mark.skipif(
    not Path("/usr/include/slurm/spank.h").exists() or shutil.which("cc") is None,
    reason="no C compiler or no slurm/spank.h: install gcc and libslurm-dev",
)

HOOKS = {
    "init",
    "init_post_opt",
    "user_init",
    "task_init",
    "task_init_privileged",
    "exit",
    "job_prolog",
    "job_epilog",
}
NAMES = {"plugin_name", "plugin_type", "plugin_version", "spank_plugin_version"}

ADVISE = """
import os, sys

def advise(values):
    print("not for the user")
    print("nor this", file=sys.stderr)
    if values["BOOTSEER_KEY"] == "raise":
        raise RuntimeError
    if values["BOOTSEER_KEY"] == "abort":
        os.abort()
    import _ctypes  # an extension module: finds Python's symbols only if they are global
    return [f"{name}={value}" for name, value in values.items()] + [sys.prefix]
"""

SUBMIT = """
#include <stdio.h>
#include <dlfcn.h>
typedef int advise_f(int count, const char *const *names, const char *const *values);
int main(int argc, char *argv[])
{
    const char *names[] = {"BOOTSEER_KEY", "BOOTSEER_JOB_NAME"};
    const char *values[] = {argv[2], "\\xff"};
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (argc != 3 || !library)
        return 100;
    return ((advise_f *)dlsym(library, "bootseer_advise"))(2, names, values);
}
"""

PEEK = """
#include <stdio.h>
#include <dlfcn.h>
int main(int argc, char *argv[])
{
    void *library = dlopen(argv[1], RTLD_LAZY);
    const unsigned *version = library ? dlsym(library, "plugin_version") : NULL;
    if (!version)
        return 1;
    printf("%u.%02u.%u", *version >> 16, *version >> 8 & 255, *version & 255);
    return 0;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> plugin.BuiltPlugin:
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CFLAGS", "-Werror")
        package = folder / "package" / "bootseer" / "slurm"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        (package / "advise.py").write_text(ADVISE)
        real = plugin.python_path()
        patch.setattr(plugin, "python_path", lambda: [str(folder / "package"), *real[1:]])
        return plugin.build(folder / "out")


def exported(library: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in listing.stdout.splitlines()}


def needed(library: Path) -> str:
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    return dynamic.stdout


def test_libraries_export_what_they_must_and_nothing_else(built):
    spank, advice = built.files
    assert exported(spank) == NAMES | {f"slurm_spank_{hook}" for hook in HOOKS}
    assert exported(advice) == {"bootseer_advise"}


def test_plugin_does_not_depend_on_python(built):
    spank, advice = built.files
    assert "libpython" not in needed(spank)
    assert "libpython" in needed(advice)


def test_plugin_loads_and_is_built_for_the_headers_release(built, tmp_path):
    # As Slurm loads it: lazily, for its functions are Slurm's to give.
    (tmp_path / "peek.c").write_text(PEEK)
    subprocess.run(["cc", tmp_path / "peek.c", "-o", tmp_path / "peek"], check=True)
    version = subprocess.run([tmp_path / "peek", built.files[0]], capture_output=True, check=True)
    assert version.stdout.decode() == built.slurm_version


@pytest.fixture(scope="module")
def submit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("submit")
    (folder / "submit.c").write_text(SUBMIT)
    subprocess.run(["cc", folder / "submit.c", "-o", folder / "submit"], check=True)
    return folder / "submit"


@pytest.mark.parametrize(("key", "code"), [("k", 1), ("raise", 0), ("abort", -6)])
def test_embedded_python_gives_advice(built, submit, key, code):
    # What a user's shell may hold, any of which would bring an ordinary interpreter down.
    hostile = {
        "PYTHONHOME": "/nonexistent",
        "PYTHONPATH": "/nonexistent",
        "PYTHONSTARTUP": "/nonexistent",
        "PYTHONMALLOC": "nonsense",
        "PYTHONUTF8": "7",
        "PATH": "/nonexistent",
    }
    result = subprocess.run(
        [submit, built.files[1], key],
        env=hostile,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert result.returncode == code
    lines = [b"BOOTSEER_KEY=k", b"BOOTSEER_JOB_NAME=\xff", sys.base_prefix.encode()]
    assert result.stdout.splitlines() == (lines if code == 1 else [])


def test_missing_headers_are_named_with_their_package(tmp_path):
    with pytest.raises(Unavailable, match=r"spank\.h.*libslurm-dev.*--slurm-include"):
        plugin.build(tmp_path, tmp_path)


def test_missing_compiler_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(Unavailable, match="no-such-cc; install gcc"):
        plugin.build(tmp_path)


def test_missing_libpython_is_named_and_can_be_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: None)
    with pytest.raises(Unavailable, match=r"python3-dev.*--no-advice"):
        plugin.build(tmp_path)
    assert plugin.build(tmp_path, advice=False).files == (tmp_path / "bootseer.so",)


@pytest.fixture
def site(tmp_path):
    (tmp_path / "slurm").mkdir()
    return tmp_path / "libexec", tmp_path / "slurm" / "plugstack.conf.d"


def test_install_and_uninstall(built, site):
    prefix, plugstack_dir = site
    done = plugin.install(prefix, plugstack_dir, built=built.files[0].parent)
    names = {"bootseer.so", "bootseer-advice.so"}
    names |= {"bootseer-prolog", "bootseer-epilog", "bootseer-importer", "bootseer-env"}
    assert {path.name for path in prefix.iterdir()} == names
    for path in prefix.iterdir():
        info = path.stat()
        assert stat.S_IMODE(info.st_mode) == 0o755 and info.st_uid == os.geteuid()
    conf = plugstack_dir / "bootseer.conf"
    assert conf.read_text() == f"optional {prefix}/bootseer.so\n"
    assert "include" in done.next_steps[0] and "restart slurmd" in done.next_steps[1]

    (prefix / "theirs").touch()
    assert len(plugin.uninstall(prefix, plugstack_dir)) == 7
    assert list(prefix.iterdir()) == [prefix / "theirs"] and not conf.exists()
    (prefix / "theirs").unlink()
    assert plugin.uninstall(prefix, plugstack_dir) == ()


@pytest.mark.parametrize("pattern", ["plugstack.conf.d/*.conf", "{dir}/plugstack.conf.d/*"])
def test_include_line_that_is_there_is_not_asked_for(built, site, pattern):
    prefix, plugstack_dir = site
    line = f"include {pattern.format(dir=plugstack_dir.parent)}\n"
    (plugstack_dir.parent / "plugstack.conf").write_text(line)
    done = plugin.install(prefix, plugstack_dir, built=built.files[0].parent)
    assert len(done.next_steps) == 1


def test_arguments_are_checked_and_survive_a_reinstall(built, site):
    prefix, plugstack_dir = site
    where = built.files[0].parent
    for bad in ("max_wait=x", "bogus=1", "run_dir=a", "max_wait=1 x"):
        with pytest.raises(ConfigError, match="not an argument"):
            plugin.install(prefix, plugstack_dir, built=where, arguments=[bad])
    plugin.install(prefix, plugstack_dir, built=where, arguments=["max_wait=9", "run_dir=/r"])
    plugin.install(prefix, plugstack_dir, built=where)
    text = (plugstack_dir / "bootseer.conf").read_text()
    assert text == f"optional {prefix}/bootseer.so max_wait=9 run_dir=/r\n"


def test_install_from_a_folder_without_a_build(site, tmp_path):
    with pytest.raises(NotFound, match="plugin build"):
        plugin.install(*site, built=tmp_path)


def test_entry_scripts_run_and_cost_a_job_that_does_not_ask_nothing(site, tmp_path):
    prefix, plugstack_dir = site
    done = plugin.install(prefix, plugstack_dir, prolog_only=True)
    assert not plugstack_dir.exists() and len(done.files) == 4
    prolog = prefix / "bootseer-prolog"
    assert prolog.read_text().startswith(f"#!{sys.executable} -IS\n")
    assert "@" not in prolog.read_text()
    trace = subprocess.run(
        [sys.executable, "-IS", "-X", "importtime", prolog], capture_output=True, text=True
    )
    assert trace.returncode == 0 and trace.stdout == ""
    assert "bootseer" not in trace.stderr and "encodings" in trace.stderr


@pytest.mark.parametrize("name", ["bootseer-prolog", "bootseer-epilog"])
def test_entry_script_of_a_broken_installation_does_not_drain_the_node(site, monkeypatch, name):
    monkeypatch.setattr(plugin, "python_path", lambda: ["/nonexistent"])
    prefix, plugstack_dir = site
    plugin.install(prefix, plugstack_dir, prolog_only=True)
    result = subprocess.run(
        [prefix / name], env={"SPANK_BOOTSEER_KEY": ""}, capture_output=True, text=True
    )
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith(f"{name}: ModuleNotFoundError")


def test_command_line(built, site):
    prefix, plugstack_dir = site
    where = ["--prefix", str(prefix), "--plugstack-dir", str(plugstack_dir), "--json"]
    origin = ["--from", str(built.files[0].parent)]
    result = CliRunner().invoke(
        command, ["install", "--no-accounts", *where, *origin, "--", "max_wait=5"]
    )
    assert len(json.loads(result.output)["files"]) == 7
    result = CliRunner().invoke(command, ["uninstall", *where])
    assert len(json.loads(result.output)["removed"]) == 7
    for name in ("build", "install", "uninstall"):
        help_text = CliRunner().invoke(command, [name, "--help"]).output
        assert "Example" in help_text and "--json" in help_text
