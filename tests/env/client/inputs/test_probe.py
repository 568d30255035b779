"""The place where a command runs: its Python, installer, platform and accelerator."""

import glob
import os
import signal
import subprocess
import sys
import time

import pytest
from bootseer_dev.cluster.poll import wait_until

from bootseer.env.client.inputs import probe
from bootseer.env.client.inputs.digest import KeyProblem
from bootseer.env.client.inputs.interpreter import python_of, which
from bootseer.env.client.inputs.probe import accelerator, ask_python, installer_version, run
from bootseer.env.client.inputs.shell import SimpleCommand

HERE = os.path.dirname(sys.executable)
NVIDIA = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\nGCC version: 12.2\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  555.42.02  Release Build\n"


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def place(tmp_path):
    """Pythons that print nothing, and a pip for each in a way of its own."""
    for folder in ("system/bin", "env/bin"):
        program(tmp_path / folder / "python3", "#!/bin/sh\n")
        program(tmp_path / folder / "python", "#!/bin/sh\n")
    program(tmp_path / "system/bin/python3.9", "#!/bin/sh\n")
    program(tmp_path / "env/bin/uv", "#!/bin/sh\n")
    program(tmp_path / "env/bin/pip", f"#!{tmp_path}/env/bin/python\n")
    program(tmp_path / "system/bin/pip", "#!/usr/bin/env python3\n")
    return tmp_path


def found(place, *words, **environ):
    environ = {"PATH": str(place / "system/bin"), **environ}
    path = python_of(SimpleCommand(words, environ, str(place)))
    return path and os.path.relpath(path, place)


def test_a_python_says_what_it_is():
    said = ask_python(sys.executable, dict(os.environ))
    assert said.implementation.lower() == sys.implementation.name
    assert said.version == ".".join(map(str, sys.version_info[:3]))
    assert (said.prefix, said.base_prefix) == (sys.prefix, sys.base_prefix)
    assert said.machine == os.uname().machine
    assert ("virtual environment" in str(said)) == (sys.prefix != sys.base_prefix)
    assert said.installer != "none"


def test_another_python_says_something_else():
    pattern = os.path.expanduser("~/.pyenv/versions/3.1[0-9]*/bin/python")
    others = [p for p in glob.glob(pattern) if sys.base_prefix not in p]
    if not others:
        pytest.skip("no other Python in ~/.pyenv")
    said, mine = (ask_python(p, dict(os.environ)) for p in (others[0], sys.executable))
    assert str(said) != str(mine) and said.machine == mine.machine


def test_the_environment_does_not_change_what_a_python_says(tmp_path):
    program(tmp_path / "platform.py", "raise SystemExit(1)")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert ask_python(sys.executable, environ) == ask_python(sys.executable, dict(os.environ))


def test_the_version_of_another_installer_can_be_asked_for():
    assert ask_python(sys.executable, {}, "no-such-distribution").installer == "none"
    assert ask_python(sys.executable, {}, "pytest").installer == pytest.__version__


