"""Users do what they can to root, to each other and to the node; none of it may matter.

After every test: no node is drained, nothing of ours is left on any node, nothing was written
outside of alice's own places, and nothing that a value, a name or a plan said has been executed.
"""

import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import IMAGE, RUN_DIR

from bootseer.core.warm_plan import PlannedImage, PlannedRun, WarmPlan, object_name
from bootseer.errors import BootseerError
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.identity import identify, open_image

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

HERE = Path(__file__).parent
# Held until the worker has looked at what it is given, or these jobs would be over before.
TRAIN = ("--bootseer=train", "--bootseer-wait=5")
BOOTSEER = (*TRAIN, f"--bootseer-image={IMAGE}")
PWNED = "/shared/pwned"
EVIL = "[red]x[/nonsense]\x1b]0;t\x07\x1b[31m\u009b31m\u202e"
SECRET = "the secret of somebody else"

# The operating system itself refuses strings of more than 128 KiB.
LONG = 120_000


@pytest.fixture(scope="module", autouse=True)
def _nodes_have_had_a_job(cluster_lab):
    """The first makes the folders of a node."""
    nodes = len(cluster_lab.cluster.node_names)
    cluster_lab.srun("--bootseer=first", f"-N{nodes}", command="true")


@pytest.fixture(autouse=True)
def _nothing_happened_outside(lab):
    state = lab.cluster.state_dir
    places = [state / "root", state / "etc", state / "home" / "mallory"]
    places += [state / "machines" / machine / "cache" for machine in lab.cluster.node_names]
    secret = state / "home" / "mallory" / "secret"
    secret.write_text(SECRET)
    shutil.chown(secret, "root", "root")
    secret.chmod(0o600)
    before = _listing(places)
    yield
    lab.assert_clean()
    assert _listing(places) == before
    assert not (lab.cluster.shared / "pwned").exists()
    for path in (state / "home" / "alice").rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20:
            assert SECRET.encode() not in path.read_bytes(), path
    for path in [*(state / "home" / "alice").iterdir(), *lab.cluster.shared.iterdir()]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in ("again",):
            path.unlink()


def _listing(places):
    """Every path below the places with what a write would change; our spool apart."""
    found = {}
    for place in places:
        for path in [place, *place.rglob("*")]:
            if "unpublished" not in path.parts[-3:] and path.name != "cache":
                info = path.lstat()
                found[path] = (info.st_mode, info.st_uid, info.st_size, info.st_mtime_ns)
    return found


@pytest.fixture(scope="module")
def own_conf(cluster_lab):
    """A slurm.conf of a user's own, in which our plugin is theirs."""
    folder = cluster_lab.cluster.state_dir / "users-own"
    folder.mkdir(exist_ok=True)
    plugin = folder / "hostile.so"
    source = HERE / "hostile_submit.c"
    cluster_lab.cluster.run(["gcc", "-shared", "-fPIC", "-o", str(plugin), str(source)])
    (folder / "plugstack.conf").write_text(f"optional {plugin}\n")
    conf = (cluster_lab.cluster.etc_slurm / "slurm.conf").read_text()
    (folder / "slurm.conf").write_text(f"{conf}\nPlugStackConfig={folder}/plugstack.conf\n")
    return f"{folder}/slurm.conf"


def sent(own_conf, values):
    """Environment of a submission that sends values to the node as they are."""
    return {"SLURM_CONF": own_conf, **{f"HOSTILE_{name}": value for name, value in values.items()}}


