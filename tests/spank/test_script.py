"""A job's prolog and epilog: what starts, with which environment, and that nothing can hold it."""

from __future__ import annotations

import psutil
import pytest

from bootseer.slurm.options import JobOptions, parse

ASKED = {"SPANK_BOOTSEER_KEY": ""}


def env_of(path):
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def test_job_that_does_not_ask_starts_nothing(host, tmp_path):
    host.script("bootseer-prolog", f"touch {tmp_path}/ran")
    for env in ({}, {"SPANK_BOOTSEER_KEY": "off"}, {"SPANK_OTHER": "1", "BOOTSEER_KEY": "x"}):
        seen = host.run("prolog", env=env)
        assert seen.lines[0] == "rc job_prolog 0" and not (tmp_path / "ran").exists()


def test_environment_is_made_from_scratch(host, tmp_path):
    host.script("bootseer-prolog", f"env > {tmp_path}/env; pwd; umask; ls /proc/self/fd | wc -l")
    env = {
        **ASKED,
        "SPANK_BOOTSEER_IMAGE": "/img\nPATH=/evil",
        "SPANK_BOOTSEER_ENV": "$(reboot)",
        "SPANK_BOOTSEER_CKPT": b"\xff\xfe",
        "SPANK_BOOTSEER_JOB_NAME": "-rf",
        "SPANK_BOOTSEER_SECRET": "s",
        "SPANK_BOOTSEER_EXTRA": "x",
        "SPANK_LD_PRELOAD": "/evil.so",
        "LD_PRELOAD": "",
        "PYTHONPATH": "/evil",
        "SPANK__SLURM_SPANK_OPTION_pyxis_container_image": "/pyxis.sqsh",
        "SLURM_JOB_ID": "666",
        "SLURM_JOB_USER": "ada",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_EVIL": "x",
    }
    seen = host.run("prolog", env=env)
    assert seen.of("info") == ["bootseer: /", "bootseer: 0022", "bootseer: 4"]
    text = (tmp_path / "env").read_bytes()
    # A newline in a value is the script's to refuse; it cannot make a variable of its own.
    assert b"SPANK_BOOTSEER_IMAGE=/img\nPATH=/evil\n" in text
    assert b"PATH=/usr/sbin:/usr/bin:/sbin:/bin\n" in text
    names = {line.split(b"=")[0].decode() for line in text.splitlines()}
    assert names == {
        *("PATH", "LANG", "PWD", "SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_JOB_GID"),
        *("SLURM_JOB_USER", "SLURM_CONF"),
        *(
            f"SPANK_BOOTSEER_{name}"
            for name in ("KEY", "IMAGE", "ENV", "CKPT", "JOB_NAME", "SECRET")
        ),
        "SPANK__SLURM_SPANK_OPTION_pyxis_container_image",
    }
    for line in (b"SLURM_JOB_ID=4711\n", b"SLURM_JOB_UID=1000\n", b"SLURM_JOB_GID=1001\n"):
        assert line in text


def test_huge_values_are_dropped(host, tmp_path):
    host.script("bootseer-prolog", f"env > {tmp_path}/env")
    seen = host.run("prolog", env={**ASKED, "SPANK_BOOTSEER_IMAGE": "/" + "x" * 1_000_000})
    assert seen.of("info") == ["bootseer: SPANK_BOOTSEER_IMAGE is dropped: 1000001 bytes"]
    assert "SPANK_BOOTSEER_IMAGE" not in env_of(tmp_path / "env")


def test_options_that_slurm_carried_are_the_fallback(host, tmp_path):
    host.script("bootseer-prolog", f"env > {tmp_path}/env")
    prefix = "SPANK__SLURM_SPANK_OPTION_bootseer_bootseer"
    host.run("prolog", env={prefix: "(null)", f"{prefix}_image": "/i"})
    env = env_of(tmp_path / "env")
    assert (env["SPANK_BOOTSEER_KEY"], env["SPANK_BOOTSEER_IMAGE"]) == ("", "/i")


@pytest.mark.parametrize(
    ("asked", "limit", "told"),
    [("7", "60", "7"), ("0007", "60", "7"), ("3600", "60", "60"), ("3600", "3600", "3600")],
)
def test_the_script_gets_its_real_time_limit(host, tmp_path, asked, limit, told):
    host.script("bootseer-prolog", f"env > {tmp_path}/env")
    env = {**ASKED, "SPANK_BOOTSEER_WAIT": asked}
    host.run("prolog", env=env, arguments=(f"max_wait={limit}",))
    assert env_of(tmp_path / "env")["SPANK_BOOTSEER_WAIT"] == told


