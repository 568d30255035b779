"""What acts for a user has their rights and nothing more."""

import json
import os
import subprocess
import sys

import pytest

from bootseer.agent.node.privileges import MAX_DATA_BYTES

pytestmark = [pytest.mark.root]

USER, GROUP = 65534, 65534
IPC_LOCK = 1 << 14

LOOK = """
import ctypes, json, os, resource, sys
from bootseer.agent.node.privileges import Confinement, confine
profile = Confinement.PIN if sys.argv[1] == "warm_up" else Confinement.PLAIN
kept, closed = os.open("/", os.O_RDONLY), [os.open("/", os.O_RDONLY) for _ in range(50)]
os.dup2(closed[0], 900)
confine("nobody", 65534, 65534, os.getppid(), keep=[kept], profile=profile)
libc = ctypes.CDLL(None, use_errno=True)
PR_GET_DUMPABLE, PR_GET_KEEPCAPS, PR_GET_SECUREBITS = 3, 7, 27

def fails(what, *arguments):
    try:
        what(*arguments)
    except OSError:
        return True
    return False

status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
pages = ctypes.create_string_buffer(1 << 20)
print(json.dumps({
    "status": {name: status[name].split() for name in
        ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd", "NoNewPrivs",
         "Seccomp")},
    "opened": [int(fd) - kept for fd in os.listdir("/proc/self/fd") if int(fd) > 2],
    "keep": libc.prctl(PR_GET_KEEPCAPS),
    "bits": libc.prctl(PR_GET_SECUREBITS),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "dumpable": libc.prctl(PR_GET_DUMPABLE),
    "owner": os.stat("/proc/self/environ").st_uid,
    "oom": open("/proc/self/oom_score_adj").read().strip(),
    "data": resource.getrlimit(resource.RLIMIT_DATA),
    "lock": libc.mlock(pages, len(pages)),
    "refused": [
        fails(os.setuid, 0),
        fails(os.setgid, 0),
        fails(os.setgroups, [0]),
        fails(os.setresuid, 0, 0, 0),
        fails(os.listdir, "/root"),
        fails(open, "/etc/shadow"),
        fails(os.chown, "/proc/self/fd/0", 0, 0),
        fails(open, "/proc/self/oom_score_adj", "w"),
        fails(os.kill, 1, 0),
        fails(os.kill, os.getppid(), 0),
        fails(os.fork),
    ],
}))
"""


@pytest.fixture(params=["warm_up", "publish"])
def seen(request):
    import json

    # A user's own limit of locked memory, which only the capability gets past.
    def few():
        import resource

        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    argv = [sys.executable, "-I", "-c", LOOK, request.param]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True, preexec_fn=few)
    return {"role": request.param, **json.loads(answer.stdout)}


def test_its_identity_is_the_users_alone(seen):
    status = seen["status"]
    assert status["Uid"] == [str(USER)] * 4
    assert status["Gid"] == [str(GROUP)] * 4
    assert {int(group) for group in status["Groups"]} == {*os.getgrouplist("nobody", GROUP)}
    assert status["NoNewPrivs"] == ["1"]
    assert status["Seccomp"] == ["2"]
    assert all(seen["refused"]), seen["refused"]


def test_a_prefetch_worker_keeps_only_the_right_to_lock_memory(seen):
    status = seen["status"]
    expected = IPC_LOCK if seen["role"] == "warm_up" else 0
    held = int(status["CapPrm"][0], 16)
    if seen["role"] == "warm_up" and not held:
        pytest.skip("CAP_IPC_LOCK is not ours to give")
    assert (held, int(status["CapEff"][0], 16)) == (expected, expected)
    assert {int(status[kind][0], 16) for kind in ("CapInh", "CapAmb", "CapBnd")} == {0}
    no_root, no_root_locked, fixup_locked, no_ambient, no_ambient_locked = 1, 2, 8, 64, 128
    assert seen["bits"] == no_root | no_root_locked | fixup_locked | no_ambient | no_ambient_locked
    assert seen["keep"] == 0
    assert (seen["lock"] == 0) == (seen["role"] == "warm_up")


def test_its_user_can_neither_trace_nor_read_it(seen):
    assert seen["dumpable"] != 1
    assert seen["owner"] == 0


def test_a_worker_is_killed_first_by_the_oom_killer_and_limited(seen):
    assert seen["oom"] == "1000"
    assert 0 < seen["data"][0] == seen["data"][1] <= MAX_DATA_BYTES
    assert 0 < seen["files"][0] == seen["files"][1] <= 16384
    assert seen["core"] == [0, 0]


def test_a_worker_has_only_the_named_descriptors(seen):
    of_the_listing = 1
    assert seen["opened"] == [0, of_the_listing]


