"""Words from users: names, options, paths; what root reads and what root's tools print."""

import os
import re
import shlex
import subprocess

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.attacks]

EVIL = "[red]x[/nonsense]\x1b]0;t\x07\x1b[31m\u009b31m\u202e"
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
TARGETS = {
    "not UTF-8": b"/local/m/\xff\xfe",
    "half a character": b"/local/m/\xed\xa0\x80",
    "newline": b"/local/m/a\nowned\n/etc",
    "terminal": EVIL.join(["/local/m/", ""]).encode(),
    "blank and quotes": b"/local/m/a b'c\"d\\e",
    "percent": b"/local/m/%s%n%x",
    "backslash zero": b"/local/m/\\040\\0",
    "comma and equals": b"/local/m/a,upperdir=/etc,b=c:d",
    "long": b"/local/m/" + b"/".join([b"n" * 250] * 14),
    "dots": b"/local/m/../m/./x",
    "slashes": b"//local///m//y//",
}


def as_bytes(arena, argv, user="mallory", node=None, env=None, timeout_s=60):
    """Run a command whatever bytes are in it; returns what came of it, as bytes."""
    line = [
        os.fsencode(w) if isinstance(w, str) else w
        for w in arena.cluster.command([], user=user, node=node, env=env)
    ]
    words = [os.fsencode(w) if isinstance(w, str) else w for w in argv]
    return subprocess.run(
        [*line, *words],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )


def assert_harmless(*texts):
    for text in texts:
        assert not CONTROL.search(text), CONTROL.search(text)


# Attack 5: targets with odd names.


@pytest.mark.parametrize("kind", TARGETS)
def test_a_target_with_an_odd_name(arena, kind):
    """`env run --target` of any name, captured and mounted: the job goes on, the agent lives."""
    target = shlex.quote(os.fsdecode(TARGETS[kind]))
    script = arena.cluster.shared / "m-run.sh"
    text = (
        f"t={target}\nmkdir -p /local/m\n"
        f'{site.bootseer()} env run --wait --target "$t" --mode=$1 -- '
        'sh -c \'mkdir -p "$0"; echo 7 > "$0/x"\' "$t"\n'
        'cat "$t/x"; exit 0\n'
    )
    script.write_bytes(os.fsencode(text))
    with arena.shell("--bootseer=m") as first:
        agents = {one.pid for one in arena.ours(first.job_id) if one.uid == 0}
        first.run("sh /shared/m-run.sh mount", 60)
        assert {one.pid for one in arena.ours(first.job_id)} >= agents
    arena.sh("rm -rf /local/m/*")
    with arena.shell("--bootseer=m") as job:
        agents = {one.pid for one in arena.ours(job.job_id) if one.uid == 0}
        for mode in ("mount", "unpack"):
            job.run(f"sh /shared/m-run.sh {mode}", 60)
            assert {one.pid for one in arena.ours(job.job_id)} >= agents
            # A step finds nothing mounted where nothing of the job's should be.
            see = "grep ' /etc .*environments' /proc/self/mountinfo"
            assert job.run(f"srun --overlap -n1 -wn1 {see}").code != 0
        log = arena.on_host(f"{arena.folder(job.job_id)}/agent.log")
        assert "Traceback" not in log.read_text(errors="replace")
    look_at_everything(arena, job.job_id)


def look_at_everything(arena, job):
    """What an administrator types; nothing of it may reach the terminal as it is."""
    wide = {"COLUMNS": "300"}
    for argv in (
        ["status"],
        ["report", "--user=mallory", str(job)],
        ["hot", "ls", "--user=mallory"],
    ):
        for more in ({"FORCE_COLOR": ""},):
            done = as_bytes(
                arena, [site.bootseer(), *argv], user="root", node="n1", env={**wide, **more}
            )
            assert_harmless(done.stdout, done.stderr)
            assert b"Traceback" not in done.stderr, done.stderr[-500:]
    for node in arena.cluster.node_names:
        assert_harmless(arena.cluster.log(node).read_bytes())


