"""Find an image's layers: by tag and platform, through indexes, manifests and configurations.

Understood are ``docker save``'s archives (manifest.json) and the OCI image layout
(https://github.com/opencontainers/image-spec). All of it may come from anyone: sizes are checked
before anything is read whole, and digests before it is believed.
"""

from __future__ import annotations

import hashlib
import json
import platform as machine
import re
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bootseer.core.fields import Fields
from bootseer.errors import BootseerError, ConfigError, Corrupt, NotFound, Unavailable
from bootseer.image.oci.blob import Blob, Layer
from bootseer.image.oci.detect import ArchiveKind, LayoutFiles, opened
from bootseer.units import MIB

MAX_DOCUMENT_BYTES = 4 * MIB
"""Of an index, a manifest or a configuration; registries take no longer ones."""
MAX_LAYERS = 1000
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HEX = re.compile(r"[0-9a-f]{64}")
_MAX_DEPTH = 4  # of indexes in indexes
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm/v7", "i686": "386"}
_NAME = "org.opencontainers.image.ref.name"
_FULL_NAME = "io.containerd.image.name"


@dataclass(frozen=True, slots=True)
class SourceImage:
    """One image of a source, its blobs still to be read.

    Attributes:
        digest: of its manifest, or of its configuration where there is no manifest with a digest
            (Docker archives): what the tool that wrote it calls the image.
        tag: its name in the source, "" if it has none.
        platform: ``os/architecture[/variant]`` as its configuration says.
        layers: lowest first.
    """

    digest: str
    tag: str
    platform: str
    layers: tuple[Layer, ...]


@contextmanager
def open_image(path: Path, tag: str, platform: str) -> Iterator[tuple[ArchiveKind, SourceImage]]:
    """Open an image of a source for the length of a block.

    Args:
        path: an OCI layout, or an archive.
        tag: its name in there; "" if there is one only.
        platform: ``os/architecture[/variant]``; "" for this machine's.

    Raises:
        NotFound: there is no such tag; the message lists those there are.
        ConfigError: there are several images and `tag` does not say which.
        Unavailable, Corrupt, Denied: see `detect.kind_of`.
    """
    with opened(path) as (kind, files):
        if files is None:
            raise ConfigError(f"{path} is a {kind.value} already; use it as it is")
        wanted = platform or own_platform()
        if kind is ArchiveKind.DOCKER_ARCHIVE:
            image = _docker_image(files, str(path), tag)
        else:
            image = _oci_image(files, str(path), tag, wanted)
        if image.platform and _misfit(image.platform, wanted) is None:
            raise Unavailable(f"the image in {path} is for {image.platform}, not for {wanted}")
        yield kind, image


def own_platform() -> str:
    """Return what this machine runs, as image tools call it: ``linux/amd64``."""
    name = machine.machine()
    return f"linux/{_ARCHITECTURES.get(name, name)}"


def _docker_image(files: LayoutFiles, path: str, tag: str) -> SourceImage:
    """Find an image in an archive as Docker has written them since 1.10 (manifest.json)."""
    blob = files.open("manifest.json")
    entries = _json(blob, _read_document(blob))
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_LAYERS:
        raise Corrupt(f"{blob.name}: not a list of images")
    images = [Fields(entry, blob.name) for entry in entries]
    tags = [image.texts("RepoTags") if image.has("RepoTags") else [] for image in images]
    fitting = [i for i in range(len(images)) if not tag or any(_is(t, tag) for t in tags[i])]
    if len(fitting) != 1:
        raise _ambiguous(path, tag, bool(fitting), [t for some in tags for t in some])
    image, names = images[fitting[0]], tags[fitting[0]]
    config = files.open(image.text("Config"))
    data = _read_document(config)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    # The name is all that says what the content is to be: HEX.json, blobs/sha256/HEX, sha256:HEX.
    if _HEX.search(image.text("Config")) and digest[7:] not in image.text("Config"):
        raise Corrupt(f"{config.name} is damaged: its digest is {digest}")
    platform, diffs = _read_config(config, data)
    blobs = [files.open(name) for name in image.texts("Layers", MAX_LAYERS)]
    if len(blobs) != len(diffs):
        raise _uneven(config, diffs, blobs)
    layers = tuple(Layer(blob, "", diff) for blob, diff in zip(blobs, diffs, strict=True))
    name = next((t for t in names if tag and _is(t, tag)), names[0] if names else "")
    return SourceImage(digest, name, platform, layers)


def _oci_image(files: LayoutFiles, path: str, tag: str, platform: str) -> SourceImage:
    blob = files.open("index.json")
    index = Fields(_json(blob, _read_document(blob)), blob.name)
    found = _choose(index, path, tag, platform)
    name = found.name
    for _ in range(_MAX_DEPTH):
        blob, data = _open_described(files, found)
        manifest = Fields(_json(blob, data), blob.name)
        if not manifest.has("manifests"):
            break
        found = _choose(manifest, path, "", platform)
    else:
        raise Corrupt(f"{path}: indexes within indexes are no image")
    if not manifest.has("layers") or not manifest.has("config"):
        raise Unavailable(f"{blob.name} is no image's manifest; name another tag")
    config, data = _open_described(files, _Described(manifest.part("config")))
    platform, diffs = _read_config(config, data)
    described = [_Described(layer) for layer in manifest.objects("layers", MAX_LAYERS)]
    if len(described) != len(diffs):
        raise _uneven(config, diffs, described)
    layers = []
    for layer, diff in zip(described, diffs, strict=True):
        if (layer.kind and "tar" not in layer.kind) or "encrypted" in layer.kind:
            raise Unavailable(f"{path}: a layer is of the type {layer.kind!a}: no tar archive")
        layers.append(Layer(_open_sized(files, layer), layer.digest, diff))
    return SourceImage(found.digest, name, platform, tuple(layers))


