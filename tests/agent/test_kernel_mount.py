"""Images mounted by the kernel: whole ones, that have been checked, for one user."""

import os
import random
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.material.images import TinyImage, write_image
from bootseer_dev.material.stored_image import cache_in, manifest_of, open_entry

from bootseer.agent.broker.mount_squashfs import _checked_digest, mount_root
from bootseer.agent.messages.broker import MountKind, MountRoot, Unmount
from bootseer.agent.node import spawn
from bootseer.agent.node.broker_settings import NodeAccount
from bootseer.core import image_manifest
from bootseer.errors import Corrupt, Denied, NotFound, Unavailable
from bootseer.units import MIB

pytestmark = pytest.mark.root
NOBODY = 65534
ACCOUNT = NodeAccount("daemon", 1, 1)
"""In place of the block cache's."""


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


@contextmanager
def opened(entry):
    """Open what is lent of an entry to readers; the block cache's account has its files."""
    for path in (entry.path / name for name in ("data", "map", "manifest")):
        if path.stat().st_uid != ACCOUNT.uid:  # or its time is another
            os.chown(path, *ACCOUNT[1:])
    fds = [entry.entry.open_manifest(), *entry.entry.open_blocks()]
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def checked_digest(entry, checked):
    with opened(entry) as fds:
        return _checked_digest(fds, checked, ACCOUNT)


def digest_of(entry):
    return image_manifest.image_digest(entry.manifest.encode())


@pytest.fixture
def mount(tmp_path):
    """Have an entry mounted; the image of it is listed."""
    made = []
    tmp_path.chmod(0o755)

    def mount(entry, name="job", listed=None):
        folder = tmp_path / name
        listed = [digest_of(entry)] if listed is None else listed
        owner = (NOBODY, NOBODY)
        with opened(entry) as fds:
            mount_root(fds, folder, listed, tmp_path / "checked", owner, ACCOUNT)
        made.append(folder / "rootfs")
        return made[-1]

    yield mount
    for path in filter(os.path.ismount, made):
        subprocess.run(["umount", path], check=True)


def test_a_whole_image_is_mounted_for_its_user(filled, tmp_path, mount):
    recipe = TinyImage()
    for number in range(2):  # a second job on the node
        target = mount(filled, f"job-{number}")
        for name in (recipe.hot[3], recipe.cold[5]):
            assert (target / name.lstrip("/")).read_bytes() == recipe.content(name)
        assert (tmp_path / f"job-{number}").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / f"job-{number}").stat().st_uid == NOBODY
    with pytest.raises(OSError, match="Read-only"):
        (target / "new").write_text("x")
    devices = {os.stat(tmp_path / f"job-{number}" / "rootfs").st_dev for number in range(2)}
    assert len(devices) == 1  # one file system, and one copy of its pages


def test_a_mounted_image_stays_cached_without_an_agent(content, tmp_path, mount):
    """The job goes on when its agent has died, and the mount is its root file system."""
    cache = cache_in(tmp_path)
    entry = open_entry(cache, manifest_of(content, 65536))
    fill(entry, content)
    target = mount(entry)
    entry.close()
    assert not cache.remove(entry.path.name)
    recipe = TinyImage()
    assert (target / recipe.cold[5].lstrip("/")).read_bytes() == recipe.content(recipe.cold[5])
    subprocess.run(["umount", target], check=True)
    # The kernel lets go of the file a moment later.
    wait_until(lambda: cache.remove(entry.path.name), "the entry is in use no more")


def test_only_listed_images_are_mounted(filled, tmp_path, mount):
    for listed in ([], [digest_of(filled)[:-1] + "x", "a" * 64]):
        for _ in range(2):  # the second time from the note
            with pytest.raises(NotFound, match="kernel_mount does not list"):
                mount(filled, listed=listed)
    assert not (tmp_path / "job").exists()
    mount(filled)


def test_incomplete_images_are_not_mounted(entry, content, tmp_path, mount):
    with pytest.raises(NotFound, match="not on this node yet"):
        mount(entry)
    assert not (tmp_path / "job").exists()
    fill(entry, content)
    mount(entry)


