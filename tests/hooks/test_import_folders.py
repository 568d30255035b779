"""Where the importer puts images, among what others have put there under such names."""

import json
import os
import stat
import subprocess
import sys
from itertools import permutations

import pytest

pytestmark = pytest.mark.root

ALICE, MALLORY = 4202, 4203
ENVIRON = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "1"}
PREFIX = f"bootseer-import-{ALICE}-{os.uname().nodename}-12.1-"

ENROOT = """#!/bin/sh
case "$5" in *missing*) exit 1 ;; esac
printf hsqs >"$3"
"""

AS_ALICE = """
import json, os, sys
from bootseer.slurm import importer

importer._PARENTS = tuple(json.loads(sys.argv[1]))
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
os.umask(0)
sys.exit(importer.main(sys.argv[3:]))
"""


class Importer:
    """The importer, run as alice in a step of hers."""

    def __init__(self, folder):
        (folder / "bin").mkdir()
        (folder / "bin/enroot").write_text(ENROOT)
        (folder / "bin/enroot").chmod(0o755)
        self.environ = {"PATH": f"{folder}/bin:{os.environ['PATH']}", **ENVIRON}
        self.parents = [folder / "first", folder / "second"]
        for parent in self.parents:
            parent.mkdir()
            parent.chmod(0o1777)

    def run(self, *arguments, **environ):
        argv = [sys.executable, "-P", "-c", AS_ALICE, json.dumps([str(p) for p in self.parents])]
        return subprocess.run(
            [*argv, str(ALICE), *arguments],
            env=self.environ | environ,
            cwd="/",
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )

    def get(self, **environ):
        answer = self.run("get", "docker://ubuntu", **environ)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def release(self):
        answer = self.run("release")
        assert (answer.returncode, answer.stderr) == (0, "")


@pytest.fixture
def importer(place):
    return Importer(place)


def as_mallory(script):
    subprocess.run(["sh", "-c", script], user=MALLORY, group=MALLORY, extra_groups=[], check=True)


def test_a_folder_is_private_and_removed_on_release(importer):
    path = importer.get()
    folder, _, name = path.rpartition("/")
    assert folder.startswith(f"{importer.parents[0]}/{PREFIX}") and name == "image.sqsh"
    status = os.stat(folder)
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (ALICE, 0o700)
    assert importer.get() != path, "the name of one does not tell another's"
    for _ in range(2):
        importer.release()
        assert os.listdir(importer.parents[0]) == []


def test_only_imports_of_this_step_are_removed(importer):
    path = importer.get()
    others = [importer.get(SLURM_STEP_ID="11"), importer.get(SLURM_JOB_ID="112")]
    importer.release()
    assert not os.path.exists(path)
    assert all(os.path.exists(other) for other in others)


def test_leftovers_of_a_killed_step_are_removed_at_the_users_next_import(importer):
    folders = {job: os.path.dirname(importer.get(SLURM_JOB_ID=job)) for job in ("1", "2", "3")}
    for job in ("1", "2"):
        os.utime(folders[job], (1, 1))
    identity = [f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"]
    living = ["setpriv", *identity, "env", "SLURM_JOB_ID=2", "cat"]
    with subprocess.Popen(living, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        job.stdin.write(b"x")
        job.stdin.flush()
        job.stdout.read(1)  # it runs
        importer.get()
        job.stdin.close()
    assert not os.path.exists(folders["1"])
    assert os.path.exists(folders["2"]), "its job lives"
    assert os.path.exists(folders["3"]), "it may be a job's that has only begun"


HOSTILE = {
    "open folder": "mkdir -m 777 {trap} && echo x >{trap}/file && chmod 777 {trap}/file",
    "closed folder": "mkdir -m 700 {trap}",
    "link": "ln -s {victim} {trap}",
    "dangling link": "ln -s /nowhere {trap}",
    "file": "echo x >{trap}",
    "pipe": "mkfifo -m 666 {trap}",
}


@pytest.mark.parametrize("first", HOSTILE)
@pytest.mark.parametrize("when", ["before get", "before release"])
def test_folders_of_other_users_are_skipped_in_any_order(importer, place, first, when):
    """Names are seen in the order of the folder: each kind is made first once, the others after."""
    victim = place / "victim"
    victim.mkdir(mode=0o700)
    (victim / "precious").write_text("")
    os.chown(victim, ALICE, ALICE)
    path = "" if when == "before get" else importer.get()
    kinds = [first, *(kind for kind in HOSTILE if kind != first)]
    traps = []
    for parent in importer.parents:
        for number, kind in enumerate(kinds):
            traps.append(f"{parent}/{PREFIX}{number:016x}")
            as_mallory(HOSTILE[kind].format(trap=traps[-1], victim=victim))
    as_mallory(f"mkdir -m 777 {importer.parents[0]}/{PREFIX.rstrip('-')}")
    path = path or importer.get()
    assert os.path.dirname(path).startswith(str(importer.parents[0]))
    importer.release()
    assert not os.path.exists(os.path.dirname(path))
    assert all(os.path.lexists(trap) for trap in traps)
    assert os.listdir(victim) == ["precious"]


@pytest.mark.parametrize("order", list(permutations(("get", "link", "folder"))))
def test_a_name_that_has_been_seen_is_of_no_use(importer, order):
    path = ""
    for step in order:
        if step == "get":
            path = importer.get()
            folder = os.path.dirname(path)
            for replace in (f"mv {folder} {folder}.away", f"rmdir {folder}", f"touch {path}"):
                with pytest.raises(subprocess.CalledProcessError):
                    as_mallory(f"{replace} 2>/dev/null")
        else:
            trap = f"{importer.parents[0]}/{PREFIX}{step}"
            as_mallory(f"ln -s {path or '/nowhere'} {trap}" if step == "link" else f"mkdir {trap}")
    importer.release()
    assert not os.path.exists(path)
    assert len(os.listdir(importer.parents[0])) == 2


@pytest.mark.parametrize("owner", [0, MALLORY])
def test_a_parent_that_others_can_move_things_out_of_is_not_used(importer, owner):
    first = importer.parents[0]
    os.chown(first, owner, owner)
    first.chmod(0o777 if owner == 0 else 0o1777)
    path = importer.get()
    assert path.startswith(f"{importer.parents[1]}/")
    importer.release()
    assert not os.path.exists(path)


def test_the_folder_of_pyxis_comes_first(importer, place):
    runtime = place / "pyxis"
    (runtime / str(ALICE)).mkdir(parents=True)
    os.chown(runtime / str(ALICE), ALICE, ALICE)
    importer.environ["PYXIS_RUNTIME_PATH"] = str(runtime)
    path = importer.get()
    assert path.startswith(f"{runtime}/{ALICE}/{PREFIX}")
    importer.release()
    assert os.listdir(runtime / str(ALICE)) == []


def test_without_any_parent_an_error_is_raised(importer):
    for parent in importer.parents:
        parent.chmod(0o755)
    answer = importer.run("get", "docker://ubuntu")
    assert answer.returncode == 8
    assert "no folder to import into" in answer.stderr
    importer.release()


def test_an_import_that_fails_leaves_nothing(importer):
    assert importer.run("get", "docker://missing").returncode == 8
    assert os.listdir(importer.parents[0]) == []
