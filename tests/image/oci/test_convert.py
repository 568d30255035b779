"""Container archives as squashfs files: what umoci unpacks is what is in them."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from bootseer_dev.material.containers import (
    PACKERS,
    Entry,
    Layout,
    pack_tar,
    write_docker_archive,
    write_layout,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from bootseer.errors import ConfigError, Conflict, Corrupt, NotFound, Unavailable
from bootseer.image.oci.convert import convert
from bootseer.image.oci.detect import ArchiveKind, kind_of
from bootseer.image.oci.manifest import own_platform
from bootseer.squashfs import mksquashfs
from bootseer.squashfs.writer import PackOptions

TOOLS = ("mksquashfs", "unsquashfs", "squashfuse", "umoci", "skopeo", "tar")
pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"
)

FOLDER, SYMLINK, HARD_LINK = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
PLAIN_UID = 12345


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def scan(root):
    """All of a tree that an image keeps; hard links by the names that are one file."""
    found, names = {}, {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in [b".", *folders, *files] if folder == os.fsencode(root) else folders + files:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            xattrs = {
                x: os.getxattr(path, x, follow_symlinks=False)
                for x in os.listxattr(path, follow_symlinks=False)
            }
            content = b""
            if stat.S_ISREG(info.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            elif stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            inside = os.path.relpath(path, os.fsencode(root))
            same = names.setdefault(info.st_ino, [])
            if not stat.S_ISDIR(info.st_mode):
                same.append(inside)
                same.sort()
            owner = (info.st_uid, info.st_gid)
            found[inside] = (oct(info.st_mode), owner, int(info.st_mtime), xattrs, content, same)
    return found


def unpacked(image, folder):
    run("unsquashfs", "-q", "-n", "-d", str(folder), str(image))
    return scan(folder)


@contextmanager
def mounted(image, folder):
    """Show an image; what a disk's file system has no room for can be read there."""
    folder.mkdir()
    run("squashfuse", str(image), str(folder))
    try:
        yield folder
    finally:
        run("fusermount3", "-u", str(folder))


def make_base(root):
    """What a distribution's image has, and what none has."""
    for folder in ("etc", "usr/lib", "usr/bin", "data/old", "tmp", "opaque/deep"):
        (root / folder).mkdir(parents=True)
    os.chmod(root / "tmp", 0o1777)
    (root / "lib").symlink_to("usr/lib")
    (root / "usr/lib/libc.so").write_bytes(os.urandom(300_000))
    (root / "usr/bin/su").write_bytes(b"#!su")
    os.chown(root / "usr/bin/su", 0, 5)
    os.chmod(root / "usr/bin/su", 0o4755)
    (root / "usr/bin/ping").write_bytes(b"#!ping")
    os.setxattr(root / "usr/bin/ping", "security.capability", CAPABILITY)
    os.setxattr(root / "usr/bin/ping", "user.note", b"=\0\n binary \xff")
    os.link(root / "usr/bin/ping", root / "usr/bin/ping6")
    os.link(root / "usr/bin/su", root / "data/su")
    (root / "data" / ("long" * 40)).write_bytes(b"long")
    (root / "data/absolute").symlink_to("/" + "x/" * 90)
    (root / "data/up").symlink_to("../../etc/passwd")
    Path(os.fsdecode(os.fsencode(root / "data") + b"/\xff\xfe name\n\xc3\xbc")).write_bytes(b"odd")
    os.mkfifo(root / "data/fifo", 0o620)
    (root / "data/empty").touch()
    (root / "data/owned").write_bytes(b"x")
    os.chown(root / "data/owned", 3_000_000_000, 70_000)
    (root / "data/old/gone").write_bytes(b"gone")
    (root / "file-to-folder").write_bytes(b"x")
    (root / "folder-to-file").mkdir()
    (root / "folder-to-file/below").write_bytes(b"x")
    (root / "opaque/deep/hidden").write_bytes(b"x")
    with (root / "data/sparse").open("wb") as sparse:
        sparse.truncate(5_000_000)
        sparse.seek(2_000_000)
        sparse.write(b"in the middle")
    os.utime(root / "data", (1, 1_000_000_007))


