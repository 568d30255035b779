"""slurmstepd: the late start for a step's own request, and the events of steps."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
import time
from contextlib import contextmanager

import pytest

BATCH, EXTERN, INTERACTIVE = 0xFFFFFFFB, 0xFFFFFFFC, 0xFFFFFFFA


@pytest.fixture
def agent(host):
    host.job_dir.mkdir()
    (host.job_dir / "asked").write_text("\n\n\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(host.job_dir / "agent.sock"))
        listener.listen()
        listener.settimeout(2)
        yield listener


def events(agent, count):
    got = []
    for _ in range(count):
        with agent.accept()[0] as connection, connection.makefile() as lines:
            got += [json.loads(line) for line in lines]
    agent.setblocking(False)
    with pytest.raises(BlockingIOError):
        agent.accept()
    return got


def test_step_without_a_request_starts_nothing(host, tmp_path):
    host.script("bootseer-prolog", f"touch {tmp_path}/ran")
    for job_env in ({}, {"BOOTSEER": "off"}, {"BOOTSEER_IMAGE": "/i"}):
        assert host.run("step", job_env=job_env).hooks() == {"0"}
    host.run("step", options={"bootseer": "off"}, job_env={"BOOTSEER": "1"})
    host.run("step", options={"bootseer": "k"}, step=EXTERN)
    assert not (tmp_path / "ran").exists()


def test_step_with_its_own_request_starts_the_agent(host, tmp_path):
    host.script("bootseer-prolog", f"env > {tmp_path}/env; echo hello")
    options = {"bootseer": "(null)", "bootseer-image": "/i"}
    job_env = {
        "SLURM_JOB_NAME": "a/b",
        "BOOTSEER_WAIT": "9",
        "SLURM_CONF": "/home/ada/evil.conf",
        "SLURMD_NODENAME": "elsewhere",
    }
    seen = host.run("step", options=options, job_env=job_env)
    assert seen.hooks() == {"0"} and seen.of("info") == ["bootseer: hello"]
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert {name: value for name, value in env.items() if "SPANK" in name} == {
        "SPANK_BOOTSEER_KEY": "",
        "SPANK_BOOTSEER_IMAGE": "/i",
        "SPANK_BOOTSEER_WAIT": "9",
        "SPANK_BOOTSEER_JOB_NAME": "a_b",
    }
    assert env["SLURM_JOB_GID"] == "1001"
    # What only Slurm may say is not taken from the job's environment.
    assert "SLURM_CONF" not in env and "SLURMD_NODENAME" not in env


@pytest.mark.parametrize(("nodes", "told"), [("3", True), ("4", False), ("3" * 99, False)])
def test_a_step_on_all_nodes_of_its_job_passes_the_node_index(host, tmp_path, nodes, told):
    host.script("bootseer-prolog", f"env > {tmp_path}/env")
    host.run("step", options={"bootseer": "k"}, job_env={"SLURM_JOB_NUM_NODES": nodes})
    env = (tmp_path / "env").read_text()
    assert ("SLURM_NNODES=3\n" in env and "SLURM_NODEID=2\n" in env) is told


@pytest.mark.parametrize(("limit", "told"), [("60", "10"), ("4", "4")])
def test_a_step_is_not_held_for_long(host, tmp_path, limit, told):
    """Slurm cannot end it meanwhile."""
    host.script("bootseer-prolog", f"env > {tmp_path}/env")
    host.run("step", options={"bootseer-wait": "30"}, arguments=(f"max_wait={limit}",))
    env = (tmp_path / "env").read_text()
    assert f"SPANK_BOOTSEER_WAIT={told}\n" in env and f"BOOTSEER_WAIT_LIMIT={told}\n" in env


def test_step_leaves_a_running_agent_alone(host, agent, tmp_path):
    host.script("bootseer-prolog", f"touch {tmp_path}/ran")
    assert host.run("step", options={"bootseer": "k"}).hooks() == {"0"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("image", ["/i/a.sqsh", '/i/"a\\\\b" ü.sqsh'])
@pytest.mark.parametrize("by", ["option", "pyxis"])
def test_the_agent_is_told_of_a_steps_image_file(host, agent, by, image):
    options = {"bootseer-image": image} if by == "option" else {}
    job_env = {"SLURM_BOOTSEER_CONTAINER": image} if by == "pyxis" else {}
    seen = host.run("step", options=options, job_env=job_env)
    told = events(agent, 3)
    assert [request["path"] for request in told if request["op"] == "image"] == [image]
    assert "SLURM_BOOTSEER_CONTAINER" in seen.of("unsetenv")
    passed_on = [line for line in seen.of("setenv") if line.startswith("BOOTSEER_CONTAINER=")]
    assert passed_on == ([f"BOOTSEER_CONTAINER={image}"] if by == "pyxis" else [])
    assert ("BOOTSEER_CONTAINER" in seen.of("unsetenv")) == (by == "option")


@pytest.mark.parametrize("image", ["docker://x", "x", "", "./i", "/a/../b", "/a\nb", "/" * 5000])
def test_the_agent_is_told_of_nothing_else(host, agent, image):
    host.run("step", job_env={"SLURM_BOOTSEER_CONTAINER": image})
    assert [request["op"] for request in events(agent, 2)] == ["begin", "event"]


def test_a_steps_own_agent_knows_its_image(host, tmp_path):
    host.script("bootseer-prolog", f"env > {tmp_path}/env")
    job_env = {"SLURM_BOOTSEER_CONTAINER": "x:y"}
    host.run("step", options={"bootseer": "k"}, job_env=job_env)
    env = (tmp_path / "env").read_text()
    assert "SPANK__SLURM_SPANK_OPTION_pyxis_container_image=x:y\n" in env


def test_a_task_is_in_its_folder_unless_a_container_has_another(host, agent, tmp_path):
    """Slurmstepd changes to /tmp if root cannot access the job's folder."""
    seen = host.run("step", folder=str(tmp_path))
    assert seen.of("folder") == [os.getcwd()]
    assert seen.of("error") == [f"bootseer: changing to {os.getcwd()} after all"]
    seen = host.run("step", container_folder=str(tmp_path))
    assert seen.of("folder") == [str(tmp_path)]
    assert seen.of("error") == []


