"""Records of what nodes read of their checkpoints, in the store."""

from __future__ import annotations

from bootseer.core.access_log import MAX_BYTES, NodeReads, decode, object_name
from bootseer.errors import NotFound
from bootseer.store.api.base import Store, publish, read_all


async def read_reads(store: Store, user: str, key: str, nodes: int, node: int) -> NodeReads | None:
    """Read the record of a node of a job; None if there is none yet.

    Raises:
        Corrupt: it is damaged, or of another user or key; the next epilog replaces it.
    """
    name = object_name(key, nodes, node)
    try:
        data = await read_all(store, name, MAX_BYTES)
    except NotFound:
        return None
    return decode(data, name, user, key)


async def publish_reads(store: Store, reads: NodeReads) -> None:
    """Write the record of a node of a job, in place of an older one."""
    await publish(store, object_name(reads.key, reads.nodes, reads.node), reads.encode())