def srun(lab, *options, command="true", env=None):
    """Run srun whatever bytes it prints; returns exit code, stderr, and the job or 0."""
    command = f"echo job=$SLURM_JOB_ID; {command}"
    argv = ["srun", "-n1", "-wn1", *options, "sh", "-c", command]
    line = lab.cluster.command(argv, user="alice", env=env)
    answer = subprocess.run(line, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    found = re.search(rb"^job=(\d+)$", answer.stdout, re.MULTILINE)
    return answer.returncode, answer.stderr, int(found[1]) if found else 0


def completes(lab, *options, command="true", env=None):
    """Run a job that ends as if there were no BootSeer; returns its id once its epilog has run."""
    code, stderr, job = srun(lab, *options, command=command, env=env)
    assert code == 0, stderr
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    folder = Path(f"/proc/{lab.cluster.holder_pid('n1')}/root{RUN_DIR}/jobs/{job}")
    wait_until(lambda: not folder.exists(), f"job {job} gone from n1")
    return job


def each(lab, cases, work):
    """Do ``work`` for each case, a few at a time, and tell of all that failed."""
    failed = {}
    with ThreadPoolExecutor(4) as pool:
        for name, future in [(name, pool.submit(work, name)) for name in cases]:
            try:
                future.result()
            except (AssertionError, BootseerError) as error:
                failed[name] = error
    assert not failed
    lab.assert_healthy()


def fallen_back(lab, job):
    """The stages that fell back, with their details."""
    [node] = lab.report(job)["nodes"]
    return {s["stage"]: s["detail"] for s in node["stages"] if s["status"] == "fallback"}


def logged(lab, node, before):
    """What a node's slurmd has logged of ours since it had ``before`` characters."""
    lines = lab.slurmd_log(node)[before:].splitlines()
    return [line for line in lines if "bootseer" in line]


def as_alice(lab, command, node="n1", **more):
    return lab.cluster.run(["sh", "-c", command], user="alice", node=node, **more)


@contextmanager
def background(lab, argv, **more):
    """A process of alice's on n1, outside of any job."""
    null = subprocess.DEVNULL
    process = lab.cluster.popen(argv, user="alice", node="n1", stdout=null, stderr=null, **more)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


def text_report(lab, job):
    """What root sees of the job's report; it must be harmless to a terminal."""
    argv = [site.bootseer(), "report", "--user=alice", str(job)]
    answer = lab.cluster.run(argv, env={"FORCE_COLOR": "", "COLUMNS": "300"})
    assert_harmless(answer.stdout)
    return answer.stdout


def assert_harmless(text):
    assert all(c.isprintable() or c == "\n" for c in text), ascii(text)


# Values at submit.

KEYS = {
    "traversal": "../../etc",
    "absolute": "/etc",
    "dots": "..",
    "option": "-rf",
    "long option": "--uid=0",
    "blank": "a b",
    "quotes": "a'b\"c",
    "command": f"$(touch {PWNED})",
    "commands": f"x;touch {PWNED}",
    "format": "%s%s%n",
    "newline": "a\nSPANK_PATH=/x",
    "control": "a\x1b[31m\x07",
    "not UTF-8": "\udcff\udcfe",
    "not ASCII": "käse",
    "long": "k" * LONG,
}
PATHS = {
    "relative": "../../etc/shadow",
    "traversal": "/images/../../etc/shadow",
    "option": "-i/etc/shadow",
    "newline": "/a\n/etc/shadow",
    "control": "/a\x1b[31m",
    "not UTF-8": "/\udcff\udcfe",
    "long": "/" + "a" * LONG,
}
WAITS = {
    "negative": "-1",
    "huge": "9" * 30,
    "float": "1e3",
    "hexadecimal": "0x10",
    "blank": " 1",
    "newline": "1\n",
    "format": "%n",
    "long": "1" * LONG,
}
MALFORMED = [
    *[("", name, value) for name, value in KEYS.items()],
    *[("-image", name, value) for name, value in PATHS.items()],
    *[("-env", name, value) for name, value in KEYS.items() if name != "absolute"],
    *[("-ckpt", name, value) for name, value in PATHS.items()],
    *[("-wait", name, value) for name, value in WAITS.items()],
]
VARIABLES = {"": "BOOTSEER", **{f"-{n}": f"BOOTSEER_{n.upper()}" for n in ("image", "env", "ckpt")}}
VARIABLES["-wait"] = "BOOTSEER_WAIT"


@pytest.mark.parametrize("how", ["option", "variable", "Slurm's variable"])
def test_malformed_values_are_refused_before_there_is_a_job(lab, how):
    def submit(case):
        option, _, value = case
        options, env = (), {}
        if how == "option":
            options = (f"--bootseer{option}={value}",)
        elif how == "variable":
            env = {"BOOTSEER": "train", VARIABLES[option]: value}
        else:
            # Slurm takes these for options that were given, as inside a batch job.
            variable = f"bootseer_bootseer{option.replace('-', '_')}"
            env = {f"SLURM_SPANK__SLURM_SPANK_OPTION_{variable}": value}
        code, stderr, job = srun(lab, *options, env=env)
        assert code != 0 and not job
        [ours] = [line for line in stderr.split(b"\n") if b"bootseer: " in line]
        assert ours.isascii() and ours.decode().isprintable() and len(ours) < 600

    before = lab.newest_job()
    each(lab, MALFORMED, submit)
    assert lab.newest_job() == before


# Values that by-pass the check at submit.

BY_PASSED = [
    *[({"BOOTSEER_KEY": value}, f"key {name}") for name, value in KEYS.items()],
    *[
        (
            {
                "BOOTSEER_KEY": "",
                "BOOTSEER_JOB_NAME": KEYS[name],
                "BOOTSEER_IMAGE": PATHS.get(name, "/a/.."),
                "BOOTSEER_WAIT": WAITS.get(name, "-0"),
            },
            f"all but the key: {name}",
        )
        for name in KEYS
    ],
    ({"BOOTSEER_KEY": "train", "BOOTSEER_ENV": EVIL, "BOOTSEER_CKPT": "-" * 9000}, "not yet"),
    ({"BOOTSEER_KEY": "train", "_SLURM_SPANK_OPTION_pyxis_container_image": "/../x\n"}, "pyxis"),
    (
        {
            "BOOTSEER_KEY": "train",
            **dict.fromkeys(("LD_PRELOAD", "PATH", "PYTHONPATH", "PYTHONHOME"), "/shared/evil"),
            "SLURM_JOB_UID": "0",
            "SLURM_JOB_ID": "../../../x",
        },
        "names that mean something",
    ),
    ({f"BOOTSEER_{number}": "x" * 1000 for number in range(100)}, "many"),
]


def by_pass(lab, own_conf, every=1):
    before = len(lab.slurmd_log("n1"))
    cases = {name: values for values, name in BY_PASSED[::every]}
    each(lab, cases, lambda name: completes(lab, env=sent(own_conf, cases[name])))
    lines = logged(lab, "n1", before)
    assert all(line.isprintable() and len(line) < 1500 for line in lines)
    return lines


def test_values_that_by_pass_the_plugin_are_checked_on_the_node(lab, own_conf):
    lines = "\n".join(by_pass(lab, own_conf))
    for expected in ("is not a valid key", "key train"):
        assert expected in lines


def test_values_reach_a_prolog_of_slurm_conf_as_they_are(lab, own_conf):
    """No plugin on the node, either: only the entry script is between the values and root."""
    conf = lab.cluster.etc_slurm / "slurm.conf"
    plugstack = lab.cluster.etc_slurm / "plugstack.conf.d/bootseer.conf"
    before = {path: (path.read_text(), path.stat().st_mtime_ns) for path in (conf, plugstack)}
    libexec = site.libexec(lab.cluster)
    hooks = f"Prolog={libexec}/bootseer-prolog\nEpilog={libexec}/bootseer-epilog\n"
    conf.write_text(before[conf][0] + hooks)
    plugstack.write_text("")
    try:
        lab.cluster.restart_slurmd()
        by_pass(lab, own_conf, every=3)
    finally:
        for path, (text, mtime_ns) in before.items():
            path.write_text(text)
            os.utime(path, ns=(mtime_ns, mtime_ns))
        lab.cluster.restart_slurmd()


def test_a_step_sends_values_of_its_own(lab, own_conf):
    """The plugin in slurmstepd, as root: a bad value is logged and left out."""

    def step(case):
        option, _, value = case
        inner = f'SLURM_CONF={own_conf} srun --overlap -N1 -n1 "--bootseer{option}=$VALUE" true'
        completes(lab, command=inner, env={"VALUE": value})

    before = len(lab.slurmd_log("n1"))
    each(lab, MALFORMED[::2], step)
    lines = logged(lab, "n1", before)
    assert any("it is ignored" in line for line in lines)
    assert all(line.isprintable() and len(line) < 1500 for line in lines)


PRELOADED = """
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void run(void)
{
    creat(geteuid() ? "/shared/evil/loaded" : "/shared/pwned", 0600);
}
"""


def test_the_users_environment_reaches_no_process_of_roots(lab):
    evil = lab.cluster.shared / "evil"
    (evil / "json").mkdir(parents=True)
    for module in ("sitecustomize", "usercustomize", "re", "os", "trio", "json/__init__"):
        (evil / f"{module}.py").write_text(
            f"import posix\nif posix.geteuid() == 0: posix.mkdir('{PWNED}')\n"
        )
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(evil / "evil.so")]
    lab.cluster.run(argv, input=PRELOADED)
    evil.chmod(0o777)
    env = {
        "LD_PRELOAD": "/shared/evil/evil.so",
        "PYTHONPATH": "/shared/evil",
        "PYTHONSTARTUP": "/shared/evil/os.py",
        "PYTHONINSPECT": "1",
        "PYTHONUSERBASE": "/shared/evil",
        "BOOTSEER_SOCKET": "/shared/evil/agent.sock",
        "BOOTSEER_JOB_DIR": "/shared/evil",
        "SPANK_BOOTSEER_KEY": "../..",
        "SPANK_BOOTSEER_IMAGE": "/etc/shadow",
        "SLURM_SPANK_BOOTSEER_KEY": "../..",
        "TMPDIR": "/shared/evil",
        "BASH_ENV": "/shared/evil/os.py",
    }
    job = completes(lab, *BOOTSEER, env=env)
    assert (evil / "loaded").exists(), "the check can fail"
    assert lab.report(job)["key"] == "train"
    # The submit side starts an interpreter, too: as the user, and it must not abort.
    completes(lab, *BOOTSEER, env={**env, "PYTHONHOME": "/shared/evil"})