def test_damage_is_found_once_and_after_every_change(filled, tmp_path):
    checked = tmp_path / "checked"
    data = filled.path / "data"
    assert checked_digest(filled, checked) == digest_of(filled)
    with data.open("r+b") as file:
        file.seek(9 * MIB)
        before = file.read(1)
        file.seek(9 * MIB)
        file.write(bytes([before[0] ^ 1]))
    with pytest.raises(Corrupt, match="damaged on this node"):
        checked_digest(filled, checked)
    with data.open("r+b") as file:
        file.seek(9 * MIB)
        file.write(before)
    checked_digest(filled, checked)
    # Nothing is read again of what has been checked since: there is nothing to read any more.
    note = next(checked.iterdir())
    assert note.name == str((filled.path / "data").stat().st_ino)
    times = note.stat().st_mtime_ns
    assert checked_digest(filled, checked) == digest_of(filled)
    assert note.stat().st_mtime_ns == times


def test_two_jobs_may_note_the_same_check_at_once(filled, tmp_path, monkeypatch):
    rename, others = Path.rename, []

    def note():
        others.append(checked_digest(filled, tmp_path / "checked"))

    other = threading.Thread(target=note)

    def rename_after_another(self, target):
        if other.ident is None:
            other.start()
            other.join()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_after_another)
    assert [checked_digest(filled, tmp_path / "checked")] == others
    assert len(os.listdir(tmp_path / "checked")) == 1


@pytest.mark.parametrize("noted", ["", " ", "1 2 3", "\xff", "x" * 10_000])
def test_a_note_that_makes_no_sense_is_none(filled, tmp_path, noted):
    checked = tmp_path / "checked"
    checked.mkdir()
    (checked / str((filled.path / "data").stat().st_ino)).write_text(noted, encoding="latin-1")
    assert checked_digest(filled, checked) == digest_of(filled)


TELL = """
import os
from bootseer.agent.workers.images import check_image
def check(*fds):
    return f"{os.getresuid()} {os.getresgid()} {len(os.listdir('/proc/self/fd'))}"
check_image.check = check
"""


def test_an_image_is_checked_with_the_cache_accounts_rights(filled, tmp_path, monkeypatch):
    real = spawn.command

    def command(*args):
        argv = real(*args)
        argv[3] = argv[3].removesuffix("main()") + f"{TELL}main()"
        return argv

    monkeypatch.setattr(spawn, "command", command)
    said = checked_digest(filled, tmp_path / "checked")
    # Open are the standard three, those of the image, and the listing's own.
    assert said == f"(1, 1, 1) (1, 1, 1) {3 + 3 + 1}"


def test_a_failed_mount_is_reported(tmp_path, mount):
    content = random.Random(1).randbytes(3 * MIB)
    entry = open_entry(cache_in(tmp_path), manifest_of(content, 65536))
    fill(entry, content)
    with pytest.raises(Unavailable, match="cannot mount"):
        mount(entry)  # it is no squashfs
    with pytest.raises(Unavailable, match="exists"):
        mount(entry)
    entry.close()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_files_that_are_not_the_block_caches_are_not_mounted(filled, tmp_path, which):
    with opened(filled) as fds:
        os.chown(fds[which], NOBODY, NOBODY)
        with pytest.raises(Denied, match="not in the block cache"):
            mount_root(fds, tmp_path / "job", [digest_of(filled)], tmp_path, (1, 1), ACCOUNT)
    assert not (tmp_path / "job").exists()


@pytest.mark.leaves_open  # a broker has its slots until it ends
@pytest.mark.parametrize("is_listed", [True, False])
def test_the_broker_mounts_a_listed_image(broker, filled, is_listed):
    broker.settings.kernel_mount[:] = [digest_of(filled)] if is_listed else []
    with opened(filled) as fds:
        done, _ = broker.ask(MountRoot(), fds)
    root = Path(broker.folder.root, "rootfs")
    if is_listed:
        assert done.error is None
        name = TinyImage().hot[3].lstrip("/")
        assert (root / name).read_bytes() == TinyImage().content(f"/{name}")
        assert root.parent.stat().st_uid == broker.job.uid
        assert broker.ask(Unmount(MountKind.ROOT, 0))[0].error is None
        assert not list(root.iterdir())
    else:
        assert isinstance(done.error, NotFound) and not root.exists()