def change(root):
    """A second layer: whiteouts, files for folders and the reverse, links to what is below."""
    (root / "file-to-folder").unlink()
    (root / "file-to-folder").mkdir()
    (root / "file-to-folder/new").write_bytes(b"new")
    shutil.rmtree(root / "folder-to-file")
    (root / "folder-to-file").write_bytes(b"now a file")
    shutil.rmtree(root / "data/old")
    (root / "usr/bin/ping").unlink()  # ping6 stays
    (root / "usr/lib/libc.so").write_bytes(b"smaller")
    os.chmod(root / "data", 0o700)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An image that umoci made, and the tree that umoci unpacks from it."""
    folder = tmp_path_factory.mktemp("umoci")
    image = f"{folder}/layout:test"
    run("umoci", "init", "--layout", f"{folder}/layout")
    run("umoci", "new", "--image", image)
    for number, step in enumerate((make_base, change)):
        bundle = folder / f"bundle{number}"
        run("umoci", "unpack", "--image", image, str(bundle))
        step(bundle / "rootfs")
        run("umoci", "repack", "--image", image, str(bundle))
    (folder / "insert").mkdir()
    (folder / "insert/inserted").write_bytes(b"inserted")
    run("umoci", "insert", "--image", image, "--opaque", f"{folder}/insert", "/opaque")
    run("umoci", "insert", "--image", image, "--whiteout", "/data/su")
    run("umoci", "insert", "--image", image, f"{folder}/insert/inserted", "/lib/through-a-link")
    run("umoci", "unpack", "--image", image, f"{folder}/expected")
    return folder / "layout", scan(folder / "expected/rootfs")


@pytest.mark.root
@pytest.mark.parametrize("form", ["layout", "zstd", "docker-archive", "oci-archive"])
def test_what_umoci_unpacks_is_what_is_in_it(built, tmp_path, form):
    layout, expected = built
    source = tmp_path / "source"
    if form == "layout":
        source = layout
    else:
        forced = ["--dest-compress-format", "zstd"] if form == "zstd" else []
        kind = "oci" if form == "zstd" else form
        run("skopeo", "copy", *forced, f"oci:{layout}:test", f"{kind}:{source}:some/name:test")
    result = convert(source, tmp_path / "image.sqsh")
    assert kind_of(tmp_path / "image.sqsh") is ArchiveKind.SQUASHFS
    assert result.kind.name == {"zstd": "oci-layout", "layout": "oci-layout"}.get(
        form, form
    ).upper().replace("-", "_")
    found = unpacked(tmp_path / "image.sqsh", tmp_path / "found")
    assert found == expected
    assert (result.layers, result.files) == (5, len(expected) - 1)
    assert b"usr/lib/through-a-link" in found and b"opaque/deep" not in found


names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
kinds = st.sampled_from([tarfile.REGTYPE] * 2 + [FOLDER] * 2 + [SYMLINK, HARD_LINK])
hidden = st.builds(
    "{}/.wh.{}".format, names | st.just("."), st.sampled_from(["a", "b", ".wh..opq"])
)
entries = st.builds(
    Entry,
    name=names,
    kind=kinds,
    link=names | names.map("/{}".format) | names.map("../{}".format),
    mode=st.sampled_from([0o640, 0o4711]),
    uid=st.integers(0, 3),
)
entries = entries | entries | st.builds(Entry, name=hidden)


@pytest.mark.root
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(entries, max_size=8), min_size=1, max_size=3))
def test_any_layers_are_what_umoci_unpacks(tmp_path_factory, layers):
    folder = tmp_path_factory.mktemp("random")
    archives = [
        pack_tar(acceptable(entry, f"{number} {index}") for index, entry in enumerate(layer))
        for number, layer in enumerate(layers)
    ]
    layout = Layout(folder / "layout")
    named = {"annotations": {"org.opencontainers.image.ref.name": "tag"}}
    layout.write_index([layout.add_image(archives, platform=own_platform(), **named)])
    unpack = ["umoci", "unpack", "--image", f"{folder}/layout:tag", str(folder / "bundle")]
    umoci = subprocess.run(unpack, capture_output=True, timeout=60)
    try:
        convert(layout.folder, folder / "image")
    except Corrupt:
        assert umoci.returncode != 0
        return
    assert umoci.returncode == 0
    theirs, ours = scan(folder / "bundle/rootfs"), unpacked(folder / "image", folder / "found")
    assert without_times(ours) == without_times(theirs)


def acceptable(entry, content):
    """With content that says which entry it is of; hard links that lead out are refused here."""
    if entry.kind == HARD_LINK:
        return replace(entry, link=entry.link.removeprefix("../"))
    return replace(entry, data=content.encode()) if entry.kind == tarfile.REGTYPE else entry


def without_times(found):
    """Of folders: one that no entry describes gets the time of the day from umoci."""
    is_folder = {name: about[0].startswith("0o4") for name, about in found.items()}
    return {
        name: (mode, owner, time * (not is_folder[name]), *rest)
        for name, (mode, owner, time, *rest) in found.items()
    }


@pytest.fixture
def their_folder():
    """A folder of an ordinary user's; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="bootseer-convert-", dir="/var/tmp") as folder:
        os.chown(folder, PLAIN_UID, PLAIN_UID)
        yield Path(folder)