def test_a_job_learns_its_own_agents_socket_whatever_it_says(lab):
    env = {"BOOTSEER_SOCKET": "/shared/elsewhere"}
    said = lab.srun(*BOOTSEER, command="echo $BOOTSEER_SOCKET", env=env)
    assert set(said.stdout.split()) == {f"{RUN_DIR}/jobs/{said.job_id}/agent.sock"}


def roots(lab, node, job):
    """Root's processes for a job."""
    return [p for p in lab.cluster.processes(node) if f"jobs/{job}" in p.command and not p.uid]


# What lies where the image should be.

IMAGES = {
    "link to /etc/shadow": "ln -s /etc/shadow",
    "link to root's file": "ln -s /home/mallory/secret",
    "link to /dev/zero": "ln -s /dev/zero",
    "link to /dev/stdin": "ln -s /proc/self/fd/0",
    "link to the channel": "ln -s /proc/self/fd/3",
    "link to the agent's log": "ln -s /proc/self/fd/1",
    "link to memory": "ln -s /proc/self/mem",
    "link to itself": "ln -s image",
    "FIFO": "mkfifo",
    "folder": "mkdir",
    "sparse, 10 TB": "truncate -s 10T",
    "sparse, 900 GB": "truncate -s 900G",
    "empty": "touch",
    "one byte": "printf x >",
    "squashfs with its tables outside": "printf 'hsqs%0200d' 7 >",
}


