"""Images in a store: what they are called, where their bytes are, and how they go.

image-names/NAME.json      one name of an image, its digest
images/DIGEST/manifest     what it holds, see `bootseer.core.image_manifest`; written last
images/DIGEST/token        what shows a node that its user can read the manifest
images/DIGEST/part-NNNN    its bytes, in order
images/DIGEST/about.json   where it came from
images/DIGEST/removed      has no name any more; the parts go a day later, for jobs that read them
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from urllib.parse import quote, unquote

from bootseer.cache.token import TOKEN_BYTES, manifest_token
from bootseer.core import image_manifest
from bootseer.core.fields import open_document
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.reference import SCHEME, reference
from bootseer.errors import BootseerError, ConfigError, Corrupt, Denied, NotFound, UnknownImage
from bootseer.store.api.base import Store, publish, read_all
from bootseer.units import NS_PER_S

VERSION = 1
KEPT_S = 86_400.0
"""How long the bytes of an image stay that was removed."""
FILE_NAME = "image.sqsh"
"""What an image is called on the mount of a job."""
_NAME_FORMAT = "bootseer image name"
_ABOUT_FORMAT = "bootseer image"
_MAX_BYTES = 64 * 1024
_MAX_NAME_CHARS = 200
_NAME = re.compile(r"[!-~]+", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ImageOrigin:
    """Where an image came from.

    Attributes:
        source: the path or archive that it was added from, as it was given.
        added_by: name of the user.
        added_ns: nanoseconds since 1970.
    """

    source: str
    added_by: str
    added_ns: int


@dataclass(frozen=True, slots=True)
class NamedImage:
    """A name, and the image that has it."""

    name: str
    digest: str
    size_bytes: int
    named_ns: int


def check_name(name: str) -> str:
    """Return a name that an image can have: printable ASCII without spaces, as `train:v2`.

    It is not one that `bootseer.core.reference` changes: nobody could ask for it.

    Raises:
        ConfigError: it cannot.
    """
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARS or len(_quoted(name)) > 250:
        raise ConfigError(
            f"{name[:100]!a} cannot be the name of an image: up to {_MAX_NAME_CHARS} printable "
            "ASCII characters without spaces, less if many of them are no letters or digits"
        )
    if is_digest(name):
        raise ConfigError(f"{name} is a digest; the name of an image must be something else")
    asked_for = reference(name).removeprefix(SCHEME)
    if asked_for != name:
        raise ConfigError(
            f"{name} cannot be the name of an image: jobs that ask for it get the image "
            f"{asked_for}; name it {asked_for}"
        )
    return name


def is_digest(reference: str) -> bool:
    """Whether this is the digest of an image, not a name."""
    return _DIGEST.fullmatch(reference) is not None


def name_object(name: str) -> str:
    """Name the store's object for the name of an image."""
    return f"image-names/{_quoted(check_name(name))}.json"


def manifest_object(digest: str) -> str:
    """Name the store's object for the manifest of an image."""
    return f"images/{digest}/manifest"


def token_object(digest: str) -> str:
    """Name the store's object for the token of an image."""
    return f"images/{digest}/token"


def part_object(digest: str, index: int) -> str:
    """Name the store's object for a part of an image."""
    return f"images/{digest}/part-{index:04}"


async def resolve(store: Store, reference: str) -> str:
    """Return the digest of an image.

    Args:
        store: that has it.
        reference: its name, or the digest itself; ``bootseer://`` may stand before it.

    Raises:
        UnknownImage: no image has that name.
        ConfigError: it cannot be a name.
    """
    name = reference.removeprefix(SCHEME)
    if is_digest(name):
        return name
    try:
        data = await read_all(store, name_object(name), _MAX_BYTES)
    except NotFound as error:
        raise UnknownImage(
            f"there is no image {name!a} in {store.url}: see `bootseer image ls`, or import it "
            f"with `bootseer image import PATH --name {name}`"
        ) from error
    return _name(data, name).digest


async def read_manifest(store: Store, digest: str) -> tuple[bytes, ImageManifest]:
    """Read the manifest of an image, as it is and decoded.

    Raises:
        NotFound: the store has no such image.
        Corrupt: it is damaged.
    """
    name = manifest_object(digest)
    try:
        data = await read_all(store, name, image_manifest.MAX_BYTES)
    except NotFound as error:
        raise NotFound(f"there is no image {digest} in {store.url}") from error
    return data, image_manifest.decode(data, f"{name} in {store.url}", digest)


async def write_manifest(
    store: Store, digest: str, encoded: bytes, mode: int | None = None
) -> None:
    """Write the manifest of an image, and before it the token, with the same rights.

    Args:
        store: that has everything else of the image.
        digest: of the image.
        encoded: the manifest.
        mode: of both objects, see `Store.create`.
    """
    token = manifest_token(encoded).hex().encode() + b"\n"
    await publish(store, token_object(digest), token, mode=mode)
    await publish(store, manifest_object(digest), encoded, mode=mode)


async def read_token(store: Store, digest: str) -> bytes | None:
    """Read the token of an image; None if that does not go well: the manifest says it as well.

    Images that were added before there were tokens have none.
    """
    with suppress(BootseerError, ValueError):
        token = bytes.fromhex((await read_all(store, token_object(digest), _MAX_BYTES)).decode())
        return token if len(token) == TOKEN_BYTES else None
    return None


