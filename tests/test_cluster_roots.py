"""The roots of other Slurm releases: what they are made of, and what depends on the release."""

import shutil
from pathlib import Path

import pytest
from bootseer_dev.cluster import ClusterSpec
from bootseer_dev.cluster.roots import debian, inside, prepare, root
from bootseer_dev.cluster.slurm.configuration import slurm_conf
from bootseer_dev.cluster.slurm.releases import RELEASES, Release

from bootseer.errors import ConfigError, Unavailable

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture
def roots(tmp_path, monkeypatch):
    """A checkout with a short list of packages, and its folder of roots."""
    (tmp_path / "pyproject.toml").touch()
    text = "# all\ngcc  # builds\n\nmunge\n# -- on the host alone --\nmaven\n"
    (tmp_path / "debian-packages.txt").write_text(text)
    for module in (root, debian, prepare):
        monkeypatch.setattr(module, "checkout", lambda: tmp_path)
    return tmp_path / "build/roots"


def made(folder):
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/bootseer-root").write_text("\n".join(debian.packages()))


def test_the_hosts_root_is_the_host():
    host = root.find(None)
    assert host.is_hosts and host.ids("root") == (0, 0)
    assert prepare.prepare(None) == host
    with pytest.raises(Unavailable, match="no user 'nobody-such'"):
        host.ids("nobody-such")


def test_other_roots_are_in_the_checkout():
    assert root.checkout() == CHECKOUT
    found = root.find("24.11")
    assert not found.is_hosts
    assert found.folder == CHECKOUT / "build/roots/trixie"


def test_a_release_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match=r"no Slurm release '1\.0'.*: use 22\.05, 24\.11"):
        ClusterSpec(slurm="1.0")
    with pytest.raises(ConfigError, match="HDFS"):
        ClusterSpec(slurm="24.11", datanodes=1)


def test_packages_below_the_mark_are_the_hosts_alone(roots):
    assert debian.packages() == ["ca-certificates", "gcc", "munge"]


def test_a_release_may_have_packages_of_its_own(roots, monkeypatch):
    asked = []
    monkeypatch.setattr(debian, "make", lambda root, say, wanted: asked.extend(wanted))
    monkeypatch.setattr(prepare, "_is_current", lambda root: True)
    monkeypatch.setitem(RELEASES, "24.11", Release("trixie", ("apptainer",)))
    prepare.prepare("24.11")
    assert asked == [*debian.packages(), "apptainer"]


def test_the_real_list_has_slurm_and_its_headers():
    assert {"slurm-wlm", "libslurm-dev", "munge"} <= set(debian.packages())
    assert not {"maven", "clang"} & set(debian.packages())


def test_a_root_is_made_once_and_again_for_other_packages(roots, monkeypatch):
    calls = []

    def make(root, say, wanted):
        calls.append("made")
        made(root.folder)

    def install(wanted):
        calls.append("installed")
        wanted.environment.mkdir(parents=True, exist_ok=True)
        (wanted.environment / "installed").touch()

    monkeypatch.setattr(debian, "make", make)
    monkeypatch.setattr(prepare, "_install", install)
    prepare.prepare("24.11")
    prepare.prepare("24.11")
    assert calls == ["made", "installed"]
    (roots / "trixie/etc/bootseer-root").write_text("ca-certificates gcc")
    monkeypatch.setattr(debian, "make", lambda *_: calls.append("made again"))
    prepare.prepare("24.11")
    assert calls[2:] == ["made again", "installed"]


def test_a_half_made_root_is_not_taken_for_one(roots):
    half = root.find("24.11")
    (half.folder / "etc").mkdir(parents=True)
    assert not debian.is_made(half, debian.packages())


def test_lines_of_a_release_replace_those_of_the_example(monkeypatch):
    monkeypatch.setitem(
        RELEASES, "24.11", Release("trixie", lines=("SelectType=select/x", "MpiDefault="))
    )
    lines = slurm_conf(ClusterSpec(slurm="24.11", slurm_conf_extra=("SelectType=select/y",)))
    settings = [line for line in lines.splitlines() if line.startswith(("SelectType=", "MpiD"))]
    assert settings == ["SelectType=select/y"]


@pytest.mark.root
def test_what_a_command_in_a_root_mounts_ends_with_it(tmp_path):
    empty = root.Root(tmp_path / "empty", tmp_path / "none")
    (empty.folder / "etc").mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"`true \.\.\.` failed; the end of .*log:\n.*env"):
        inside.run(empty, ["true"], tmp_path / "log")
    assert (empty.folder / "proc").is_dir() and not any((empty.folder / "proc").iterdir())
    assert str(empty.folder) not in Path("/proc/self/mounts").read_text()


@pytest.mark.root
def test_a_command_in_a_root_cannot_write_what_it_is_shown_of_the_host(tmp_path, monkeypatch):
    """A package's script once wrote the root's list of certificates over the host's."""
    shown, busy = tmp_path / "shown", root.Root(tmp_path / "root", tmp_path / "none")
    shown.mkdir()
    (busy.folder / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", busy.folder / "bin/busybox")
    env = busy.folder / "bin/env"  # Busybox' own has no --chdir
    env.write_text('#!/bin/busybox sh\nshift; exec "$@"\n')
    env.chmod(0o755)
    monkeypatch.setattr(inside, "_FROM_HOST", (str(shown),))
    with pytest.raises(Unavailable, match="Read-only file system"):
        inside.run(busy, ["/bin/busybox", "touch", f"{shown}/file"], tmp_path / "log")
    assert list(shown.iterdir()) == []
