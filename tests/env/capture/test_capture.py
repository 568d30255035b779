"""What a command has made of its targets, and what no snapshot can hold."""

import errno
import os
import socket
import stat
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bootseer.env.capture import capture
from bootseer.env.client.key import EMPTY
from bootseer.env.snapshot.index import MAX_PATH_BYTES
from bootseer.errors import Conflict, Unavailable

WHEN_NS = 1_600_000_000_123_456_789


@dataclass
class Change:
    """What a command does, and what is seen of it.

    Attributes:
        script: of the command, in the target.
        taken: paths that it added or changed, without the folders above them.
        deleted: paths that are gone.
        findings: paths and kinds of what cannot be restored.
    """

    script: str
    taken: str = ""
    deleted: str = ""
    findings: str = ""


BASE = """
mkdir -p d/e empty other
echo 1 > file; echo 22 > d/one; echo 333 > d/e/deep; echo 4 > other/kept
echo 5 > d/first; ln d/first d/second; ln d/first other/third
ln -s file link; mkfifo fifo
find . -exec touch -h -d @1500000000.5 {} +
"""
CHANGES = {
    "nothing": Change("true"),
    "reads": Change("cat file d/one > /dev/null"),
    "adds a file": Change("echo new > new", "new"),
    "adds an empty file": Change(": > d/new", "d/new"),
    "adds a folder": Change("mkdir -p new/er && : > new/er/file", "new new/er new/er/file"),
    "writes": Change("echo 2 > file", "file"),
    "writes with the same length and time": Change(
        "echo 9 > file; touch -d @1500000000.5 file", "file"
    ),
    "replaces by the same length and time": Change(
        "echo 9 > n; touch -d @1500000000.5 n; mv n file", "file"
    ),
    "writes the same content with the same time": Change(
        "echo 1 > file; touch -d @1500000000.5 file"
    ),
    # Compiled Python names the time of its source.
    "gives another time": Change("touch -d @1500000000.500000001 file", "file"),
    "gives a folder another time": Change("touch d/e", "d/e"),
    "gives another mode": Change("chmod 600 file; chmod 700 d", "file d"),
    "deletes": Change("rm file d/one", "d", deleted="file d/one"),
    "deletes a folder": Change("rm -r d/e", "d", deleted="d/e"),
    "deletes a folder and what is below": Change("rm -r d", "other/third", deleted="d"),
    "deletes all": Change(
        "rm -r d empty other file link fifo", deleted="d empty other file link fifo"
    ),
    "has a link lead elsewhere": Change("ln -sfn other link", "link"),
    "has a file where a folder was": Change("rm -r other; echo 1 > other", "other"),
    "has a folder where a file was": Change("rm file; mkdir file; : > file/x", "file file/x"),
    "has a link where a folder was": Change("rm -r empty; ln -s d empty", "empty"),
    "has a FIFO where a file was": Change("rm file; mkfifo file", "", "file", "file:left out"),
    "has a FIFO where a folder was": Change("rm -r d/e; mkfifo d/e", "d", "d/e", "d/e:left out"),
    "names a file again": Change("ln file again", "again file"),
    "names a file again, before": Change("ln file a", "a file"),
    "names one of several again": Change(
        "ln other/third new", "new d/first d/second other/third d other"
    ),
    "names one of several no more": Change("rm d/second", "d", "d/second"),
    "names the first of several no more": Change(
        "rm d/first", "d d/second other/third other", "d/first"
    ),
    "parts one of several": Change("cp d/second n; mv n d/second", "d/second d"),
    "adds a FIFO": Change("mkfifo new", findings="new:left out"),
    "adds set-user-ID": Change("chmod 6755 file", "file", findings="file:rights"),
    "adds a link that leads out": Change("ln -s /etc new", "new"),
}


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def sh(folder, script):
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True)


def made_by(script, *folders):
    """See what a script makes of folders; it runs in the first."""
    paths = [str(folder) for folder in folders]
    befores = [capture.scan_before(path) for path in paths]
    sh(folders[0], script)
    return capture.scan_after(paths, befores, os.geteuid())


def below(paths):
    return {os.fsdecode(path.removeprefix(b"0/")) for path in paths}


@pytest.mark.parametrize("name", CHANGES)
def test_of_a_base_the_difference_is_taken(target, name):
    sh(target, BASE)
    change = CHANGES[name]
    made = made_by(change.script, target)
    taken = below(made.tree) - {"", "0"}
    wanted = set(change.taken.split())
    above = {path.rpartition("/")[0] for path in wanted}
    above |= {path.rpartition("/")[0] for path in above}
    assert wanted <= taken
    extra = taken - wanted - above
    assert {path for path in extra if made.tree[b"0/" + path.encode()].kind != "folder"} == set()
    assert below(made.deleted) == set(change.deleted.split())
    assert {f"{path}:{kind}" for path, kind, _ in seen(made)} == set(change.findings.split(";")) - {
        ""
    }


