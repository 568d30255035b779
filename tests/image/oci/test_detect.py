"""What is no image, or one that is meant to harm, is refused, and nothing is written."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import zstandard
from bootseer_dev.material.containers import (
    Entry,
    Layout,
    config_of,
    pack_tar,
    write_docker_archive,
    write_layout,
)

from bootseer.errors import ConfigError, Corrupt, Denied, NotFound, Unavailable
from bootseer.image.oci import detect as archive_module
from bootseer.image.oci import manifest as manifest_module
from bootseer.image.oci.convert import ArchiveLimits, convert
from bootseer.image.oci.detect import ArchiveKind, kind_of

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")

LAYER = pack_tar([Entry("file", data=b"content")])


def changed(folder, **changes):
    """A layout whose manifest has other fields."""
    layout = Layout(folder)
    manifest = {
        "config": layout.add_document(config_of([LAYER])),
        "layers": [layout.add_blob(LAYER)],
    }
    layout.write_index([layout.add_document(manifest | changes)])
    return folder


def with_blob(folder, blob, diff_of=LAYER):
    """A layout whose only layer is this blob."""
    layout = Layout(folder)
    config = layout.add_document(config_of([diff_of]))
    manifest = {"config": config, "layers": [layout.add_blob(blob)]}
    layout.write_index([layout.add_document(manifest)])
    return folder


def with_index(folder, text):
    Layout(folder)
    (folder / "index.json").write_text(text)
    return folder


def descriptor(**fields):
    return {"digest": f"sha256:{'0' * 64}", "size": 1} | fields


def damaged(folder, what):
    """A layout in which the largest blob (the layer) or the smallest is damaged."""
    write_layout(folder, [pack_tar([Entry("file", data=os.urandom(5000))])], "none")
    blobs = sorted((folder / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(blobs[-1].read_bytes())
    data[1000] ^= 1
    if what == "bit":
        blobs[-1].write_bytes(data)
    elif what == "cut":
        blobs[-1].write_bytes(data[:-1])
    elif what == "missing":
        blobs[-1].unlink()
    elif what == "document":
        text = blobs[0].read_bytes()
        blobs[0].write_bytes(text.replace(b"layers", b"lasers"))
    elif what == "link":
        blobs[-1].rename(folder.parent / "elsewhere")
        blobs[-1].symlink_to(folder.parent / "elsewhere")
    elif what == "folder link":
        (folder / "blobs").rename(folder.parent / "blobs")
        (folder / "blobs").symlink_to(folder.parent / "blobs")
    elif what == "fifo":
        blobs[-1].unlink()
        os.mkfifo(blobs[-1])
    return folder


def nested(folder, depth):
    layout = Layout(folder)
    found = layout.add_image([LAYER])
    for _ in range(depth):
        found = layout.add_document({"manifests": [found]})
    layout.write_index([found])
    return folder


def docker(path, **changes):
    """A Docker archive with another manifest."""
    write_docker_archive(path, {(): [LAYER]})
    with tarfile.open(path) as archive:
        manifest = json.load(archive.extractfile("manifest.json"))
    data = json.dumps([manifest[0] | changes]).encode()
    with tarfile.open(path, "a") as archive:
        info = tarfile.TarInfo("manifest.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return path


def docker_with(path, entry, **changes):
    """A Docker archive with another entry, and another manifest."""
    docker(path, **changes)
    path.write_bytes(pack_tar([entry])[: 512 * 3 if entry.pax else 512] + path.read_bytes())
    return path


def written(path, data):
    path.write_bytes(data)
    return path


HOLE = {"GNU.sparse.size": str(1 << 60), "GNU.sparse.map": f"{1 << 60},0"}
SOURCES = {
    "not JSON": (lambda p: with_index(p, "{"), Corrupt, "index.json: not JSON"),
    "deep JSON": (lambda p: with_index(p, "[" * 100_000), Corrupt, "not JSON"),
    "a list": (lambda p: with_index(p, "[]"), Corrupt, "not a JSON object"),
    "no list": (lambda p: with_index(p, '{"manifests": 1}'), Corrupt, "'manifests' is missing"),
    "no images": (lambda p: with_index(p, '{"manifests": []}'), Corrupt, "there is no image in"),
    "huge index": (lambda p: with_index(p, " " * (5 << 20)), Corrupt, "too many for what"),
    "path as digest": (
        lambda p: changed(p, layers=[descriptor(digest="sha256:../../../etc/passwd")]),
        Corrupt,
        "is none of sha256",
    ),
    "other digest": (
        lambda p: changed(p, config=descriptor(digest="sha512:" + "0" * 128)),
        Corrupt,
        "is none of sha256",
    ),
    "negative size": (lambda p: changed(p, layers=[descriptor(size=-1)]), Corrupt, "out of its"),
    "missing blob": (lambda p: changed(p, layers=[descriptor()]), Corrupt, "is missing; fetch"),
    "one layer less": (lambda p: changed(p, layers=[]), Corrupt, "has 1 layers, and there are 0"),
    "artifact": (lambda p: changed(p, layers=None), Unavailable, "is no image's manifest"),
    "no tar layer": (
        lambda p: changed(p, layers=[descriptor(mediaType="application/vnd.x.squashfs")]),
        Unavailable,
        "no tar archive",
    ),
    "encrypted": (
        lambda p: changed(p, layers=[descriptor(mediaType="a/layer.v1.tar+gzip+encrypted")]),
        Unavailable,
        "no tar archive",
    ),
    "damaged layer": (lambda p: damaged(p, "bit"), Corrupt, "its digest is not sha256:"),
    "cut layer": (lambda p: damaged(p, "cut"), Corrupt, "bytes instead of"),
    "no layer": (lambda p: damaged(p, "missing"), Corrupt, "is missing"),
    "damaged manifest": (lambda p: damaged(p, "document"), Corrupt, "its digest is another"),
    "linked blob": (lambda p: damaged(p, "link"), Unavailable, "cannot be read: Too many levels"),
    "linked folder": (lambda p: damaged(p, "folder link"), Unavailable, "cannot be read: "),
    "fifo": (lambda p: damaged(p, "fifo"), Unavailable, "cannot be read: No such device"),
    "indexes": (lambda p: nested(p, 4), Corrupt, "indexes within indexes"),
    "other content": (lambda p: with_blob(p, gzip.compress(LAYER), b""), Corrupt, "digest is not"),
    "no tar": (lambda p: with_blob(p, b"x" * 2000), Corrupt, "not a tar archive"),
    "cut gzip": (lambda p: with_blob(p, gzip.compress(LAYER)[:-20]), Corrupt, "digest is not"),
    "damaged gzip": (lambda p: with_blob(p, b"\x1f\x8b" + b"x" * 99), Corrupt, "is damaged: Error"),
    "damaged zstd": (
        lambda p: with_blob(p, b"\x28\xb5\x2f\xfd" + b"x" * 99),
        Corrupt,
        "is damaged, or takes too much",
    ),
    "zstd of a huge window": (
        lambda p: with_blob(p, b"\x28\xb5\x2f\xfd\x00\xf0" + bytes(99)),
        Corrupt,
        "takes too much memory",
    ),
    "xz": (lambda p: with_blob(p, b"\xfd7zXZ\0" + bytes(99)), Unavailable, "with gzip or zstd"),
    "gzip bomb": (
        lambda p: write_layout(p, [bytes(30_000_000)]),
        Corrupt,
        "unpacks to more than 20 MB",
    ),
    "zstd bomb": (
        lambda p: write_layout(p, [bytes(30_000_000)], "zstd"),
        Corrupt,
        "unpacks to more than 20 MB",
    ),
    "sparse bomb": (
        lambda p: write_layout(p, [pack_tar([Entry("file", pax=HOLE)])]),
        Corrupt,
        "unpacks to more than 20 MB",
    ),
    "too many files": (
        lambda p: write_layout(p, [pack_tar(Entry(f"{i}") for i in range(60))] * 2),
        Corrupt,
        "more files in it",
    ),
    "out of the root": (
        lambda p: write_layout(p, [pack_tar([Entry("../../etc/passwd")])]),
        Corrupt,
        "blobs/sha256/.*'../../etc/passwd' would lead out",
    ),
    "many layers": (lambda p: changed(p, layers=[descriptor()] * 1001), Corrupt, "more than 1000"),
    "Docker without images": (
        lambda p: written(p, pack_tar([Entry("manifest.json", data=b"[]")])),
        Corrupt,
        "not a list of images",
    ),
    "Docker config elsewhere": (
        lambda p: docker(p, Config="../../etc/passwd"),
        Corrupt,
        "etc/passwd is missing",
    ),
    "Docker layer elsewhere": (
        lambda p: docker(p, Layers=["/etc/passwd"]),
        Corrupt,
        "etc/passwd is missing",
    ),
    "Docker config of another": (
        lambda p: docker(p, Config="manifest.json"),
        Corrupt,
        "not a JSON object",
    ),
    "Docker layer with holes": (
        lambda p: docker_with(p, Entry("holes", pax={"GNU.sparse.size": "9"}), Layers=["holes"]),
        Corrupt,
        "holes is missing; save",
    ),
    "Docker layer that is a folder": (
        lambda p: docker_with(p, Entry("folder", tarfile.DIRTYPE), Layers=["folder"]),
        Corrupt,
        "folder is missing; save",
    ),
    "Docker without layers": (lambda p: docker(p, Layers=[]), Corrupt, "has 1 layers, and"),
    "Docker links in a circle": (
        lambda p: written(
            p,
            pack_tar(
                [
                    Entry("a", tarfile.SYMTYPE, link="b"),
                    Entry("b", tarfile.LNKTYPE, link="a"),
                    Entry("manifest.json", data=b'[{"Config": "a", "Layers": []}]'),
                ]
            ),
        ),
        Corrupt,
        "a is missing",
    ),
    "many files": (
        lambda p: written(p, (LAYER[:1024]) * 100_001),
        Corrupt,
        "more than 100000 files are no image",
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_meant_to_harm_is_refused_and_nothing_written(tmp_path, name):
    make, error, message = SOURCES[name]
    (tmp_path / "target").mkdir()
    source = make(tmp_path / "source")
    with pytest.raises(error, match=message) as raised:
        convert(source, tmp_path / "target/image", limits=ArchiveLimits(20_000_000, 100))
    assert type(raised.value) is error
    assert str(tmp_path) in str(raised.value) or name in ("path as digest", "other digest")
    assert not os.listdir(tmp_path / "target")


def test_a_layer_of_one_name_twice_is_found_behind_its_link(tmp_path):
    """Docker's older archives have links where images share a layer."""
    path = write_docker_archive(tmp_path / "source", {(): [LAYER]})
    with tarfile.open(path) as archive:
        (layer,) = (name for name in archive.getnames() if name.endswith("layer.tar"))
        manifest = json.load(archive.extractfile("manifest.json"))
    folder = tmp_path / "folder"
    subprocess.run(["tar", "-x", "--one-top-level=folder", "-f", path], cwd=tmp_path, check=True)
    (folder / "other").mkdir()
    (folder / "other/layer.tar").symlink_to(f"../{layer}")
    os.link(folder / layer, folder / "linked.tar")
    for name in ("other/layer.tar", "linked.tar"):
        (folder / "manifest.json").write_text(json.dumps([manifest[0] | {"Layers": [name]}]))
        names = ["manifest.json", manifest[0]["Config"], "other", layer, "linked.tar"]
        command = ["tar", "-cf", tmp_path / "again", "-C", folder, *names]
        subprocess.run(command, check=True)
        assert convert(tmp_path / "again", tmp_path / "image").files == 1