def test_something_else_lies_where_the_image_should_be(lab):
    def work(kind):
        folder = f"/shared/{list(IMAGES).index(kind)}"
        as_alice(lab, f"mkdir {folder}; cd {folder}; {IMAGES[kind]} image")
        job = completes(lab, *TRAIN, f"--bootseer-image={folder}/image")
        good = kind in ("sparse, 900 GB", "one byte")
        assert fallen_back(lab, job).keys() == (set() if good else {"image.identify"})

    each(lab, IMAGES, work)


def test_the_image_has_a_name_that_means_something_to_a_terminal(lab):
    name = "/shared/a/[red]x[/nonsense] \u009b31m\u202e$(touch pwned)"
    image = lab.cluster.shared / name.removeprefix("/shared/")
    image.parent.mkdir(parents=True)
    shutil.copy(lab.images / "tiny.sqsh", image)
    own = f"{site.bootseer()} status"
    job = completes(lab, *TRAIN, f"--bootseer-image={name}", command=own)
    assert fallen_back(lab, job) == {}
    text_report(lab, job)
    job, running = lab.start_in_background(*TRAIN, f"--bootseer-image={name}")
    try:
        wait_until(lambda: any(one["images"] for one in lab.status("n1")), "the image")
        shown = lab.cluster.run(
            [site.bootseer(), "status"], node="n1", env={"COLUMNS": "300"}
        ).stdout
        assert "[red]x[/nonsense]" in shown
        assert_harmless(shown)
    finally:
        lab.end(job, running)