def test_malformed_values_never_fail_a_step(host, tmp_path):
    host.script("bootseer-prolog", f"env > {tmp_path}/env")
    seen = host.run(
        "step",
        options={"bootseer": "k", "bootseer-image": "rel\n", "bootseer-wait": "x" * 1_000_000},
        job_env={"BOOTSEER_CKPT": b"\xff", "BOOTSEER_ENV": "x" * 1_000_000},
    )
    assert seen.hooks() == {"0"} and len(seen.of("error")) == 4
    assert "SPANK_BOOTSEER_KEY=k\n" in (tmp_path / "env").read_text()


def test_tasks_get_the_socket_and_the_agent_gets_events(host, agent):
    before = time.time_ns()
    seen = host.run("step", step=3)
    assert seen.of("setenv") == [f"BOOTSEER_SOCKET={host.job_dir}/agent.sock"]
    start, end = events(agent, 2)
    assert (start["stage"], end["stage"]) == ("step.start", "step")
    assert (start["op"], end["op"]) == ("begin", "event")
    assert start.keys() == end.keys() == {"op", "stage", "start_ns", "end_ns"}
    assert before < start["start_ns"] == end["start_ns"] < start["end_ns"] < end["end_ns"]
    assert end["end_ns"] < time.time_ns()


@pytest.mark.parametrize(("step", "stage"), [(BATCH, "batch"), (INTERACTIVE, "interactive")])
def test_batch_and_interactive_steps_are_distinguished(host, agent, step, stage):
    host.run("step", step=step)
    assert [event["stage"] for event in events(agent, 2)] == [f"{stage}.start", stage]


def test_extern_step_sends_nothing(host, agent):
    assert host.run("step", step=EXTERN).of("setenv") == []
    assert events(agent, 0) == []