def test_the_last_entry_of_a_name_counts_in_an_archive(tmp_path):
    whole = write_docker_archive(tmp_path / "whole", {(): [LAYER]})
    with tarfile.open(whole) as archive:
        names = archive.getnames()
    # Each name leads nowhere at first.
    links = pack_tar([Entry(name, tarfile.SYMTYPE, link="nowhere") for name in names])
    links = links[: 512 * len(names)]
    source = written(tmp_path / "source", links + whole.read_bytes())
    assert convert(source, tmp_path / "image").files == 1


@pytest.mark.parametrize("links", [8, 9])
def test_a_file_is_found_behind_a_few_links(tmp_path, links):
    path = docker(tmp_path / "source", Layers=["0"])
    with tarfile.open(path) as archive:
        (layer,) = (name for name in archive.getnames() if name.endswith("layer.tar"))
        content = path.read_bytes()
    targets = [*map(str, range(1, links)), layer]
    chain = [Entry(f"{n}", tarfile.SYMTYPE, link=to) for n, to in enumerate(targets)]
    path.write_bytes(pack_tar(chain)[: 512 * links] + content)
    if links == 8:
        assert convert(path, tmp_path / "image").files == 1
    else:
        with pytest.raises(Corrupt, match="0 is missing"):
            convert(path, tmp_path / "image")