def seen(made):
    return [(os.fsdecode(path[2:]), kind, detail) for path, kind, detail in made.findings]


def test_one_file_is_a_base(target):
    assert capture.scan_before(str(target)).base == EMPTY
    (target / "file").touch()
    assert capture.scan_before(str(target)).base != EMPTY


def test_of_a_base_the_same_is_nothing(target):
    sh(target, BASE)
    made = made_by("true", target)
    assert list(made.tree) == [b"", b"0"]
    assert made.deleted == made.findings == made.outside == []


def test_of_nothing_all_is_taken(target):
    before = capture.scan_before(str(target))
    assert before.base == EMPTY
    sh(target, BASE)
    made = capture.scan_after([str(target)], [before], os.geteuid())
    assert below(made.tree) == {
        *("", "0", "d", "d/e", "d/e/deep", "d/first", "d/one", "d/second", "empty", "file"),
        *("link", "other", "other/kept", "other/third"),
    }
    assert made.tree[b"0/other/third"].same_as == b"0/d/first"
    assert made.tree[b"0/file"].mtime_ns == 1_500_000_000_500_000_000
    assert made.tree[b"0/link"].target == b"file"
    assert [(path, kind) for path, kind, _ in seen(made)] == [("fifo", "left out")]
    assert made.content_bytes == sum(len(text) for text in ("1\n22\n333\n4\n5\n",))


def test_nobody_owns_it_and_it_has_the_modes_that_can_be_restored(target):
    sh(target, "mkdir d; chmod 2755 d; : > f; chmod 4711 f; mkdir t; chmod 1777 t")
    made = made_by(": > new; chmod 000 new", target)
    assert {(node.uid, node.gid) for node in made.tree.values()} == {(0, 0)}
    made = capture.scan_after([str(target)], [capture.Baseline({}, {})], os.geteuid())
    modes = {os.fsdecode(path): node.mode for path, node in made.tree.items()}
    assert [modes[name] for name in ("0/d", "0/f", "0/t", "0/new")] == [0o755, 0o711, 0o1777, 0]
    assert [(path, kind) for path, kind, _ in seen(made)] == [("d", "rights"), ("f", "rights")]


def test_what_is_another_users_is_found(target):
    if os.geteuid():
        pytest.skip("not root")
    made = made_by(": > mine; : > theirs; chown 12345 theirs", target)
    assert [(path, kind) for path, kind, _ in seen(made)] == [("theirs", "owner")]
    assert b"0/theirs" in made.tree


def test_times_are_kept_to_the_nanosecond(target):
    before = capture.scan_before(str(target))
    (target / "file").touch()
    (target / "link").symlink_to("file")
    for number, name in enumerate(("file", "link", "")):
        os.utime(target / name, ns=(0, WHEN_NS + number), follow_symlinks=False)
    made = capture.scan_after([str(target)], [before], os.geteuid())
    times = [made.tree[path].mtime_ns for path in (b"0/file", b"0/link", b"0")]
    assert times == [WHEN_NS, WHEN_NS + 1, WHEN_NS + 2]


def test_links_that_lead_out_are_listed(target):
    made = made_by(
        "mkdir d; ln -s /etc abs; ln -s ../x up; ln -s ../in d/in; ln -s ../../x d/out; : > in",
        target,
    )
    assert below(made.outside) == {"abs", "up", "d/out"}


