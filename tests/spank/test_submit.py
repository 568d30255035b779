"""srun, sbatch and salloc: what is checked, what is sent along, what advice can do to them."""

from __future__ import annotations

import os
import pty
import re
import tty

import pytest


def controls(seen):
    """Return what is sent, but for the secret."""
    sent = dict(line.split("=", 1) for line in seen.of("control"))
    sent.pop("BOOTSEER_SECRET", "")
    return sent


def secrets(seen):
    prefix = "BOOTSEER_SECRET="
    lines = [line for line in seen.of("control") if line.startswith(prefix)]
    return [line.removeprefix(prefix) for line in lines]


def test_each_job_has_a_secret_of_its_own(host):
    [first] = secrets(host.run("local", options={"bootseer": "k"}))
    [second] = secrets(host.run("allocator", options={"bootseer": "k"}))
    assert first != second
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in (first, second))
    assert not secrets(host.run("local"))
    step = {"SLURM_JOB_ID": "1"}
    assert not secrets(host.run("local", options={"bootseer": "k"}, env=step))


def test_a_job_without_a_request_gets_nothing(host):
    seen = host.run("local", env={"BOOTSEER_WAIT": "abc", "BOOTSEER_IMAGE": "/x"})
    assert seen.returncode == 0
    assert seen.hooks() == {"0"}
    assert controls(seen) == {} and seen.of("user") == []


def test_options_are_sent_along(host):
    options = {
        "bootseer": "k.1",
        "bootseer-image": "/i/ä b.sqsh",
        "bootseer-env": "train",
        "bootseer-ckpt": "hdfs://nn:8020/c:/ckpt",
        "bootseer-wait": "30",
    }
    seen = host.run("local", options=options, job_name="x/y z")
    assert controls(seen) == {
        "BOOTSEER_KEY": "k.1",
        "BOOTSEER_IMAGE": "/i/ä b.sqsh",
        "BOOTSEER_ENV": "train",
        "BOOTSEER_CKPT": "hdfs://nn:8020/c:/ckpt",
        "BOOTSEER_WAIT": "30",
        "BOOTSEER_JOB_NAME": "x_y_z",
    }


@pytest.mark.parametrize(
    ("options", "env", "key"),
    [
        ({"bootseer": None}, {}, ""),
        ({"bootseer": "(null)"}, {}, ""),  # how Slurm hands on an option without a value
        ({"bootseer": ""}, {}, ""),
        ({"bootseer-wait": "1"}, {}, ""),
        ({}, {"BOOTSEER": ""}, ""),
        ({}, {"BOOTSEER": "1"}, ""),
        ({}, {"BOOTSEER": "yes"}, ""),
        ({}, {"BOOTSEER": "true"}, ""),
        ({}, {"BOOTSEER": "mine"}, "mine"),
        ({}, {"BOOTSEER": "record"}, "record"),
        ({"bootseer": "cli"}, {"BOOTSEER": "env"}, "cli"),
        ({"bootseer": "1"}, {}, "1"),
        ({"bootseer": None}, {"BOOTSEER": "off"}, ""),
        ({"bootseer": "off"}, {"BOOTSEER": "env"}, None),
        ({}, {"BOOTSEER": "off"}, None),
        ({}, {"BOOTSEER": "0"}, None),
        ({}, {"BOOTSEER": "no"}, None),
        ({"bootseer-wait": "1"}, {"BOOTSEER": "off"}, None),
    ],
)
def test_key(host, options, env, key):
    assert controls(host.run("allocator", options=options, env=env)).get("BOOTSEER_KEY") == key


