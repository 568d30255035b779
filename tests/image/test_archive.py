"""What is no image, or one that is meant to harm, is refused, and nothing is written."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import zstandard

from bootseer.errors import ConfigError, Corrupt, Denied, NotFound, Unavailable
from bootseer.image import manifest as manifest_module
from bootseer.image.archive import Kind, kind_of
from bootseer.image.convert import Limits, convert
from bootseer.testing.containers import (
    Entry,
    Layout,
    config_of,
    pack_tar,
    write_docker_archive,
    write_layout,
)

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
        convert(source, tmp_path / "target/image", limits=Limits(20_000_000, 100))
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
    "squashfs": (squashfs, Kind.SQUASHFS),
    "layout": (lambda p: write_layout(p, [LAYER]), Kind.OCI_LAYOUT),
    "docker": (lambda p: write_docker_archive(p, {(): [LAYER]}), Kind.DOCKER_ARCHIVE),
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
    assert kind_of(layout.archive(tmp_path / "archive")) is Kind.OCI_ARCHIVE


NONE = {
    "empty": (lambda p: written(p, b""), Unavailable, "is no image"),
    "text": (lambda p: written(p, b"text" * 1000), Unavailable, "is no image"),
    "empty folder": (lambda p: p.mkdir() or p, Unavailable, "has an oci-layout and"),
    "tar": (lambda p: written(p, LAYER), Unavailable, "a tar archive without an image"),
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