@pytest.mark.parametrize("by", ["job", "step"])
@pytest.mark.parametrize(
    ("request_", "options"), [("lookup", ()), ("flush", ()), ("flush", ("allow_other",))]
)
def test_the_image_lies_on_a_file_system_of_the_users_that_hangs(lab, request_, options, by):
    allowed = lab.cluster.shared / "fuse.conf"
    allowed.write_text("user_allow_other\n")
    lab.cluster.run(["mount", "--bind", "/shared/fuse.conf", "/etc/fuse.conf"], node="n1")
    as_alice(lab, "mkdir -p /shared/hanging")
    server = [sys.executable, str(HERE / "hanging_fuse.py"), "/shared/hanging", request_, *options]
    asked = ("--bootseer=train", "--bootseer-image=/shared/hanging/image", "--bootseer-wait=1")
    command = "true"
    if by == "step":
        asked, command = ("--bootseer=train",), client("hanging_image")
    try:
        with background(lab, server):
            wait_until(
                lambda: any(m.mountpoint == "/shared/hanging" for m in lab.cluster.mounts("n1")),
                "the user's file system",
            )
            job = completes(lab, *asked, command=command)
            # Nothing of root's waits for the server, though the user's own worker may.
            wait_until(lambda: not roots(lab, "n1", job), "the agent's end", timeout_s=15)
    finally:
        as_alice(lab, "fusermount3 -uz /shared/hanging; rmdir /shared/hanging", check=False)
        lab.cluster.run(["umount", "/etc/fuse.conf"], node="n1")
    if request_ == "flush":
        assert "root did not mount on this node" in fallen_back(lab, job)["image.identify"]


def test_the_image_shrinks_and_grows_while_it_is_read(lab):
    image = lab.cluster.shared / "image"
    whole = (lab.images / "tiny.sqsh").read_bytes()
    image.write_bytes(whole)
    options = (*TRAIN, "--bootseer-image=/shared/image")
    completes(lab, *options, command="cat /shared/image > /dev/null")
    assert lab.report(completes(lab, *options))["kind"] == "warm"
    loop = "while :; do : > /shared/image; cat /shared/whole > /shared/image; done"
    (lab.cluster.shared / "whole").write_bytes(whole)
    os.chown(image, lab.cluster.spec.uid("alice"), -1)
    with background(lab, ["timeout", "20", "sh", "-c", loop]):
        for _ in range(2):
            completes(lab, *options)


# The user's store.

PLAN = f".bootseer/{object_name('train')}"
STORES = {
    "link to root's": "ln -s /root .bootseer",
    "link to root's store": "ln -s /root/.bootseer .bootseer",
    "link to another user's": "ln -s /home/mallory .bootseer",
    "link to /etc": "ln -s /etc .bootseer",
    "link to itself": "ln -s .bootseer .bootseer",
    "FIFO": "mkfifo .bootseer",
    "file": "echo x > .bootseer",
    "open to all": "mkdir -m 0777 .bootseer",
    "not even its owner's": "mkdir -m 0 .bootseer",
    "plans lead to /etc": "mkdir -p .bootseer; ln -s /etc .bootseer/plans",
    "plans are a FIFO": "mkdir -p .bootseer; mkfifo .bootseer/plans",
    "the plan is a link": f"mkdir -p .bootseer/plans; ln -s /etc/shadow {PLAN}",
    "the plan is a FIFO": f"mkdir -p .bootseer/plans; mkfifo {PLAN}",
    "the plan is a folder": f"mkdir -p {PLAN}",
    "the plan is 10 TB": f"mkdir -p .bootseer/plans; truncate -s 10T {PLAN}",
    "traces lead to another user": "mkdir -p .bootseer; ln -s /home/mallory .bootseer/traces",
    "runs lead to another user": "mkdir -p .bootseer; ln -s /home/mallory .bootseer/runs",
    "hot sets lead to root": "mkdir -p .bootseer; ln -s /root .bootseer/hot",
    "names that are no names": "mkdir -p .bootseer/hot .bootseer/runs; cd .bootseer; "
    "touch 'hot/[red]x[link=y].hotset' \"runs/$(printf 'a\\033[31mb\\nc')\" hot/...hotset",
}


