"""What an image is called: by container runtimes, by jobs, and in a store.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import re

SCHEME = "bootseer://"
DOCKER = "docker://"
ENVIRONMENT = "env://"
"""Before the key of an environment that is mounted, as images are."""
_USER = re.compile(r"\Adocker://[^@/#]+@(?!sha256:)")


def reference(uri: str) -> str:
    """Return the one way in which an image is named that several URIs are of.

    Pyxis puts ``docker://`` before all that it does not know: ``docker://bootseer://train:v2`` is
    ``bootseer://train:v2``. In ``docker://USER@REGISTRY#IMAGE:TAG`` the user says who asks, not
    what for, and is left out. Everything else stays as it is, ``#`` and missing tags too.
    """
    named = uri.removeprefix(DOCKER)
    return named if named.startswith(SCHEME) else _USER.sub(DOCKER, uri)
