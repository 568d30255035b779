"""Images mounted by the kernel: whole ones, that have been checked, for one user."""

import os
import subprocess

import pytest

from bootseer.agent.supervisor.kernel_mount import check_entry, mount_image
from bootseer.errors import Corrupt, NotFound, Unavailable
from bootseer.testing.images import TinyImage, write_image
from bootseer.testing.stored_image import cache_in, manifest_of, open_entry
from bootseer.units import MIB

pytestmark = pytest.mark.root
NOBODY = 65534


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "tiny.sqsh"
    write_image(TinyImage(), path)
    return path.read_bytes()


@pytest.fixture
def entry(tmp_path, content):
    entry = open_entry(cache_in(tmp_path), manifest_of(content, 65536))
    yield entry
    entry.close()


@pytest.fixture
def filled(entry, content):
    fill(entry, content)
    return entry


def fill(entry, content):
    keeper = entry.keeper(lambda size_bytes: True)
    for at in range(0, len(content), MIB):
        keeper.keep(at // 65536, memoryview(content)[at : at + MIB])
    keeper.close()


@pytest.fixture
def mounted():
    mounts = []
    yield mounts.append
    for path in mounts:
        subprocess.run(["umount", path], check=True)


def test_a_whole_image_is_mounted_for_its_user(filled, tmp_path, mounted):
    check_entry(filled, tmp_path / "checked")
    tmp_path.chmod(0o755)
    recipe = TinyImage()
    for number in range(2):  # a second job on the node
        target = mount_image(filled, tmp_path / f"job-{number}", NOBODY, NOBODY)
        mounted(target)
        for name in (recipe.hot[3], recipe.cold[5]):
            assert (target / name.lstrip("/")).read_bytes() == recipe.content(name)
        assert (tmp_path / f"job-{number}").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / f"job-{number}").stat().st_uid == NOBODY
    with pytest.raises(OSError, match="Read-only"):
        (target / "new").write_text("x")
    devices = {os.stat(tmp_path / f"job-{number}" / "rootfs").st_dev for number in range(2)}
    assert len(devices) == 1  # one file system, and one copy of its pages


def test_what_is_not_whole_is_not_mounted(entry, content, tmp_path):
    with pytest.raises(NotFound, match="not on this node yet"):
        check_entry(entry, tmp_path / "checked")
    fill(entry, content)
    check_entry(entry, tmp_path / "checked")


def test_damage_is_found_once_and_after_every_change(filled, tmp_path):
    checked = tmp_path / "checked"
    data = filled.path / "data"
    check_entry(filled, checked)
    with data.open("r+b") as file:
        file.seek(9 * MIB)
        before = file.read(1)
        file.seek(9 * MIB)
        file.write(bytes([before[0] ^ 1]))
    with pytest.raises(Corrupt):
        check_entry(filled, checked)
    with data.open("r+b") as file:
        file.seek(9 * MIB)
        file.write(before)
    check_entry(filled, checked)
    # Nothing is read again of what has been checked since: there is nothing to read any more.
    note = next(checked.iterdir())
    assert note.name == filled.path.name
    times = note.stat().st_mtime_ns
    check_entry(filled, checked)
    assert note.stat().st_mtime_ns == times


def test_what_cannot_be_mounted_is_told(entry, tmp_path):
    with pytest.raises(Unavailable, match="cannot mount"):
        mount_image(entry, tmp_path / "job", NOBODY, NOBODY)  # it is no squashfs yet
    with pytest.raises(Unavailable, match="exists"):
        mount_image(entry, tmp_path / "job", NOBODY, NOBODY)
