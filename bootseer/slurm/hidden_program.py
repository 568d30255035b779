"""Find the programs that a link to one of ours hides."""

from __future__ import annotations

import os
from collections.abc import Iterator

_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where they are looked for, after the PATH."""


def hidden_programs(name: str, program: str) -> Iterator[str]:
    """Yield programs of a name, in the order of the PATH.

    Args:
        name: of the programs.
        program: path of ours, which is left out under whatever name.
    """
    ours = os.path.realpath(program)
    for folder in f"{os.environ.get('PATH', '')}:{_PATH}".split(":"):
        path = f"{folder}/{name}"
        if folder.startswith("/") and os.access(path, os.X_OK) and os.path.realpath(path) != ours:
            yield path
