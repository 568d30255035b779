"""Which image of a source is meant, and what it is made of; nothing is unpacked here."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from bootseer_dev.material.containers import (
    Entry,
    Layout,
    config_of,
    pack_tar,
    write_docker_archive,
    write_layout,
)

from bootseer.errors import ConfigError, Corrupt, NotFound, Unavailable
from bootseer.image.oci import manifest as manifest_module
from bootseer.image.oci.detect import ArchiveKind
from bootseer.image.oci.manifest import open_image, own_platform

LAYER = pack_tar([Entry("file", data=b"content")])
OTHER = pack_tar([Entry("other")])
NAME = "org.opencontainers.image.ref.name"
FULL_NAME = "io.containerd.image.name"
AMD = "linux/amd64"


def opened(path, tag="", platform=AMD):
    with open_image(path, tag, platform) as (_, image):
        return image


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "layout")


def named(**names):
    keys = {"name": NAME, "full": FULL_NAME}
    return {"annotations": {keys[key]: name for key, name in names.items()}}


def described(platform):
    keys = ("os", "architecture", "variant")
    return {"platform": dict(zip(keys, platform.split("/"), strict=False))}


# Layouts.


def test_what_is_in_a_layout(tmp_path):
    path = write_layout(tmp_path / "layout", [LAYER, OTHER])
    with open_image(path, "", "") as (kind, image):
        assert kind is ArchiveKind.OCI_LAYOUT
        assert (image.tag, image.platform, len(image.layers)) == ("", "", 2)
        index = json.loads((path / "index.json").read_text())
        assert image.digest == index["manifests"][0]["digest"]
        for layer, content in zip(image.layers, (LAYER, OTHER), strict=True):
            assert layer.diff_id in config_of([content])["rootfs"]["diff_ids"]
            assert layer.digest[7:] == layer.blob.name.rpartition("/")[2]


@pytest.mark.parametrize("tag", ["2.0", "two:2.0", "lib/two:2.0", "host/lib/two:2.0", ""])
def test_an_image_is_found_by_each_ending_of_its_names(layout, tag):
    names = named(name="2.0", full="host/lib/two:2.0")
    layout.write_index([layout.add_image([LAYER], **names)])
    assert opened(layout.folder, tag).tag == "host/lib/two:2.0"


@pytest.mark.parametrize("tag", [".0", "0", "wo:2.0", "2.0:", "two"])
def test_a_part_of_a_name_is_no_name(layout, tag):
    layout.write_index([layout.add_image([LAYER], **named(full="host/lib/two:2.0"))])
    with pytest.raises(NotFound, match=r"its tags are: host/lib/two:2\.0"):
        opened(layout.folder, tag)


def test_where_there_are_no_names_that_is_said(layout):
    layout.write_index([layout.add_image([LAYER])])
    with pytest.raises(NotFound, match="its tags are: none"):
        opened(layout.folder, "x")


def test_the_same_image_by_two_names_is_one(layout):
    image = layout.add_image([LAYER])
    layout.write_index([image | named(name="a"), image | named(name="b")])
    assert opened(layout.folder).digest == image["digest"]
    assert opened(layout.folder, "b").tag == "b"


def test_two_images_of_one_name_cannot_be_told_apart(layout):
    images = [layout.add_image([layer], **named(name="a")) for layer in (LAYER, OTHER)]
    layout.write_index(images)
    for tag in ("", "a"):
        with pytest.raises(ConfigError, match=r"several images in .* by its tag: a"):
            opened(layout.folder, tag)


def test_an_image_of_many_platforms_is_chosen_by_the_best_that_fits(layout):
    def of(platform):
        return layout.add_image([pack_tar([Entry(platform)])], "none", platform)

    def chosen(there, wanted):
        layout.write_index([of(platform) | described(platform) for platform in there])
        return opened(layout.folder, "", wanted).platform

    assert chosen(["linux/arm64/v8", AMD], "linux/arm64") == "linux/arm64/v8"
    assert chosen(["linux/arm64", AMD], "linux/arm64/v8") == "linux/arm64"
    assert chosen(["linux/arm64/v9", "linux/arm64/v8"], "linux/arm64") == "linux/arm64/v8"
    assert chosen(["linux/amd64/v3", AMD], AMD) == AMD
    assert chosen([AMD, "linux/amd64/v3"], "linux/amd64/v3") == "linux/amd64/v3"
    assert chosen(["linux/amd64/v3"], AMD) == "linux/amd64/v3"
    assert chosen([AMD], "linux/amd64/v3") == AMD
    for there in (["linux/amd64/v2"], ["windows/amd64"], ["linux/arm64/v8"]):
        with pytest.raises(Unavailable, match=f"for linux/amd64/v3 in .*, but for {there[0]}"):
            chosen(there, "linux/amd64/v3")
    with pytest.raises(ConfigError, match="several images"):
        chosen(["linux/amd64/v2", "linux/amd64/v3"], AMD)


def test_v8_goes_without_saying_for_one_architecture_only(layout):
    image = layout.add_image([LAYER], "none", "linux/arm/v8")
    layout.write_index([image | described("linux/arm/v8")])
    with pytest.raises(Unavailable, match="for linux/arm/v7"):
        opened(layout.folder, "", "linux/arm/v7")
    assert opened(layout.folder, "", "linux/arm").platform == "linux/arm/v8"


def test_an_image_that_says_nothing_of_its_platform_fits_all(layout):
    plain = layout.add_image([LAYER])
    other = layout.add_image([OTHER], "none", "linux/s390x") | described("linux/s390x")
    layout.write_index([other, plain])
    assert opened(layout.folder).digest == plain["digest"]


def test_the_platform_that_counts_is_that_of_the_configuration(layout):
    layout.write_index([layout.add_image([LAYER], "none", "linux/s390x")])
    with pytest.raises(Unavailable, match="is for linux/s390x, not for linux/amd64"):
        opened(layout.folder)
    assert opened(layout.folder, "", "linux/s390x").platform == "linux/s390x"
    assert own_platform().startswith("linux/")


@pytest.mark.parametrize("depth", [0, 1, 3, 4])
def test_indexes_may_be_in_indexes_up_to_a_depth(layout, depth):
    found = layout.add_image([LAYER]) | named(name="inner")
    for _ in range(depth):
        found = layout.add_document({"manifests": [found]})
    layout.write_index([found | named(name="outer")])
    if depth < 4:
        assert opened(layout.folder, "outer").tag == "outer"
    else:
        with pytest.raises(Corrupt, match="indexes within indexes"):
            opened(layout.folder, "outer")


def with_manifest(layout, **changes):
    config, blob = layout.add_document(config_of([LAYER])), layout.add_blob(LAYER)
    manifest = {"config": config, "layers": [blob]} | changes
    layout.write_index([layout.add_document(manifest)])
    return opened(layout.folder)


@pytest.mark.parametrize("lost", ["config", "layers"])
def test_what_has_no_layers_or_no_configuration_is_no_image(layout, lost):
    with pytest.raises(Unavailable, match="no image's manifest; name another tag"):
        with_manifest(layout, **{lost: None})


@pytest.mark.parametrize(
    ("media_type", "is_layer"),
    [
        ("", True),
        ("a.tar", True),
        ("a.tar+gzip", True),
        ("a.zip", False),
        ("a.tar+encrypted", False),
        ("encrypted", False),
    ],
)
def test_a_layer_is_a_tar_archive(layout, media_type, is_layer):
    layer = layout.add_blob(LAYER, mediaType=media_type)
    if is_layer:
        assert len(with_manifest(layout, layers=[layer]).layers) == 1
    else:
        with pytest.raises(Unavailable, match=re.escape(f"of the type '{media_type}'")):
            with_manifest(layout, layers=[layer])


@pytest.mark.parametrize("size", [-1, 1])
def test_a_blob_has_the_length_that_is_said(layout, size):
    blob = layout.add_blob(LAYER)
    with pytest.raises(Corrupt, match=f"has {len(LAYER)} bytes instead of {len(LAYER) + size}"):
        with_manifest(layout, layers=[blob | {"size": len(LAYER) + size}])


@pytest.mark.parametrize("layers", [0, 2])
def test_there_are_as_many_layers_as_the_configuration_says(layout, layers):
    with pytest.raises(Corrupt, match=f"it has 1 layers, and there are {layers}"):
        with_manifest(layout, layers=[layout.add_blob(LAYER)] * layers)


def test_what_has_no_file_system_is_another_artifact(layout):
    with pytest.raises(Unavailable, match="another artifact; name another tag"):
        with_manifest(layout, config=layout.add_document({"a": 1}))


@pytest.mark.parametrize("diff", ["sha512:" + "0" * 64, "sha256:" + "0" * 63, "0" * 64])
def test_the_digest_of_a_layer_is_one(layout, diff):
    with pytest.raises(Corrupt, match="is none of sha256"):
        with_manifest(layout, config=layout.add_document({"rootfs": {"diff_ids": [diff]}}))


def test_a_document_is_no_longer_than_registries_take(layout, monkeypatch):
    image = layout.add_image([LAYER])
    layout.write_index([image])
    longest = max(image["size"], (layout.folder / "index.json").stat().st_size)
    monkeypatch.setattr(manifest_module, "MAX_DOCUMENT_BYTES", longest)
    assert opened(layout.folder).digest == image["digest"]
    monkeypatch.setattr(manifest_module, "MAX_DOCUMENT_BYTES", longest - 1)
    with pytest.raises(Corrupt, match=f"{longest} bytes are too many"):
        opened(layout.folder)


# Docker's archives.


def rewritten(path, files, **changes):
    """Write an archive of these files, with another manifest of one image."""
    entry = {"Config": "config.json", "Layers": ["layer.tar"]} | changes
    manifest = Entry("manifest.json", data=json.dumps([entry]).encode())
    path.write_bytes(
        pack_tar([*(Entry(name, data=data) for name, data in files.items()), manifest])
    )
    return path


CONFIG = json.dumps(config_of([LAYER], AMD)).encode()


def test_what_is_in_a_docker_archive(tmp_path):
    path = write_docker_archive(tmp_path / "a", {("a:1", "host/b:2"): [LAYER]})
    with open_image(path, "", "") as (kind, image):
        assert kind is ArchiveKind.DOCKER_ARCHIVE
        assert (image.tag, image.platform, len(image.layers)) == ("a:1", "", 1)
        assert image.layers[0].digest == ""
        assert image.layers[0].diff_id in config_of([LAYER])["rootfs"]["diff_ids"]
    assert opened(path, "b:2").tag == "host/b:2"
    assert opened(path, "1").tag == "a:1"
    assert opened(path).digest == image.digest


def test_an_image_without_a_tag_has_none(tmp_path):
    path = write_docker_archive(tmp_path / "a", {(): [LAYER]})
    assert opened(path).tag == ""
    with pytest.raises(NotFound, match="its tags are: none"):
        opened(path, "x")


def test_a_docker_image_is_for_its_platform(tmp_path):
    path = rewritten(tmp_path / "a", {"config.json": CONFIG, "layer.tar": LAYER})
    assert opened(path).platform == AMD
    with pytest.raises(Unavailable, match="is for linux/amd64, not for linux/arm64"):
        opened(path, "", "linux/arm64")


@pytest.mark.parametrize("name", ["{}.json", "blobs/sha256/{}", "sha256:{}"])
def test_a_configuration_is_what_its_name_says(tmp_path, name):
    right, wrong = (name.format(d) for d in (hashlib.sha256(CONFIG).hexdigest(), "0" * 64))
    files = {right: CONFIG, wrong: CONFIG, "layer.tar": LAYER}
    assert opened(rewritten(tmp_path / "a", files, Config=right)).layers
    with pytest.raises(Corrupt, match="is damaged: its digest is sha256:"):
        opened(rewritten(tmp_path / "a", files, Config=wrong))


@pytest.mark.parametrize("layers", [[], ["layer.tar"] * 2])
def test_there_are_as_many_layers_in_an_archive_as_its_configuration_says(tmp_path, layers):
    files = {"config.json": CONFIG, "layer.tar": LAYER}
    with pytest.raises(Corrupt, match=f"it has 1 layers, and there are {len(layers)}"):
        opened(rewritten(tmp_path / "a", files, Layers=layers))


@pytest.mark.parametrize("data", [b"{}", b"[]"])
def test_the_manifest_of_an_archive_is_a_list_of_images(tmp_path, data):
    (tmp_path / "a").write_bytes(pack_tar([Entry("manifest.json", data=data)]))
    with pytest.raises(Corrupt, match="not a list of images"):
        opened(tmp_path / "a")
