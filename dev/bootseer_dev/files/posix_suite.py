"""What programs expect of a directory: a table that any mounted file system can be held against.

Each expectation is a function with a folder of its own; it raises AssertionError or OSError where
the file system disappoints it. A tmpfs meets all of them. They run in a process of their own,
never in the one that serves the file system:

    python -m bootseer_dev.files.posix_suite FOLDER [EXPECTATION...]

prints a JSON object of each expectation's name and null, or what was wrong.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bootseer_dev.files.posix import (  # noqa: F401 (they declare expectations)
    attributes,
    content,
    folders,
    opening,
    processes,
    renaming,
)
from bootseer_dev.files.posix.expectation import EXPECTATIONS

MODULE = "bootseer_dev.files.posix_suite"


def check(folder: Path, names: Sequence[str] = ()) -> dict[str, str | None]:
    """Hold a folder against expectations, by default all; each makes and removes a folder in it.

    Returns:
        For each name None, or what was wrong.
    """
    found: dict[str, str | None] = {}
    for name in names or EXPECTATIONS:
        place = folder / name
        place.mkdir()
        try:
            EXPECTATIONS[name](place)
        except (AssertionError, OSError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = None
        shutil.rmtree(place)
    return found


def run(folder: Path, uid: int, gid: int, names: Sequence[str] = ()) -> dict[str, str | None]:
    """Do `check` in a process of a user's, who must be able to read this package.

    Raises:
        subprocess.CalledProcessError: the suite could not run to its end.
    """
    command = [sys.executable, "-m", MODULE, str(folder), *names]
    done = subprocess.run(
        command, user=uid, group=gid, extra_groups=[], cwd="/", check=True, stdout=subprocess.PIPE
    )
    result: dict[str, str | None] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    print(json.dumps(check(Path(sys.argv[1]), sys.argv[2:]), indent=2))
