"""What is asked of the programs that a command uses, and of the machine."""

import os

import pytest

from bootseer.env.client.inputs.digest import KeyProblem
from bootseer.env.client.inputs.facts import gather
from bootseer.env.client.key import EMPTY

PYTHON = """#!/bin/sh
echo '{"implementation": "CPython", "version": "%s", "abi": "cp311", "platform": "linux",'
echo '"prefix": "/usr", "base_prefix": "/usr", "machine": "riscv64", "libc": "glibc 2.36",'
echo '"installer": "'"$4"' 1.0"}'
"""
"""It says of which distribution it was asked for the version."""


@pytest.fixture
def place(tmp_path):
    """A folder to run in, a home, programs, and no machine around."""
    for folder in ("w", "home", "root"):
        (tmp_path / folder).mkdir()
    program(tmp_path / "bin/python3", PYTHON % "3.11.2")
    return tmp_path


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def facts(place, command, **environ):
    environ = {"HOME": f"{place}/home", "PATH": f"{place}/bin", **environ}
    words = ["sh", "-c", command] if ";" in command else command.split()
    root, cwd = str(place / "root"), str(place / "w")
    return gather(words, {"/t": EMPTY}, environ=environ, cwd=cwd, root=root)


@pytest.mark.parametrize(
    ("command", "installers", "asked"),
    [
        ("pip install a", ("pip pip 1.0",), "pip 1.0"),
        ("pip-sync", ("pip-sync pip-tools 1.0",), "pip-tools 1.0"),
        ("poetry install --no-root", ("poetry poetry 1.0",), "poetry 1.0"),
        ("make", (), "pip 1.0"),
        ("a; pip install b; pip install c", ("pip pip 1.0",), "pip 1.0"),
    ],
)
def test_a_python_is_asked_for_the_installer_that_runs_on_it(place, command, installers, asked):
    found = facts(place, command)
    assert found.installers == installers
    assert [python.installer for python in found.pythons] == [asked]
    assert found.platform == "riscv64, glibc 2.36"


def test_where_no_command_names_a_python_the_first_ones_is_asked(place):
    program(place / "other/python3", PYTHON % "3.12.1")
    found = facts(place, f"a; PATH={place}/other b")
    assert [python.version for python in found.pythons] == ["3.11.2"]
    found = facts(place, f"a; PATH={place}/other pip install b; pip install c")
    assert [python.version for python in found.pythons] == ["3.12.1", "3.11.2"]


@pytest.mark.parametrize("command", ["make", "pip install a"])
def test_without_a_python_the_machine_tells_the_platform(place, command):
    found = facts(place, command, PATH=f"{place}/none")
    assert (found.pythons, found.installers) == ((), ())
    assert found.platform.startswith(f"{os.uname().machine}, ")


def test_installers_that_run_on_no_python_tell_their_version(place):
    assert facts(place, "uv pip install a").installers == ("uv unknown",)
    assert facts(place, "conda install a").installers == ("conda unknown",)
    program(place / "bin/uv", '#!/bin/sh\n[ "$1" = --version ] && echo "uv 0.5.1"\n')
    program(place / "conda/bin/conda", "#!/bin/sh\n")
    (place / "conda/conda-meta").mkdir()
    (place / "conda/conda-meta/conda-24.1.json").touch()
    path = f"{place}/bin:{place}/conda/bin"
    text = "uv pip install a; conda install a; pip install a; uv venv"
    assert facts(place, text, PATH=path).installers == ("uv 0.5.1", "conda-24.1", "pip pip 1.0")


def test_settings_of_conda_beside_its_program_decide(place):
    program(place / "conda/bin/conda", "#!/bin/sh\n")
    (place / "conda/.condarc").write_text("channels: [one]\n")
    found = facts(place, "conda install a", PATH=f"{place}/conda/bin").settings
    assert found == {f"conda channels in {place}/conda/.condarc": "[one]"}
    assert facts(place, "pip install a", PATH=f"{place}/conda/bin").settings == {}


@pytest.mark.parametrize(
    ("command", "heeds"),
    [
        ("pip install a", True),
        ("pip-sync", True),
        ("conda install a", True),
        ("python3 -m venv x", True),
        ("make", True),
        ("uv pip install a", False),
        ("poetry install --no-root", False),
        ("conda-lock install", False),
    ],
)
def test_pips_settings_decide_where_pip_is_used(place, command, heeds):
    found = facts(place, command, PIP_INDEX_URL="https://host/").settings
    assert found == ({"pip index-url": "https://host/"} if heeds else {})


@pytest.mark.parametrize(
    ("command", "section", "heeds"),
    [
        ("pip install a", "install", True),
        ("pip install a", "download", False),
        ("pip download a", "download", True),
        ("pip download a", "install", False),
        ("pip-sync", "install", True),
        ("conda env create", "install", True),
    ],
)
def test_of_pips_settings_those_for_what_it_is_asked_for_decide(place, command, section, heeds):
    (place / "home/.pip").mkdir()
    (place / "home/.pip/pip.conf").write_text(f"[{section}]\npre = yes\n")
    assert ("pip pre" in facts(place, command).settings) == heeds


def test_settings_that_are_the_same_for_several_commands_are_one(place):
    text = "pip install a; pip install b"
    found = facts(place, text, PIP_INDEX_URL="https://host/").settings
    assert found == {"pip index-url": "https://host/"}
    text = "PIP_INDEX_URL=https://a/ pip install a; PIP_INDEX_URL=https://b/ pip install b"
    found = facts(place, text).settings
    assert found == {"pip index-url": "https://a/", "pip index-url 2": "https://b/"}


def test_an_editable_that_is_a_setting_is_refused(place):
    with pytest.raises(KeyProblem, match=r"a setting of pip.*editable"):
        facts(place, "pip install a", PIP_EDITABLE="./pkg")


def test_what_an_accelerator_says_of_itself_decides(place):
    (place / "root/proc/driver/nvidia").mkdir(parents=True)
    version = place / "root/proc/driver/nvidia/version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat\n")
    assert facts(place, "make").accelerator == "NVIDIA driver 535"
    program(place / "bin/nvidia-smi", "#!/bin/sh\necho '8.0, A100'\n")
    found = facts(place, "make").accelerator
    assert found == "NVIDIA driver 535; A100 (compute capability 8.0)"