@pytest.mark.parametrize("kind", STORES)
def test_the_users_store_is_not_what_it_should_be(lab, kind):
    as_alice(lab, f"umask 022; cd; {STORES[kind]}")
    lab.cluster.run(["chmod", "755", "/home/mallory"])
    try:
        job = completes(lab, *BOOTSEER)
        # Root looks at it, as an administrator who was asked for help would.
        argv = ["hot", "ls"] if "hot" in STORES[kind] else ["report", str(job)]
        argv = [site.bootseer(), *argv, "--user=alice"]
        answer = lab.cluster.run(argv, check=False, timeout_s=20)
        assert answer.returncode in (0, 3, 4, 5, 6, 8), answer
        assert "Traceback" not in answer.stderr
        assert_harmless(answer.stdout + answer.stderr)
    finally:
        lab.cluster.run(["chmod", "700", "/home/mallory"])


def test_a_store_that_was_unusable_is_used_again(lab):
    as_alice(lab, "cd; mkfifo .bootseer")
    lost = completes(lab, *BOOTSEER)
    as_alice(lab, "rm ~/.bootseer")
    job = completes(lab, *BOOTSEER)
    assert lab.report(job)["kind"] == "cold"
    assert "publish" in lab.fallbacks(lost)


def put_in_store(lab, name, data):
    """Write an object into alice's store, as alice would."""
    store, alice = lab.store(), [lab.cluster.spec.uid("alice")] * 2
    for folder in (store, (store / name).parent):
        folder.mkdir(mode=0o755, exist_ok=True)
        os.chown(folder, *alice)
    (store / name).write_bytes(data)
    os.chown(store / name, *alice)


PLANNED = {
    "shadow": "/etc/shadow",
    "traversal": "/shared/../etc/shadow",
    "relative": "etc/shadow",
    "device": "/dev/zero",
    "descriptor": "/proc/self/fd/3",
    "terminal": f"/shared/{EVIL}",
    "not UTF-8": "/shared/\udcff",
    "half a character": "/shared/\ud800",
    "newline": "/shared/a\nb",
    "NUL": "/shared/a\0b",
    "long": "/" + "a" * 4000,
    "too long": "/" + "a" * 200_000,
    "URI": "http://evil/$(touch /shared/pwned)",
}


def test_the_plan_names_something_else(lab):
    def work(kind):
        key = f"key{list(PLANNED).index(kind)}"
        image = PlannedImage(PLANNED[kind], "../../../x", 2**62, 2**62)
        runs = (PlannedRun(f"../..{EVIL}", 1, "cold", 1),)
        plan = WarmPlan("alice", key, (image,), runs)
        put_in_store(lab, object_name(key), plan.encode())
        job = completes(lab, f"--bootseer={key}", "--bootseer-wait=5")
        # Nothing else: the worker and its agent are no worse for it.
        # A URI is served if there is such an image; all else is opened, or no plan.
        known = ({"image.identify"}, {"plan.read"}, {"image.mount"})
        assert fallen_back(lab, job).keys() in known
        if kind in ("terminal", "not UTF-8", "half a character"):
            text_report(lab, job)

    each(lab, PLANNED, work)


def test_the_plan_claims_another_owner_in_words_for_a_terminal(lab):
    put_in_store(lab, object_name("train"), WarmPlan(f"mallory{EVIL}", "train").encode())
    job = completes(lab, *TRAIN)
    assert "this is the plan of mallory" in fallen_back(lab, job)["plan.read"]
    text_report(lab, job)


END = 1 << 40
HOT = {
    "past the end": [HotRange(i << 20, (i << 20) + 4096, 0, 1) for i in range(1000)],
    "far past the end": [HotRange(END - 4096, END, 0, 1)],
    "all of a TB": [HotRange(0, END, 0, 1)],
    "overlapping": [HotRange(0, 8192, 0, 1), HotRange(4096, 12288, 0, 1)],
    "the same again": [HotRange(0, 8192, 0, 1)] * 1000,
    "empty and backwards": [HotRange(4096, 4096, 0, 1), HotRange(8192, 0, 0, 1)],
    "at the end of all numbers": [HotRange(2**64 - 4096, 2**64 - 1, 0, 1)],
    "350,000 ranges": [HotRange(i * 8192, i * 8192 + 1, i, 1) for i in range(350_000)],
    "100,000 ranges": [HotRange(i * 8192, i * 8192 + 1, i, 1) for i in range(100_000)],
}


