"""What nodes read of their checkpoints, in the store."""

from __future__ import annotations

from bootseer.core.access_log import MAX_BYTES, NodeReads, decode, object_name
from bootseer.errors import NotFound
from bootseer.store.api.base import Store, publish, read_all


async def read_reads(store: Store, user: str, key: str, nodes: int, node: int) -> NodeReads | None:
    """Read what a node of a job reads; None when it is not known yet.

    Raises:
        Corrupt: it is damaged or not this user's and key's; the next epilog replaces it.
    """
    name = object_name(key, nodes, node)
    try:
        data = await read_all(store, name, MAX_BYTES)
    except NotFound:
        return None
    return decode(data, name, user, key)


async def publish_reads(store: Store, reads: NodeReads) -> None:
    """Keep what a node of a job has read, in the place of what was known of it."""
    await publish(store, object_name(reads.key, reads.nodes, reads.node), reads.encode())
