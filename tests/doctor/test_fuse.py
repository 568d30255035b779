"""Checks of what mounts need of the kernel."""

import shutil

import pytest

from bootseer.doctor import fuse
from bootseer.doctor.check import Severity


@pytest.mark.parametrize("name", [check.name for check in fuse.CHECKS])
def test_nothing_is_found_where_nothing_is_wrong(site, name):
    assert site.look(name) == []


def test_without_a_device(site):
    (site.root / "dev/fuse").unlink()
    assert "modprobe fuse" in site.finding("fuse.device").mend
    assert site.look("fuse.users") == []


def test_a_device_that_is_closed_to_users_is_opened(site):
    device = site.root / "dev/fuse"
    device.chmod(0o600)
    found = site.finding("fuse.users")
    assert "(mode 0600)" in found.what
    assert found.severity is Severity.ERROR
    assert found.fix is not None
    found.fix()
    assert site.look("fuse.users") == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user/max_user_namespaces", "0"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ],
)
def test_user_namespaces_that_are_not_allowed(site, name, value):
    site.write(f"proc/sys/{name}", f"{value}\n")
    found = site.finding("fuse.user_namespaces")
    assert f"{name.replace('/', '.')} is {value}" in found.what
    assert found.mend.startswith("sysctl -w ")


def test_an_old_kernel(site):
    site.write("proc/sys/kernel/osrelease", "4.18.0-553.el8.x86_64\n")
    assert "older than 5.2" in site.finding("fuse.kernel").what
    assert "no cachestat" in site.notes("fuse.kernel")[0]


def test_a_kernel_without_overlayfs(site):
    site.write("proc/filesystems", "nodev\ttmpfs\n")
    assert "no overlayfs" in site.finding("fuse.overlay").what
    site.folder("lib/modules/6.12.1-1/kernel/fs/overlayfs")
    assert site.look("fuse.overlay") == []


def test_read_ahead_that_cannot_be_set(site):
    (site.root / "sys/class/bdi/0:45/read_ahead_kb").chmod(0o444)
    assert "cannot be written" in site.finding("fuse.read_ahead").what
    shutil.rmtree(site.root / "sys/class/bdi")
    assert "no /sys/class/bdi" in site.finding("fuse.read_ahead").what


def test_a_fusermount_without_its_bit(site):
    (site.bin / "fusermount3").chmod(0o755)
    assert "not set-user-id" in site.finding("fuse.fusermount").what


def test_without_fusermount(site, monkeypatch):
    site.without("fusermount3")
    machine = site.machine()
    machine._search_path = str(site.bin)
    assert "no fusermount3" in site.finding("fuse.fusermount", machine).what