@pytest.mark.root
def test_an_ordinary_user_converts_and_reads_the_same(built, their_folder, tmp_path):
    layout, expected = built
    shutil.copytree(layout, their_folder / "layout")
    run("chown", "-R", str(PLAIN_UID), str(their_folder))
    user = ("setpriv", f"--reuid={PLAIN_UID}", f"--regid={PLAIN_UID}", "--clear-groups")
    convert_it = """
        import sys
        from pathlib import Path
        from bootseer.image.oci.convert import convert
        convert(Path("layout"), Path("image"))
    """
    run(*user, sys.executable, "-P", "-c", textwrap.dedent(convert_it), cwd=their_folder)
    assert unpacked(their_folder / "image", tmp_path / "found") == expected
    run(*user, "unsquashfs", "-q", "-n", "-no-xattrs", "-d", "read", "image", cwd=their_folder)
    # Who is not root can give files to nobody, and no rights that go with owners.
    theirs, ours = scan(their_folder / "read"), expected
    assert {name: (a[0][-3:], a[2], *a[4:]) for name, a in theirs.items()} == {
        name: (a[0][-3:], a[2], *a[4:]) for name, a in ours.items()
    }


LAYER = pack_tar([Entry("etc/", FOLDER, mode=0o755), Entry("etc/file", data=b"content")])


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize(
    "kind", [ArchiveKind.OCI_LAYOUT, ArchiveKind.OCI_ARCHIVE, ArchiveKind.DOCKER_ARCHIVE]
)
def test_every_form_gives_the_same_bytes(tmp_path, kind, packer):
    write_docker_archive(tmp_path / "docker", {("a:1",): [LAYER]}, packer)
    layout = Layout(tmp_path / "layout")
    layout.write_index([layout.add_image([LAYER], packer)])
    layout.archive(tmp_path / "oci")
    names = {
        ArchiveKind.OCI_LAYOUT: "layout",
        ArchiveKind.OCI_ARCHIVE: "oci",
        ArchiveKind.DOCKER_ARCHIVE: "docker",
    }
    source = tmp_path / names[kind]
    assert kind_of(source) is kind
    convert(source, tmp_path / "image")
    convert(write_layout(tmp_path / "plain", [LAYER], "none"), tmp_path / "known")
    assert (tmp_path / "image").read_bytes() == (tmp_path / "known").read_bytes()