def test_dead_socket(host):
    host.job_dir.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(host.job_dir / "agent.sock"))
    seen = host.run("step")
    assert seen.hooks() == {"0"} and seen.seconds < 2


def test_agent_that_does_not_accept_costs_a_bounded_time(host):
    host.job_dir.mkdir()
    path = str(host.job_dir / "agent.sock")
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(path)
        busy.listen(0)
        waiting.connect(path)  # the queue is full now
        seen = host.run("step")
    assert seen.hooks() == {"0"} and seen.seconds < 2


def test_run_dir_too_long_for_a_socket(host):
    assert host.run("step", arguments=("run_dir=/" + "x" * 200,)).hooks() == {"0"}


def test_a_failed_checkpoint_mount_is_reported(host, agent):
    (host.job_dir / "checkpoint").write_text("failed\n\n")
    (host.job_dir / "asked").write_text("\n\nhdfs://nn/x\n")
    seen = host.run("step", options={"bootseer-ckpt": "hdfs://nn/x"})
    assert seen.of("error") == [
        "bootseer: the checkpoint is not mounted: `bootseer report` says why"
    ]
    assert not [line for line in seen.of("setenv") if "BOOTSEER_CKPT" in line]
    (event,) = (e for e in events(agent, 3) if e["stage"] == "checkpoint.mountpoint")
    assert (event["status"], "not mounted" in event["detail"]) == ("fallback", True)


def test_a_checkpoint_that_comes_with_a_step_is_too_late(host, agent):
    seen = host.run("step", options={"bootseer-ckpt": "hdfs://nn/x"})
    assert "give it to the job" in seen.of("error")[0]
    seen = host.run("step", options={"bootseer-ckpt": "hdfs://nn/x", "bootseer": "off"})
    assert seen.of("error") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "owned",
        "owned\n/x",
        "12\n/x\n",
        "mine\n/x\n",
        "owned\n" + "x" * 4200 + "\n",
        "x" * 9000,
        "\0" * 5000,
    ],
)
def test_a_folder_without_a_mount_is_no_checkpoint(host, agent, text):
    (host.job_dir / "checkpoint").write_text(text)
    seen = host.run("step", options={"bootseer": "k"})
    assert seen.hooks() == {"0"}
    assert not [line for line in seen.of("setenv") if "BOOTSEER_CKPT" in line]


@pytest.fixture
def mounts(host, agent):
    """Whoever answers for mounts, as a hostile process might; returns how it is to answer."""

    @contextmanager
    def answering(answer):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(host.job_dir / "mounts.sock"))
            listener.listen()
            listener.settimeout(10)

            def serve():
                connection, _ = listener.accept()
                with connection:
                    requests.append(connection.recv(100))
                    answer(connection)

            requests = []
            thread = threading.Thread(target=serve)
            thread.start()
            yield requests
            thread.join()

    return answering


def put_mount(host, mark, folder):
    """Leave what an agent leaves that has mounted something."""
    (host.job_dir / mark).write_text("listed\n/mnt\n")
    (host.job_dir / folder).mkdir()


def send_file(connection):
    with open(os.devnull) as file:
        socket.send_fds(connection, [struct.pack("=i", 0)], [file.fileno()])


ANSWERS = {
    "refused": lambda connection: connection.send(struct.pack("=i", errno.ENOENT)),
    "nothing": lambda connection: None,
    "cut short": lambda connection: connection.send(b"\0"),
    "no descriptor": lambda connection: connection.send(struct.pack("=i", 0)),
    "what is no mount": send_file,
}


@pytest.mark.root
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_unavailable_mount_is_reported(host, mounts, answer):
    put_mount(host, "checkpoint", "ckpt")
    with mounts(ANSWERS[answer]) as requests:
        seen = host.run("step", options={"bootseer": "k"})
    assert requests == [struct.pack("=II", 0, 0)]
    assert seen.hooks() == {"0"}
    assert "cannot be made visible" in seen.of("error")[0]


