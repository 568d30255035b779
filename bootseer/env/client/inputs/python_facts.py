"""What a Python is: run in another Python by its source, or in this one.

Imports little, as the files of a container's Python may be slow to read and without byte code. It
runs on any Python 3.
"""

import _imp
import os
import sys


def python_facts(installer: str, path: "list[str]") -> "dict[str, str]":
    """Return the fields of `bootseer.env.client.inputs.probe.PythonFacts`.

    Args:
        installer: distribution whose version is wanted.
        path: folders with distributions.
    """
    if sys.implementation.name == "cpython":
        implementation, version = "CPython", sys.version.split()[0]
    else:
        import platform

        implementation, version = platform.python_implementation(), platform.python_version()
    return {
        "implementation": implementation,
        "version": version,
        "abi": _abi(),
        "platform": _platform(),
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "machine": os.uname().machine,
        "libc": _libc(),
        "installer": _version(installer, path),
    }


def _abi() -> str:
    suffix = _imp.extension_suffixes()[0]  # ".cpython-311-x86_64-linux-gnu.so"
    if suffix.startswith(".cpython-") and suffix.endswith(".so"):
        return suffix[1 : -len(".so")]
    import sysconfig

    return sysconfig.get_config_var("SOABI") or "unknown"


def _platform() -> str:
    if sys.platform == "linux" and "_PYTHON_HOST_PLATFORM" not in os.environ:
        return "linux-" + os.uname().machine
    import sysconfig

    return sysconfig.get_platform()


def _libc() -> str:
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        name = ""
    if name:
        return name
    import glob
    import platform
    import subprocess

    for loader in sorted(glob.glob("/lib/ld-musl-*.so.1")):
        done = subprocess.run([loader], stderr=subprocess.PIPE, timeout=5, check=False)
        said = done.stderr.decode().splitlines()
        return "musl " + "".join(line[8:] for line in said if line[:8] == "Version ")
    return " ".join(platform.libc_ver()).strip() or "unknown"


def _version(installer: str, path: "list[str]") -> str:
    """Return the version of a distribution, "none" without one."""
    for folder in path:
        names = _names(folder)
        for kind, file in ((".dist-info", "METADATA"), (".egg-info", "PKG-INFO")):
            for name in names:
                stem = name.lower()[: -len(kind)]
                if not name.endswith(kind) or _plain(stem.split("-")[0]) != _plain(installer):
                    continue
                found = os.path.join(folder, name)
                version = _field(os.path.join(found, file) if os.path.isdir(found) else found)
                if version:
                    return version
    if not any(folder.endswith((".egg", ".zip")) and os.path.exists(folder) for folder in path):
        return "none"
    try:
        import importlib.metadata

        return importlib.metadata.version(installer)
    except (ImportError, LookupError, OSError, ValueError):
        return "none"


def _names(folder: str) -> "list[str]":
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _field(path: str) -> str:
    """Return the version in the header of a distribution's metadata."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Version:"):
                    return line[len("Version:") :].strip()
                if not line.strip():
                    break
    except OSError:
        pass
    return ""