def test_the_hot_set_is_made_up(lab):
    tiny = (lab.images / "tiny.sqsh").read_bytes()

    def work(kind):
        number = list(HOT).index(kind)
        image = lab.cluster.shared / f"{number}.sqsh"
        image.write_bytes(tiny + bytes(number + 1))  # an image of its own
        digest = identify(open_image(str(image))).digest
        hot_set = HotSet(digest, END, tuple([EVIL] * 100), tuple(HOT[kind]))
        put_in_store(lab, f"hot/{digest}.hotset", hot_set.encode())
        job = completes(lab, *TRAIN, f"--bootseer-image=/shared/{number}.sqsh")
        refused = kind.split()[0] in ("overlapping", "the", "empty", "at", "350,000")
        told = fallen_back(lab, job).keys()
        assert ("hotset.read" in told) == refused
        assert "agent.worker" not in told

    each(lab, HOT, work)


def test_the_store_is_full_of_rubbish(lab):
    digest = identify(open_image(str(lab.images / "tiny.sqsh"))).digest
    completes(lab, *BOOTSEER)
    for number in range(300):
        put_in_store(lab, f"traces/{digest}/{number:020d}-c.1-n1.trace", os.urandom(3000))
    job = completes(lab, *BOOTSEER, command=lab.start())
    assert lab.fallbacks(job) == set()
    assert len(list((lab.store() / "traces" / digest).iterdir())) < 10


@pytest.mark.parametrize("data", [b"", gzip.compress(b"[" * 100_000), os.urandom(5000)])
def test_the_events_are_no_events(lab, data):
    job = completes(lab, *BOOTSEER)
    [run] = (lab.store() / "runs").iterdir()
    put_in_store(lab, f"runs/{run.name}/n1-{9:020d}.json.gz", data)
    argv = [site.bootseer(), "report", str(job), "--user=alice"]
    answer = lab.cluster.run(argv, check=False)
    assert (answer.returncode, answer.stdout) == (4, "")
    assert_harmless(answer.stderr)


# The agent's control socket.


def client(case, *arguments):
    return " ".join([sys.executable, str(HERE / "hostile_client.py"), case, *map(str, arguments)])


@pytest.mark.parametrize("case", ["garbage", "finish", "forge", "images", "imports", "many_events"])
def test_the_job_speaks_to_its_agent(lab, case):
    job = completes(lab, *BOOTSEER, command=client(case))
    stages = lab.stages(job).keys()
    assert {"agent.ready", "image.record", "epilog"} <= stages
    assert "agent.died" not in stages
    sizes = [len(gzip.decompress(path.read_bytes())) for path in lab.store().rglob("n1-*.json.gz")]
    assert max(sizes) < 2 << 20
    text_report(lab, job)


def test_the_job_floods_its_agent_and_root_is_answered(lab):
    job, running = lab.start_in_background(*BOOTSEER)
    socket = f"{RUN_DIR}/jobs/{job}/agent.sock"
    argv = [sys.executable, str(HERE / "hostile_client.py"), "flood", socket]
    # From outside of the job, so that it is still there when the epilog comes.
    flood = lab.cluster.popen(argv, user="alice", node="n1", stdin=subprocess.PIPE)
    try:
        assert flood.stdout.readline() == "held\n"
        assert [state["job"]["job_id"] for state in lab.status("n1")] == [job]
        lab.end(job, running)
        lab.assert_clean()
        assert "agent.died" not in lab.stages(job)
        assert "epilog" in lab.stages(job)
    finally:
        flood.communicate("")


def test_another_user_reaches_neither_socket_nor_files(lab):
    job, running = lab.start_in_background(*BOOTSEER)
    folder = f"{RUN_DIR}/jobs/{job}"
    try:
        as_alice(lab, f"chmod 0777 {folder}/agent.sock")
        argv = [*client("nobody_answers", f"{folder}/agent.sock").split()]
        assert "well done" in lab.cluster.run(argv, user="mallory", node="n1").stdout
        for attempt in (
            f"ls {folder}",
            f"cat {folder}/events.jsonl",
            f"cat {folder}/agent.log",
            f"touch {folder}/x",
            f"ln -s /etc {RUN_DIR}/jobs/999999",
            f"mv {folder}/agent.sock {folder}/other.sock",
            "ls /var/cache/bootseer/unpublished/20001",
        ):
            for user in ("alice", "mallory"):
                answer = lab.cluster.run(["sh", "-c", attempt], user=user, node="n1", check=False)
                assert answer.returncode != 0, (user, attempt)
    finally:
        lab.end(job, running)


