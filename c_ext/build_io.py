"""Build bootseer._io, the C extension (run by setuptools through cffi_modules)."""

from pathlib import Path

from cffi import FFI

# setuptools wants the sources relative to the project's folder, where it runs.
HERE = Path("c_ext")
SOURCES = (
    "residency.c",
    "readahead.c",
    "priority.c",
    "privilege.c",
    "seccomp.c",
    "landlock.c",
    "file_handle.c",
    "mount.c",
    "usermount.c",
    "fastpath.c",
    "tree.c",
    "tree_check.c",
    "blocks.c",
    "unpack.c",
    "remove.c",
)

ffi = FFI()
ffi.cdef((HERE / "io.cdef").read_text())
ffi.set_source(
    "bootseer._io",
    '#include "io.h"',
    sources=[str(HERE / name) for name in SOURCES],
    include_dirs=[str(HERE)],
    libraries=["lz4"],
    define_macros=[("_GNU_SOURCE", None), ("_FILE_OFFSET_BITS", "64")],
    extra_compile_args=["-O2", "-Wall", "-Wextra", "-Wconversion", "-Wno-unused-parameter"],
)
