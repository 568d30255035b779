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

from bootseer.cli import plugin as cli_plugin
from bootseer.cli.plugin import plugin as command
from bootseer.errors import ConfigError, Conflict, NotFound, Unavailable
from bootseer.slurm.plugin import build as plugin_build
from bootseer.slurm.plugin import files, install, program_link

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
def built(tmp_path_factory: pytest.TempPathFactory) -> plugin_build.BuiltPlugin:
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CFLAGS", "-Werror")
        package = folder / "package" / "bootseer" / "slurm"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        (package / "advise.py").write_text(ADVISE)
        real = files.python_path()
        patch.setattr(plugin_build, "python_path", lambda: [str(folder / "package"), *real[1:]])
        return plugin_build.build(folder / "out")


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
        plugin_build.build(tmp_path, tmp_path)


def test_missing_compiler_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(Unavailable, match="no-such-cc; install gcc"):
        plugin_build.build(tmp_path)


def test_missing_libpython_is_named_and_can_be_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: None)
    with pytest.raises(Unavailable, match=r"python3-dev.*--no-advice"):
        plugin_build.build(tmp_path)
    assert plugin_build.build(tmp_path, advice=False).files == (tmp_path / "bootseer.so",)


@pytest.fixture
def site(tmp_path):
    (tmp_path / "slurm").mkdir()
    return tmp_path / "libexec", tmp_path / "slurm" / "plugstack.conf.d"


def test_install_and_uninstall(built, site):
    prefix, plugstack_dir = site
    done = install.install(prefix, plugstack_dir, built=built.files[0].parent)
    names = {"bootseer.so", "bootseer-advice.so"}
    names |= {"bootseer-prolog", "bootseer-epilog", "bootseer-importer", "bootseer-squashfuse"}
    names |= {"bootseer-env", "bootseer-enroot"}
    assert {path.name for path in prefix.iterdir()} == names
    for path in prefix.iterdir():
        info = path.stat()
        assert stat.S_IMODE(info.st_mode) == 0o755 and info.st_uid == os.geteuid()
    conf = plugstack_dir / "bootseer.conf"
    assert conf.read_text() == f"optional {prefix}/bootseer.so\n"
    assert f"--include:  include {conf}" in done.next_steps[0]
    assert "restart slurmd" in done.next_steps[1]

    (prefix / "theirs").touch()
    link = prefix / "no-link"
    assert len(install.uninstall(prefix, plugstack_dir, link=link).files) == 9
    assert list(prefix.iterdir()) == [prefix / "theirs"] and not conf.exists()
    (prefix / "theirs").unlink()
    assert install.uninstall(prefix, plugstack_dir, link=link) == install.RemovedPlugin((), ())


INCLUDES = ["plugstack.conf.d/*.conf", "{dir}/plugstack.conf.d/*", "{dir}/nested.conf"]


@pytest.mark.parametrize("is_asked_for", [False, True])
@pytest.mark.parametrize("pattern", INCLUDES)
def test_include_line_that_is_there_is_not_added(built, site, pattern, is_asked_for):
    prefix, plugstack_dir = site
    line = f"include {pattern.format(dir=plugstack_dir.parent)}\n"
    (plugstack_dir.parent / "nested.conf").write_text("include plugstack.conf.d/bootseer.conf\n")
    plugstack = plugstack_dir.parent / "plugstack.conf"
    plugstack.write_text(line)
    where = built.files[0].parent
    done = install.install(prefix, plugstack_dir, built=where, include=is_asked_for)
    assert "nothing is to be added" in done.notes[0]
    assert not any("include" in step for step in done.next_steps)
    assert plugstack.read_text() == line


def test_an_include_of_another_folder_is_not_taken_for_ours(built, site):
    prefix, plugstack_dir = site
    text = (
        f"# include {plugstack_dir}/*.conf\ninclude {plugstack_dir.parent}/*.other\ninclude *.d\n"
    )
    (plugstack_dir.parent / "plugstack.conf").write_text(text)
    done = install.install(prefix, plugstack_dir, built=built.files[0].parent)
    assert done.notes == ()
    assert "add this line" in done.next_steps[0]


def test_two_lines_that_include_the_same_are_named(built, site):
    """The README's line beside the one that Debian ships: srun warned of each option."""
    prefix, plugstack_dir = site
    plugstack = plugstack_dir.parent / "plugstack.conf"
    plugstack.write_text(f"include plugstack.conf.d/*.conf\ninclude {plugstack_dir}/*.conf\n")
    done = install.install(prefix, plugstack_dir, built=built.files[0].parent, include=True)
    assert f"{plugstack}:1: include" in done.next_steps[0]
    assert f"{plugstack}:2: include" in done.next_steps[0]
    assert "keep one" in done.next_steps[0]


