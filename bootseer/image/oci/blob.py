"""Read a range of a file as what it is to be: decompressed, and checked against its digests."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, cast

import zstandard

from bootseer.errors import Corrupt, Unavailable
from bootseer.units import KIB, MIB, format_size

_READ_BYTES = 256 * KIB
_CHUNK_BYTES = MIB
MAX_WINDOW_BYTES = 128 * MIB
"""What decompressing one layer may take: zstd's own limit, reached by ``--ultra --long`` only."""

ProgressCallback = Callable[[int], None]
"""Told of bytes as they are read."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A range of a file that is open.

    Attributes:
        name: for messages.
        fd: of the file.
        offset: where it begins.
        size_bytes: of it.
    """

    name: str
    fd: int
    offset: int
    size_bytes: int

    def stream(self) -> ByteStream:
        """Read it from its start; what is skipped is not read."""
        return ByteStream(self.name, self.pieces(), self)

    def pieces(self, start: int = 0) -> Iterator[bytes]:
        """Read it piece by piece.

        Raises:
            Unavailable: it cannot be read, or became shorter.
        """
        at = start
        while at < self.size_bytes:
            size = min(_READ_BYTES, self.size_bytes - at)
            try:
                data = os.pread(self.fd, size, self.offset + at)
            except OSError as error:
                raise Unavailable(f"{self.name} cannot be read: {error.strerror}") from error
            if not data:
                raise Unavailable(f"{self.name} became shorter while it was read")
            yield data
            at += len(data)


class ByteStream:
    """A `tar.Stream` of pieces, which are joined and cut to the lengths asked for."""

    def __init__(self, name: str, pieces: Iterator[bytes], seekable: Blob | None = None) -> None:
        """Read the pieces; where they are those of a blob, it can be skipped in."""
        self._name = name
        self._pieces = pieces
        self._blob = seekable
        self._piece = memoryview(b"")
        self.position = 0

    def read(self, size: int) -> bytes:
        """Read `size` bytes; fewer only at the end."""
        return b"".join(self.chunks(size))

    def chunks(self, size: int) -> Iterator[memoryview]:
        """Read `size` bytes in pieces; fewer only at the end."""
        while size:
            if not self._piece:
                self._piece = memoryview(next(self._pieces, b""))
                if not self._piece:
                    return
            chunk, self._piece = self._piece[:size], self._piece[size:]
            self.position += len(chunk)
            size -= len(chunk)
            yield chunk

    def skip(self, size: int) -> None:
        """Pass over `size` bytes.

        Raises:
            Corrupt: there are fewer.
        """
        if self._blob is not None and size > len(self._piece):
            self.position += size
            if self.position <= self._blob.size_bytes:
                self._piece = memoryview(b"")
                self._pieces = self._blob.pieces(self.position)
                return
        elif sum(len(chunk) for chunk in self.chunks(size)) == size:
            return
        raise Corrupt(f"{self._name}: it ends within a member")


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's tar archive, perhaps compressed.

    Attributes:
        blob: where it is.
        digest: of the blob; "" where only that of the archive is known.
        diff_id: digest of the archive.
    """

    blob: Blob
    digest: str
    diff_id: str

    def archive(
        self, budget: DecompressionBudget, progress: ProgressCallback, *, again: bool = False
    ) -> Iterator[bytes]:
        """Read the archive piece by piece; at the end of it its digests have been checked.

        Args:
            budget: what of it may be unpacked.
            progress: told of compressed bytes.
            again: it was read before, so that one digest of the two is enough.

        Raises:
            Corrupt: it is damaged, or unpacks to more than it may.
            Unavailable: it is compressed by a way that is not understood, or cannot be read.
        """
        compressed = _compression(self.blob)
        raw = hashlib.sha256() if compressed and self.digest else None
        unpacked = hashlib.sha256() if raw is None or not again else None
        pieces = self._watched(raw, progress)
        for data in compressed(self.blob.name, pieces) if compressed else pieces:
            budget.take(self.blob.name, len(data))
            if unpacked is not None:
                unpacked.update(data)
            if data:
                yield data
        for _ in pieces:
            pass
        for wanted, digest in ((self.digest, raw), (self.diff_id, unpacked)):
            if digest is not None and wanted != f"sha256:{digest.hexdigest()}":
                raise Corrupt(
                    f"{self.blob.name} is damaged: its digest is not {wanted}; "
                    "fetch the image again"
                )

    def _watched(self, digest: hashlib._Hash | None, progress: ProgressCallback) -> Iterator[bytes]:
        for data in self.blob.pieces():
            if digest is not None:
                digest.update(data)
            progress(len(data))
            yield data


class DecompressionBudget:
    """How many bytes may still come out of what is compressed or has holes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._left_bytes = max_bytes

    def take(self, name: str, size_bytes: int) -> None:
        """Count bytes that came out of `name`.

        Raises:
            Corrupt: they are too many.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise Corrupt(
                f"{name}: the image unpacks to more than {format_size(self._max_bytes)}, which is "
                "the limit; raise it if that is right"
            )


def _compression(blob: Blob) -> Callable[[str, Iterator[bytes]], Iterator[bytes]] | None:
    """Choose by the first bytes, as everyone does: types in manifests are wrong at times."""
    head = blob.stream().read(6)
    if head.startswith(b"\x1f\x8b"):
        return _gunzip
    # A frame, or one to be skipped, with which zstd:chunked begins at times.
    if head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return _unzstd
    for magic, name in ((b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz")):
        if head.startswith(magic):
            raise Unavailable(
                f"{blob.name} is compressed with {name}; write the image again with gzip or zstd"
            )
    return None


def _gunzip(name: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    decoder, fresh = zlib.decompressobj(wbits=31), True
    try:
        for piece in pieces:
            if fresh:
                piece = piece.lstrip(b"\0")  # zeros may follow, to fill up a tape's block
            while piece:
                fresh = False
                yield decoder.decompress(piece, _CHUNK_BYTES)
                piece = decoder.unconsumed_tail
                if decoder.eof:  # and another member may follow
                    piece = decoder.unused_data.lstrip(b"\0")
                    decoder, fresh = zlib.decompressobj(wbits=31), True
        yield decoder.flush()
    except zlib.error as error:
        raise Corrupt(f"{name} is damaged: {error}") from error


def _unzstd(name: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(
        cast(IO[bytes], _PieceReader(pieces)), read_size=_READ_BYTES, read_across_frames=True
    )
    try:
        while data := reader.read(_CHUNK_BYTES):
            yield data
    except zstandard.ZstdError as error:
        raise Corrupt(f"{name} is damaged, or takes too much memory to unpack: {error}") from error


class _PieceReader:
    """Pieces as a file, which is what zstandard reads."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int) -> bytes:
        piece = next(self._pieces, b"")
        assert len(piece) <= size
        return piece
