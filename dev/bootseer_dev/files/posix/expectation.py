"""How an expectation is declared, and what its assertions have in common."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EXPECTATIONS: dict[str, Callable[[Path], None]] = {}


def expect(function: Callable[[Path], None]) -> Callable[[Path], None]:
    EXPECTATIONS[function.__name__] = function
    return function


@contextmanager
def fails(*numbers: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        names = [errno.errorcode[number] for number in numbers]
        assert error.errno in numbers, f"{error}, not {' or '.join(names)}"
    else:
        raise AssertionError(f"no error, not {errno.errorcode[numbers[0]]}")


@contextmanager
def open_fd(path: Path, flags: int, mode: int = 0o666) -> Iterator[int]:
    descriptor = os.open(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def equal(found: object, expected: object) -> None:
    assert found == expected, f"{found!r:.200}, not {expected!r:.200}"


def pattern(size_bytes: int) -> bytes:
    return bytes(range(251)) * (size_bytes // 251) + bytes(range(size_bytes % 251))
