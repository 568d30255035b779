"""Requests from the supervisor to the block cache's lender.

Imports the standard library only.
"""

from __future__ import annotations

from typing import NamedTuple

from bootseer.ipc.request import Verbs


class OpenEntry(NamedTuple):
    """Open an image's entry in the block cache by its token.

    Reply: descriptors of manifest, data and map for readers; of data, map and claims for the
    keeper; and the keeper's socket for reservations, see `bootseer.cache.reservation`. The
    entry is in use until that socket is closed. The value is the number of foreign files in the
    cache's folder.
    """

    token: bytes


class CreateEntry(NamedTuple):
    """Open or create an image's entry; with a descriptor of its manifest in sealed memory.

    Missing files of the entry are created. Reply: as for `OpenEntry`.

    Attributes:
        manifest_bytes, image_bytes, blocks: see `bootseer.cache.size`.
    """

    manifest_bytes: int
    image_bytes: int
    blocks: int


VERBS = Verbs(OpenEntry, CreateEntry)
DESCRIPTORS = 7
"""Descriptors in the reply to either request."""
