"""`bootseer doctor` on a real cluster: silent where it is healthy, and it finds what is planted."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.fuse]

NODE = "n1"
RUN_DIR = "/run/bootseer"
CACHE = "/var/cache/bootseer"
ETC = ("slurm/slurm.conf", "slurm/plugstack.conf", "slurm/plugstack.conf.d/bootseer.conf")


@pytest.fixture(scope="module")
def cluster():
    with Cluster.up(ClusterSpec(name=f"doctor-{os.getpid()}", nodes=1)) as cluster:
        site.install(cluster)
        yield cluster
        assert findings(cluster) == (0, set())  # all faults are gone


def doctor(cluster, *words, node=NODE, user="root"):
    argv = [site.bootseer(), "doctor", *words]
    return cluster.run(argv, node=node, user=user, check=False, timeout_s=60)


def findings(cluster, **where):
    """The exit code, and the names of checks that found an error."""
    done = doctor(cluster, "--json", **where)
    assert done.stderr == ""
    checks = json.loads(done.stdout)["checks"]
    for check in checks:
        for found in check["findings"]:
            print(check["name"], json.dumps(found, indent=1))
            assert found["what"] and found["why"] and found["mend"]
    return done.returncode, {check["name"] for check in checks if check["status"] == "error"}


def on_node(cluster, *argv):
    cluster.run(argv, node=NODE)


@contextmanager
def undone(cluster, plant, undo):
    on_node(cluster, "sh", "-ec", plant)
    try:
        yield
    finally:
        on_node(cluster, "sh", "-ec", undo)


@contextmanager
def edited(path: Path, old: str, new: str):
    """A file with something replaced; the pattern must be there."""
    before, times = path.read_text(), path.stat()
    after = re.sub(old, new, before, flags=re.MULTILINE)
    assert after != before
    path.write_text(after)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # slurmd is not older for that
    try:
        yield
    finally:
        path.write_text(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@contextmanager
def settings(cluster, text: str):
    file = cluster.etc_bootseer / "bootseer.toml"
    file.write_text(text)
    try:
        yield
    finally:
        file.unlink()


@pytest.mark.parametrize("node", [None, NODE], ids=["submit", "compute"])
@pytest.mark.parametrize("user", ["root", "alice"])
def test_a_healthy_machine_is_one_line(cluster, node, user):
    kind = "compute node" if node else "submit host"
    done = doctor(cluster, "--fix", "--strict", node=node, user=user)
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{kind}: nothing is wrong; checks made: ")
    assert done.returncode == 0


def test_a_job_leaves_it_healthy(cluster):
    cluster.run(["srun", "--bootseer", "true"], user="alice")
    assert findings(cluster) == (0, set())
    assert findings(cluster, user="alice") == (0, set())


def plugin_path_wrong(cluster):
    file = cluster.etc_slurm / "plugstack.conf.d/bootseer.conf"
    return edited(file, r"\S+/bootseer\.so", "/opt/nowhere/bootseer.so")


def folder_not_included(cluster):
    return edited(cluster.etc_slurm / "plugstack.conf", "^include.*", "")


def folder_included_twice(cluster):
    line = "include plugstack.conf.d/*.conf"
    return edited(cluster.etc_slurm / "plugstack.conf", r"\Z", f"{line}\n")


@contextmanager
def plugin_of_another_release(cluster):
    include = cluster.shared / "include"
    shutil.copytree("/usr/include/slurm", include / "slurm")
    header = include / "slurm/slurm_version.h"
    text = header.read_text()
    header.write_text(re.sub(r"(VERSION_NUMBER\s+)0x[0-9a-f]+", r"\g<1>0x150807", text))
    built = cluster.shared / "built"
    argv = [site.bootseer(), "plugin", "build", "--no-advice"]
    argv += ["--slurm-include", str(include), "--output", str(built)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    line = cluster.etc_slurm / "plugstack.conf.d/bootseer.conf"
    try:
        with edited(line, r"\S+/bootseer\.so", "/shared/built/bootseer.so"):
            refused = cluster.run(["srun", "--bootseer", "true"], check=False)
            assert refused.returncode != 0  # so Slurm refuses it, too
            yield
    finally:
        shutil.rmtree(include)
        shutil.rmtree(built)


def fuse_closed(cluster):
    return undone(cluster, "chmod 600 /dev/fuse", "chmod 666 /dev/fuse")


def store_away(cluster):
    text = '[store]\nurl = "hdfs://127.0.0.1:9/user/{user}"\ndeadline_s = 1\n'
    return settings(cluster, text)


@contextmanager
def store_that_users_cannot_write(cluster):
    folder = cluster.shared / "store"
    folder.mkdir(mode=0o755)
    try:
        with settings(cluster, '[store]\nurl = "file:///shared/store/{user}"\n'):
            yield
    finally:
        folder.rmdir()


def slurm_conf(old, new):
    return lambda cluster: edited(cluster.etc_slurm / "slurm.conf", old, new)


def cache_read_only(cluster):
    mount = f"mount -o remount,bind,{{}} {CACHE}"
    return undone(cluster, mount.format("ro"), mount.format("rw"))


def run_folder_of_a_user(cluster):
    plant = f"mkdir -p {RUN_DIR} && chown alice {RUN_DIR}"
    return undone(cluster, plant, f"chown root {RUN_DIR}")


def environment_closed_to_users(cluster):
    """Closed on the node alone, by an overlay over the virtual environment."""
    place = sys.prefix
    upper, work = "/run/closed/upper", "/run/closed/work"
    plant = (
        f"mkdir -p {upper} {work} && chmod 755 {upper} && "
        f"mount -t overlay -o lowerdir={place},upperdir={upper},workdir={work} x {place} && "
        f"chmod 700 {place}"
    )
    return undone(cluster, plant, f"umount {place} && rm -r /run/closed")


def munge_stopped(cluster):
    socket = "/run/munge/munge.socket.2"
    return undone(cluster, f"mv {socket} {socket}.x", f"mv {socket}.x {socket}")


def munge_hangs(cluster):
    signal = "kill -{} $(cat /run/munge/munged.pid)"
    return undone(cluster, signal.format("STOP"), signal.format("CONT"))


def accounts_missing(cluster):
    return settings(cluster, '[node]\nservice_user = "nosuch"\n')


def settings_wrong(cluster):
    return settings(cluster, "[node]\noops = 1\n")


def script_not_executable(cluster):
    script = site.libexec(cluster) / "bootseer-epilog"
    return undone(cluster, f"chmod 644 {script}", f"chmod 755 {script}")


def interpreter_gone(cluster):
    return edited(site.libexec(cluster) / "bootseer-prolog", r"\A#!\S+", "#!/opt/gone/python")


@contextmanager
def plugins_newer_than_slurmd(cluster):
    file = cluster.etc_slurm / "plugstack.conf"
    times = file.stat()
    os.utime(file, (times.st_atime + 3600, times.st_mtime + 3600))
    try:
        yield
    finally:
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def plugin_closed_to_users(cluster):
    plugin = site.libexec(cluster) / "bootseer.so"
    return undone(cluster, f"chmod 600 {plugin}", f"chmod 644 {plugin}")


def arguments_do_not_fit(cluster):
    line = cluster.etc_slurm / "plugstack.conf.d/bootseer.conf"
    return edited(line, "(?<=bootseer.so)", " run_dir=/run/elsewhere")


@contextmanager
def closed_to_users(path):
    mode = path.stat().st_mode
    path.chmod(0o600)
    try:
        yield
    finally:
        path.chmod(mode)


def slurm_conf_closed(cluster):
    return closed_to_users(cluster.etc_slurm / "slurm.conf")


@contextmanager
def settings_closed(cluster):
    with settings(cluster, ""), closed_to_users(cluster.etc_bootseer / "bootseer.toml"):
        yield


def cache_open_to_users(cluster):
    return undone(cluster, f"chmod 777 {CACHE}", f"chmod 755 {CACHE}")


@contextmanager
def image_store_open_to_users(cluster):
    folder = cluster.shared / "library"
    folder.mkdir()
    folder.chmod(0o777)
    try:
        with settings(cluster, '[image]\nstore_url = "file:///shared/library"\n'):
            yield
    finally:
        folder.rmdir()


@contextmanager
def folders_hidden_from_jobs(cluster):
    file = cluster.etc_slurm / "job_container.conf"
    file.write_text("BasePath=/var/tmp/containers\nDirs=/run\n")
    try:
        with edited(
            cluster.etc_slurm / "slurm.conf", r"\Z", "JobContainerType=job_container/tmpfs\n"
        ):
            yield
    finally:
        file.unlink()


FAULTS = [
    (plugin_path_wrong, "plugin.file", "both"),
    (folder_not_included, "plugin.listed", "both"),
    (folder_included_twice, "plugin.once", "both"),
    (plugin_of_another_release, "plugin.release", "both"),
    (fuse_closed, "fuse.users", "compute"),
    (store_away, "stores.own", "user"),
    (store_that_users_cannot_write, "stores.write", "user"),
    (
        slurm_conf("^PrologEpilogTimeout=.*", "PrologEpilogTimeout=1"),
        "slurm.prolog_timeout",
        "both",
    ),
    (slurm_conf("^PrologFlags=.*", ""), "slurm.prolog_flags", "both"),
    (slurm_conf("^PrologFlags=.*", "PrologFlags=RunInJob"), "slurm.run_in_job", "both"),
    (cache_read_only, "folders.cache", "compute"),
    (run_folder_of_a_user, "folders.run_dir", "compute"),
    (environment_closed_to_users, "plugin.environment", "compute"),
    (munge_stopped, "system.munge", "both"),
    (munge_hangs, "system.munge", "compute"),
    (accounts_missing, "system.accounts", "compute"),
    (settings_wrong, "folders.settings", "both"),
    (script_not_executable, "plugin.scripts", "compute"),
    (interpreter_gone, "plugin.interpreter", "compute"),
    (plugins_newer_than_slurmd, "slurm.slurmd", "compute"),
    (plugin_closed_to_users, "plugin.file", "both"),
    (arguments_do_not_fit, "plugin.arguments", "both"),
    (slurm_conf_closed, "slurm.conf", "both"),
    (slurm_conf(r"\Z", "Prolog=/opt/gone/bootseer-prolog\n"), "slurm.hooks", "compute"),
    (settings_closed, "folders.settings", "compute"),
    (cache_open_to_users, "folders.cache", "compute"),
    (image_store_open_to_users, "stores.images", "user"),
    (folders_hidden_from_jobs, "slurm.job_containers", "both"),
]
"""A fault, the check that must find it, and where."""
NAMES = [f"{name}-{number}" for number, (_, name, _) in enumerate(FAULTS)]


@pytest.mark.parametrize(("fault", "name", "where"), FAULTS, ids=NAMES)
def test_a_fault_is_found(cluster, fault, name, where):
    with fault(cluster):
        if where != "user":
            code, names = findings(cluster)
            assert (code, name in names) == (1, True)
        if where != "compute":
            code, names = findings(cluster, node=None, user="alice")
            assert (code, name in names) == (1, True)
        if where == "user":  # root sees it with the user's rights
            done = doctor(cluster, "--json", "--user", "alice")
            checks = {c["name"]: c["status"] for c in json.loads(done.stdout)["checks"]}
            assert (done.returncode, checks[name]) == (1, "error")


def test_fix_mends_what_is_safe(cluster):
    dead = f"{RUN_DIR}/jobs/99"
    on_node(cluster, "sh", "-ec", f"mkdir -p {dead} && touch -d '1 hour ago' {dead}")
    plugstack = cluster.etc_slurm / "plugstack.conf"
    with folder_included_twice(cluster), fuse_closed(cluster):
        times = plugstack.stat()
        done = doctor(cluster, "--fix")
        os.utime(plugstack, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert findings(cluster) == (0, set())
    fixed = [line for line in done.stdout.splitlines() if line.startswith("fix: ")]
    assert len(fixed) == 3
    assert not any("not mended" in line for line in fixed)
    assert cluster.run(["ls", f"{RUN_DIR}/jobs"], node=NODE).stdout == ""
    on_node(cluster, "rm", "-rf", RUN_DIR)  # what is in it could be the user's
    with run_folder_of_a_user(cluster):
        assert "made /run/bootseer root's" in doctor(cluster, "--fix").stdout
        assert findings(cluster) == (0, set())
