"""What Enroot's hook gives a container, and that it never keeps one from starting."""

import os
import socket
import subprocess

import pytest

from bootseer.slurm.plugin import share

JOB = 7
NAME = "enroot/hooks.d/50-bootseer.sh"


@pytest.fixture
def hook(tmp_path):
    """Run the hook as Enroot does, for a job; returns the lines of both files."""
    run_dir = tmp_path / "run"
    (run_dir / f"jobs/{JOB}").mkdir(parents=True)
    script = tmp_path / "50-bootseer.sh"
    text = (share("slurm-conf-examples") / NAME).read_text()
    assert "\nrun_dir=/run/bootseer\n" in text
    script.write_text(text.replace("run_dir=/run/bootseer", f"run_dir={run_dir}"))
    script.chmod(0o755)
    environ, mounts = tmp_path / "environment", tmp_path / "fstab"

    def run(shell=("bash", "-euo", "pipefail"), **env):
        environ.write_text("PATH=/bin\n")
        mounts.write_text("/etc/hosts\n")
        given = {"ENROOT_ENVIRON": str(environ), "ENROOT_MOUNTS": str(mounts)}
        given |= {"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(JOB)} | env
        argv = [*shell, str(script)]
        done = subprocess.run(argv, env=given, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert environ.read_text().startswith("PATH=/bin\n")
        return environ.read_text().splitlines()[1:], mounts.read_text().splitlines()[1:]

    run.folder = run_dir / f"jobs/{JOB}"
    return run


@pytest.fixture
def agent(hook):
    """The control socket of the job's agent."""
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.getcwd()
        os.chdir(hook.folder)  # a socket's path is short
        listener.bind("agent.sock")
        os.chdir(before)
        yield f"{hook.folder}/agent.sock"


def line(path):
    return f"{path} {path} none x-create=dir,rbind,nosuid,nodev,rslave,nofail,silent 0 0"


def program(folder):
    where = "/usr/local/bin/bootseer-env"
    return (
        f"{folder}/bootseer-env {where} none x-create=file,bind,ro,nosuid,nodev,nofail,silent 0 0"
    )


@pytest.mark.parametrize("shell", [("bash", "-euo", "pipefail"), ("sh", "-eu"), ()])
def test_the_jobs_folder_is_mounted_and_its_variables_are_set(hook, agent, shell):
    ckpt, image = f"{hook.folder}/ckpt", f"{hook.folder}/image/image.sqsh"
    environ, mounts = hook(shell, BOOTSEER_CKPT=ckpt, BOOTSEER_IMAGE=image, BOOTSEER_SOCKET="/x")
    assert environ == [
        f"BOOTSEER_SOCKET={agent}",
        f"BOOTSEER_CKPT={ckpt}",
        f"BOOTSEER_IMAGE={image}",
    ]
    assert mounts == [line(hook.folder), program(hook.folder)]


def test_a_checkpoint_elsewhere_is_mounted_there(hook, agent):
    environ, mounts = hook(BOOTSEER_CKPT="/home/alice/my \\ck\tpt")
    assert environ[-1] == "BOOTSEER_CKPT=/home/alice/my \\ck\tpt"
    assert mounts == [
        line(hook.folder),
        program(hook.folder),
        line(r"/home/alice/my\040\134ck\011pt"),
    ]


@pytest.mark.parametrize("value", ["", "hdfs://nn/run", "yes", "/a\n/etc", "$(touch x)", "-n"])
def test_an_invalid_path_is_not_mounted(hook, agent, value):
    environ, mounts = hook(BOOTSEER_CKPT=value)
    assert mounts == [line(hook.folder), program(hook.folder)]
    assert len(environ) == 1 + (value not in ("", "/a\n/etc"))


def test_a_component_of_a_heterogeneous_job_has_a_folder_of_its_own(hook, agent):
    first = {"SLURM_HET_SIZE": "2", "SLURM_JOB_ID": str(JOB - 1)}
    environ, _ = hook(BOOTSEER_SOCKET=agent, **first)
    assert environ == [f"BOOTSEER_SOCKET={agent}"]
    for path in ("", "/x/agent.sock", agent.replace(f"/{JOB}/", f"/../jobs/{JOB}/")):
        assert hook(BOOTSEER_SOCKET=path, **first) == ([], [])


def test_a_job_without_bootseer_gets_no_mount(hook):
    assert hook() == ([], [])
    assert hook(SLURM_JOB_ID="", BOOTSEER_CKPT="/x") == ([], [])


@pytest.mark.parametrize("broken", ["ENROOT_ENVIRON", "ENROOT_MOUNTS", "PATH"])
def test_the_container_starts_after_any_error(hook, agent, broken):
    shell = ("/bin/bash", "-euo", "pipefail")
    for value in ("", "/nonexistent/x"):
        hook(shell, **{broken: value})