def test_several_targets_are_told_apart(tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    sh(folders[1], "echo old > old; echo kept > kept")
    made = made_by("echo 1 > ../a/file; rm ../b/old; ln file ../b/same; mkdir ../c/d", *folders)
    assert set(made.tree) == {
        *(b"", b"0", b"0/file", b"1", b"1/same", b"2", b"2/d"),
    }
    assert made.deleted == [b"1/old"]
    assert made.tree[b"1/same"].same_as == b""  # each target goes somewhere by itself
    assert bytes(next(made.read(b"1/same"))) == b"1\n"


def test_nothing_outside_of_a_target_is_taken(tmp_path, target):
    made = made_by(f"echo 1 > {tmp_path}/beside; ln -s {tmp_path} up; : > in", target)
    assert below(made.tree) == {"", "0", "up", "in"}


@pytest.mark.root
def test_other_file_systems_are_left_out(target):
    (target / "mounted").mkdir()
    sh(target, "mount -t tmpfs none mounted")
    try:
        made = made_by("echo 1 > mounted/file; echo 1 > file", target)
    finally:
        sh(target, "umount mounted")
    assert below(made.tree) == {"", "0", "file"}
    assert made.deleted == []


@pytest.mark.root
def test_devices_and_sockets_are_left_out_and_found(target):
    with socket.socket(socket.AF_UNIX) as end:
        before = capture.scan_before(str(target))
        sh(target, "mknod char c 1 3; mknod block b 7 0; : > file")
        end.bind(f"{target}/socket")
    made = capture.scan_after([str(target)], [before], os.geteuid())
    assert below(made.tree) == {"", "0", "file"}
    assert [(path, detail.split(" cannot")[0]) for path, _, detail in seen(made)] == [
        ("block", "a block device"),
        ("char", "a character device"),
        ("socket", "a socket"),
    ]


def open_below_long_names(target):
    """Make 16 folders, one in another, of names of 250 bytes; returns the last one's descriptor."""
    fd = os.open(target, os.O_RDONLY)
    for _ in range(16):
        os.mkdir("n" * 250, dir_fd=fd)
        above, fd = fd, os.open("n" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(above)
    return fd


def test_paths_that_are_too_long_are_left_out_with_all_below(target):
    """Those that the target's number before them makes so; others cannot be looked at."""
    before = capture.scan_before(str(target))
    fd = open_below_long_names(target)
    os.mkdir("f" * (MAX_PATH_BYTES - 16 * 251 - 1), dir_fd=fd)
    os.close(os.open("file", os.O_CREAT, dir_fd=fd))
    os.symlink("/etc", "l" * (MAX_PATH_BYTES - 16 * 251), dir_fd=fd)
    os.symlink("x", "k" * (MAX_PATH_BYTES - 16 * 251 - 2), dir_fd=fd)  # as long as may be
    os.close(fd)
    made = capture.scan_after([str(target)], [before], os.geteuid())
    assert max(map(len, made.tree)) == MAX_PATH_BYTES
    made.tree = {path: node for path, node in made.tree.items() if b"/k" not in path}
    assert [len(path) for path, _, _ in made.findings] == [MAX_PATH_BYTES + 1, MAX_PATH_BYTES + 2]
    assert {kind for _, kind, _ in made.findings} == {"left out"}
    assert len(made.tree) == 2 + 16 + 1
    assert made.outside == []


def test_a_file_whose_first_name_is_left_out_has_its_others(target):
    before = capture.scan_before(str(target))
    fd = open_below_long_names(target)
    name = "f" * (MAX_PATH_BYTES - 16 * 251 - 1)
    os.close(os.open(name, os.O_CREAT, dir_fd=fd))
    for other in ("x" * 255, "z"):  # names are as long as may be
        os.link(name, target / other, src_dir_fd=fd)
    os.close(fd)
    made = capture.scan_after([str(target)], [before], os.geteuid())
    assert [path.rpartition(b"/")[2][:1] for path, _, _ in made.findings] == [b"f"]
    names = [b"0/" + b"x" * 255, b"0/z"]
    assert [made.tree[path].same_as for path in names] == [b"", b""]


@pytest.mark.parametrize(
    ("when_ns", "is_taken"), [((1 << 63) - 1, True), (1 << 63, False), (-(1 << 63) + 1, True)]
)
def test_times_that_no_index_can_say_are_left_out(when_ns, is_taken):
    with TemporaryDirectory(dir="/dev/shm") as target:  # in memory any time can be
        before = capture.scan_before(target)
        Path(target, "file").touch()
        os.utime(Path(target, "file"), ns=(0, when_ns))
        made = capture.scan_after([target], [before], os.geteuid())
    assert (b"0/file" in made.tree) == is_taken
    assert [kind for _, kind, _ in made.findings] == ([] if is_taken else ["left out"])


def test_extended_attributes_of_users(target):
    before = capture.scan_before(str(target))
    sh(target, ": > file; : > other; mkdir d")
    try:
        os.setxattr(target / "file", "user.note", b"\0x")
        os.setxattr(target / "d", "user.d", b"")
    except OSError as error:
        pytest.skip(f"no extended attributes in {target}: {error.strerror}")
    if os.geteuid() == 0:
        os.setxattr(target / "other", "trusted.note", b"1")
        os.setxattr(target / "other", "security.capability", b"\1\0\0\2" + bytes(16))
    made = capture.scan_after([str(target)], [before], os.geteuid())
    assert made.tree[b"0/file"].xattrs == ((b"user.note", b"\0x"),)
    assert made.tree[b"0/d"].xattrs == ((b"user.d", b""),)
    assert made.tree[b"0/other"].xattrs == ()
    wanted = [] if os.geteuid() else [("other", "rights")]
    assert [(path, kind) for path, kind, _ in seen(made)] == wanted


@pytest.mark.parametrize(
    ("group", "mask", "mode"), [(0, 7, 0o604), (5, 7, 0o654), (7, 5, 0o654), (6, None, 0o664)]
)
def test_access_control_lists_are_told_and_their_masks_are_no_rights(target, group, mask, mode):
    """Restored without its list, a file is not the group's because somebody may write it."""
    before = capture.scan_before(str(target))
    sh(target, ": > file; mkdir d")
    entries = [(0x01, 6), (0x02, 7), (0x04, group), (0x10, mask), (0x20, 4)]
    if mask is None:
        entries = [entry for entry in entries if entry[0] not in (0x02, 0x10)]
    ids = {0x02: 65000}
    packed = [struct.pack("<HHI", tag, rights, ids.get(tag, 2**32 - 1)) for tag, rights in entries]
    acl = struct.pack("<I", 2) + b"".join(packed)
    try:
        os.setxattr(target / "file", "system.posix_acl_access", acl)
        os.setxattr(target / "d", "system.posix_acl_default", acl)
    except OSError as error:
        pytest.skip(f"no access control lists in {target}: {error.strerror}")
    made = capture.scan_after([str(target)], [before], os.geteuid())
    assert made.tree[b"0/file"].mode == mode
    assert made.tree[b"0/d"].mode == stat.S_IMODE((target / "d").stat().st_mode)
    told = [(path, kind) for path, kind, _ in seen(made)]
    # A list without names and mask is no more than the mode.
    assert told == [("d", "rights"), *([("file", "rights")] if mask is not None else [])]


def test_of_an_access_control_list_only_whole_entries_count():
    """A file system in user space may say anything."""
    entries = [(0x01, 6), (0x04, 7), (0x10, 5)]
    packed = [struct.pack("<HHI", tag, rights, 2**32 - 1) for tag, rights in entries]
    acl = struct.pack("<I", 2) + b"".join(packed)
    assert capture._without_list(0o677, acl + b"end") == 0o657


# Content is read later.


def test_what_is_read_is_what_was_there(target):
    script = "echo 1 > a; ln a b; : > empty; head -c 3000000 /dev/zero > large; mkdir d; ln -s a l"
    made = made_by(script, target)
    assert b"".join(map(bytes, made.read(b"0/large"))) == bytes(3_000_000)
    assert b"".join(map(bytes, made.read(b"0/a"))) == b"1\n"
    made.finish()
    tree = capture.scan_before(str(target)).tree
    assert {path[2:]: node.digest for path, node in made.tree.items() if path[2:]} == {
        path: node.digest for path, node in tree.items() if path
    }


def test_a_file_that_cannot_be_read_is_told(target, monkeypatch):
    made = made_by("mkdir d; echo 1 > d/file", target)

    def fails(fd, buffers):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "readv", fails)
    with pytest.raises(Unavailable, match="'d/file' cannot be read: Input/output error"):
        list(made.read(b"0/d/file"))


LATER = {
    "written": "echo 2 > d/file",
    "longer": "echo 2 >> d/file",
    "shorter": ": > d/file",
    "removed": "rm d/file",
    "replaced by the same": "cp -p d/file n; mv n d/file",
    "a link": "mv d/file n; ln -s ../n d/file",
    "a link to itself": "ln -sf file d/file",
    "a FIFO": "rm d/file; mkfifo d/file",
    "a folder": "rm d/file; mkdir d/file",
    "its folder removed": "rm -r d",
    "its folder a file": "rm -r d; echo 1 > d",
    "its folder a link": "mv d e; ln -s / d",
}


@pytest.mark.parametrize("later", LATER)
def test_a_file_that_is_another_by_then_is_a_conflict(target, later):
    made = made_by("mkdir d; echo 1 > d/file; touch -d @1500000000 d/file", target)
    sh(target, LATER[later])
    with pytest.raises(Conflict, match="'d/file' was changed after the command had ended"):
        list(made.read(b"0/d/file"))


def test_another_name_and_another_mode_are_no_other_file(target):
    made = made_by("echo 1 > file", target)
    sh(target, "ln file again; chmod 400 file")
    assert b"".join(map(bytes, made.read(b"0/file"))) == b"1\n"
