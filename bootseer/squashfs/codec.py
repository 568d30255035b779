"""Decompress blocks of a squashfs, with the image's compressor.

Every call limits the decompressed size, so that a small block cannot use much memory.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable

import lz4.block

from bootseer.errors import Corrupt, Unavailable

Decompress = Callable[[bytes, int], bytes]
"""Decompresses a block of at most so many decompressed bytes."""

LZ4 = 5
"""Number of lz4 in a superblock."""

_NAMES = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}


def decompressor(compressor: int) -> Decompress:
    """Return the decompression function of a compressor; it raises Corrupt.

    Args:
        compressor: its number in the superblock.

    Raises:
        Unavailable: the compressor is unknown, or its package is missing.
    """
    try:
        read = _find(_NAMES.get(compressor, ""))
    except ImportError as error:
        raise Unavailable(
            f"the image is compressed with {_NAMES[compressor]}, and the Python package "
            f"{error.name} that reads it is missing: pip install 'bootseer[lzo]'"
        ) from error
    if read is None:
        raise Unavailable(f"the image uses an unknown compressor, number {compressor}")

    def checked(data: bytes, most_bytes: int) -> bytes:
        try:
            found = read(data, most_bytes)
        except Exception as error:
            raise Corrupt(f"a block of the image cannot be decompressed: {error}") from error
        if len(found) > most_bytes:
            raise Corrupt("a block of the image decompresses to more than it may")
        return found

    return checked


def _find(name: str) -> Decompress | None:
    if name == "gzip":
        return lambda data, most: zlib.decompressobj().decompress(data, most + 1)
    if name == "xz":
        return lambda data, most: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY).decompress(
            data, most + 1
        )
    if name == "lzma":
        return lambda data, most: lzma.LZMADecompressor(lzma.FORMAT_ALONE, _XZ_MEMORY).decompress(
            data, most + 1
        )
    if name == "zstd":
        return _zstd()
    if name == "lz4":
        return lambda data, most: bytes(lz4.block.decompress(data, uncompressed_size=most))
    if name == "lzo":
        import lzallright

        lzo = lzallright.LZOCompressor()
        return lambda data, most: bytes(lzo.decompress(data, output_size_hint=most))
    return None


_ZSTD_WINDOW = 8 << 20
_XZ_MEMORY = 64 << 20
"""Limit for xz: a block's dictionary is at most 1 MiB, unless its header is malicious."""


def _zstd() -> Decompress:
    import zstandard

    def read(data: bytes, most: int) -> bytes:
        if zstandard.frame_content_size(data) > most:
            raise ValueError("it is longer than it may be")
        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        return reader.decompress(data, max_output_size=most)

    return read
