"""Build bootseer._squashfs, which serves images (run by setuptools through cffi_modules).

It is apart from bootseer._io because what runs as root must not load the libraries that it needs.
"""

import shlex
import shutil
import subprocess
from pathlib import Path

from cffi import FFI

# setuptools wants the sources relative to the project's folder, where it runs.
HERE = Path("c_ext/squashfs")
SOURCES = ("image.c", "codec.c", "lzo.c", "cache.c", "serve.c", "ahead.c")


def fuse(option: str) -> list[str]:
    """Return what the compiler has to be told of libfuse3; setup.py reports what is missing."""
    if shutil.which("pkg-config") is None:
        return []
    answer = subprocess.run(["pkg-config", option, "fuse3"], capture_output=True, text=True)
    return shlex.split(answer.stdout)


ffi = FFI()
ffi.cdef((HERE / "squashfs.cdef").read_text())
ffi.set_source(
    "bootseer._squashfs",
    '#include "serve.h"\n#include "ahead.h"',
    sources=[str(HERE / name) for name in SOURCES],
    include_dirs=[str(HERE)],
    libraries=["zstd", "lz4", "z"],
    define_macros=[("_GNU_SOURCE", None), ("_FILE_OFFSET_BITS", "64")],
    extra_compile_args=["-O2", "-Wall", "-Wextra", "-Wconversion", *fuse("--cflags")],
    extra_link_args=fuse("--libs"),
)
