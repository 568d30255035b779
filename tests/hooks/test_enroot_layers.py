"""Containers that Enroot creates of a job's image are mounted with a layer, not unpacked."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from bootseer_dev.material.images import squash

from bootseer.slurm.plugin.install import _fill_in

ROOT = Path(__file__).parents[2]
AS_ENROOT = ROOT / "tests/slurm/as_enroot.py"
LINKS = ("unsquashfs", "mksquashfs", "enroot-mount")
LINE = " none bind,nosuid,nodev,slave"
WAIT_S = 10.0

pytestmark = pytest.mark.skipif(
    shutil.which("mksquashfs") is None or not os.path.exists("/dev/fuse"),
    reason="needs squashfs-tools and /dev/fuse",
)


class Site(NamedTuple):
    """A node with Enroot's programs, and a job with an image on it.

    Attributes:
        folder: with all of it.
        image: path of the image.
        env: of the job's steps.
        agent: the listening socket of the job's agent.
    """

    folder: Path
    image: Path
    env: dict[str, str]
    agent: socket.socket

    @property
    def rootfs(self) -> Path:
        return self.folder / "data/pyxis_7_x"

    def run(self, name: str, *words: object, text: str = "") -> subprocess.CompletedProcess[str]:
        argv = [str(self.folder / "bin" / name), *map(str, words)]
        return subprocess.run(
            argv, input=text, env=self.env, text=True, capture_output=True, timeout=60
        )

    def create(self, rootfs: Path | None = None) -> None:
        """Run what `enroot create` runs."""
        options = ("-no-progress", "-processors", "2", "-user-xattrs", "-d")
        done = self.run("unsquashfs", *options, rootfs or self.rootfs, self.image)
        assert done.returncode == 0, done.stderr

    def start(self, script: str, rootfs: Path | None = None) -> str:
        """Run what `enroot start` runs, and then a script with the root folder as $1."""
        path = rootfs or self.rootfs
        mounts = f'printf "none / none slave\\n%s %s{LINE}\\n" "$1" "$1" | enroot-mount - || exit 1'
        shell = ("unshare", "-rm", "sh", "-euc", f"{mounts}\n{script}", "sh", str(path))
        done = subprocess.run(shell, env=self.env, text=True, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def events(self) -> list[dict[str, str]]:
        """Receive what the agent is told."""
        self.agent.settimeout(0)
        found = []
        while True:
            try:
                connection, _ = self.agent.accept()
            except BlockingIOError:
                return found
            with connection:
                connection.settimeout(1)
                told = json.loads(connection.recv(4096))
            if told["op"] == "event":
                found.append(told)

    def is_mounted_way(self, rootfs: Path | None = None) -> bool:
        return ((rootfs or self.rootfs) / ".bootseer/image").is_symlink()

    def servers(self) -> list[str]:
        """List processes that serve the image."""
        done = subprocess.run(
            ["pgrep", "-f", f"bootseer-squashfuse.*{self.folder}"], capture_output=True, text=True
        )
        return done.stdout.split()


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    tree = tmp_path / "tree"
    for folder in ("etc", "old/deep", "closed", "dev"):
        (tree / folder).mkdir(parents=True)
    (tree / "etc/release").write_text("one\n")
    (tree / "old/deep/file").write_text("of the image\n")
    (tree / "secret").write_text("closed\n")
    (tree / "secret").chmod(0)
    (tree / "closed").chmod(0o500)
    for name in ("enroot", "squashfuse"):
        script = f"bootseer-{name}"
        put(tmp_path / "libexec" / script, _fill_in((ROOT / name / script).read_text()))
    (tmp_path / "bin").mkdir()
    for link in LINKS:
        (tmp_path / "bin" / link).symlink_to("../libexec/bootseer-enroot")
    for program in ("enroot-mount", "enroot-nsenter"):
        put(tmp_path / "enroot" / program, AS_ENROOT.read_text())
    put(tmp_path / "lib/runtime.sh", f"\t${{_rootfs}} ${{_rootfs}}{LINE}\n")
    for folder in ("data", "job"):
        (tmp_path / folder).mkdir()
    image = squash(tree, tmp_path / "image.sqsh")
    env = {
        "PATH": f"{tmp_path}/bin:{tmp_path}/enroot:/usr/bin:/bin:/usr/sbin:/sbin",
        "SLURM_JOB_ID": "7",
        "BOOTSEER_SOCKET": str(tmp_path / "job/agent.sock"),
        "BOOTSEER_CONTAINER": str(image),
        "ENROOT_LIBRARY_PATH": str(tmp_path / "lib"),
    }
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(env["BOOTSEER_SOCKET"])
        agent.listen()
        yield Site(tmp_path, image, env, agent)


def test_a_container_is_mounted_and_keeps_what_is_written(site: Site) -> None:
    site.create()
    assert sorted(os.listdir(site.rootfs)) == [".bootseer"]
    (event,) = site.events()
    assert (event["stage"], event["status"]) == ("image.create", "ok")
    changes = 'cd "$1"; rm -r old; mkdir old; echo new > old/new; echo two > etc/release'
    assert site.start(f"{changes}; cat secret; echo x > closed/file") == "closed\n"
    seen = site.start('cd "$1"; ls old; cat etc/release closed/file; ls -A .')
    assert seen.split() == ["new", "two", "x", "closed", "dev", "etc", "old", "secret"]
    assert sorted(os.listdir(site.rootfs)) == [".bootseer"]


def test_the_server_ends_with_the_container(site: Site) -> None:
    site.create()
    site.agent.close()  # no process waits for what is to be read ahead
    at_work = f"pgrep -f 'bootseer-squashfuse.*{site.folder}'"
    assert site.start(f'cat "$1/etc/release" > /dev/null; {at_work}').split()
    until = time.monotonic() + WAIT_S
    while site.servers():
        assert time.monotonic() < until, "a server is left"
        time.sleep(0.05)


def test_enroot_recognizes_the_container_by_its_path(site: Site) -> None:
    """`enroot list` compares this field with the path below the file system's mount point."""
    site.create()
    (line,) = site.start('grep " $1 " /proc/self/mountinfo').splitlines()
    place = site.rootfs
    while not place.is_mount():
        place = place.parent
    assert line.split()[3] == f"/{site.rootfs.relative_to(place)}"


