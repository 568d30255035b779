"""Open an image as the job's user, and name what is in it without reading it all.

The identity digest of a squashfs covers its superblock and all its tables: a few MB of a file of
several GB, and the very blocks that every start reads first. The tables hold the compressed length
and place of every data block, all names, sizes and times, so an image that was built again has
another digest. Someone could make two images with equal tables and different data on purpose;
nothing is lost then, because the digest decides only which ranges are read *ahead*: every byte a
job sees still comes from its own file. (docs/design/003-image-identity.md)
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bootseer.core.ranges import ByteRange, split
from bootseer.errors import BootseerError, Denied, NotFound, Unavailable
from bootseer.fuse.mountinfo import read_mounts
from bootseer.image.hot.residency import MAX_FILE_BYTES
from bootseer.posix import read_fully
from bootseer.squashfs.superblock import SUPERBLOCK_BYTES, find_tables
from bootseer.units import KIB, MIB

MAX_TABLE_BYTES = 64 * MIB
"""Larger tables count with as much of their start and of their end as fits in this."""

_PIECE_BYTES = 128 * KIB
"""One request of most file systems, so that all of the tables is on its way at once."""
_STREAMS = 16
_SAMPLES = 32
_SAMPLE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class OpenImage:
    """An image file opened for reading; the descriptor is the holder's to close."""

    path: str
    fd: int
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What an image is, and the ranges that had to be read to say so.

    Attributes:
        digest: ``sqfs1-`` (superblock and tables) or ``file1-`` (samples) and 64 hex digits.
        leading: superblock and tables, what every start reads first; empty when not a squashfs.
    """

    digest: str
    leading: tuple[ByteRange, ...]


def open_image(path: str) -> OpenImage:
    """Open an image with the rights of this process.

    Raises:
        NotFound, Denied, Unavailable: with what to do about it.
    """
    if not path.startswith("/"):
        raise Unavailable(
            f"image {path} is a URI: give it with --bootseer-image; nothing is warmed"
        )
    try:
        # Not blocking: a FIFO in place of the image must not hold anyone up.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise _translate(path, error) from error
    except ValueError as error:
        raise NotFound(f"image {path!a} cannot be the name of a file") from error
    if not _is_answered_for(fd):
        # Stays open: closing asks the server as well.
        raise Unavailable(
            f"image {path} is on a file system that root did not mount on this node; its server "
            "is not trusted, so the image is not warmed"
        )
    try:
        info = os.fstat(fd)
    except OSError as error:
        os.close(fd)
        raise _translate(path, error) from error
    if not stat.S_ISREG(info.st_mode) or not 0 < info.st_size <= MAX_FILE_BYTES:
        os.close(fd)
        raise Unavailable(f"image {path} is not a regular file of up to {MAX_FILE_BYTES} bytes")
    return OpenImage(path, fd, info.st_size, info.st_mtime_ns)


def has_image(path: str) -> bool:
    """Return whether a file begins as a squashfs or a SIF does.

    Raises:
        NotFound, Denied, Unavailable: as for `open_image`.
        Corrupt: it says squashfs and its tables do not lie inside the file.
    """
    image = open_image(path)
    try:
        head = _read(image, ByteRange(0, min(SUPERBLOCK_BYTES, image.size_bytes)))
        return find_tables(head, image.size_bytes) is not None or is_sif(head)
    finally:
        os.close(image.fd)


def is_sif(head: bytes) -> bool:
    """Return whether a file that begins so is an image of Apptainer."""
    return head[32:41] == b"SIF_MAGIC"


def open_served(path: str, size_bytes: int) -> OpenImage:
    """Open an image on a mount of the agent's, to read ahead of those who wait for it.

    Raises:
        NotFound, Unavailable: it is not served any more.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
    except OSError as error:
        raise _translate(path, error) from error
    return OpenImage(path, fd, size_bytes, 0)


def _is_answered_for(fd: int) -> bool:
    """Whether an open file lies on a mount that root has made, found without a word to its server.

    The server of a FUSE mount can leave any request unanswered, even the one that closing sends,
    and neither the deadline nor the death of the waiting process ends that: the agent would hang.
    What a user mounts in a namespace of their own is not in our list of mounts.
    """
    with open(f"/proc/self/fdinfo/{fd}") as file:
        about = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    for mount in read_mounts():
        if mount.mount_id == about["mnt_id"]:
            return not mount.kind.startswith("fuse") or "user_id=0" in mount.options.split(",")
    return False


def identify(image: OpenImage) -> Identity:
    """Compute the identity digest; reads superblock and tables with several reads at once.

    Raises:
        Corrupt: it says squashfs and its tables do not lie inside the file.
        Unavailable: it cannot be read.
    """
    superblock = ByteRange(0, min(SUPERBLOCK_BYTES, image.size_bytes))
    with ThreadPoolExecutor(_STREAMS) as pool:
        tables = find_tables(_read(image, superblock), image.size_bytes)
        if tables is None:
            return Identity(_digest("file1", image, _samples(image), pool, image.mtime_ns), ())
        counted = [superblock, *_ends(tables)]
        return Identity(_digest("sqfs1", image, counted, pool), (superblock, tables))


def _digest(
    scheme: str,
    image: OpenImage,
    ranges: Iterable[ByteRange],
    pool: ThreadPoolExecutor,
    mtime_ns: int = 0,
) -> str:
    # Cut to 64 bits: a file's time can be before 1970, and after all that 64 bits can count.
    digest = hashlib.sha256(struct.pack("<QQ", image.size_bytes, mtime_ns & 0xFFFFFFFFFFFFFFFF))
    pieces = [piece for r in ranges for piece in split(r, _PIECE_BYTES)]
    for data in pool.map(lambda piece: _read(image, piece), pieces):
        digest.update(data)
    return f"{scheme}-{digest.hexdigest()}"


def _ends(tables: ByteRange) -> list[ByteRange]:
    if tables.size_bytes <= MAX_TABLE_BYTES:
        return [tables]
    half = MAX_TABLE_BYTES // 2
    return [
        ByteRange(tables.start, tables.start + half),
        ByteRange(tables.stop - half, tables.stop),
    ]


def _samples(image: OpenImage) -> list[ByteRange]:
    last = max(0, image.size_bytes - _SAMPLE_BYTES)
    starts = sorted({last * i // (_SAMPLES - 1) for i in range(_SAMPLES)})
    return [ByteRange(s, min(image.size_bytes, s + _SAMPLE_BYTES)) for s in starts]


def _read(image: OpenImage, piece: ByteRange) -> bytes:
    try:
        data = read_fully(image.fd, piece.start, piece.size_bytes)
    except OSError as error:
        raise _translate(image.path, error) from error
    if len(data) < piece.size_bytes:
        raise Unavailable(f"image {image.path} became shorter while it was read")
    return data


def _translate(path: str, error: OSError) -> BootseerError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound(f"image {path} does not exist on this node")
    if isinstance(error, PermissionError):
        return Denied(f"image {path} may not be read by the job's user")
    return Unavailable(f"image {path} cannot be read: {error.strerror}")
