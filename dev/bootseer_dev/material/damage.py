"""Damage that is certain: a byte set to a fixed value may have had that value before."""

from __future__ import annotations

from pathlib import Path


def flipped(data: bytes, at: int = -1) -> bytes:
    """`data` with one bit of byte `at` changed."""
    damaged = bytearray(data)
    damaged[at] ^= 1
    return bytes(damaged)


def flip(path: Path, at: int = -1) -> None:
    """Change one bit of byte `at` of a file."""
    path.write_bytes(flipped(path.read_bytes(), at))