@pytest.mark.root
def test_an_agent_on_a_busy_node_is_waited_for(host, mounts):
    def late(connection):
        time.sleep(2)
        connection.send(struct.pack("=i", errno.ENODEV))

    put_mount(host, "checkpoint", "ckpt")
    with mounts(late):
        seen = host.run("step", options={"bootseer": "k"})
    assert "No such device" in seen.of("error")[0]


@pytest.mark.root
def test_an_agent_that_does_not_answer_is_asked_once(host, mounts):
    put_mount(host, "checkpoint", "ckpt")
    put_mount(host, "served", "image")
    with mounts(lambda connection: connection.recv(1)) as requests:
        seen = host.run("step", options={"bootseer": "k"})
    assert requests == [struct.pack("=II", 0, 0)]
    assert seen.hooks() == {"0"}
    checkpoint, image = seen.of("error")
    assert "Resource temporarily unavailable" in checkpoint
    assert "Connection timed out" in image


@pytest.mark.root
def test_a_mount_of_a_dead_agent_is_reported_soon(host, agent):
    put_mount(host, "checkpoint", "ckpt")
    seen = host.run("step", options={"bootseer": "k"})
    assert seen.hooks() == {"0"} and seen.seconds < 5
    assert "cannot be made visible" in seen.of("error")[0]


@pytest.mark.root
@pytest.mark.parametrize("job_env", [{}, {"SLURM_BOOTSEER_CONTAINER": "/i"}])
def test_an_environment_that_cannot_be_shown_is_reported(host, agent, job_env):
    """Also in a container, if that cannot have it either; an inherited variable is unset."""
    (host.job_dir / "state").mkdir()
    (host.job_dir / "state/1.shown").write_text("owned\n/nonexistent\n")
    seen = host.run("step", options={"bootseer": "k"}, job_env=job_env)
    assert seen.hooks() == {"0"}
    assert seen.of("error") == [
        "bootseer: cannot mount the environment at /nonexistent: No such file or directory"
    ]
    assert "BOOTSEER_ENV_MOUNTS" in seen.of("unsetenv")


@pytest.mark.root
def test_a_step_that_asks_for_something_else_than_its_job(host, agent):
    asked = {
        "bootseer-image": "bootseer://a",
        "bootseer-env": "env",
        "bootseer-ckpt": "hdfs://nn/x:/mnt:ro",
    }
    (host.job_dir / "asked").write_text("".join(f"{value}\n" for value in asked.values()))
    (host.job_dir / "state").mkdir()
    for mark in ("checkpoint", "served", "state/named"):
        (host.job_dir / mark).write_text("plain\n/srv\n")  # of the job's, however it is shown
    assert host.run("step", options=asked).of("error") == []
    seen = host.run(
        "step",
        options={
            "bootseer-image": "bootseer://b",
            "bootseer-env": "other",
            "bootseer-ckpt": "hdfs://nn/x:/mnt",
        },
    )
    assert len(seen.of("error")) == 3
    for line in seen.of("error"):
        assert line.endswith(
            "has no effect in a step of a job that began with another: give it to the job"
        )
    unset = set(seen.of("unsetenv")) - {"SLURM_BOOTSEER_CONTAINER", "BOOTSEER_CONTAINER"}
    assert unset == TOLD
    assert not [line for line in seen.of("setenv") if line.partition("=")[2] == "/srv"]
    seen = host.run("step", options={"bootseer-image": "/etc/passwd"})
    assert "BOOTSEER_IMAGE=/etc/passwd" in seen.of("setenv") and seen.of("error") == []
    # Slurm gives all components of a heterogeneous job the options of the last.
    job_env = {"SLURM_HET_SIZE": "2"}
    seen = host.run("step", options={"bootseer-image": "/etc/passwd"}, job_env=job_env)
    assert "BOOTSEER_IMAGE=/srv" in seen.of("setenv") and seen.of("error") == []


