"""Serve an image block by block: from the node cache, and from the store what is missing."""
