"""Mounted snapshots: the content that the fast path cannot answer, and the hot files."""
