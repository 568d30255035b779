import os
import shlex
import shutil
import subprocess
import sys
import sysconfig

from setuptools import setup

# What compiles or is preceded by that; making a source archive needs no headers.
BUILDS = {"dist_info", "bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}
NEEDED = {
    "Python.h": ("python3-dev", "python3-devel"),
    "lz4.h": ("liblz4-dev", "lz4-devel"),
    "xxhash.h": ("libxxhash-dev", "xxhash-devel"),
    "zlib.h": ("zlib1g-dev", "zlib-devel"),
    "zstd.h": ("libzstd-dev", "libzstd-devel"),
    # pyfuse3, which is compiled when it is installed, finds libfuse3 by pkg-config.
    "fuse3/fuse_lowlevel.h": ("libfuse3-dev", "fuse3-devel"),
}


def missing() -> list[tuple[str, str, str]]:
    """List what is missing to compile: its name, the package in Debian, and the one in RHEL."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        return [(f"a C compiler ({compiler[0]})", "gcc", "gcc")]
    command = [*compiler, *shlex.split(os.environ.get("CFLAGS", "")), "-E", "-x", "c", "-"]
    command += [f"-I{sysconfig.get_path('include')}", "-D_FILE_OFFSET_BITS=64"]
    found = []
    if shutil.which("pkg-config") is None:
        found.append(("pkg-config", "pkg-config", "pkgconf-pkg-config"))
        fuse = []
    else:
        answer = subprocess.run(["pkg-config", "--cflags", "fuse3"], capture_output=True, text=True)
        fuse = [] if answer.returncode else shlex.split(answer.stdout)
    for header, packages in NEEDED.items():
        options = ["-DFUSE_USE_VERSION=30", *fuse] if header.startswith("fuse3") else []
        text = f"#include <{header}>\n"
        done = subprocess.run([*command, *options], input=text, capture_output=True, text=True)
        if done.returncode:
            found.append((header, *packages))
    return found


if BUILDS.intersection(sys.argv) and (lacks := missing()):
    names, debian, rhel = (", ".join(column) for column in zip(*lacks, strict=True))
    sys.exit(
        f"\nBootSeer cannot be built: {names} not found. Install first:\n"
        f"  Debian, Ubuntu:  apt install {debian.replace(',', '')}\n"
        f"  RHEL:            dnf install {rhel.replace(',', '')}\n"
    )

# The one thing pyproject.toml cannot say: the C extensions are built by cffi.
setup(cffi_modules=["c_ext/build_io.py:ffi", "c_ext/squashfs/build_squashfs.py:ffi"])