@pytest.mark.parametrize("before", [None, "required other.so", "# theirs \xe9\ninclude x.d/*\n"])
def test_include_is_added_once_and_removed_again(built, site, before):
    prefix, plugstack_dir = site
    plugstack = plugstack_dir.parent / "plugstack.conf"
    if before is not None:
        plugstack.write_text(before, "latin-1")
        plugstack.chmod(0o640)
    where = built.files[0].parent
    for _ in range(2):
        install.install(prefix, plugstack_dir, built=where, include=True)
        lines = plugstack.read_text("latin-1").splitlines()
        assert lines[: len((before or "").splitlines())] == (before or "").splitlines()
        assert lines.count(f"include {plugstack_dir}/bootseer.conf") == 1
    removed = install.uninstall(prefix, plugstack_dir, link=prefix / "no-link")
    assert removed.changed == (plugstack,)
    if before is None:
        assert not plugstack.exists()
    else:
        assert plugstack.read_text("latin-1") == before
        assert stat.S_IMODE(plugstack.stat().st_mode) == 0o640


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """A folder with a program, as a virtual environment has it."""
    program = tmp_path / "opt/bin/bootseer"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    monkeypatch.setenv("PATH", str(tmp_path / "usr"))
    return program


def test_a_link_to_the_program_is_made_found_and_removed(installation, tmp_path):
    link = tmp_path / "usr/bootseer"
    assert not program_link.is_in_path()
    for _ in range(2):
        program_link.make(link)
        assert link.readlink() == installation and program_link.is_in_path()
    assert program_link.remove(link)
    assert not link.is_symlink() and not program_link.remove(link)


def test_a_link_of_another_installation_is_replaced_and_not_removed(installation, tmp_path):
    link, other = tmp_path / "usr/bootseer", tmp_path / "opt-0.1/bin/bootseer"
    link.parent.mkdir()
    other.parent.mkdir(parents=True)
    other.touch(mode=0o755)
    link.symlink_to(other)
    assert not program_link.is_in_path() and not program_link.remove(link)
    assert program_link.make(link).readlink() == installation
    other.unlink()
    link.unlink()
    link.symlink_to(other)
    assert program_link.remove(link)  # it led nowhere


def test_what_others_have_at_the_place_of_the_link_stays(installation, tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("theirs")
    link.symlink_to("/bin/sh")
    for path in (file, link):
        with pytest.raises(Conflict, match="move it away"):
            program_link.make(path)
        assert not program_link.remove(path)
    assert file.read_text() == "theirs" and link.readlink() == Path("/bin/sh")


def test_a_program_out_of_the_path_is_told(built, site, monkeypatch):
    prefix, plugstack_dir = site
    where = built.files[0].parent
    for is_in_path, count in ((True, 0), (False, 1)):
        monkeypatch.setattr(program_link, "is_in_path", lambda is_in_path=is_in_path: is_in_path)
        done = install.install(prefix, plugstack_dir, built=where)
        assert sum("--link" in step for step in done.next_steps) == count


def test_examples_name_the_paths_that_install_writes():
    example = files.share("slurm-conf-examples") / "plugstack.conf.d/bootseer.conf"
    (line,) = (x for x in example.read_text().splitlines() if not x.startswith("#"))
    assert line == f"optional {files.PREFIX / files.PLUGIN}"
    importer = example.with_name("pyxis.conf").read_text()
    assert f"importer={files.PREFIX}/bootseer-importer " in importer


def test_arguments_are_checked_and_survive_a_reinstall(built, site):
    prefix, plugstack_dir = site
    where = built.files[0].parent
    for bad in ("max_wait=x", "bogus=1", "run_dir=a", "max_wait=1 x"):
        with pytest.raises(ConfigError, match="not an argument"):
            install.install(prefix, plugstack_dir, built=where, arguments=[bad])
    install.install(prefix, plugstack_dir, built=where, arguments=["max_wait=9", "run_dir=/r"])
    install.install(prefix, plugstack_dir, built=where)
    text = (plugstack_dir / "bootseer.conf").read_text()
    assert text == f"optional {prefix}/bootseer.so max_wait=9 run_dir=/r\n"


def test_install_from_a_folder_without_a_build(site, tmp_path):
    with pytest.raises(NotFound, match="plugin build"):
        install.install(*site, built=tmp_path)
    assert not any(path.exists() for path in site)  # nothing was left behind


def test_no_account_is_made_for_a_plugin_that_cannot_be_installed(site, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(cli_plugin, "make_accounts", made.append)
    prefix, plugstack_dir = map(str, site)
    argv = ["install", "--prefix", prefix, "--plugstack-dir", plugstack_dir, "--from"]
    with pytest.raises(NotFound):
        CliRunner().invoke(command, [*argv, str(tmp_path)], catch_exceptions=False)
    assert made == []


def test_entry_scripts_run_and_cost_a_job_that_does_not_ask_nothing(site, tmp_path):
    prefix, plugstack_dir = site
    done = install.install(prefix, plugstack_dir, prolog_only=True)
    assert not plugstack_dir.exists() and len(done.files) == 6
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
    monkeypatch.setattr(install, "python_path", lambda: ["/nonexistent"])
    prefix, plugstack_dir = site
    install.install(prefix, plugstack_dir, prolog_only=True)
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
    assert len(json.loads(result.output)["files"]) == 9
    result = CliRunner().invoke(command, ["uninstall", *where, "--link", str(prefix / "link")])
    assert len(json.loads(result.output)["removed"]) == 9
    for name in ("build", "install", "uninstall"):
        help_text = CliRunner().invoke(command, [name, "--help"]).output
        assert "Example" in help_text and "--json" in help_text