def test_equal_input_gives_equal_bytes_on_any_number_of_processors(tmp_path):
    entries = [
        Entry(f"{i:03}", data=os.urandom(i * 700), pax={"SCHILY.xattr.user.n": f"{i % 7}"})
        for i in range(300)
    ]
    source = write_layout(tmp_path / "source", [pack_tar(entries)])
    images = []
    for number, processors in enumerate((1, 2, 2)):
        image = tmp_path / f"{number}.sqsh"
        convert(source, image, packing=PackOptions(processors=processors))
        images.append(image.read_bytes())
    assert images[0] == images[1] == images[2]


def test_how_it_is_packed_can_be_chosen(tmp_path):
    source = write_layout(tmp_path / "source", [LAYER])
    convert(source, tmp_path / "usual")
    convert(source, tmp_path / "other", packing=PackOptions(64 * 1024, level=7, fragments=True))
    usual, other = (run("unsquashfs", "-s", str(tmp_path / name)) for name in ("usual", "other"))
    assert "Block size 131072" in usual and "compression-level 3" in usual
    assert "Number of fragments 0" in usual
    assert "Block size 65536" in other and "compression-level 7" in other
    assert "Number of fragments 1" in other


def test_members_of_gzip_and_frames_of_zstd_follow_each_other(tmp_path):
    """As in layers of estargz and zstd:chunked, where each file has its own."""
    for packer in ("gzip", "zstd"):
        layout = Layout(tmp_path / packer)
        ending = bytes(1000) if packer == "gzip" else b"\x5e\x2a\x4d\x18\x04\0\0\0skip"
        cut = [PACKERS[packer](LAYER[i : i + 700]) for i in range(0, len(LAYER), 700)]
        manifest = layout.add_image([LAYER])
        config = layout.add_document({"rootfs": {"diff_ids": [digest(LAYER)]}})
        blob = layout.add_blob(b"".join(cut) + ending)
        manifest = layout.add_document({"config": config, "layers": [blob]})
        layout.write_index([manifest])
        convert(layout.folder, tmp_path / f"{packer}.sqsh")
        assert unpacked(tmp_path / f"{packer}.sqsh", tmp_path / f"{packer}.d")[b"etc/file"][4]


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_device_nodes_and_what_squashfs_does_not_know_are_left_out(tmp_path):
    acl = {"SCHILY.xattr.system.posix_acl_access": "x", "SCHILY.xattr.user.kept": "y"}
    layer = pack_tar(
        [
            Entry("./", FOLDER, mode=0o711, uid=7, mtime=77, pax={"SCHILY.xattr.user.root": "z"}),
            Entry("dev/null", tarfile.CHRTYPE),
            Entry("dev/also-null", HARD_LINK, link="dev/null"),
            Entry("dev/sda", tarfile.BLKTYPE),
            Entry("file", pax=acl),
        ]
    )
    result = convert(write_layout(tmp_path / "source", [layer]), tmp_path / "image")
    assert (result.devices, result.xattrs, result.files) == (3, 2, 2)
    assert result.named_devices == ("dev/also-null", "dev/null", "dev/sda")
    assert result.size_bytes == (tmp_path / "image").stat().st_size
    found = run("unsquashfs", "-lln", str(tmp_path / "image"))
    assert "drwx--x--x 7/7" in found and "1970-01-01 00:01 squashfs-root\n" in found
    assert "null" not in found and "squashfs-root/dev" in found
    assert unpacked(tmp_path / "image", tmp_path / "d")[b"file"][3] == {"user.kept": b"y"}