def test_an_archive_has_as_many_files_as_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 3)
    entries = [Entry("a"), Entry("b"), Entry("manifest.json")]
    assert kind_of(written(tmp_path / "source", pack_tar(entries))) is ArchiveKind.DOCKER_ARCHIVE
    with pytest.raises(Corrupt, match="more than 3 files are no image"):
        kind_of(written(tmp_path / "source", pack_tar([*entries, Entry("c")])))


def holes(size, data):
    """A file with nothing in it but at its end."""
    place = size - len(data)
    says = {"GNU.sparse.size": f"{size}", "GNU.sparse.map": f"{place},{len(data)}"}
    return Entry("sparse", data=data, pax=says)


@pytest.mark.parametrize("missing", [0, 1])
def test_an_image_may_unpack_to_as_much_as_allowed(tmp_path, missing):
    layers = [LAYER, pack_tar([holes(100_000, b"end")])]
    source = write_layout(tmp_path / "source", layers)
    most = sum(map(len, layers)) + 100_000 - len(b"end")
    if missing:
        with pytest.raises(Corrupt, match="unpacks to more than"):
            convert(source, tmp_path / "image", limits=ArchiveLimits(most - 1, 100))
    else:
        assert convert(source, tmp_path / "image", limits=ArchiveLimits(most, 100)).files == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(pack_tar([Entry("../out")]), "would lead out"), (b"x" * 2000, "not a tar archive")],
    ids=["name", "no tar"],
)
def test_what_is_wrong_with_a_layer_is_said_once_with_its_name(tmp_path, wrong, message):
    layout = Layout(tmp_path / "source")
    layout.write_index([layout.add_image([LAYER, wrong], "none")])
    name = hashlib.sha256(wrong).hexdigest()
    with pytest.raises(Corrupt, match=f"blobs/sha256/{name}: .*{message}") as raised:
        convert(layout.folder, tmp_path / "image")
    assert str(raised.value).count("blobs/sha256") == 1


