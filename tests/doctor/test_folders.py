"""Checks of folders and of the settings file."""

import os
import subprocess

import pytest

from bootseer.config import Config
from bootseer.doctor import folders
from bootseer.doctor.check import Severity, Unchecked
from bootseer.doctor.machine import Machine
from bootseer.errors import Denied

KINDS = {"folders.run_dir_kind", "folders.cache_kind"}
"""Of the real machine's file systems."""


@pytest.fixture
def mounted(site, monkeypatch):
    """Have the file systems below the site be of these kinds, by folder."""
    from types import SimpleNamespace

    import psutil

    def mount(**kinds):
        mounts = [SimpleNamespace(mountpoint="/", fstype="ext4")]
        mounts += [
            SimpleNamespace(mountpoint=str(site.root / name), fstype=kind)
            for name, kind in kinds.items()
        ]
        monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)

    return mount


@pytest.mark.root
@pytest.mark.parametrize("name", [c.name for c in folders.CHECKS if c.name not in KINDS])
def test_nothing_is_found_where_nothing_is_wrong(site, name):
    # The disk below the site may be nearly full.
    assert site.look(name, cache__free_share=0.0) == []


def test_a_settings_file_that_is_wrong(site):
    machine = Machine(Config({}), site.machine().user, root=site.root, config_error="x: unknown y")
    assert site.finding("folders.settings", machine).what == "x: unknown y"


def test_a_settings_file_that_is_closed_to_users(site):
    file = site.write("etc/bootseer/bootseer.toml", "", 0o600)
    found = site.finding("folders.settings")
    assert "/etc/bootseer/bootseer.toml is closed" in found.what
    assert found.fix is not None
    found.fix()
    assert file.stat().st_mode & 0o777 == 0o644
    assert site.look("folders.settings") == []


@pytest.mark.root
def test_a_run_folder_of_a_users_is_made_roots(site):
    folder = site.root / "run/bootseer"
    os.chown(folder, 4711, 4711)
    found = site.finding("folders.run_dir")
    assert "it belongs to user 4711, mode 0755" in found.what
    assert found.fix is not None
    for _ in range(2):
        assert "made /run/bootseer root's" in found.fix()
    assert site.look("folders.run_dir") == []


@pytest.mark.root
def test_a_run_folder_that_users_can_write(site):
    (site.root / "run/bootseer/jobs").chmod(0o1777)
    assert (
        "/run/bootseer/jobs is not a folder of root's alone" in site.finding("folders.run_dir").what
    )


@pytest.mark.root
def test_what_a_user_has_put_into_the_run_folder_is_not_made_roots(site):
    folder = site.root / "run/bootseer"
    os.chown(folder, 4711, 4711)
    fix = site.finding("folders.run_dir").fix
    assert fix is not None
    planted = site.folder("run/bootseer/jobs/7")
    assert site.finding("folders.run_dir").fix is None
    with pytest.raises(Denied, match="look at it first"):
        fix()
    assert folder.stat().st_uid == 4711
    with pytest.raises(Unchecked, match=r"see folders\.run_dir"):
        site.look("leftovers.agents")
    assert planted.exists()


@pytest.mark.root
def test_a_link_in_place_of_the_run_folder_is_not_followed(site):
    folder = site.root / "run/bootseer"
    elsewhere = site.folder("elsewhere", 0o777)
    subprocess.run(["rm", "-r", folder], check=True)
    folder.symlink_to(elsewhere)
    assert site.look("folders.run_dir")[0].fix is None
    with pytest.raises(OSError):
        folders._own_folder(folder, "/run/bootseer", True)
    assert elsewhere.stat().st_mode & 0o777 == 0o777


def test_kinds_of_file_systems(site, mounted):
    mounted(**{"run": "tmpfs", "var/cache": "xfs"})
    assert site.look("folders.run_dir_kind") == []
    assert site.look("folders.cache_kind") == []
    mounted(**{"var/cache": "nfs4"})
    assert "is on ext4, not on a tmpfs" in site.finding("folders.run_dir_kind").what
    assert site.finding("folders.cache_kind").severity is Severity.ERROR
    mounted(**{"var/cache": "tmpfs"})
    assert site.finding("folders.cache_kind").severity is Severity.WARNING


@pytest.mark.root
def test_a_mounted_file_system_is_recognised(site):
    folder = site.root / "var/cache"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5M", "x", folder], check=True)
    try:
        assert "is on tmpfs" in site.finding("folders.cache_kind").what
        assert "images can use 4." in site.finding("folders.cache_space").what
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        assert "mounted read-only" in site.finding("folders.cache").what
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o555, 0o700, 0o777])
def test_a_cache_folder_with_a_wrong_mode(site, mode):
    site.folder("var/cache/bootseer", mode)
    found = site.finding("folders.cache")
    assert f"mode {mode:04o}" in found.what
    assert found.fix is not None
    found.fix()
    assert site.look("folders.cache") == []


@pytest.mark.root
def test_a_block_cache_of_another_account(site):
    os.chown(site.folder("var/cache/bootseer/images", 0o700), 4711, 4711)
    found = site.finding("folders.cache", node__cache_user="nobody")
    assert "images cannot be written by nobody" in found.what


def test_scratch_folders_that_users_cannot_write(site):
    site.folder("var/tmp", 0o755)
    spill, scratch = site.look("folders.scratch")
    assert "checkpoint.spill_dir: users cannot write in /var/tmp (mode 0755)" in spill.what
    found = site.look("folders.scratch", env__scratch_dir="/scratch")[1]
    assert "env.scratch_dir: /scratch is not a folder" in found.what
    assert scratch.severity is Severity.WARNING


def test_what_waits_is_a_note(site):
    site.write("var/cache/bootseer/unpublished/4711/a.json")
    assert site.notes("folders.unpublished") == ["1 notes of 1 users wait for their next job"]
