"""Checkpoints: a tree of the store, read by many streams at once and written in stripes."""