@pytest.mark.parametrize("text", ["exit 0", "exit 3", "echo hello", "echo '{}'", "echo '[1]'"])
def test_what_is_no_python_is_refused(tmp_path, text):
    path = program(tmp_path / "python3", f"#!/bin/sh\n{text}\n")
    with pytest.raises(KeyProblem, match="which Python it is"):
        ask_python(path, dict(os.environ))


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    path = program(tmp_path / "slow", f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/pid\nwait\n")
    begun = time.monotonic()
    assert run([path], dict(os.environ), 0.3) is None
    assert time.monotonic() - begun < 10
    ps = ["ps", "-o", "stat=", "-p", (tmp_path / "pid").read_text().strip()]

    def has_ended():
        state = subprocess.run(ps, capture_output=True, text=True).stdout
        return state.strip()[:1] in ("", "Z")

    wait_until(has_ended, "its child's end")


def test_what_closes_its_output_and_stays_is_ended(tmp_path):
    path = program(tmp_path / "quiet", "#!/bin/sh\nexec >&-\nsleep 60\n")
    begun = time.monotonic()
    assert run([path], dict(os.environ), 0.3) is None
    assert time.monotonic() - begun < 10


def test_what_prints_without_end_is_ended():
    begun = time.monotonic()
    assert run(["yes"], dict(os.environ), 60) is None
    assert time.monotonic() - begun < 30


def test_what_cannot_be_run_says_nothing():
    assert run(["/none/such"], {}, 1) is None
    assert run(["a\0b"], {}, 1) is None
    assert run(["false"], dict(os.environ), 10) is None


@pytest.mark.parametrize(("text", "said"), [("hello", "hello"), ("hello!", None)])
def test_a_program_may_print_only_so_much(monkeypatch, text, said):
    monkeypatch.setattr(probe, "MAX_OUTPUT_BYTES", 5)
    assert run(["printf", text], dict(os.environ), 60) == said


def test_of_what_is_ended_nothing_is_left(monkeypatch):
    class Started(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    started = []
    monkeypatch.setattr(subprocess, "Popen", Started)
    assert run(["sleep", "60"], dict(os.environ), 0.1) is None
    [process] = started
    assert (process.returncode, process.stdout.closed) == (-signal.SIGKILL, True)


PYTHONS = [
    (("pip", "install", "a"), "system/bin/python3"),
    (("env/bin/pip", "install", "a"), "env/bin/python"),
    (("env/bin/python", "-m", "pip", "install", "a"), "env/bin/python"),
    (("python3", "-m", "pip", "install", "a"), "system/bin/python3"),
    (("python", "build.py"), "system/bin/python"),
    (("pip", "--python", "env", "install", "a"), "env/bin/python"),
    (("pip", "--python", "env/bin/python", "install", "a"), "env/bin/python"),
    (("make",), "system/bin/python3"),
    (("env/bin/none/pip", "install"), "system/bin/python3"),
    (("uv", "pip", "install", "--python", "env/bin/python", "a"), "env/bin/python"),
    (("uv", "pip", "install", "-penv", "a"), "env/bin/python"),
    (("uv", "venv"), "system/bin/python3"),
    (("env/bin/uv", "venv"), "system/bin/python3"),
    (("pip", "--python", "3.9", "install", "a"), "system/bin/python3.9"),
    (("uv", "venv", "--python", "python3.9"), "system/bin/python3.9"),
    (("conda", "install", "-p", "env", "a"), "env/bin/python"),
    (("conda", "create", "-n", "x", "a"), ""),
]


@pytest.mark.parametrize(("words", "path"), PYTHONS)
def test_the_python_is_the_one_that_the_tool_uses(place, words, path):
    assert found(place, *words) == path


@pytest.mark.parametrize(
    ("words", "name", "path"),
    [
        (("uv", "sync"), "VIRTUAL_ENV", "env/bin/python"),
        (("uv", "sync"), "CONDA_PREFIX", "env/bin/python"),
        (("uv", "sync"), "UV_PYTHON", "env/bin/python"),
        (("poetry", "install"), "VIRTUAL_ENV", "env/bin/python"),
        (("conda", "install", "a"), "CONDA_PREFIX", "env/bin/python"),
        (("pip", "install", "a"), "VIRTUAL_ENV", "system/bin/python3"),
        (("pip", "install", "a"), "UV_PYTHON", "system/bin/python3"),
    ],
)
def test_variables_count_for_the_tools_that_heed_them(place, words, name, path):
    assert found(place, *words, **{name: str(place / "env")}) == path


def test_a_projects_own_environment_is_uvs(place):
    program(place / ".venv/bin/python", "#!/bin/sh\n")
    assert found(place, "uv", "sync") == ".venv/bin/python"
    assert found(place, "pip", "install", "a") == "system/bin/python3"


def test_uv_is_asked_with_the_options_that_decide(place):
    text = f'#!/bin/sh\necho "$@" > {place}/asked\necho {place}/env/bin/python\n'
    program(place / "system/bin/uv", text)
    words = ("uv", "sync", "--project", "p", "--python", "3.11", "--system", "--frozen")
    assert found(place, *words, PATH=f"{place}/system/bin:{os.environ['PATH']}") == "env/bin/python"
    assert (place / "asked").read_text().split()[-4:] == ["--project", "p", "--system", "3.11"]


def test_a_long_path_to_a_python_and_a_wrapper_are_seen_through(place):
    python = place / "env/bin/python"
    program(place / "env/bin/pip3", f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n")
    assert found(place, "env/bin/pip3", "install", "a") == "env/bin/python"
    program(place / "env/bin/pip3", '#!/usr/bin/env bash\nexec wrapped "$0" "$@"\n')
    assert found(place, "env/bin/pip3", "install", "a") == "env/bin/python3"


def test_programs_are_found_as_a_shell_does(place):
    assert which("python3", {"PATH": "system/bin"}, str(place)) == f"{place}/system/bin/python3"
    assert which("./pip", {}, f"{place}/env/bin") == f"{place}/env/bin/./pip"
    assert which("env", {"PATH": ""}, str(place)) == which("env/bin", {}, str(place)) == ""
    (place / "env/bin/pip").chmod(0o644)
    assert which("./pip", {}, f"{place}/env/bin") == ""


def test_where_there_is_no_python3_it_is_what_python_starts(place):
    (place / "system/bin/python3").unlink()
    assert found(place, "make") == "system/bin/python"


@pytest.mark.root
def test_a_program_that_cannot_be_read_says_nothing(place):
    place.chmod(0o755)
    (place / "env/bin/pip").chmod(0o111)
    os.seteuid(65534)
    try:
        assert found(place, "env/bin/pip", "install", "a") == "system/bin/python3"
    finally:
        os.seteuid(0)


def test_installers_say_their_version_or_their_records_do(tmp_path):
    text = '#!/bin/sh\n[ "$1" = --version ] && echo uv 0.9.1 && echo more\n'
    uv, micromamba = (program(tmp_path / "bin" / name, text) for name in ("uv", "micromamba"))
    conda = program(tmp_path / "bin/conda", "#!/bin/sh\nexit 1\n")
    program(tmp_path / "conda-meta/conda-24.1.2-py311_0.json", "{}")
    program(tmp_path / "conda-meta/conda-libmamba-solver-24.1.0-0.json", "{}")
    environ = dict(os.environ)
    assert installer_version("uv", uv, environ) == "uv 0.9.1"
    assert installer_version("conda", conda, environ) == "conda-24.1.2-py311_0"
    assert installer_version("conda", micromamba, environ) == "uv 0.9.1"
    assert installer_version("uv", f"{tmp_path}/none", environ) == ""


def test_no_accelerator_is_none(tmp_path):
    assert accelerator({}, None, str(tmp_path)) == "none"
    # Processors are nodes too.
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    program(nodes / "0/properties", "gfx_target_version 0\n")
    program(nodes / "1/properties", "cpu_cores_count 8\n")
    assert accelerator({}, None, str(tmp_path)) == "none"


def test_a_pipe_in_the_place_of_what_the_kernel_says_is_not_waited_for(tmp_path):
    path = tmp_path / "proc/driver/nvidia/version"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    try:
        assert accelerator({}, None, str(tmp_path)) == "none"
    finally:
        os.close(writer)


@pytest.mark.parametrize(("version", "driver"), [(NVIDIA, "535"), (OPEN, "555")])
def test_nvidias_driver_and_models_are_named_whatever_their_number(tmp_path, version, driver):
    program(tmp_path / "proc/driver/nvidia/version", version)
    for bus in "12":
        information = "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ: 12\n"
        program(tmp_path / f"proc/driver/nvidia/gpus/{bus}/information", information)
    wanted = f"NVIDIA driver {driver}; NVIDIA A100-SXM4-80GB"
    assert accelerator({}, None, str(tmp_path)) == wanted


def test_compute_capability_is_nvidia_smis(tmp_path, monkeypatch):
    program(tmp_path / "proc/driver/nvidia/version", NVIDIA)
    smi = program(
        tmp_path / "nvidia-smi", "#!/bin/sh\necho 8.0, NVIDIA A100\necho 8.0, NVIDIA A100\n"
    )
    wanted = "NVIDIA driver 535; NVIDIA A100 (compute capability 8.0)"
    assert accelerator(dict(os.environ), smi, str(tmp_path)) == wanted
    monkeypatch.setattr(probe, "SMI_TIMEOUT_S", 0.2)
    hung = program(tmp_path / "nvidia-smi", "#!/bin/sh\nsleep 60\n")
    assert accelerator(dict(os.environ), hung, str(tmp_path)) == "NVIDIA driver 535"


def test_amds_targets_are_named(tmp_path):
    for node, version in enumerate((0, 90010, 90010, 100302)):
        text = f"cpu_cores_count 0\ngfx_target_version {version}\n"
        program(tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}/properties", text)
    models = "gfx1032; gfx90a"
    assert accelerator({}, None, str(tmp_path)) == f"AMD driver of the kernel; {models}"
    program(tmp_path / "sys/module/amdgpu/version", "6.3.6\n")
    assert accelerator({}, None, str(tmp_path)) == f"AMD driver 6.3.6; {models}"