def test_an_exported_container_has_what_it_showed(site: Site) -> None:
    site.create()
    made = (
        "touch .lock; mkdir .enroot; touch dev/null; mkdir -m 0 mounted; touch full; chmod 0 full"
    )
    site.start(f'cd "$1"; rm -r old; echo two > etc/release; {made}; echo x > full')
    out = site.folder / "out.sqsh"
    excluded = f"{site.rootfs}/.bootseer/work/work"
    options = ("-all-root", "-no-progress", "-processors", "2", "-e", excluded)
    done = site.run("mksquashfs", site.rootfs, out, *options)
    assert done.returncode == 0, done.stderr
    copy = site.folder / "copy"
    subprocess.run(["unsquashfs", "-no-progress", "-d", copy, out], check=True, capture_output=True)
    assert sorted(os.listdir(copy)) == ["closed", "dev", "etc", "full", "secret"]
    assert os.listdir(copy / "dev") == []
    assert (copy / "etc/release").read_text() == "two\n"
    assert sorted(os.listdir(site.rootfs)) == [".bootseer"]


def unpacked(site: Site) -> bool:
    return (site.rootfs / "etc/release").read_text() == "one\n" and not site.is_mounted_way()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"BOOTSEER_CONTAINER": "/another"}, "may be removed"),
        ({"BOOTSEER_CONTAINER": ""}, "may be removed"),
        ({"ENROOT_LIBRARY_PATH": "/nowhere"}, "No such file"),
    ],
)
def test_what_might_not_start_is_unpacked(site: Site, change: dict[str, str], why: str) -> None:
    site.env.update(change)
    site.create()
    assert unpacked(site)
    (event,) = site.events()
    assert event["status"] == "fallback" and why in event["detail"]


def test_another_version_of_enroot_unpacks(site: Site) -> None:
    (site.folder / "lib/runtime.sh").write_text("mount ${_rootfs} elsewhere\n")
    site.create()
    assert unpacked(site)
    assert "this version of Enroot" in site.events()[0]["detail"]


@pytest.mark.parametrize("missing", ["mksquashfs", "enroot-mount"])
def test_without_all_links_it_is_unpacked(site: Site, missing: str) -> None:
    (site.folder / "bin" / missing).unlink()
    site.create()
    assert unpacked(site)
    assert f"{missing} in the PATH is not bootseer-enroot" in site.events()[0]["detail"]


def test_an_image_that_cannot_be_mounted_is_unpacked(site: Site) -> None:
    site.image.unlink()
    squash(site.folder / "tree", site.image, "-comp", "xz")
    site.create()
    assert unpacked(site)
    (event,) = site.events()
    assert event["status"] == "fallback" and "bootseer-squashfuse: " in event["detail"]


