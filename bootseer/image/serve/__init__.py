"""Serve an image block by block: from the node's cache, and missing blocks from the store."""
