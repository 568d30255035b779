"""Memory that the kernel copies files to."""

import pytest

from bootseer._io import ffi
from bootseer.page_buffer import page_buffer


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 1_000_001])
def test_it_begins_at_a_page_and_is_as_long_as_asked(size_bytes):
    buffer = page_buffer(size_bytes)
    assert len(buffer) == size_bytes
    assert bytes(buffer) == bytes(size_bytes)
    assert int(ffi.cast("uintptr_t", ffi.from_buffer(buffer))) % 4096 == 0
    buffer[:] = b"x" * size_bytes