NAMES = {
    "terminal": EVIL.encode(),
    "newline": b"a\nbootseer: job 1: forged line",
    "return": b"good\rbootseer: evil",
    "not UTF-8": b"\xff\xfe\x80",
    "path": b"../../etc/passwd",
    "percent": b"%s%n%1000000d",
    "option": b"--help",
    "long": b"n" * 4000,
    "unit": b"x;y`touch /shared/pwned`$(touch /shared/pwned)",
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_job_with_an_odd_name(arena, kind):
    """The job's name becomes its key where none is given, and is seen by root."""
    argv = [
        "srun",
        "-n1",
        "-wn1",
        "--bootseer",
        b"--job-name=" + NAMES[kind],
        "sh",
        "-c",
        "echo $SLURM_JOB_ID",
    ]
    done = as_bytes(arena, argv)
    if done.returncode == 0:
        job = int(done.stdout.split()[0])
        # Not by scontrol, which prints the name as it is.
        ask = ["squeue", "--states=all", "--noheader", "--format=%T", f"--jobs={job}"]
        wait_until(lambda: arena.cluster.run(ask).stdout.strip() == "COMPLETED", "its end")
        look_at_everything(arena, job)
    argv = [*argv[:3], "--bootseer=m", *argv[4:]]
    done = as_bytes(arena, argv)
    if done.returncode == 0:
        look_at_everything(arena, int(done.stdout.split()[0]))


OPTIONS = {
    "newlines": b"s3://b/x\nSPANK_BOOTSEER_KEY=root",
    "escapes": EVIL.join(["file:///shared/", ""]).encode(),
    "percent": b"file:///shared/%2e%2e/%s%n",
    "parents": b"file:///shared/../etc",
    "parents in the mount point": b"file:///shared/m:/local/m/../../etc",
    "credentials": b"hdfs://user:password@host:1/x",
    "not UTF-8": b"file:///shared/\xff",
    "64 KiB": b"file:///" + b"a" * 65536,
    "query": b"s3://b/x?endpoint_override=/etc/passwd&scheme=file&allow_bucket_creation=true",
    "many colons": b"file:///a:/b:/c:/d:ro:ro",
    "no path": b"file://",
    "device": b"file:///dev",
    "proc": b"file:///proc/self/root",
    "run": b"file:///run/bootseer",
    "cache": b"file:///var/cache/bootseer",
}


@pytest.mark.parametrize("option", ["ckpt", "image", "env"])
def test_odd_options_and_variables(arena, option):
    """Each as an option, in a variable, by `srun --export`, and as Slurm's own variable."""
    failed = {}
    for number, (kind, value) in enumerate(OPTIONS.items()):
        upper = option.upper()
        ways = {
            "option": ([b"--bootseer=m", b"--bootseer-" + option.encode() + b"=" + value], {}),
            "variable": ([], {"BOOTSEER": "m", f"BOOTSEER_{upper}": os.fsdecode(value)}),
            "export": (
                [b"--bootseer=m", f"--export=ALL,SPANK_BOOTSEER_{upper}=".encode() + value],
                {
                    f"SPANK_BOOTSEER_{upper}": os.fsdecode(value),
                    f"SLURM_SPANK_BOOTSEER_{upper}": os.fsdecode(value),
                },
            ),
        }
        for way, (options, env) in ways.items():
            if number % 3 and way != "option":
                continue
            # The operating system refuses longer ones.
            command = (
                "echo $SLURM_JOB_ID; ls $BOOTSEER_CKPT 2>/dev/null | grep -xE 'shadow|99999'; true"
            )
            done = as_bytes(
                arena, ["srun", "-n1", "-wn1", *options, "sh", "-c", command], env=env, timeout_s=90
            )
            if CONTROL.search(done.stderr.replace(value, b"")) or b"Traceback" in done.stderr:
                failed[kind, way] = done.stderr[-300:]
            if done.returncode == 0 and b"shadow" in done.stdout:
                failed[kind, way] = done.stdout
    assert not failed
    look_at_everything(arena, arena.newest_job())


VARIABLES = {
    "LD_PRELOAD": "/shared/m-evil.so",
    "LD_LIBRARY_PATH": "/shared/m-lib",
    "LD_AUDIT": "/shared/m-evil.so",
    "PYTHONPATH": "/shared/m-py",
    "PYTHONSTARTUP": "/shared/m-py/os.py",
    "PYTHONHOME": "/shared/m-py",
    "PYTHONUSERBASE": "/shared/m-py",
    "GCONV_PATH": "/shared/m-lib",
    "OPENSSL_CONF": "/shared/m-openssl.cnf",
    "KRB5_CONFIG": "/shared/m-krb5.conf",
    "AWS_CONFIG_FILE": "/shared/m-aws",
    "HADOOP_CONF_DIR": "/shared/m-hadoop",
    "BOOTSEER_JOB_DIR": "/shared/m-dir",
    "BOOTSEER_SOCKET": "/shared/m-socket",
    "SPANK_BOOTSEER_KEY": "../../x",
    "SPANK_BOOTSEER_IMAGE": "/etc/shadow",
    "SPANK_SLURM_JOB_UID": "0",
    "SLURM_JOB_UID": "0",
    "SLURMD_NODENAME": "../../x",
    "HOME": "/home/alice",
    "TMPDIR": "/shared/m-dir",
    "NOTIFY_SOCKET": "/shared/m-socket",
    "LISTEN_FDS": "5",
}
LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void)
{
    if (getuid() == 0 || access("/proc/self/fd/3", F_OK) == 0)
        close(creat(getuid() ? "/shared/m-seen" : "/shared/pwned", 0666));
}
"""


def test_variables_of_a_job_reach_nothing_of_roots(arena):
    """All of them, by the environment and by `--export`, with a library and modules to load."""
    shared = arena.cluster.shared
    (shared / "m-py").mkdir()
    for name in ("os", "re", "json", "sitecustomize", "usercustomize", "trio"):
        code = "import posix\nif posix.getuid() == 0: posix.mkdir('/shared/pwned')\n"
        (shared / "m-py" / f"{name}.py").write_text(code)
    library = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(shared / "m-evil.so")]
    arena.cluster.run(library, input=LIBRARY)
    exported = ",".join(f"{name}={value}" for name, value in VARIABLES.items() if name != "HOME")
    options = ("--bootseer=m", "--bootseer-image=/mnt/share/tiny.sqsh")
    spank = {f"SLURM_SPANK_{name}": value for name, value in VARIABLES.items()}
    quiet = {k: v for k, v in VARIABLES.items() if k not in ("PYTHONHOME", "HOME", "LD_AUDIT")}
    for env, more in (({**quiet}, ()), (spank, ()), ({}, (f"--export=ALL,{exported}",))):
        job, _, _ = arena.ask_for_job(*options, *more, env=env)
        assert not (shared / "pwned").exists()
        if job:
            wait_until(lambda job=job: not arena.ours(job), "its end", timeout_s=30)
    for victim_file in (arena.cluster.state_dir / "home/alice").glob("m*"):
        raise AssertionError(victim_file)


def test_files_with_odd_names_are_captured_and_told_of(arena):
    """Names of escapes, newlines and no UTF-8 inside of an environment and a checkpoint."""
    make = r"""
        mkdir -p "$0"; cd "$0"; printf x > "$(printf '\033]0;t\007\033[31m')"
        printf x > "$(printf 'a\nb\rc')"; printf x > "$(printf '\377\376')"
        ln -s "$(printf '/etc/\033[31m')" link; mkdir "$(printf 'd\033[2J')"
        printf '[console_scripts]\nx = \033[31m' > "$(printf '\033.dist-info')"
    """
    arena.sh("mkdir -p /shared/m-ckpt /local/m")
    run = ["env", "run", "--wait", "--target", "/local/m/e", "--", "sh", "-c"]
    argv = [site.bootseer(), *run, make, "/local/m/e"]
    with arena.shell("--bootseer=m", "--bootseer-ckpt=file:///shared/m-ckpt") as job:
        assert job.run(shlex.join(argv), 60).code == 0
        job.run(r'cp -r /local/m/e "$BOOTSEER_CKPT/$(printf "\033[31m")"')
    look_at_everything(arena, job.job_id)
    for command in ("env ls", "env ls --long", "image ls", "ckpt ls file:///shared/m-ckpt"):
        done = as_bytes(arena, [site.bootseer(), *command.split()], env={"COLUMNS": "300"})
        assert_harmless(done.stdout, done.stderr)