def test_names_that_links_make_too_long_are_said_with_the_last_layer(tmp_path):
    long = "/".join(["n" * 250] * 15)
    folder = Entry(f"{long}/folder", tarfile.DIRTYPE)
    link = Entry("link", tarfile.SYMTYPE, link=folder.name)
    layers = [pack_tar([folder, link]), pack_tar([Entry(f"link/{'m' * 250}/{'m' * 250}")]), LAYER]
    layout = Layout(tmp_path / "source")
    layout.write_index([layout.add_image(layers, "none")])
    name = hashlib.sha256(LAYER).hexdigest()
    with pytest.raises(Corrupt, match=f"blobs/sha256/{name}: a name is too long"):
        convert(layout.folder, tmp_path / "image")


@pytest.mark.parametrize("images", [2, 3])
def test_an_archive_has_no_more_images_than_allowed(tmp_path, monkeypatch, images):
    monkeypatch.setattr(manifest_module, "MAX_LAYERS", 2)
    tags = {(f"image:{number}",): [LAYER] for number in range(images)}
    path = write_docker_archive(tmp_path / "source", tags)
    if images == 2:
        assert convert(path, tmp_path / "image", tag="image:1").files == 1
    else:
        with pytest.raises(Corrupt, match="not a list of images"):
            convert(path, tmp_path / "image", tag="image:1")


def squashfs(path):
    convert(write_layout(path.parent / "layout", [LAYER]), path)
    return path