# The worker, which runs with the user's uid.


def inner_pid(pid):
    """A process's id as its own machine counts."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise AssertionError(pid)


def workers(lab, node, job):
    return [
        p.pid
        for p in lab.cluster.processes(node)
        if p.uid and (f"jobs/{job}" in p.command or "bootseer.agent.workers.base" in p.command)
    ]


TRACE = """
import ctypes, os, sys
pid, libc = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
ATTACH, SEIZE = 16, 0x4206
for request in (ATTACH, SEIZE):
    assert libc.ptrace(request, pid, None, None) == -1 and ctypes.get_errno() == 1
descriptor = os.pidfd_open(pid)
for number in range(10):
    assert libc.syscall(438, descriptor, number, 0) == -1 and ctypes.get_errno() == 1
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
assert libc.process_vm_readv(pid, vector, 1, vector, 1, 0) == -1 and ctypes.get_errno() == 1
for name in ("mem", "environ", "maps", "fd", "fdinfo", "root", "cwd", "exe"):
    try:
        path = f"/proc/{pid}/{name}"
        os.listdir(path) if name in ("fd", "fdinfo", "root", "cwd") else open(path, "rb").read(1)
    except PermissionError:
        continue
    raise AssertionError(name)
print("well done")
"""


def test_the_worker_cannot_be_traced_by_its_user(lab):
    job, running = lab.start_in_background(*BOOTSEER)
    try:
        # Before, there is the opener too, which may end while it is looked at.
        wait_until(lambda: [s for s in lab.status("n1") if s["state"] == "ready"], "a ready agent")
        for worker in wait_until(lambda: workers(lab, "n1", job), "a worker"):
            argv = [sys.executable, "-P", "-c", TRACE, str(inner_pid(worker))]
            assert lab.cluster.run(argv, user="alice", node="n1").stdout == "well done\n"
    finally:
        lab.end(job, running)


@pytest.mark.parametrize("number", ["STOP", "INT"])
def test_the_worker_is_at_its_users_mercy(lab, number):
    job, running = lab.start_in_background(*BOOTSEER, command="sleep 1")
    for worker in workers(lab, "n1", job):
        as_alice(lab, f"kill -{number} {inner_pid(worker)}")
    running.communicate(timeout=60)
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    lab.assert_clean()
    assert "epilog" in lab.stages(job)
    assert "agent.died" not in lab.stages(job)


def test_every_worker_that_would_publish_is_stopped(lab):
    """By a process outside of the job: the epilog keeps its deadline, the events wait."""
    # On a busy machine it comes too late for some.
    assert any(stops_publishers(lab) for _ in range(4)), "none was stopped"


def stops_publishers(lab):
    """Run a job while its user stops those who publish; whether one was stopped in time."""
    with background(lab, client("stop_publishers", "-").split()):
        code, stderr, job = srun(lab, *BOOTSEER)
        assert (code, lab.cluster.wait_for_job(job, timeout_s=30)) == (0, "COMPLETED"), stderr
        wait_until(lambda: not lab.left_overs("n1"), "the epilog's end", timeout_s=20)
        lab.assert_healthy()
    completes(lab, *BOOTSEER)
    return "publish" in lab.fallbacks(job)


def test_a_users_process_that_says_it_is_an_agents_lives(lab):
    job, running = lab.start_in_background(*BOOTSEER)
    script = lab.cluster.shared / "own.sh"
    script.write_text(f"export BOOTSEER_JOB_DIR={RUN_DIR}/jobs/{job}\nexec sleep 100\n")
    with background(lab, ["sh", "/shared/own.sh"]) as own:
        os.kill(lab.agent("n1", job), signal.SIGKILL)
        lab.end(job, running)
        lab.assert_clean()
        assert own.poll() is None
    completes(lab, *BOOTSEER)
