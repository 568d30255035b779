"""Make bootseer-env, the file with which containers have `env run`: see `bootseer.env.app`."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import bootseer

NAME = "bootseer-env"
_MODULES = (
    *("__init__", "errors", "units", "env/__init__", "env/app", "env/command", "env/content"),
    *("env/gather", "env/interpreter", "env/key", "env/leftovers", "env/named", "env/probe"),
    *("env/reads", "env/record", "env/run", "env/settings", "env/shell", "env/target_lock"),
    "env/tree",
)
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = b"import sys\nfrom bootseer.env.app import main\nsys.exit(main())\n"


def build() -> bytes:
    """Return its content; equal installations give equal bytes."""
    package = Path(bootseer.__file__).parent
    file = io.BytesIO()
    file.write(_SHEBANG)
    # Not compressed: it is small, and read by a Python that starts.
    with zipfile.ZipFile(file, "a") as archive:
        for module in _MODULES:
            _add(archive, f"bootseer/{module}.py", (package / f"{module}.py").read_bytes())
        _add(archive, "__main__.py", _MAIN)
    return file.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name), content)
