"""Environments in containers, which a stand-in for Pyxis and Enroot makes on a real cluster."""

import shlex
import subprocess
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs.lab import SHARE

from bootseer.slurm.plugin.files import share

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]
HERE = Path(__file__).parent
IMAGE = f"{SHARE}/container.sqsh"
EMPTY = f"{SHARE}/empty.sqsh"
IN_IMAGE = "/opt/venv"
IN_HOME = "/home/alice/env"
ON_NODE = "/local/env"
# Enroot's own, and the host's programs instead of an image's.
SYSTEM = """\
/proc /proc none x-create=dir,rbind,nosuid,nodev,rslave 0 -1
/dev /dev none x-create=dir,rbind,nosuid,rslave 0 -1
tmpfs /tmp tmpfs x-create=dir,nosuid,nodev,slave 0 -1
/usr/bin /usr/bin none x-create=dir,rbind,ro,nosuid,nodev,rslave 0 -1
/usr/lib /usr/lib none x-create=dir,rbind,ro,nosuid,nodev,rslave 0 -1
/usr/lib64 /usr/lib64 none x-create=dir,rbind,ro,nosuid,nodev,rslave 0 -1
/shared /shared none x-create=dir,bind,nosuid,nodev 0 0
"""
HOME_HOOK = """\
#!/bin/sh
printf '%s %s none x-create=dir,bind,rw,nosuid\\n' "$HOME" "$HOME" >> "$ENROOT_MOUNTS"
"""
SEE = "cat {0}/lib/x {0}/new; grep -q ' {0} .* overlay ' /proc/self/mountinfo && echo mounted"