def test_containers_of_no_job_or_of_another_are_unpacked(site: Site) -> None:
    for name, job in (("pyxis_train", "7"), ("pyxis_77_x", "7"), ("own", "7"), ("pyxis_7_x", "")):
        site.env["SLURM_JOB_ID"] = job
        rootfs = site.folder / "data" / name
        site.create(rootfs)
        assert (rootfs / "etc/release").exists() and not site.is_mounted_way(rootfs)
    assert site.events() == []


def test_without_an_agent_it_is_unpacked(site: Site) -> None:
    site.env["BOOTSEER_SOCKET"] = str(site.folder / "gone.sock")
    site.create()
    assert unpacked(site)


def test_an_image_that_breaks_before_the_start_is_unpacked_then(site: Site) -> None:
    site.create()
    site.events()
    (site.folder / "libexec/bootseer-squashfuse").unlink()
    assert site.start('cat "$1/etc/release"') == "one\n"
    assert unpacked(site)
    (event,) = site.events()
    assert event["status"] == "fallback" and "unpacked at its start" in event["detail"]


def test_a_changed_container_without_its_image_does_not_start(site: Site) -> None:
    site.create()
    site.start('echo two > "$1/etc/release"')
    site.image.unlink()
    argv = ["unshare", "-rm", str(site.folder / "bin/enroot-mount"), "-"]
    line = f"{site.rootfs} {site.rootfs}{LINE}\n"
    done = subprocess.run(
        argv, input=f"none / none slave\n{line}", env=site.env, text=True, capture_output=True
    )
    assert done.returncode == 1
    assert f"{site.rootfs} cannot be mounted: " in done.stderr
    assert site.is_mounted_way()


def test_all_else_goes_to_the_real_programs(site: Site) -> None:
    done = site.run("unsquashfs", "-s", site.image)
    assert done.returncode == 0 and "Found a valid SQUASHFS" in done.stdout
    out = site.folder / "plain.sqsh"
    assert site.run("mksquashfs", site.folder / "tree", out, "-no-progress").returncode == 0
    assert out.stat().st_size > 0
    put(site.folder / "enroot/enroot-mount", '#!/bin/sh\necho "$@"; cat; exit 3\n')
    for words, text in ((["-"], "none / none slave\nb\n"), (["--root", "/r", "-"], "a\n")):
        done = site.run("enroot-mount", *words, text=text)
        assert (done.returncode, done.stdout) == (3, f"{' '.join(words)}\n{text}")


@pytest.mark.parametrize("owned", ["the folder", "what is in it", "a link to one's own"])
def test_what_others_have_laid_out_goes_to_the_real_programs(site: Site, owned: str) -> None:
    site.create()
    inside = site.rootfs / ".bootseer"
    if owned == "the folder":
        os.chown(site.rootfs, 65534, 65534)
    elif owned == "what is in it":
        os.chown(inside, 65534, 65534)
    else:
        inside.rename(site.folder / "own")
        inside.symlink_to(site.folder / "own")
    out = site.folder / "out.sqsh"
    assert site.run("mksquashfs", site.rootfs, out, "-no-progress").returncode == 0
    listed = site.run("unsquashfs", "-l", out).stdout.split()
    kept = "squashfs-root/.bootseer" + ("" if inside.is_symlink() else "/image")
    assert kept in listed and "squashfs-root/etc" not in listed
    put(site.folder / "enroot/enroot-mount", "#!/bin/sh\ncat\n")
    line = f"{site.rootfs} {site.rootfs}{LINE}\n"
    assert site.run("enroot-mount", "-", text=line).stdout == line


def test_a_folder_that_is_there_is_not_removed(site: Site) -> None:
    site.rootfs.mkdir()
    (site.rootfs / "kept").touch()
    options = ("-no-progress", "-f", "-d", site.rootfs)
    assert site.run("unsquashfs", *options, site.image).returncode == 0
    assert (site.rootfs / "kept").exists() and unpacked(site)


def test_without_a_real_program_the_error_says_so(site: Site) -> None:
    site.env["PATH"] = str(site.folder / "bin")
    (site.folder / "enroot/enroot-mount").unlink()
    done = site.run("enroot-mount", "-")
    assert done.returncode == 127
    assert done.stderr == "bootseer-enroot: there is no other enroot-mount in the PATH\n"


def test_a_broken_installation_unpacks(site: Site) -> None:
    program = site.folder / "libexec/bootseer-enroot"
    program.write_text(program.read_text().replace("bootseer.slurm", "bootseer.gone"))
    site.create()
    assert unpacked(site)
