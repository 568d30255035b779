"""What Enroot's hook gives a container, and that it never keeps one from starting."""

import json
import os
import socket
import subprocess

import pytest

from bootseer.slurm.plugin.files import share

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

    def run(shell=("bash", "-euo", "pipefail"), before="/etc/hosts", **env):
        environ.write_text("PATH=/bin\n")
        mounts.write_text(f"{before}\n")
        given = {"ENROOT_ENVIRON": str(environ), "ENROOT_MOUNTS": str(mounts)}
        given |= {"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(JOB)} | env
        argv = [*shell, str(script)]
        done = subprocess.run(argv, env=given, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert environ.read_text().startswith("PATH=/bin\n")
        return environ.read_text().splitlines()[1:], mounts.read_text().splitlines()[1:]

    run.folder = run_dir / f"jobs/{JOB}"
    run.fstab = mounts
    return run


@pytest.fixture
def agent(hook):
    """The control socket of the job's agent."""
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.getcwd()
        os.chdir(hook.folder)  # a socket's path is short
        listener.bind("agent.sock")
        os.chdir(before)
        hook.listener = listener
        yield f"{hook.folder}/agent.sock"


def line(path, target=None, rest=",nofail,silent"):
    return f"{path} {target or path} none x-create=dir,rbind,nosuid,nodev,rslave{rest} 0 0"


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


@pytest.fixture
def programs(hook, tmp_path):
    """Programs that the hook calls: `mounted` lists mount points, enroot-mount fails on "bad"."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {
        "mountpoint": f'exec grep -qxF -- "$2" {tmp_path}/mounted',
        "enroot-mount": f'cat >> {tmp_path}/at-once; echo "$@" >> {tmp_path}/words\n'
        f"! grep -q bad {tmp_path}/at-once",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    def run(targets, mounted=(), **others):
        paths = [f"{hook.folder}/targets/{number}" for number in range(1, len(targets) + 1)]
        (tmp_path / "mounted").write_text("".join(f"{x}\n" for x in (*paths, *mounted)))
        lines = "\n".join(f"{path}:{target}" for path, target in zip(paths, targets, strict=True))
        path = f"{folder}:{os.environ['PATH']}"
        told = {"BOOTSEER_ENV_MOUNTS": lines, "PATH": path, "ENROOT_ROOTFS": "/r"} | others
        _, mounts = hook(**told)
        at_once = tmp_path / "at-once"
        return at_once.read_text().splitlines() if at_once.exists() else [], mounts[2:]

    return run


def test_environments_are_mounted_at_their_targets(hook, agent, programs, tmp_path):
    path = f"{hook.folder}/targets/1"
    at_once, later = programs(["/opt/my venv"])
    assert at_once == [line(path, r"/opt/my\040venv", "")]
    assert (tmp_path / "words").read_text() == "--root /r -\n"
    # Once more, as the home folder may have been mounted over it.
    assert later == [line(path, r"/opt/my\040venv")]


def test_a_folder_above_an_environment_is_bound_with_it(hook, agent, programs, tmp_path):
    home, other = tmp_path / "home", tmp_path / "other"
    (home / "env").mkdir(parents=True)
    other.symlink_to(home)
    (hook.fstab.parent / "fstab~").write_text(f"{other} /x none x-create=dir,bind\n# bind\n")
    before = f"{home} /root none x-create=dir,bind,rw,nosuid"
    at_once, later = programs([f"{home}/env"], mounted=[f"{home}/env"], before=before)
    assert at_once == [line(f"{hook.folder}/targets/1", f"{home}/env", "")] and later == []
    text = hook.fstab.read_text().splitlines()
    assert text[0] == f"{home} /root none x-create=dir,rbind,rw,nosuid"
    assert (hook.fstab.parent / "fstab~").read_text() == (
        f"{other} /x none x-create=dir,rbind\n# bind\n"
    )


def test_a_folder_above_the_checkpoint_is_bound_with_it(hook, agent, tmp_path):
    before = f"{tmp_path} {tmp_path} none bind\n/b {tmp_path}/y none bind"
    hook(before=before, BOOTSEER_CKPT=f"{tmp_path}/ckpt")
    text = hook.fstab.read_text().splitlines()
    assert text[:2] == [f"{tmp_path} {tmp_path} none rbind", f"/b {tmp_path}/y none bind"]


def test_the_environments_of_another_job_are_not_mounted(hook, agent, programs):
    other = f"{hook.folder.parent}/8/targets/1:/opt/venv\n/etc:/opt/venv\n:\n"
    assert programs([], BOOTSEER_ENV_MOUNTS=other) == ([], [])


@pytest.mark.parametrize(("target", "name"), [("/opt/bad'\u00e9", "/opt/bad'"), ("/opt/venv", "")])
def test_an_environment_that_the_container_lacks_is_reported(hook, agent, programs, target, name):
    """It cannot be mounted; or the task does not have it, whatever the variable says."""
    hook.listener.listen()
    hook.listener.settimeout(5)
    others = {} if name else {"BOOTSEER_ENV_MOUNTS": f"{hook.folder}/targets/1:{target}"}
    assert programs([target] if name else [], **others)[1] == []
    with hook.listener.accept()[0] as connection:
        event = json.loads(connection.makefile().readline())
    assert (event["op"], event["stage"], event["status"]) == ("event", "env.mount", "fallback")
    assert f"in the container at {name or target}" in event["detail"]