def test_attributes_that_squashfs_cannot_have_are_counted(tmp_path):
    """One without a name, one whose name or value is too much, and one that no tool knows."""
    said = {"user.": "x", "user.a\0b": "x", "user.long": "x" * 65_537, "other.a": "x"}
    said |= {"user.full": "x" * 65_536, "trusted.a": "y"}
    says = {f"SCHILY.xattr.{name}": value for name, value in said.items()}
    source = write_layout(tmp_path / "source", [pack_tar([Entry("file", pax=says)])])
    assert convert(source, tmp_path / "image").xattrs == 4
    with mounted(tmp_path / "image", tmp_path / "mounted") as root:
        assert scan(root)[b"file"][3]["user.full"] == b"x" * 65_536
    unpack = ["unsquashfs", "-q", "-n", "-d", str(tmp_path / "d"), str(tmp_path / "image")]
    subprocess.run(unpack, capture_output=True)  # a disk may have no room for the full one
    kept = scan(tmp_path / "d")[b"file"][3]
    assert kept.keys() <= {"user.full", "trusted.a"} and kept["trusted.a"] == b"y"


def test_an_image_without_layers_is_an_empty_root(tmp_path):
    result = convert(write_layout(tmp_path / "source", []), tmp_path / "image")
    assert (result.layers, result.files, result.devices, result.xattrs) == (0, 0, 0, 0)
    assert result.named_devices == ()
    assert list(unpacked(tmp_path / "image", tmp_path / "d")) == [b"."]
    listed = run("unsquashfs", "-lln", str(tmp_path / "image"))
    assert "drwxr-xr-x 0/0 " in listed
    assert "1970-01-01 00:00 squashfs-root" in listed


def test_folders_that_no_layer_describes_are_roots(tmp_path):
    source = write_layout(tmp_path / "source", [pack_tar([Entry("a/file", uid=7, mtime=99)])])
    assert convert(source, tmp_path / "image").files == 2
    found = unpacked(tmp_path / "image", tmp_path / "d")
    owner = (0, 0) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    assert found[b"a"][:3] == ("0o40755", owner, 0)


@pytest.fixture
def several(tmp_path):
    """An index as buildx writes them: platforms below a name, and what vouches for them."""
    layout = Layout(tmp_path / "several")
    platforms = ("linux/amd64", "linux/arm64/v8", "linux/arm/v6", "linux/arm/v7")
    images = {p: layout.add_image([pack_tar([Entry(p)])], "gzip", p) for p in platforms}
    keys = ("os", "architecture", "variant")
    listed = [
        {**image, "platform": dict(zip(keys, p.split("/"), strict=False))}
        for p, image in images.items()
    ]
    vouching = layout.add_document({"config": {}, "layers": []})
    listed.append({**vouching, "platform": {"os": "unknown", "architecture": "unknown"}})
    named = {"annotations": {"org.opencontainers.image.ref.name": "1.0"}}
    inner = layout.add_document({"manifests": listed}, **named)
    full = {
        "org.opencontainers.image.ref.name": "2.0",
        "io.containerd.image.name": "docker.io/library/two:2.0",
    }
    other = layout.add_image([LAYER], annotations=full)
    layout.write_index([inner, other])
    return layout.folder, {p: image["digest"] for p, image in images.items()}, other["digest"]


@pytest.mark.parametrize(
    ("platform", "chosen"),
    [
        ("linux/amd64", "linux/amd64"),
        ("linux/arm64", "linux/arm64/v8"),
        ("linux/arm/v7", "linux/arm/v7"),
        ("linux/arm/v6", "linux/arm/v6"),
    ],
)
def test_the_platform_is_chosen_from_an_index(several, tmp_path, platform, chosen):
    folder, digests, _ = several
    result = convert(folder, tmp_path / "image", tag="1.0", platform=platform)
    assert (result.digest, result.platform) == (digests[chosen], chosen)
    assert chosen in run("unsquashfs", "-l", str(tmp_path / "image"))