def write_container(folder: Path, image: Path, *, has_venv: bool) -> None:
    root = folder / "root"
    for name in ("usr", "proc", "dev", "tmp", "shared", "run", "etc", "opt/venv"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    if has_venv:
        (root / "opt/venv/lib").mkdir()
        (root / "opt/venv/lib/image").write_text("the image's\n")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    subprocess.run(
        ["mksquashfs", root, image, "-noappend", "-all-root", "-quiet", "-no-progress"], check=True
    )
    image.chmod(0o644)


@pytest.fixture
def lab(lab, tmp_path):
    """The cluster with Pyxis' option, containers, and nothing left of earlier environments."""
    cluster, enroot = lab.cluster, lab.cluster.state_dir / "enroot"
    write_container(tmp_path, lab.images / "empty.sqsh", has_venv=False)
    write_container(tmp_path, lab.images / "container.sqsh", has_venv=True)
    for name in ("hooks.d", "mounts.d", "run"):
        (enroot / name).mkdir(parents=True, exist_ok=True)
    (enroot / "run").chmod(0o1777)
    (enroot / "enroot").write_text((HERE / "as_enroot.py").read_text())
    (enroot / "enroot-mount").unlink(missing_ok=True)
    (enroot / "enroot-mount").symlink_to("enroot")
    (enroot / "mounts.d/10.fstab").write_text(SYSTEM)
    hook = share("slurm-conf-examples") / "enroot/hooks.d/50-bootseer.sh"
    (enroot / "hooks.d/50-bootseer.sh").write_text(hook.read_text())
    (enroot / "hooks.d/10-home.sh").write_text(HOME_HOOK)
    for path in (enroot / "enroot", *enroot.glob("hooks.d/*")):
        path.chmod(0o755)
    plugin = cluster.state_dir / "pyxis.so"
    cluster.run(["gcc", "-shared", "-fPIC", "-o", str(plugin), str(HERE / "pyxis_option.c")])
    line = cluster.etc_slurm / "plugstack.conf.d/pyxis.conf"
    line.write_text(f"optional {plugin} enroot={enroot}/enroot\n")
    forget(lab)
    yield lab
    line.unlink()
    forget(lab)
    for name in ("empty", "container"):
        (lab.images / f"{name}.sqsh").unlink()


def forget(lab):
    lab.cluster.run(["rm", "-rf", IN_HOME])
    for node in lab.cluster.node_names:
        lab.cluster.run(["rm", "-rf", ON_NODE], node=node)


def in_container(lab, command, *options, image=IMAGE, **others):
    return lab.srun(f"--container-image={image}", *options, command=command, **others)


def env_run(target, *options):
    make = f"rm -rf {target}/lib; mkdir -p {target}/lib; echo 5 > {target}/lib/x"
    words = ["bootseer-env", "run", "--target", target, *options, "--", "sh", "-c", make]
    return shlex.join(words)


def capture(lab, target):
    """Capture an environment in a container; returns its key."""
    env = {"ENROOT_ROOTFS_WRITABLE": "y"}
    job = in_container(lab, env_run(target, "--wait"), "-N1", "--bootseer=k", image=EMPTY, env=env)
    assert "stored as" in job.stderr, job
    [key] = [f.name for f in (lab.store() / "env/snapshots").iterdir()]
    forget(lab)
    return key


def mounts(lab):
    return {n: sorted(m.mountpoint for m in lab.cluster.mounts(n)) for n in lab.cluster.node_names}


def test_it_is_over_the_images_own_folder_on_every_node(lab):
    """No folder of the node has that path, and none is made."""
    key = capture(lab, IN_IMAGE)
    before = mounts(lab)
    see = f"echo more > {IN_IMAGE}/new && {SEE.format(IN_IMAGE)}; ls {IN_IMAGE}/lib"
    job = in_container(lab, see, f"--bootseer-env={key}", "--bootseer=o", "--bootseer-wait=20")
    assert sorted(job.stdout.split()) == sorted(2 * ["5", "more", "mounted", "x"])
    assert "env.mount" not in lab.fallbacks(job) and "cannot mount" not in job.stderr
    assert mounts(lab) == before
    for node in lab.cluster.node_names:
        assert not Path(IN_IMAGE).exists()
        assert lab.cluster.run(["ls", "/var/cache/bootseer/environments"], node=node).stdout == ""


def test_a_batch_script_without_the_folder_is_not_told(lab):
    """The steps have it, which is enough."""
    options = (f"--bootseer-env={capture(lab, IN_IMAGE)}", "--bootseer=o", "--bootseer-wait=20")
    script = f"#!/bin/sh\nsrun --container-image={IMAGE} cat {IN_IMAGE}/lib/x\n"
    job = lab.sbatch(script, "-N1", *options)
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    text = (lab.cluster.shared / f"{job}.out").read_text()
    assert text.splitlines()[-1] == "5" and "cannot mount" not in text
    assert "env.mount" not in lab.fallbacks(job)


@pytest.mark.parametrize("target", [IN_HOME, ON_NODE])
def test_what_is_written_outside_is_there_inside(lab, target):
    """Enroot binds the home folder alone, which the kernel would refuse."""
    key = capture(lab, target)
    inside = f"srun --container-image={IMAGE} sh -c {shlex.quote(SEE.format(target))}"
    script = f"mkdir -p {target}; srun sh -c 'echo more > {target}/new'; {inside}"
    script += f"; srun --container-image={IMAGE} sh -c 'echo again >> {target}/new'; {inside}\n"
    lab.cluster.run(["install", "-d", "-o", "alice", target], node="n1")
    options = ("-N1", "--bootseer=o", f"--bootseer-env={key}", "--bootseer-wait=20")
    job = lab.sbatch(f"#!/bin/sh\n{script}", *options)
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    said = (lab.cluster.shared / f"{job}.out").read_text().splitlines()
    assert [line for line in said if line in ("5", "more", "again", "mounted")] == [
        *("5", "more", "mounted"),
        *("5", "more", "again", "mounted"),
    ]
    assert "env.mount" not in lab.fallbacks(job)


def test_a_folder_above_that_is_mounted_from_the_node_shows_it(lab):
    key = capture(lab, ON_NODE)
    for node in lab.cluster.node_names:
        lab.cluster.run(["install", "-d", "-o", "alice", ON_NODE], node=node)
    env = {"AS_PYXIS_MOUNTS": "/local"}
    options = (f"--bootseer-env={key}", "--bootseer=o", "--bootseer-wait=20")
    job = in_container(lab, f"cat {ON_NODE}/lib/x", *options, env=env)
    assert job.stdout.split() == ["5", "5"]


def test_all_tasks_of_a_node_have_one_container_with_it(lab):
    key = capture(lab, IN_IMAGE)
    options = ("-n4", "--ntasks-per-node=2", f"--bootseer-env={key}", "--bootseer-wait=20")
    job = in_container(lab, f"cat {IN_IMAGE}/lib/x", *options)
    assert job.stdout.split() == ["5"] * 4


def test_env_run_inside_restores_it_there(lab):
    capture(lab, IN_IMAGE)
    see = f"{env_run(IN_IMAGE)}; cat {IN_IMAGE}/lib/x"
    job = in_container(lab, see, "--bootseer=k", "--bootseer-wait=20", image=EMPTY)
    assert job.stdout.split() == ["5", "5"]
    assert job.stderr.count("without running the command") == 2


def test_a_container_starts_without_it_and_the_report_says_so(lab):
    key = capture(lab, "/opt/other/env")
    (lab.cluster.state_dir / "enroot/hooks.d/20-file.sh").write_text(
        '#!/bin/sh\necho > "$ENROOT_ROOTFS/opt/other"\n'
    )
    (lab.cluster.state_dir / "enroot/hooks.d/20-file.sh").chmod(0o755)
    try:
        options = (f"--bootseer-env={key}", "--bootseer=o", "--bootseer-wait=20")
        job = in_container(lab, "echo in; ls /opt", *options)
    finally:
        (lab.cluster.state_dir / "enroot/hooks.d/20-file.sh").unlink()
    assert job.stdout.split().count("in") == 2
    assert "env.mount" in lab.fallbacks(job)


def test_another_user_reaches_nothing_by_naming_it(lab):
    """Neither by the variable that the hook reads, nor in the folder of the other job."""
    key = capture(lab, IN_IMAGE)
    job_id, running = lab.start_in_background(
        f"--bootseer-env={key}", f"--container-image={IMAGE}", "--bootseer=o", "--bootseer-wait=20"
    )
    try:
        marks = ["sh", "-c", f"ls /run/bootseer/jobs/{job_id}/state/1.shown"]
        for node in lab.cluster.node_names:
            wait_until(
                lambda n=node: not lab.cluster.run(marks, node=n, check=False).returncode, "a mount"
            )
        theirs = f"/run/bootseer/jobs/{job_id}/targets/1"
        before = mounts(lab)
        look = (
            f"ls -A {theirs}; ls {IN_IMAGE}/lib; export BOOTSEER_ENV_MOUNTS={theirs}:{IN_IMAGE};"
            f" cat {theirs}/lib/x; grep -c overlay.*{theirs} /proc/self/mountinfo; true"
        )
        start = f"{lab.cluster.state_dir}/enroot/enroot start {IMAGE}"
        again = f"BOOTSEER_ENV_MOUNTS={theirs}:{IN_IMAGE} {start} sh -c {shlex.quote(look)}; true"
        for options in (["--bootseer=m"], ["--bootseer=m", f"--container-image={IMAGE}"]):
            command = look if len(options) == 2 else again
            job = lab.srun("-N1", "--overlap", *options, command=command, user="mallory")
            assert "5" not in job.stdout.split()
            assert set(job.stdout.split()) <= {"image", "0"}
        for user in ("root", "mallory"):
            seen = lab.cluster.run(["ls", "-A", theirs], node="n1", user=user, check=False)
            assert seen.stdout == ""
        assert not any(set(x) ^ set(before[n]) for n, x in mounts(lab).items())
    finally:
        lab.end(job_id, running)
        lab.forget("mallory")
