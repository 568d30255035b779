"""What a supervisor asks the lender of the block cache for, see `bootseer.agent.lender`.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from bootseer.ipc.request import Verbs


@dataclass(frozen=True, slots=True)
class OpenEntry:
    """Open an image's entry in the block cache, found by its token.

    Reply: descriptors of manifest, data and map for readers, of data, map and claims for the
    keeper, and a socket on which the keeper asks for room, see `bootseer.cache.reservation`. The
    entry is in use until that is closed. The value is how much there is in the cache's folder that
    is no part of it.
    """

    token: bytes


@dataclass(frozen=True, slots=True)
class CreateEntry:
    """Open an image's entry, given its manifest: with a descriptor of that in sealed memory.

    What is missing of the entry is made. Reply: as for `OpenEntry`.

    Attributes:
        manifest_bytes, image_bytes, blocks: see `bootseer.cache.size`.
    """

    manifest_bytes: int
    image_bytes: int
    blocks: int


VERBS = Verbs(OpenEntry, CreateEntry)
DESCRIPTORS = 7
"""With the reply to either."""
