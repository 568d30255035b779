"""Read from a Slurm plugin for which release of Slurm it was compiled.

Slurm compares the symbol ``plugin_version`` with its own release, in the first two of three
numbers for SPANK plugins, and refuses others (its src/common/plugin.c). The symbol is read from
the file: loading a library would run its code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_MAX_BYTES = 64 << 20
_SYMBOL = b"plugin_version"
_DYNSYM = 11
"""Type of the section with the symbols that dlsym(3) finds."""


def plugin_release(path: Path) -> str:
    """Return the release that a plugin was compiled for, such as "22.05.8".

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no 64-bit library of this machine's byte order with that symbol.
    """
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES)
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        address = next(_addresses(data, _SYMBOL))
        (number,) = struct.unpack_from("<I", data, _offset(data, address))
    except (struct.error, StopIteration, IndexError) as error:
        raise ValueError("no plugin_version: not a Slurm plugin, or a damaged one") from error
    return f"{number >> 16 & 255}.{number >> 8 & 255:02d}.{number & 255}"


def is_loadable(plugin: str, slurm: str) -> bool:
    """Tell whether a release of Slurm loads a SPANK plugin of another: major and minor count."""
    return plugin.split(".")[:2] == slurm.split(".")[:2]


def _addresses(data: bytes, name: bytes) -> Iterator[int]:
    """Yield the addresses of a dynamic symbol; Elf64_Shdr and Elf64_Sym are in elf(5)."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    width, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + width * n) for n in range(count)]
    for _, kind, _, _, start, size, link, _, _, _ in sections:
        if kind != _DYNSYM:
            continue
        names = sections[link][4]
        for at in range(start, start + size, 24):
            name_at, _, _, index, address, _ = struct.unpack_from("<IBBHQQ", data, at)
            if index and data.startswith(name + b"\0", names + name_at):
                yield address


def _offset(data: bytes, address: int) -> int:
    """Return where the file has what is loaded at an address."""
    (table,) = struct.unpack_from("<Q", data, 0x20)
    width, count = struct.unpack_from("<HH", data, 0x36)
    for number in range(count):
        kind, _, start, virtual, _, length, _, _ = struct.unpack_from(
            "<IIQQQQQQ", data, table + width * number
        )
        if kind == 1 and virtual <= address < virtual + length:
            return int(start + address - virtual)
    raise ValueError("the symbol is in no part of the file that is loaded")
