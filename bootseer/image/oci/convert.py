"""Turn what container tools write into a squashfs file, as any user and without unpacking it.

Data path: `detect` opens the source, `manifest` finds the layers, `blob` decompresses and checks
them, `tar` takes them apart, `layers` decides which entry of which layer is what in the end, and
`bootseer.squashfs.writer` has mksquashfs write those. The layers are read twice: for their names,
and for their files. (docs/design/014-images-from-archives.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bootseer import tar
from bootseer.errors import Corrupt, Unavailable
from bootseer.image.oci.blob import ByteStream, DecompressionBudget, Layer
from bootseer.image.oci.detect import ArchiveKind
from bootseer.image.oci.layers import LayerMerge, MergePlan, source_of
from bootseer.image.oci.manifest import SourceImage, open_image
from bootseer.squashfs.writer import Packer, PackOptions, pack
from bootseer.store.local.atomic_file import new_file
from bootseer.units import GIB, KIB

NAMED_DEVICES = 20
"""So many of the device nodes that were left out are named."""

# What squashfs can store, and mksquashfs reads.
_XATTRS = ("user.", "trusted.", "security.")
_MAX_XATTR_BYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What an archive may ask for; more is refused as Corrupt.

    Attributes:
        unpacked_bytes: of all layers together, holes of sparse files included.
        entries: of all layers together.
    """

    unpacked_bytes: int = 256 * GIB
    entries: int = 2_000_000


@dataclass(frozen=True, slots=True)
class ConvertedImage:
    """What was made of what.

    Attributes:
        kind: of the source.
        digest: of the image's manifest, or its id in a Docker archive; with ``sha256:``.
        tag: its name in the source, "" if it has none.
        platform: ``os/architecture[/variant]``, "" if the image does not say.
        layers: how many it has.
        files: names in the result, folders included and the root not.
        size_bytes: of the result.
        devices: how many device nodes were left out: an unprivileged runtime refuses such images.
        named_devices: the first of them.
        xattrs: how many extended attributes were left out: those of the root folder, and those
            that squashfs does not know.
    """

    kind: ArchiveKind
    digest: str
    tag: str
    platform: str
    layers: int
    files: int
    size_bytes: int
    devices: int
    named_devices: tuple[str, ...]
    xattrs: int


def convert(
    source: Path,
    target: Path,
    *,
    tag: str = "",
    platform: str = "",
    packing: PackOptions = PackOptions(),  # noqa: B008  (frozen)
    limits: ArchiveLimits = ArchiveLimits(),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ConvertedImage:
    """Write an image of `source` as a squashfs file, replacing what `target` was.

    Owners, modes, times and extended attributes are those of the image, whichever user runs this.
    Equal images converted by the same user with the same mksquashfs give equal bytes.

    Args:
        source: an archive of ``docker save`` and its like, or an OCI layout.
        target: the file to write.
        tag: of the image; may be "" if the source has one image only.
        platform: ``os/architecture[/variant]``; "" for this machine's.
        packing: how to write it.
        limits: what the source may ask for.
        progress: told now and then how many bytes of how many have been read.

    Raises:
        NotFound, ConfigError, Denied: see `manifest.open_image`; or `target` has no folder.
        Corrupt: the source is damaged, not acceptable, or beyond the limits.
        NoSpace: there is none for the result.
        Unavailable: mksquashfs is missing or failed, or a file cannot be read.
        Conflict: `target` is a folder.

    Cancellation: an exception of `progress`, or of a signal, ends mksquashfs and removes what it
    wrote.

    Durability: `target` is what it was, or the whole result, also after a crash.
    """
    with new_file(target) as (_, path), open_image(source, tag, platform) as (kind, image):
        total = 2 * sum(layer.blob.size_bytes for layer in image.layers)
        done = 0

        def count(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            progress(done, total)

        plan = _scan_layers(image, limits, count)
        files = len(plan.implied) + sum(len(names) for names in plan.names.values())
        root = plan.root or tar.Member("", tar.FOLDER)
        with pack(path, packing, root) as packer:
            lost = _fill(packer, image, plan, limits, count)
        size_bytes = path.stat().st_size
    return ConvertedImage(
        kind=kind,
        digest=image.digest,
        tag=image.tag,
        platform=image.platform,
        layers=len(image.layers),
        files=files,
        size_bytes=size_bytes,
        devices=len(plan.devices),
        named_devices=tuple(sorted(plan.devices)[:NAMED_DEVICES]),
        xattrs=lost,
    )


def _scan_layers(
    image: SourceImage, limits: ArchiveLimits, count: Callable[[int], None]
) -> MergePlan:
    """Read the layers for the names in them."""
    budget = DecompressionBudget(limits.unpacked_bytes)
    merge = LayerMerge(limits.entries)
    for number, layer in enumerate(image.layers):
        pieces = layer.archive(budget, count)
        with _about(layer):
            for index, member in enumerate(_reader(layer, pieces)):
                budget.take(layer.blob.name, member.size_bytes - member.stored_bytes)
                merge.add(number, index, member)
        _drain(pieces)
    with _about(image.layers[-1] if image.layers else None):
        return merge.finish()


def _fill(
    packer: Packer,
    image: SourceImage,
    plan: MergePlan,
    limits: ArchiveLimits,
    count: Callable[[int], None],
) -> int:
    """Read the layers for what is in the files; return how many attributes were left out."""
    budget = DecompressionBudget(limits.unpacked_bytes)
    lost = len(plan.root.xattrs) if plan.root else 0
    for name in sorted(plan.implied):
        packer.write(tar.encode(tar.Member(name, tar.FOLDER), name))
    for number, layer in enumerate(image.layers):
        pieces = layer.archive(budget, count, again=True)
        reader = _reader(layer, pieces)
        for index, member in enumerate(reader):
            names = plan.names.pop(source_of(number, index), ())
            if not names:
                continue
            kept = {name: value for name, value in member.xattrs.items() if _fits(name, value)}
            lost += len(member.xattrs) - len(kept)
            first, *others = names
            packer.write(tar.encode(replace(member, xattrs=kept), first))
            if member.kind == tar.FILE:
                for data in reader.content(member):
                    packer.write(data)
                packer.write(tar.padding(member.size_bytes))
            for other in others:
                packer.write(tar.encode(tar.Member(other, tar.HARD_LINK, link=first), other))
        _drain(pieces)
    if plan.names:
        raise Unavailable("the archive changed while it was read; try again")
    return lost


def _reader(layer: Layer, pieces: Iterator[bytes]) -> tar.TarReader:
    return tar.TarReader(ByteStream(layer.blob.name, pieces), layer.blob.name)


def _drain(pieces: Iterator[bytes]) -> None:
    """Read what follows the end of an archive, and with it have the digests checked."""
    for _ in pieces:
        pass


@contextmanager
def _about(layer: Layer | None) -> Iterator[None]:
    """Say in errors about names which layer they are of."""
    try:
        yield
    except Corrupt as error:
        if layer is None or str(error).startswith(layer.blob.name):
            raise
        raise Corrupt(f"{layer.blob.name}: {error}") from error


def _fits(name: str, value: bytes) -> bool:
    known = any(name.startswith(prefix) and name != prefix for prefix in _XATTRS)
    # The header in which it goes to mksquashfs knows no way to write a name with these.
    return known and not set(name) & {"=", "\0"} and len(value) <= _MAX_XATTR_BYTES