@pytest.mark.parametrize("asked", ["3601", "99999", "-1", "7s", " 7", "x" * 4000])
def test_malformed_wait_is_left_to_the_script_to_report(host, tmp_path, asked):
    host.script("bootseer-prolog", f"env > {tmp_path}/env")
    assert host.run("prolog", env={**ASKED, "SPANK_BOOTSEER_WAIT": asked}).hooks() == {"0"}
    env = env_of(tmp_path / "env")
    assert env["SPANK_BOOTSEER_WAIT"] == asked
    options = parse(env)
    assert options.wait_s is None and "--bootseer-wait" in options.ignored[0]


def test_empty_wait_is_none(host, tmp_path):
    host.script("bootseer-prolog", f"env > {tmp_path}/env")
    host.run("prolog", env={**ASKED, "SPANK_BOOTSEER_WAIT": ""})
    assert parse(env_of(tmp_path / "env")) == JobOptions()


@pytest.mark.parametrize(
    ("body", "level", "message"),
    [
        ("exit 1", "error", "ended with exit code 1"),
        ("kill -9 $$", "error", "was ended by signal 9"),
        ("kill -11 $$", "error", "was ended by signal 11"),
        ("printf 'one\\n\\033[31mtwo\\000\\n\\nthree'", "info", r"\x1b[31mtwo?"),
        ("exec >&- 2>&-; sleep 0.2; exit 3", "error", "ended with exit code 3"),
    ],
)
def test_script_that_ends_badly_is_logged(host, body, level, message):
    host.script("bootseer-prolog", body)
    seen = host.run("prolog", env=ASKED)
    assert seen.hooks() == {"0"}
    assert message in "\n".join(seen.of(level))


def test_missing_or_broken_script(host):
    seen = host.run("prolog", env=ASKED)
    assert seen.hooks() == {"0"} and "cannot run" in seen.of("error")[0]
    (host.libexec / "bootseer-prolog").write_text("#!/no/such/python -IS\n")
    (host.libexec / "bootseer-prolog").chmod(0o755)
    seen = host.run("prolog", env=ASKED)
    assert seen.hooks() == {"0"} and "exit code 127" in seen.of("error")[0]


def test_megabyte_without_newline_is_one_cut_line(host):
    host.script("bootseer-prolog", "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo end")
    seen = host.run("prolog", env=ASKED)
    assert seen.of("info") == ["bootseer: " + "x" * 1000, "bootseer: end"]


def test_daemon_that_keeps_the_pipe_does_not_hold_the_node(host, tmp_path, eventually):
    host.script(
        "bootseer-prolog", f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 20' & echo started"
    )
    seen = host.run("prolog", env=ASKED)
    assert seen.hooks() == {"0"} and seen.seconds < 3
    assert seen.of("info") == ["bootseer: started"]
    pid = tmp_path / "pid"
    eventually(lambda: pid.exists() and pid.read_text().strip() != "")
    psutil.Process(int(pid.read_text())).kill()  # it outlived the hook, as an agent must


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_hanging_script_is_killed_with_its_group(host, tmp_path, eventually):
    (host.job_dir).mkdir()
    host.script(
        "bootseer-epilog",
        f"trap '' TERM; sleep 20 & echo $! > {tmp_path}/child; echo waiting; wait; sleep 20",
    )
    seen = host.run("epilog", arguments=("epilog_timeout=0.4",))
    assert seen.hooks() == {"0"} and seen.seconds < 3
    assert seen.of("info") == ["bootseer: waiting"]
    assert "was killed after 0.4 s" in seen.of("error")[0]
    child = int((tmp_path / "child").read_text())
    eventually(lambda: not is_alive(child))


def test_prolog_has_the_users_wait_and_a_grace(host):
    host.script("bootseer-prolog", "exec sleep 20")
    seen = host.run("prolog", env={**ASKED, "SPANK_BOOTSEER_WAIT": "0"})
    assert seen.hooks() == {"0"} and 4.9 < seen.seconds < 8


def test_epilog_runs_only_where_an_agent_was(host, tmp_path):
    host.script("bootseer-epilog", f"env > {tmp_path}/env")
    assert host.run("epilog").hooks() == {"0"}
    host.job_dir.write_text("a file is no agent's folder")
    assert host.run("epilog").hooks() == {"0"}
    assert not (tmp_path / "env").exists()
    host.job_dir.unlink()
    host.job_dir.mkdir()
    assert host.run("epilog", env={"SPANK_BOOTSEER_KEY": "x"}).hooks() == {"0"}
    assert env_of(tmp_path / "env").keys() == {
        *("PATH", "LANG", "PWD", "SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_JOB_GID")
    }