def test_this_machines_platform_is_the_default(several, tmp_path):
    folder, digests, _ = several
    result = convert(folder, tmp_path / "image", tag="1.0")
    assert result.platform.split("/")[1] in ("amd64", "arm64")
    assert result.digest == digests[result.platform]


@pytest.mark.parametrize("tag", ["2.0", "two:2.0", "docker.io/library/two:2.0"])
def test_a_tag_is_found_by_all_its_names(several, tmp_path, tag):
    folder, _, digest = several
    assert convert(folder, tmp_path / "image", tag=tag).digest == digest


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ConfigError, "several images .* tag: 1.0, docker.io/library/two:2.0"),
        ({"tag": "3.0"}, NotFound, "no image '3.0' .* are: 1.0, docker.io/library/two:2.0"),
        ({"tag": "1.0", "platform": "linux/s390x"}, Unavailable, "for linux/amd64, linux/arm/v6"),
    ],
)
def test_what_cannot_be_chosen_is_listed(several, tmp_path, arguments, error, message):
    arguments = {"platform": "linux/amd64"} | arguments
    with pytest.raises(error, match=message):
        convert(several[0], tmp_path / "image", **arguments)


def test_a_docker_archive_of_several_images_needs_a_tag(tmp_path):
    other = pack_tar([Entry("other")])
    images = {("a:1", "reg.io/b:2"): [LAYER], ("c:3",): [other], (): [LAYER, other]}
    source = write_docker_archive(tmp_path / "source", images)
    with pytest.raises(ConfigError, match=r"its tag: a:1, c:3, reg\.io/b:2"):
        convert(source, tmp_path / "image")
    with pytest.raises(NotFound, match=r"'d' in .* are: a:1, c:3, reg\.io/b:2"):
        convert(source, tmp_path / "image", tag="d")
    assert convert(source, tmp_path / "image", tag="b:2").tag == "reg.io/b:2"
    assert "etc" in run("unsquashfs", "-l", str(tmp_path / "image"))


def test_an_image_for_another_machine_is_refused(tmp_path):
    layout = Layout(tmp_path / "source")
    layout.write_index([layout.add_image([LAYER], platform="linux/s390x")])
    with pytest.raises(Unavailable, match=r"is for linux/s390x, not for linux/\w+64"):
        convert(layout.folder, tmp_path / "image")
    assert convert(layout.folder, tmp_path / "image", platform="linux/s390x").layers == 1


def test_progress_goes_from_nothing_to_all(tmp_path):
    source = write_layout(tmp_path / "source", [pack_tar([Entry("f", data=os.urandom(3_000_000))])])
    told = []
    convert(source, tmp_path / "image", progress=lambda *numbers: told.append(numbers))
    assert len(told) > 10
    assert told == sorted(told) and told[-1][0] == told[-1][1] == told[0][1] > 6_000_000


@pytest.fixture
def started(monkeypatch):
    """The processes that a conversion starts."""
    processes, popen = [], subprocess.Popen

    def start(*arguments, **more):
        processes.append(popen(*arguments, **more))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return processes


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_who_is_interrupted_leaves_nothing(tmp_path, started, error):
    source = write_layout(tmp_path / "source", [pack_tar([Entry("f", data=os.urandom(3_000_000))])])
    (tmp_path / "target").mkdir()
    (tmp_path / "target/image").write_bytes(b"before")

    def progress(done, total):
        if done > total * 0.9:
            raise error

    with pytest.raises(error):
        convert(source, tmp_path / "target/image", progress=progress)
    (process,) = started
    assert process.returncode is not None  # reaped
    assert os.listdir(tmp_path / "target") == ["image"]
    assert (tmp_path / "target/image").read_bytes() == b"before"