@pytest.mark.parametrize(
    ("jobs", "steps", "is_told"),
    [("k", "k", False), ("k", "", False), ("k", "x", True), ("", "x", True), (None, "x", False)],
)
def test_a_step_with_another_key_than_its_job_is_told(host, agent, jobs, steps, is_told):
    (host.job_dir / "asked").write_text("\n\n\n" + (f"{jobs}\n" if jobs is not None else ""))
    seen = host.run("step", options={"bootseer": steps})
    told = "bootseer: --bootseer=x has no effect in a step of a job that began with another key"
    assert [line.partition(":")[0] for line in seen.of("error")] == ["bootseer"] * is_told
    assert all(line.startswith(told) for line in seen.of("error"))


INHERITED = {
    "BOOTSEER_SOCKET": "/run/bootseer/jobs/1/agent.sock",
    "BOOTSEER_CKPT": "/run/bootseer/jobs/1/ckpt",
    "BOOTSEER_IMAGE": "bootseer://a",
}
TOLD = {"BOOTSEER_CKPT", "BOOTSEER_IMAGE", "BOOTSEER_ROOTFS", "BOOTSEER_ENV_MOUNTS"}


def test_inherited_variables_are_unset(host):
    seen = host.run("step", job_env=INHERITED)
    assert set(seen.of("unsetenv")) == {*TOLD, "BOOTSEER_SOCKET"}
    assert seen.of("setenv") == ["BOOTSEER_WISHED_IMAGE=bootseer://a"]
    host.job_dir.mkdir()
    assert set(host.run("step").of("unsetenv")) == TOLD


def test_a_request_is_not_left_in_the_variable_of_a_path(host):
    wish = {"BOOTSEER_CKPT": "file:///x"}
    seen = host.run("step", job_env={"BOOTSEER": "1", **wish})
    assert set(seen.of("unsetenv")) == TOLD
    assert seen.of("setenv") == ["BOOTSEER_WISHED_CKPT=file:///x"]
    for job_env in (wish, {"BOOTSEER": "off", **wish}):  # it is none of ours
        seen = host.run("step", job_env=job_env)
        assert seen.of("setenv") == seen.of("unsetenv") == []


@pytest.mark.parametrize("served", ["plain\n/images/a.sqsh\n", "owned\n\n"])
@pytest.mark.parametrize("wish", ["bootseer://a", None])
def test_no_variable_names_an_image_that_cannot_be_read(host, agent, served, wish):
    (host.job_dir / "asked").write_text("bootseer://a\n\n\n\n")
    (host.job_dir / "served").write_text(served)
    (host.job_dir / "state").mkdir()
    (host.job_dir / "state" / "unreadable").touch()
    seen = host.run("step", options={"bootseer-image": wish} if wish else {})
    assert not [line for line in seen.of("setenv") if line.startswith("BOOTSEER_IMAGE=")]
    assert len(seen.of("error")) == (wish is not None)
    assert not wish or "BOOTSEER_IMAGE is not set" in seen.of("error")[0]
    (host.job_dir / "state" / "unreadable").unlink()
    seen = host.run("step", options={"bootseer-image": wish} if wish else {})
    assert ("BOOTSEER_IMAGE=/images/a.sqsh" in seen.of("setenv")) == served.startswith("plain")


@pytest.mark.parametrize("starts", [False, True], ids=["another", "this one"])
def test_a_step_waits_for_the_agent_that_another_has_just_started(host, agent, starts):
    """Both see that there is none, and the one that comes second goes on before it has mounted."""
    made = host.job_dir / "checkpoint"
    host.script("bootseer-prolog", f"mv {host.folder}/later {host.job_dir}")
    (host.job_dir / "asked").write_text("\n\nfile:///x\n")
    if starts:
        host.job_dir.rename(host.folder / "later")
    mount = threading.Timer(0.5, made.write_text, ["plain\n/srv\n"])
    mount.start()
    seen = host.run("step", options={"bootseer-ckpt": "file:///x"})
    mount.join()
    assert "BOOTSEER_CKPT=/srv" in seen.of("setenv")
    made.unlink()
    os.utime(host.job_dir / "asked", (1, 1))  # it has had its time
    assert host.run("step", options={"bootseer-ckpt": "file:///x"}).seconds < 2