def test_environment_stands_in_for_options(host):
    env = {"BOOTSEER": "1", "BOOTSEER_IMAGE": "/e", "BOOTSEER_WAIT": "5", "BOOTSEER_ENV": "n"}
    seen = controls(host.run("local", env=env, options={"bootseer-image": "/o"}))
    assert (seen["BOOTSEER_IMAGE"], seen["BOOTSEER_WAIT"], seen["BOOTSEER_ENV"]) == ("/o", "5", "n")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("wait", "abc", "=abc: not a whole number of seconds from 0 to 3600"),
        ("wait", "-1", "=-1: not a whole"),
        ("wait", None, "=: not a whole"),
        ("image", "rel.sqsh", "=rel.sqsh: neither an absolute path nor a URI"),
        ("image", "/a/../b", "=/a/../b: a path must not have a '..' component"),
        ("image", "/a\n\x1b[31mb", r"=/a\x0a\x1b[31mb: has a control character"),
        ("image", b"/\xff", r"=/\xff: not valid UTF-8"),
        ("image", "/" + "x" * 1_000_000, "=/" + "x" * 76 + "...: longer than 4095 bytes"),
        ("env", "-rf", "=-rf: neither an absolute path nor a name"),
        ("ckpt", "/dir", "=/dir: not a URI"),
        ("ckpt", "s3://b/c:/../etc", "=s3://b/c:/../etc: a path must not have a '..'"),
    ],
)
def test_malformed_option_ends_the_command(host, name, value, message):
    seen = host.run("local", options={f"bootseer-{name}": value})
    assert seen.returncode == 255 and controls(seen) == {}
    [line] = seen.of("user")
    assert line.startswith(f"bootseer: --bootseer-{name}{message}")
    assert len(line) < 250 and line.isprintable()


def test_malformed_key_ends_the_command(host):
    seen = host.run("local", options={"bootseer": "a b"})
    assert seen.returncode == 255
    assert seen.of("user")[0].startswith("bootseer: --bootseer=a b: not a key")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BOOTSEER", "a b"),
        ("BOOTSEER_WAIT", "zz"),
        ("BOOTSEER_IMAGE", b"/\xff"),
        ("BOOTSEER_CKPT", "s3://" + "x" * 100_000),
    ],
)
def test_malformed_variable_ends_the_command(host, name, value):
    seen = host.run("local", env={"BOOTSEER": "1", name: value})
    assert seen.returncode == 1 and controls(seen) == {}
    [line] = seen.of("user")
    assert line.startswith(f"bootseer: {name}=")


@pytest.mark.parametrize(
    ("context", "job_name", "sent"),
    [
        ("local", "train.py", "train.py"),
        ("local", None, None),
        ("allocator", "of-the-file", "of-the-file"),
        ("allocator", None, "sbatch"),  # the script is the standard input
        ("local", "-rf .. \n" + "x" * 300, "_rf_..__" + "x" * 120),
    ],
)
def test_job_name(host, context, job_name, sent):
    env = {"SLURM_JOB_NAME": "outer"}
    seen = host.run(context, options={"bootseer": None}, job_name=job_name, env=env)
    assert controls(seen).get("BOOTSEER_JOB_NAME") == sent
    assert seen.of("error") == []


def test_a_slurm_that_tells_no_job_name_is_named(nameless_host):
    seen = nameless_host.run("allocator", options={"bootseer": None})
    [line] = seen.of("error")
    assert "give a key, --bootseer=KEY" in line
    assert "BOOTSEER_JOB_NAME" not in controls(seen) and seen.returncode == 0
    seen = nameless_host.run("allocator", options={"bootseer": "k"})
    assert seen.of("error") == [] and controls(seen)["BOOTSEER_KEY"] == "k"


def test_advice_is_printed(host):
    seen = host.run("local", options={"bootseer": "k"}, job_name="cmd")
    assert seen.of("user") == [
        "bootseer: BOOTSEER_KEY is k",
        "bootseer: BOOTSEER_JOB_NAME is cmd",
    ]


@pytest.mark.parametrize("is_raw", [False, True])
def test_advice_on_a_terminal_begins_each_line_at_its_left(host, is_raw):
    ends = pty.openpty()
    try:
        if is_raw:
            tty.setraw(ends[1])
        seen = host.run("local", options={"bootseer": "k"}, stderr=ends[1])
    finally:
        for end in ends:
            os.close(end)
    assert seen.of("user")[0] == "bootseer: BOOTSEER_KEY is k" + "\r" * is_raw


@pytest.mark.parametrize("by", ["submission", "agent"])
def test_a_step_within_a_job_that_was_told_loads_no_python(host, by):
    env = {"SLURM_JOB_ID": "4711"}
    if by == "submission":
        env["BOOTSEER_TOLD"] = "1"
    else:
        host.job_dir.mkdir()
    (host.libexec / "bootseer-advice.so").write_text("not to be loaded")
    seen = host.run("local", options={"bootseer": "k"}, env=env)
    assert seen.of("user") == seen.of("verbose") == []
    assert controls(seen)["BOOTSEER_KEY"] == "k"
    assert host.run("allocator", options={"bootseer": "k"}, env=env).of("verbose") != []