def test_a_mksquashfs_that_dies_is_told_of(tmp_path, started):
    source = write_layout(tmp_path / "source", [pack_tar([Entry("f", data=os.urandom(9_000_000))])])

    def progress(done, total):
        if done > total * 0.6:
            started[0].kill()

    (tmp_path / "target").mkdir()
    with pytest.raises(Unavailable, match="mksquashfs ended by signal 9"):
        convert(source, tmp_path / "target/image", progress=progress)
    assert not os.listdir(tmp_path / "target")


@pytest.mark.root
def test_a_full_disk_is_told_of_and_left_as_it_was(tmp_path):
    source = write_layout(tmp_path / "source", [pack_tar([Entry("f", data=os.urandom(3_000_000))])])
    (tmp_path / "full").mkdir()
    script = """
        import os, sys
        from pathlib import Path
        from bootseer.errors import NoSpace
        from bootseer.image.oci.convert import convert
        try:
            convert(Path(sys.argv[1]), Path(sys.argv[2], "image"))
        except NoSpace as error:
            print(error, os.listdir(sys.argv[2]))
    """
    mounted = 'mount -t tmpfs -o size=1m tmpfs "$1"; shift; exec "$@"'
    said = run(
        *("unshare", "--mount", "sh", "-c", mounted, "sh", str(tmp_path / "full")),
        *(sys.executable, "-P", "-c", textwrap.dedent(script), str(source), str(tmp_path / "full")),
    )
    assert "no space left on device; free some []" in said


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "mksquashfs not found: install the package squashfs-tools"),
        ("echo 'mksquashfs: invalid option' >&2; exit 1", "squashfs-tools 4.5 or newer"),
        ("echo 'FATAL ERROR: because' >&2; exit 3", "status 3; its output:\nFATAL ERROR: because$"),
    ],
)
def test_a_mksquashfs_that_is_not_of_use_is_told_of(tmp_path, monkeypatch, script, message):
    source = write_layout(tmp_path / "source", [pack_tar([Entry("f", data=os.urandom(3_000_000))])])
    for folder in ("bin", "target"):
        (tmp_path / folder).mkdir()
    if script:
        (tmp_path / "bin/mksquashfs").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin/mksquashfs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(Unavailable, match=message):
        convert(source, tmp_path / "target/image")
    assert not os.listdir(tmp_path / "target")


def test_where_it_cannot_be_written_is_told_of(tmp_path):
    source = write_layout(tmp_path / "source", [LAYER])
    with pytest.raises(Conflict, match="is a folder"):
        convert(source, tmp_path)
    with pytest.raises(NotFound, match=r"there is no folder .*/missing"):
        convert(source, tmp_path / "missing/image")


def test_a_small_part_of_a_large_image_is_in_memory(tmp_path):
    """50,000 files, and 300 MB that unpack from next to nothing."""
    entries = [Entry(f"{i % 100}/some/folder/with/a/file{i}.py") for i in range(50_000)]
    large = Entry("large", data=bytes(300_000_000))
    layers = [pack_tar(entries), pack_tar([large])]
    source = write_layout(tmp_path / "source", layers, "zstd")
    script = """
        import re, sys
        from pathlib import Path
        from bootseer.image.oci.convert import convert
        print(convert(Path(sys.argv[1]), Path(sys.argv[2])).files)
        print(re.search("VmHWM:(.*) kB", Path("/proc/self/status").read_text())[1])
    """
    image = tmp_path / "image"
    said = run(sys.executable, "-P", "-c", textwrap.dedent(script), str(source), str(image))
    files, rss_kib = map(int, said.split())
    assert files == 50_000 + 100 * 5 + 1
    assert rss_kib < 80_000


def test_what_ends_this_process_at_the_terminal_is_not_for_mksquashfs(monkeypatch, tmp_path):
    monkeypatch.setattr(mksquashfs, "find_program", lambda: shutil.which("sleep"))
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as other:
        program = mksquashfs.start_plainly(["60"], other.stdin.fileno(), 2, ())
        assert os.getsid(program.pid) == program.pid
        program.kill()
        program.wait()