class _Described:
    """A descriptor: what a blob is to be."""

    def __init__(self, fields: Fields) -> None:
        self.digest = fields.text("digest", 200)
        if not _DIGEST.fullmatch(self.digest):
            raise Corrupt(f"the digest {self.digest!a} is none of sha256")
        self.size_bytes = fields.count("size")
        self.kind = fields.text("mediaType") if fields.has("mediaType") else ""
        self.platform = ""
        self.names: list[str] = []
        if fields.has("platform"):
            self.platform = _platform(fields.part("platform"))
        if fields.has("annotations"):
            notes = fields.part("annotations")
            self.names = [notes.text(key) for key in (_FULL_NAME, _NAME) if notes.has(key)]

    @property
    def name(self) -> str:
        """What to call it, "" if it has no name."""
        return self.names[0] if self.names else ""


def _choose(index: Fields, path: str, tag: str, platform: str) -> _Described:
    """Choose from an index by tag and platform."""
    entries = [_Described(entry) for entry in index.objects("manifests", MAX_LAYERS)]
    called = [e for e in entries if not tag or any(_is(name, tag) for name in e.names)]
    if not called:
        raise _ambiguous(path, tag, False, [e.name for e in entries])
    ranked = [(_misfit(e.platform, platform) if e.platform else 0, e) for e in called]
    fitting = [(rank, e) for rank, e in ranked if rank is not None]
    if not fitting:
        there = ", ".join(sorted({e.platform for e in called}))
        raise Unavailable(f"there is no image for {platform} in {path}, but for {there}")
    lowest = min(rank for rank, _ in fitting)
    best = [e for rank, e in fitting if rank == lowest]
    names, digests = {e.name for _, e in fitting}, {e.digest for _, e in fitting}
    told_apart = tag or len(names) == 1 or len(digests) == 1
    if not told_apart or len({e.digest for e in best}) > 1:
        raise _ambiguous(path, tag, True, [e.name for _, e in fitting])
    return best[0]


def _uneven(config: Blob, described: Sized, there: Sized) -> Corrupt:
    return Corrupt(f"{config.name}: it has {len(described)} layers, and there are {len(there)}")


def _ambiguous(path: str, tag: str, several: bool, names: list[str]) -> BootseerError:
    there = ", ".join(sorted({ascii(name)[1:-1] for name in names if name})) or "none"
    if not several and tag:
        return NotFound(f"there is no image {tag!a} in {path}; its tags are: {there}")
    if not several:
        return Corrupt(f"there is no image in {path}")
    return ConfigError(f"there are several images in {path}; choose one by its tag: {there}")


def _is(name: str, tag: str) -> bool:
    """Whether a name is meant: ``docker.io/library/alpine:3`` by itself, alpine:3 and 3."""
    return name == tag or name.endswith((f"/{tag}", f":{tag}"))


def _platform(fields: Fields) -> str:
    parts = [fields.text(k, 100) for k in ("os", "architecture", "variant") if fields.has(k)]
    return "/".join(part for part in parts if part)


def _misfit(there: str, wanted: str) -> int | None:
    """Say how badly a platform fits: 0 exactly, None not at all."""
    theirs, ours = there.split("/"), wanted.split("/")
    if theirs[:2] != ours[:2]:
        return None
    variants = [(p[2:] or [""])[0] for p in (theirs, ours)]
    if ours[1] == "arm64":  # v8 goes without saying
        variants = ["" if variant == "v8" else variant for variant in variants]
    if variants[0] == variants[1]:
        return 0
    return None if all(variants) else 1


def _read_config(blob: Blob, data: bytes) -> tuple[str, list[str]]:
    """Return an image's platform and the digests of its layers, uncompressed."""
    config = Fields(_json(blob, data), blob.name)
    if not config.has("rootfs"):
        raise Unavailable(
            f"{blob.name}: no container image, but another artifact; name another tag"
        )
    diffs = config.part("rootfs").texts("diff_ids", MAX_LAYERS, 200)
    for diff in diffs:
        if not _DIGEST.fullmatch(diff):
            raise Corrupt(f"{blob.name}: the digest {diff!a} is none of sha256")
    return _platform(config), diffs


def _open_sized(files: LayoutFiles, described: _Described) -> Blob:
    blob = files.open(f"blobs/sha256/{described.digest[7:]}")
    if blob.size_bytes != described.size_bytes:
        raise Corrupt(
            f"{blob.name} has {blob.size_bytes} bytes instead of {described.size_bytes}: it is cut "
            "or damaged; fetch the image again"
        )
    return blob


def _open_described(files: LayoutFiles, described: _Described) -> tuple[Blob, bytes]:
    blob = _open_sized(files, described)
    data = _read_document(blob)
    if hashlib.sha256(data).hexdigest() != described.digest[7:]:
        raise Corrupt(f"{blob.name} is damaged: its digest is another; fetch the image again")
    return blob, data


def _read_document(blob: Blob) -> bytes:
    if blob.size_bytes > MAX_DOCUMENT_BYTES:
        raise Corrupt(f"{blob.name}: {blob.size_bytes} bytes are too many for what it is to be")
    return blob.stream().read(blob.size_bytes)


def _json(blob: Blob, data: bytes) -> object:
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{blob.name}: not JSON") from error
    return document
