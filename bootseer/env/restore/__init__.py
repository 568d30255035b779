"""Restore a snapshot to its targets, atomically."""