def test_a_step_that_asks_first_in_its_job_is_advised(host):
    seen = host.run("local", options={"bootseer": "k"}, env={"SLURM_JOB_ID": "4711"})
    assert seen.of("user")[0] == "bootseer: BOOTSEER_KEY is k"
    # An sbatch within a job that was told is told for its own job.
    env = {"SLURM_JOB_ID": "4711", "BOOTSEER_TOLD": "1"}
    assert host.run("allocator", options={"bootseer": "k"}, env=env).of("user") != []


@pytest.mark.parametrize(
    ("context", "options", "env", "told"),
    [
        ("allocator", {"bootseer": "k"}, {}, "1"),
        ("local", {"bootseer": "k"}, {}, "1"),
        ("allocator", {}, {"BOOTSEER_TOLD": "1"}, None),
        ("allocator", {"bootseer": "off"}, {"BOOTSEER_TOLD": "1"}, None),
        ("local", {}, {"BOOTSEER_TOLD": "1", "SLURM_JOB_ID": "5"}, "1"),
        ("local", {"bootseer": "k"}, {"SLURM_JOB_ID": "5"}, None),
    ],
)
def test_a_job_knows_whether_its_own_submission_was_told(host, context, options, env, told):
    seen = host.run(context, options=options, env=env)
    assert dict(line.split("=", 1) for line in seen.of("env")).get("BOOTSEER_TOLD") == told


@pytest.mark.parametrize(
    "argv",
    [
        ("--container-image=a#b",),
        ("--container-image", "a#b"),
        ("--container-image=x", "--container-image=a#b"),
    ],
)
def test_advice_knows_the_image_that_pyxis_is_given(host, argv):
    seen = host.run(
        "local",
        options={"bootseer": "k"},
        argv=("srun", *argv, "cmd", "--container-image=no"),
        optind=1 + len(argv),
    )
    assert seen.of("user")[-1] == "bootseer: _SLURM_SPANK_OPTION_pyxis_container_image is a#b"
    for argv in (("srun", "--container-image"), ("srun", "--container-image-not=x", "cmd")):
        seen = host.run("local", options={"bootseer": "k"}, argv=argv, optind=2)
        assert "pyxis" not in seen.of("user")[-1]


OF_JOB = {"SLURM_JOB_ID": "5", "BOOTSEER_SOCKET": "/run/a"}


@pytest.mark.parametrize(
    ("context", "options", "env", "sent"),
    [
        ("local", {}, OF_JOB, "/i"),
        ("local", {}, {"SLURM_JOB_ID": "5", "BOOTSEER_TOLD": "1"}, "/i"),
        ("local", {"bootseer": "k"}, {"SLURM_JOB_ID": "5"}, "/i"),
        ("local", {"bootseer": "off"}, OF_JOB, None),
        ("local", {}, {**OF_JOB, "BOOTSEER": "off"}, None),
        ("local", {}, {"SLURM_JOB_ID": "5"}, None),
        ("local", {"bootseer": "k"}, {}, "/i"),
        ("local", {}, {}, None),
        ("allocator", {"bootseer": "k"}, OF_JOB, None),
    ],
)
def test_a_step_sends_the_image_that_pyxis_is_given(host, context, options, env, sent):
    env = {**env, "SLURM_BOOTSEER_CONTAINER": "/of/the/step/that/this/srun/runs/in"}
    argv = ("srun", "--container-image=/i", "cmd")
    seen = host.run(context, options=options, env=env, argv=argv, optind=2)
    left = None if context == "local" else env["SLURM_BOOTSEER_CONTAINER"]
    told = dict(line.split("=", 1) for line in seen.of("env"))
    assert told.get("SLURM_BOOTSEER_CONTAINER") == (sent or left)


PYXIS = "_SLURM_SPANK_OPTION_pyxis_container_image"


