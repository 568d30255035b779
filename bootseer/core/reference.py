"""Normalize the names that container runtimes, jobs and stores use for an image.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import re

SCHEME = "bootseer://"
DOCKER = "docker://"
ENVIRONMENT = "env://"
"""URI prefix of an environment, before its key."""
_USER = re.compile(r"\Adocker://[^@/#]+@(?!sha256:)")


def reference(uri: str) -> str:
    """Return the canonical form of an image's URI.

    Pyxis prepends ``docker://`` to unknown URIs: ``docker://bootseer://train:v2`` is
    ``bootseer://train:v2``. In ``docker://USER@REGISTRY#IMAGE:TAG`` the user is only a login name,
    and is removed. Everything else is kept, including ``#`` and missing tags.
    """
    named = uri.removeprefix(DOCKER)
    return named if named.startswith(SCHEME) else _USER.sub(DOCKER, uri)