async def read_about(store: Store, digest: str) -> ImageOrigin | None:
    """Read where an image came from; None if nobody has said so."""
    name = f"images/{digest}/about.json"
    try:
        fields = open_document(
            await read_all(store, name, _MAX_BYTES), name, _ABOUT_FORMAT, VERSION
        )
        return ImageOrigin(
            source=fields.text("source"),
            added_by=fields.text("added_by", 256),
            added_ns=fields.count("added_ns"),
        )
    except (NotFound, Corrupt):
        return None


async def write_about(store: Store, digest: str, about: ImageOrigin) -> None:
    """Write where an image came from."""
    await publish(store, f"images/{digest}/about.json", _encoded(_ABOUT_FORMAT, asdict(about)))


async def list_names(store: Store) -> list[NamedImage]:
    """List the images by name; what is damaged or closed to this process is left out.

    Raises:
        BootseerError: the store does not answer: of a list with gaps, images would be removed.
    """
    found = []
    for info in await store.list("image-names"):
        if info.is_folder:
            continue
        name = unquote(info.name.rpartition("/")[2].removesuffix(".json"))
        with suppress(Corrupt, Denied, NotFound):
            found.append(_name(await read_all(store, info.name, _MAX_BYTES), name))
    return found


async def give_name(store: Store, name: str, digest: str, size_bytes: int) -> None:
    """Give an image of that size a name, which another may have had until now."""
    named = NamedImage(name, digest, size_bytes, time.time_ns())
    await publish(store, name_object(name), _encoded(_NAME_FORMAT, asdict(named)))
    # Behind the name: who removes the image looks at the names once he has said so.
    await revive(store, digest)


async def revive(store: Store, digest: str) -> None:
    """Have the bytes of an image stay that may have been removed."""
    with suppress(NotFound):
        await store.delete(_removed_object(digest))


async def remove(store: Store, reference: str, *, now: bool = False) -> tuple[str, bool]:
    """Take a name away; the image goes with its last name, or if it is named by its digest.

    Jobs that have it open can read on: its bytes go a day later, by `sweep`.

    Args:
        store: that has it.
        reference: the name, or the digest and with it all of its names.
        now: do not wait; jobs that have the image open fail.

    Returns:
        The digest, and whether the image has gone.

    Concurrency: a name that is given meanwhile keeps its image.
    """
    digest = await resolve(store, reference)
    name = reference.removeprefix(SCHEME)
    names = await _names_of(store, digest) if is_digest(name) else [name]
    for going in names:
        with suppress(NotFound):
            if await resolve(store, going) == digest:  # or it was given to another image
                await store.delete(name_object(going))
    if await _names_of(store, digest):
        return digest, False
    await publish(store, _removed_object(digest), b"")
    if await _names_of(store, digest):
        await revive(store, digest)
        return digest, False
    if now:
        await store.delete_tree(f"images/{digest}")
    return digest, True


async def sweep(store: Store, older_than_s: float = KEPT_S) -> list[str]:
    """Delete the bytes of images that were removed so long ago; returns their digests."""
    removed = await list_removed(store, older_than_s)
    return [digest for digest in removed if await drop(store, digest, older_than_s)]


async def list_removed(store: Store, older_than_s: float = KEPT_S) -> list[str]:
    """Return the digests of images that were removed so long ago: what `sweep` may delete."""
    folders = [folder.name.rpartition("/")[2] for folder in await store.list("images")]
    return [digest for digest in folders if await _is_removed(store, digest, older_than_s)]


async def drop(store: Store, digest: str, older_than_s: float = KEPT_S) -> bool:
    """Delete the bytes of an image that was listed as removed, and may have come back since.

    Returns:
        Whether they are gone; if not, the image has a name again, or somebody is adding it.
    """
    if await _names_of(store, digest):
        await revive(store, digest)
        return False
    if not await _is_removed(store, digest, older_than_s):
        return False
    with suppress(NotFound):
        await store.delete_tree(f"images/{digest}")
    return True


async def _names_of(store: Store, digest: str) -> list[str]:
    return [named.name for named in await list_names(store) if named.digest == digest]


async def _is_removed(store: Store, digest: str, older_than_s: float) -> bool:
    try:
        removed = await store.stat(_removed_object(digest))
    except NotFound:
        return False
    return time.time_ns() - removed.mtime_ns >= older_than_s * NS_PER_S


def _removed_object(digest: str) -> str:
    return f"images/{digest}/removed"


def _name(data: bytes, name: str) -> NamedImage:
    fields = open_document(data, f"the image name {name}", _NAME_FORMAT, VERSION)
    digest = fields.text("digest", 64)
    if fields.text("name", _MAX_NAME_CHARS) != name or not is_digest(digest):
        raise Corrupt(f"the image name {name} is damaged; give it again with `bootseer image tag`")
    return NamedImage(name, digest, fields.count("size_bytes"), fields.count("named_ns"))


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _encoded(kind: str, document: Mapping[str, object]) -> bytes:
    return json.dumps({"format": kind, "version": VERSION, **document}).encode() + b"\n"