KINDS = {
    "squashfs": (squashfs, ArchiveKind.SQUASHFS),
    "layout": (lambda p: write_layout(p, [LAYER]), ArchiveKind.OCI_LAYOUT),
    "docker": (lambda p: write_docker_archive(p, {(): [LAYER]}), ArchiveKind.DOCKER_ARCHIVE),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_known_by_content(tmp_path, name):
    make, kind = KINDS[name]
    assert kind_of(make(tmp_path / "image.odd")) is kind


def test_an_archive_of_both_kinds_counts_as_the_one_with_all_digests(tmp_path):
    """Docker 25 and newer write such."""
    layout = Layout(tmp_path / "layout")
    layout.write_index([layout.add_image([LAYER])])
    (layout.folder / "manifest.json").write_text("[]")
    assert kind_of(layout.archive(tmp_path / "archive")) is ArchiveKind.OCI_ARCHIVE


def folder_of(path, name):
    path.mkdir()
    (path / name).touch()
    return path


NONE = {
    "empty": (lambda p: written(p, b""), Unavailable, "is no image"),
    "text": (lambda p: written(p, b"text" * 1000), Unavailable, "is no image"),
    "empty folder": (lambda p: p.mkdir() or p, Unavailable, "has an oci-layout and"),
    "layout without an index": (
        lambda p: folder_of(p, "oci-layout"),
        Unavailable,
        "has an oci-layout and an index.json",
    ),
    "index without a layout": (
        lambda p: folder_of(p, "index.json"),
        Unavailable,
        "has an oci-layout and an index.json",
    ),
    "tar": (lambda p: written(p, LAYER), Unavailable, "a tar archive without an image"),
    "tar without an index": (
        lambda p: written(p, pack_tar([Entry("oci-layout")])),
        Unavailable,
        "a tar archive without an image",
    ),
    "tar of an index": (
        lambda p: written(p, pack_tar([Entry("index.json")])),
        Unavailable,
        "a tar archive without an image",
    ),
    "tar whose manifest became a FIFO": (
        lambda p: written(
            p, pack_tar([Entry("manifest.json"), Entry("manifest.json", tarfile.FIFOTYPE)])
        ),
        Unavailable,
        "a tar archive without an image",
    ),
    "gzip": (lambda p: written(p, gzip.compress(LAYER)), Unavailable, "with `gzip -d`"),
    "zstd": (lambda p: written(p, zstandard.compress(LAYER)), Unavailable, "with `zstd -d`"),
    "SIF": (lambda p: written(p, bytes(32) + b"SIF_MAGIC\0"), Unavailable, "sif dump"),
    "cut squashfs": (
        lambda p: written(p, squashfs(p.parent / "whole").read_bytes()[:150]),
        Corrupt,
        "cut or damaged",
    ),
    "cut tar": (lambda p: written(p, LAYER[:515]), Corrupt, "ends within"),
    "missing": (lambda p: p, NotFound, "does not exist"),
    "below a file": (lambda p: written(p, LAYER) / "below", NotFound, "does not exist"),
    "NUL": (lambda p: Path(f"{p}\0"), NotFound, "cannot be the name"),
    "fifo": (lambda p: os.mkfifo(p) or p, Unavailable, "neither a file nor a folder"),
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_image_says_what_to_do(tmp_path, name):
    make, error, message = NONE[name]
    with pytest.raises(error, match=message):
        kind_of(make(tmp_path / "source"))


def test_what_is_squashfs_already_is_not_converted(tmp_path):
    with pytest.raises(ConfigError, match="use it as it is"):
        convert(squashfs(tmp_path / "source"), tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.root
def test_what_may_not_be_read_is_denied(tmp_path):
    (tmp_path / "secret").write_bytes(LAYER)
    (tmp_path / "secret").chmod(0)
    pid = os.fork()
    if pid == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            kind_of(tmp_path / "secret")
        except Denied:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_source_that_changes_between_the_passes_is_refused(tmp_path):
    layer = pack_tar([Entry("file", data=os.urandom(1_000_000))])
    source = write_docker_archive(tmp_path / "source", {(): [layer]})
    (tmp_path / "target").mkdir()

    def progress(done, total):
        if done == total // 2:
            with source.open("r+b") as file:
                file.seek(500_000)
                file.write(b"other")

    with pytest.raises(Corrupt, match="its digest is not"):
        convert(source, tmp_path / "target/image", progress=progress)
    assert not os.listdir(tmp_path / "target")
