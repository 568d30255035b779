"""Simulated actors: many at once, that fail, die and lose power."""
