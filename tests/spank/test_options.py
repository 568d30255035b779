"""The grammar of spank/options.c against its twin on the node, bootseer/slurm/options.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI
from hypothesis import example, given
from hypothesis import strategies as st

from bootseer.slurm import options

CDEF = """
const char *option_problem(int option, const char *value);
char *text_escape(char *out, size_t size, const char *in);
void name_to_key(char *out, const char *name);
"""
TWINS: list[Callable[[str], bool]] = [
    lambda key: key == "" or options.is_key(key),
    options.is_image,
    options.is_env,
    options.is_ckpt,
    options.is_wait,
]

# Values near the grammar's edges: arbitrary bytes alone would be refused at the first byte.
PIECES = st.sampled_from(
    [
        *(b"/", b"..", b".", b":", b"://", b":/", b"s3://", b"file", b"a", b"Z9", b"-", b"@+_"),
        *(b" ", b"\n", b"\x7f", b"\xc3\xa4", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"),
        *(b"\xff", b"0", b"3600", b"3601", b"x" * 128, b"x" * 4090, "٣".encode()),
    ]
)
VALUES = st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=8).map(b"".join)).map(
    lambda value: value.replace(b"\0", b"")
)


@pytest.fixture(scope="module")
def library(options_library: Path) -> tuple[FFI, Any]:
    ffi = FFI()
    ffi.cdef(CDEF)
    return ffi, ffi.dlopen(str(options_library))


@pytest.mark.parametrize("option", range(len(TWINS)))
@given(value=VALUES)
@example(value=b"")
@example(value=b"s3://b/c:/mnt")
@example(value=b"s3://b:/mnt/..")
@example(value=b"s3://a:/../b://c")
@example(value=b"s3://:/mnt")
@example(value=b"s3:///c")
@example(value=b"abcdefghijklmnop://x")
@example(value=b"abcdefghijklmnopq://x")
@example(value=b"/" + b"x" * 4094)
@example(value=b"/" + b"x" * 4095)
@example(value=b"/a/..")
@example(value=b"/..a")
@example(value=b"0003600")
@example(value=b"/\xf4\x8f\xbf\xbf")
@example(value=b"/\xf4\x90\x80\x80")
@example(value=b"/\xf0\x8f\xbf\xbf")
@example(value=b"/\xed\x9f\xbf\xee\x80\x80")
@example(value=b"/\xed\xa0\x80")
@example(value=b"/\xe0\x9f\xbf")
@example(value=b"/\xc1\xbf")
@example(value=b"/\xc3")
def test_both_sides_accept_the_same(library: tuple[FFI, Any], option: int, value: bytes) -> None:
    ffi, lib = library
    problem = lib.option_problem(option, value)
    # os.environ decodes like this on the node.
    accepted = TWINS[option](os.fsdecode(value))
    assert (problem == ffi.NULL) == accepted, ffi.string(problem) if problem else "accepted"


@given(name=st.binary(max_size=300).map(lambda name: name.replace(b"\0", b"")))
@example(name=b"-rf")
@example(name=b"...")
def test_a_name_becomes_a_key(library: tuple[FFI, Any], name: bytes) -> None:
    ffi, lib = library
    out = ffi.new("char[129]")
    lib.name_to_key(out, name)
    key = ffi.string(out).decode()
    assert key == "" if not name else options.is_key(key)
    if options.is_key(os.fsdecode(name)):
        assert key == os.fsdecode(name)


@given(text=st.binary(max_size=300).map(lambda t: t.replace(b"\0", b"")), size=st.integers(0, 400))
def test_escaped_text_is_printable_and_fits(
    library: tuple[FFI, Any], text: bytes, size: int
) -> None:
    ffi, lib = library
    out = ffi.new("char[]", b"\xaa" * 401)
    lib.text_escape(out, size, text)
    assert bytes(ffi.buffer(out, 402)[size:401]) == b"\xaa" * (401 - size)
    if size:
        shown = ffi.string(out).decode("ascii")
        assert shown.isprintable() and len(shown) < size
        whole = "".join(
            chr(b) if 0x20 <= b < 0x7F and b != ord("\\") else f"\\x{b:02x}" for b in text
        )
        assert (
            shown == whole or (shown.endswith("...") and whole.startswith(shown[:-3])) or size < 4
        )
