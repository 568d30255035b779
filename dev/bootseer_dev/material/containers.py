"""Container images as archives and layouts, written entry by entry: also such as no tool would."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}

_TYPE = "application/vnd.oci.image.{}.v1+json"
_LAYER_TYPES = {
    "none": "application/vnd.oci.image.layer.v1.tar",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a tar archive.

    Attributes:
        name: as it is to stand there.
        kind: tarfile's type.
        data: a file's content.
        link: where a link points.
        mode: permission bits.
        uid: and gid, both.
        mtime: seconds since 1970.
        pax: records of an extended header.
    """

    name: str
    kind: bytes = tarfile.REGTYPE
    data: bytes = b""
    link: str = ""
    mode: int = 0o644
    uid: int = 0
    mtime: float = 0
    pax: Mapping[str, str] = field(default_factory=dict)


def pack_tar(entries: Iterable[Entry], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar archive of the entries."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tar_format) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.linkname, info.mode = entry.kind, entry.link, entry.mode
            info.uid = info.gid = entry.uid
            info.mtime, info.size, info.pax_headers = entry.mtime, len(entry.data), {**entry.pax}
            tar.addfile(info, io.BytesIO(entry.data))
    return archive.getvalue()


class Layout:
    """An OCI layout in a folder, to which images are added one by one."""

    def __init__(self, folder: Path) -> None:
        """Make it in an empty folder."""
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.write_index([])

    def add_blob(self, data: bytes, **more: Any) -> dict[str, Any]:
        """Store a blob and return its descriptor, with `more` in it."""
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data), **more}

    def add_document(self, document: object, **more: Any) -> dict[str, Any]:
        """Store a JSON document."""
        return self.add_blob(json.dumps(document).encode(), **more)

    def add_image(
        self, layers: Sequence[bytes], packer: str = "gzip", platform: str = "", **more: Any
    ) -> dict[str, Any]:
        """Store an image of tar archives and return its descriptor; the index stays as it is."""
        config = self.add_document(config_of(layers, platform), mediaType=_TYPE.format("config"))
        blobs = [
            self.add_blob(PACKERS[packer](layer), mediaType=_LAYER_TYPES[packer])
            for layer in layers
        ]
        manifest = {"schemaVersion": 2, "config": config, "layers": blobs}
        return self.add_document(manifest, mediaType=_TYPE.format("manifest"), **more)

    def write_index(self, manifests: Sequence[dict[str, Any]]) -> None:
        """Have the index list these."""
        index = {"schemaVersion": 2, "manifests": list(manifests)}
        (self.folder / "index.json").write_text(json.dumps(index))

    def archive(self, path: Path) -> Path:
        """Write all of it as a tar archive."""
        with tarfile.open(path, "w") as tar:
            for file in sorted(self.folder.rglob("*")):
                tar.add(file, str(file.relative_to(self.folder)), recursive=False)
        return path


def write_layout(folder: Path, layers: Sequence[bytes], packer: str = "gzip") -> Path:
    """Write a layout of one image without a name."""
    layout = Layout(folder)
    layout.write_index([layout.add_image(layers, packer)])
    return folder


def write_docker_archive(
    path: Path, images: Mapping[tuple[str, ...], Sequence[bytes]], packer: str = "none"
) -> Path:
    """Write what ``docker save`` would: images by their tags."""
    entries, manifest = [], []
    for tags, layers in images.items():
        config = json.dumps(config_of(layers)).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        entries.append(Entry(config_name, data=config))
        names = []
        for layer in layers:
            names.append(f"{hashlib.sha256(layer).hexdigest()}/layer.tar")
            entries.append(Entry(names[-1], data=PACKERS[packer](layer)))
        manifest.append({"Config": config_name, "RepoTags": list(tags) or None, "Layers": names})
    entries.append(Entry("manifest.json", data=json.dumps(manifest).encode()))
    path.write_bytes(pack_tar(entries))
    return path


def config_of(layers: Sequence[bytes], platform: str = "") -> dict[str, Any]:
    """Return the configuration of an image; one for no platform fits all."""
    diffs = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    keys = ("os", "architecture", "variant")
    named = dict(zip(keys, platform.split("/"), strict=False)) if platform else {}
    return {**named, "rootfs": {"type": "layers", "diff_ids": diffs}}