@pytest.mark.parametrize(
    ("argv", "env", "image"),
    [
        ((), {"PYXIS_CONTAINER_IMAGE": "/v"}, "/v"),
        ((), {"PYXIS_CONTAINER_IMAGE": "/v", PYXIS: "/line/of/the/script"}, "/line/of/the/script"),
        (("--container-image=a#b",), {"PYXIS_CONTAINER_IMAGE": "/v"}, "a#b"),
        (("--container-image=./i",), {}, "CWD/i"),
        (("--container-image=../i",), {}, "CWD/../i"),
        ((), {"PYXIS_CONTAINER_IMAGE": "./i"}, "CWD/i"),
        ((), {}, None),
    ],
)
def test_prolog_and_step_are_told_the_image_that_pyxis_will_take(host, argv, env, image):
    image = image and image.replace("CWD", os.getcwd())
    argv = ("srun", *argv, "cmd")
    job = host.run("local", options={"bootseer": "k"}, env=env, argv=argv, optind=len(argv) - 1)
    assert controls(job).get(PYXIS) == image
    step = host.run("local", env={**env, **OF_JOB}, argv=argv, optind=len(argv) - 1)
    told = dict(line.split("=", 1) for line in step.of("env"))
    assert told.get("SLURM_BOOTSEER_CONTAINER") == image
    assert controls(step) == {}


def test_an_image_of_a_long_path_is_cut_off(host):
    env = {"PYXIS_CONTAINER_IMAGE": "./" + "i" * 5000}
    seen = host.run("local", options={"bootseer": "k"}, env=env)
    assert len(controls(seen)[PYXIS]) == 4095


def test_srun_continues_while_advice_is_computed(host):
    lines = host.run("local", options={"bootseer": "slow"}).lines
    submitted, ended = (lines.index(f"rc {hook} 0") for hook in ("init_post_opt", "exit"))
    assert submitted < lines.index("user bootseer: BOOTSEER_KEY is slow") < ended


def test_sbatch_and_salloc_wait_for_advice(host):
    lines = host.run("allocator", options={"bootseer": "slow"}).lines
    assert lines.index("user bootseer: BOOTSEER_KEY is slow") < lines.index("rc init_post_opt 0")


@pytest.mark.parametrize("how", ["hang", "stubborn", "abort", "crash", "exit", "never"])
def test_advice_never_fails_a_submission(host, how):
    seen = host.run("local", options={"bootseer": how}, arguments=("advice_timeout=0.3",))
    assert seen.returncode == 0 and controls(seen)["BOOTSEER_KEY"] == how
    assert seen.of("user") == []
    assert len(seen.of("verbose")) == 1
    assert seen.seconds < 3


def test_advice_that_never_stops_is_cut(host):
    seen = host.run("local", options={"bootseer": "flood"}, arguments=("advice_timeout=0.3",))
    assert seen.returncode == 0 and seen.seconds < 3
    assert seen.of("user")[-1] == "bootseer: (more output is dropped)"


def test_no_advice(host):
    seen = host.run("local", options={"bootseer": "hang"}, arguments=("advice_timeout=0",))
    assert seen.returncode == 0 and seen.of("verbose") == []
    (host.libexec / "bootseer-advice.so").unlink()
    seen = host.run("local", options={"bootseer": "hang"})
    assert seen.returncode == 0 and seen.of("user") == []


def test_arguments_that_are_not_understood_are_named_and_ignored(host):
    bad = ("bogus=1", "max_wait=abc", "max_wait=1e3", "run_dir=relative", "advice_timeout=")
    seen = host.run("local", options={"bootseer": "k"}, arguments=bad)
    assert seen.returncode == 0 and controls(seen)["BOOTSEER_KEY"] == "k"
    assert [line.split()[2] for line in seen.of("error")] == list(bad)


def test_a_job_submitted_by_a_task_inherits_its_request(host):
    wished = {"BOOTSEER_WISHED_CKPT": "file:///x", "BOOTSEER_WISHED_IMAGE": "bootseer://a"}
    told = {"BOOTSEER": "k", "BOOTSEER_CKPT": "/home/alice/ckpt", **wished}
    seen = controls(host.run("allocator", env=told))
    assert (seen["BOOTSEER_CKPT"], seen["BOOTSEER_IMAGE"]) == ("file:///x", "bootseer://a")
    seen = controls(host.run("allocator", env={**told, "BOOTSEER_CKPT": "file:///y"}))
    assert seen["BOOTSEER_CKPT"] == "file:///y"
    assert controls(host.run("allocator", env={**told, "BOOTSEER": "off"})) == {}
