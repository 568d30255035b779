"""The wheel, installed by itself: it has all that compute nodes need, and nothing of developers."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import pytest

ROOT = Path(__file__).parents[1]
NOT_SOURCES = shutil.ignore_patterns("build", ".*", "__pycache__", "*.egg-info")
SHARED = ("spank", "prolog", "epilog", "importer", "squashfuse", "enroot", "slurm-conf-examples")

IMPORT_ALL = """
import importlib, json, pkgutil, bootseer

def failed(name):
    raise

names = [m.name for m in pkgutil.walk_packages(bootseer.__path__, "bootseer.", failed)]
for name in names:
    importlib.import_module(name)
print(json.dumps([bootseer.__file__, names]))
"""

HELP_OF_ALL = """
import json, click
from click.testing import CliRunner
from bootseer.cli.main import cli

def commands(command, path):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), [*path, name])

answers = {}
for path in commands(cli, []):
    done = CliRunner().invoke(cli, [*path, "--help"])
    answers[" ".join(path)] = [done.exit_code, done.output]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build from a copy: what setuptools leaves in a checkout could be taken for sources."""
    place = tmp_path_factory.mktemp("wheel")
    copy = shutil.copytree(ROOT, place / "checkout", ignore=NOT_SOURCES)
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    pip(sys.executable, "wheel", *offline, "--wheel-dir", place, copy)
    (built,) = place.glob("bootseer-*.whl")
    return built


@pytest.fixture(scope="module")
def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """A virtual environment's Python: the wheel's package, and this one's libraries."""
    place = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin/python"
    pip(python, "install", "--no-deps", "--no-index", wheel)
    libraries = place / "libraries"
    libraries.mkdir()
    for path in Path(sysconfig.get_path("platlib")).iterdir():
        if not path.name.startswith("bootseer"):
            (libraries / path.name).symlink_to(path)
    answer = run([python, "-Ic", "import sysconfig; print(sysconfig.get_path('platlib'))"])
    Path(answer.strip(), "libraries.pth").write_text(f"{libraries}\n")
    return python


def pip(python, *argv):
    run([python, "-m", "pip", "-q", "--isolated", "--disable-pip-version-check", *argv])


def run(argv):
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "COLUMNS": "80"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_below(folder):
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {path.as_posix() for path in paths if "__pycache__" not in path.parts}


@pytest.mark.parametrize("project", [".", "dev"])
def test_the_list_of_packages_has_every_folder(project):
    settings = tomllib.loads((ROOT / project / "pyproject.toml").read_text())
    (name,) = [path.parent.name for path in (ROOT / project).glob("*/__init__.py")]
    folders = {path.parent for path in (ROOT / project / name).rglob("*.py")}
    packages = {".".join(path.relative_to(ROOT / project).parts) for path in folders}
    listed = settings["tool"]["setuptools"]["packages"]
    assert {package for package in listed if ".share." not in package} == packages
    assert len(listed) == len(set(listed))


def test_the_wheel_has_every_module_and_all_that_is_shared(contents):
    sources = {f"bootseer/{name}" for name in files_below(ROOT / "bootseer")}
    for folder in SHARED:
        target = f"bootseer/share/{folder.replace('-', '_')}"
        sources |= {f"{target}/{name}" for name in files_below(ROOT / folder)}
    package = {name for name in contents if name.startswith("bootseer/")}
    assert sources - package == set()
    extensions = {name.partition(".")[0] for name in package - sources}
    assert (extensions, len(package - sources)) == ({"bootseer/_io", "bootseer/_squashfs"}, 2)


def test_nothing_else_is_in_the_wheel(contents):
    tops = {name.partition("/")[0].partition("-")[0] for name in contents}
    assert tops == {"bootseer"}


def test_every_module_is_imported(python):
    file, names = json.loads(run([python, "-Ic", IMPORT_ALL]))
    assert Path(file).is_relative_to(python.parents[1])
    modules = {name for name in files_below(ROOT / "bootseer") if name.endswith(".py")}
    expected = {".".join(Path("bootseer", name).with_suffix("").parts) for name in modules}
    expected = {name.removesuffix(".__init__") for name in expected} - {"bootseer"}
    assert expected - set(names) == set()


def test_every_command_has_help_and_none_is_for_developers(python):
    answers = json.loads(run([python, "-Ic", HELP_OF_ALL]))
    assert {"report", "image import", "env run", "ckpt", "plugin install"} <= answers.keys()
    assert {path: answer for path, answer in answers.items() if answer[0] != 0} == {}
    assert [path for path in answers if path.startswith("dev")] == []
    assert [path for path, (_, text) in answers.items() if "bootseer dev" in text] == []


def test_the_program_is_installed(python):
    output = run([python.with_name("bootseer"), "--help"])
    listed = [line.split()[0] for line in output.partition("Commands:")[2].splitlines() if line]
    assert {"report", "image", "env", "ckpt"} <= set(listed)
    assert "dev" not in listed