def test_root_acts_with_a_users_rights_on_a_users_data():
    code = (
        "import os\nfrom bootseer.cli.user_store import with_store\n"
        "async def who(store, name): return name, os.getresuid()\n"
        "assert with_store(None, who) == ('root', (0,) * 3)\n"
        "assert with_store('nobody', who) == ('nobody', (65534,) * 3)\n"
        "assert with_store('root', who)[1] == (65534,) * 3\n"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


LEFT = """
import os, signal, sys
from bootseer.agent.node.privileges import confine
agent, (r, w) = os.getpid(), os.pipe()
if os.fork() == 0:
    signal.alarm(30)
    confine("nobody", 65534, 65534, agent, keep=[w])
    os.write(w, b"x")
    while True:
        signal.pause()
assert os.read(r, 1)
"""


def test_a_worker_dies_with_the_agent():
    # Its output ends with the last process that holds it.
    subprocess.run(
        [sys.executable, "-I", "-c", LEFT], stdout=subprocess.PIPE, check=True, timeout=10
    )


def test_a_worker_does_not_start_after_the_agents_death():
    code = (
        "import os\nfrom bootseer.agent.node.privileges import confine\n"
        "try:\n    confine('nobody', 65534, 65534, os.getpid(), keep=())\n"
        "except ProcessLookupError:\n    print('ended')\n"
    )
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    assert answer.stdout == b"ended\n"


def test_a_process_that_keeps_a_capability_exits():
    # Without CAP_SETPCAP the bounding set cannot be emptied.
    code = (
        "import os\nfrom bootseer.agent.node.privileges import confine\n"
        "try:\n    confine('nobody', 65534, 65534, os.getppid(), keep=())\n"
        "except PermissionError:\n    print('refused')\n"
    )
    argv = ["setpriv", "--bounding-set=-setpcap", sys.executable, "-I", "-c", code]
    answer = subprocess.run(argv, capture_output=True, check=True)
    assert answer.stdout == b"refused\n"


NUMBERS = {
    **{"CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "KILL": 5, "SETGID": 6},
    **{"SETUID": 7, "SETPCAP": 8, "IPC_LOCK": 14, "SYS_CHROOT": 18, "SYS_PTRACE": 19},
    **{"SYS_ADMIN": 21, "SYS_NICE": 23, "SYS_RESOURCE": 24},
}


BROKERS = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER KILL SETUID SETGID SETPCAP IPC_LOCK SYS_CHROOT "
    "SYS_ADMIN SYS_NICE SYS_PTRACE SYS_RESOURCE"
)


def test_a_broker_keeps_the_capabilities_that_it_uses_and_no_others():
    script = (
        "from bootseer.agent.node.privileges import limit_to_brokers\n"
        "def look():\n"
        "  print(*[l.split()[1] for l in open('/proc/self/status') if l.startswith('Cap')])\n"
        "look(); limit_to_brokers(); look()"
    )
    argv = [sys.executable, "-P", "-c", script]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/").stdout
    before, after = ([int(word, 16) for word in line.split()] for line in said.splitlines())
    inherited, permitted, effective, bounding, ambient = after
    listed = {NUMBERS[name] for name in BROKERS.split()}
    # A machine may have fewer to begin with.
    assert permitted == effective == before[1] & sum(1 << number for number in listed)
    assert bounding == before[3] & sum(1 << number for number in listed)
    assert inherited == ambient == 0


OTHERS = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace
from bootseer.agent.supervisor.start import give_up_rights
own, other, node = map(Path, sys.argv[1:])
start = SimpleNamespace(account=("nobody", 65534, 65534), broker_pid=os.getppid(),
    folder=SimpleNamespace(state=str(own)), job=SimpleNamespace(uid=1000))
give_up_rights(start, str(node), [])

def said(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        return type(error).__name__
    return ""

def changes(folder):
    there, new = folder / "there", folder / "new"
    there.read_text(), os.listdir(folder)  # these stay
    own.joinpath("mine").touch()
    return [
        said(there.write_text, "y"), said(os.truncate, there, 1), said(new.write_text, "x"),
        said((folder / "sub").mkdir), said((folder / "link").symlink_to, there), said(there.unlink),
        said(os.rename, own / "mine", folder / "taken"),
    ]

places = [own, node / "unpublished/1000", other, node / "unpublished/2000", node]
print(json.dumps(list(map(changes, places))))
"""


def test_a_supervisor_changes_nothing_of_other_jobs_supervisors(tmp_path):
    own, other, node = (tmp_path / name for name in ("own", "other", "node"))
    users = [node / "unpublished" / uid for uid in ("1000", "2000")]
    for folder in (own, other, node, node / "unpublished", *users):
        folder.mkdir()
        (folder / "there").write_text("x")
        for path in (folder, folder / "there"):
            os.chown(path, USER, GROUP)
    tmp_path.chmod(0o755)
    argv = [sys.executable, "-I", "-c", OTHERS, *map(str, (own, other, node))]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True)
    of_job, of_user, *others = json.loads(answer.stdout)
    assert of_job == [""] * 7
    assert of_user == [""] * 6 + ["OSError"]  # as between file systems
    assert others == [["PermissionError"] * 7] * 3


WITHOUT_LANDLOCK = """
import ctypes, errno, struct, sys
from bootseer.agent.node.privileges import limit_changes
def word(code, if_true, if_false, value):
    return struct.pack("HBBI", code, if_true, if_false, value)
LOAD, EQUAL, RETURN, CREATE_RULESET = 0x20, 0x15, 0x06, 444
refuse, allow = 0x00050000 | getattr(errno, sys.argv[1]), 0x7FFF0000
words = ctypes.create_string_buffer(b"".join([word(LOAD, 0, 0, 0),
    word(EQUAL, 0, 1, CREATE_RULESET), word(RETURN, 0, 0, refuse), word(RETURN, 0, 0, allow)]))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("words", ctypes.c_void_p)]
SET_SECCOMP, FILTER = 22, 2
program = Program(4, ctypes.addressof(words))
prctl = ctypes.CDLL(None).prctl
assert prctl(SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0) == 0
assert ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, 0, 0, 1) == -1
limit_changes("/dev")
print("goes on")
"""


@pytest.mark.parametrize("error", ["ENOSYS", "EOPNOTSUPP", "EPERM"])
def test_a_supervisor_continues_where_the_kernel_cannot_limit_changes(error):
    argv = [sys.executable, "-I", "-c", WITHOUT_LANDLOCK, error]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert answer.stdout == "goes on\n"
