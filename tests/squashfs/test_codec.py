"""Blocks decompressed by each compressor: all that may come out, and never more."""

from __future__ import annotations

import lzma
import sys
import zlib
from collections.abc import Callable

import lz4.block
import lzallright
import pytest
import zstandard

from bootseer.errors import Corrupt, Unavailable
from bootseer.squashfs.codec import LZ4, decompressor

CONTENT = b"content " * 100
COMPRESS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, zlib.compress),
    "lzma": (2, lambda data: lzma.compress(data, lzma.FORMAT_ALONE)),
    "lzo": (3, lambda data: bytes(lzallright.LZOCompressor().compress(data))),
    "xz": (4, lzma.compress),
    "lz4": (LZ4, lambda data: bytes(lz4.block.compress(data, store_size=False))),
    "zstd": (6, zstandard.compress),
    "zstd of unknown length": (
        6,
        lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
    ),
}


@pytest.mark.parametrize("name", COMPRESS)
def test_a_block_is_decompressed_up_to_the_limit(name: str) -> None:
    number, compress = COMPRESS[name]
    data = compress(CONTENT)
    assert len(data) < len(CONTENT)
    assert decompressor(number)(data, len(CONTENT)) == CONTENT
    assert decompressor(number)(data, 2 * len(CONTENT)) == CONTENT
    for most_bytes in (0, 1, len(CONTENT) - 1):
        with pytest.raises(Corrupt, match=r"more than it may|cannot be decompressed"):
            decompressor(number)(data, most_bytes)


@pytest.mark.parametrize("name", COMPRESS)
def test_an_invalid_block_is_damaged(name: str) -> None:
    with pytest.raises(Corrupt, match=r"cannot be decompressed: ."):
        decompressor(COMPRESS[name][0])(b"\xff" * 20, 100)


@pytest.mark.parametrize(("number", "name"), [(3, "lzo"), (6, "zstd")])
def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    package = {"lzo": "lzallright", "zstd": "zstandard"}[name]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Unavailable, match=f"compressed with {name}, .* package {package} "):
        decompressor(number)


@pytest.mark.parametrize("number", [0, 7])
def test_another_compressor_is_unknown(number: int) -> None:
    with pytest.raises(Unavailable, match=f"unknown compressor, number {number}"):
        decompressor(number)
