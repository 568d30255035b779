"""Memory for large pieces of data."""

import subprocess
import sys

import pytest

from bootseer._io import ffi
from bootseer.large_buffers import page_buffer


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 1_000_001])
def test_it_begins_at_a_page_and_is_as_long_as_asked(size_bytes):
    buffer = page_buffer(size_bytes)
    assert len(buffer) == size_bytes
    assert bytes(buffer) == bytes(size_bytes)
    assert int(ffi.cast("uintptr_t", ffi.from_buffer(buffer))) % 4096 == 0
    buffer[:] = b"x" * size_bytes


BUFFERS = """
import ctypes, sys, threading
from bootseer.large_buffers import keep_large_buffers
if sys.argv[1] == "kept":
    keep_large_buffers()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    _fields_ = [(name, ctypes.c_size_t) for name in names]
libc.mallinfo2.restype = Info
before = libc.mallinfo2().hblks
buffer = libc.malloc(48 << 20)
mapped = libc.mallinfo2().hblks - before
libc.free(buffer)
thread = threading.Thread(target=lambda: libc.free(libc.malloc(1 << 16)))
thread.start(); thread.join()
print(mapped, libc.mallinfo2().keepcost >> 20, flush=True)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.parametrize("is_kept", [True, False])
def test_large_buffers_are_used_again(is_kept):
    """They are neither mapped again each time nor given back, and threads share them."""
    argv = [sys.executable, "-P", "-c", BUFFERS, "kept" if is_kept else ""]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    mapped, left_mib = map(int, told.split()[:2])
    assert (mapped == 0) == is_kept
    assert (left_mib >= 48) == is_kept
    assert (told.count("<heap nr=") == 1) == is_kept
