"""Make bootseer-env, one file with `bootseer.env.client` for containers."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import bootseer

NAME = "bootseer-env"
_PARENTS = (
    *("__init__.py", "errors.py", "units.py", "env/__init__.py"),
    *("ipc/__init__.py", "ipc/typed_json.py"),
)
"""What `bootseer.env.client` imports besides itself, and where it is."""
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = b"import sys\nfrom bootseer.env.client.zipapp_main import main\nsys.exit(main())\n"


def build() -> bytes:
    """Return the content of the file; equal installations give equal bytes."""
    package = Path(bootseer.__file__).parent
    file = io.BytesIO()
    file.write(_SHEBANG)
    # Not compressed: it is small, and read by a Python that starts.
    with zipfile.ZipFile(file, "a") as archive:
        client = (path.relative_to(package) for path in (package / "env/client").rglob("*.py"))
        for module in [*_PARENTS, *sorted(map(str, client))]:
            _add(archive, f"bootseer/{module}", (package / module).read_bytes())
        _add(archive, "__main__.py", _MAIN)
    return file.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name), content)
